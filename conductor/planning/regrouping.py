"""Other groups for the tasks of a module that runs: more or fewer threads, on the same workers.

Tasks stay where they are, so nothing travels. What changes is which of them share a log, and that needs a
moment in which no log grows:

1. The assignment names the *next* grouping (:func:`regrouped`), with a number that no other ever had. The
   leader of each present group seals its log for it, by an entry: whoever leads from then on has that, and
   takes no append, whatever it has heard of the assignment.
2. A worker that has applied the seals of all groups that a next group takes tasks from prepares its replica
   of that, and registers it. When all are (:func:`unprepared`), the assignment says that the next grouping is
   *closing* in.
3. Workers hear so, show nothing more to readers, and say it in their registrations. When the leader of every
   present group is one that said so (:func:`unclosed`), one transaction puts the next grouping in force: its
   assignment, its groups' records, and the records of the present ones deleted. It is conditional on the
   versions of the latter, so that the leaders are those that closed.

Until then it can be abandoned. The assignment names the number as abandoned, and a leader that *reads* so
unseals its log. That it does not mention a number says nothing: it may be an old assignment.

Everything that is needed to go on is in the metastore. Planning is a function of its arguments: no clock, no
chance, no metastore. ``tests/sim/regrouping.py`` is a model of all of it, with mutants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.conductor.planning.assignment import preferring
from stretto.errors import UsageError
from stretto.replog.core.record import GroupRecord, Member
from stretto.specs.assignments import Assignment, GroupPlan, NextGrouping, run_of
from stretto.vocabulary.types import Epoch, WorkerId
from stretto.zk.znodes.records import WorkerRegistration


def regrouped(assignment: Assignment, *, threads: int, generation: int, now_ms: int) -> NextGrouping:
    """Put the same tasks into ``threads`` groups, each where all its tasks are.

    Raises UsageError if that cannot be.
    """
    tasks = assignment.tasks
    if not 1 <= threads <= tasks:
        raise UsageError(f"{tasks} tasks cannot occupy {threads} threads; ask for 1 to {tasks}")
    slots = _slots(assignment, threads)
    if slots is None:
        possible = possible_threads(assignment)
        workers = len({frozenset(replicas) for replicas in assignment.groups})
        raise UsageError(
            f"{threads} threads would need tasks of different workers together; with {workers} workers ask "
            f"for {', '.join(map(str, possible[:-1]))} or {possible[-1]} threads, or scale to 1 worker first"
        )
    return NextGrouping(generation=generation, groups=preferring(slots, assignment.workers), began_ms=now_ms)


def possible_threads(assignment: Assignment) -> tuple[int, ...]:
    """The numbers of groups into which the tasks can be regrouped where they are."""
    return tuple(each for each in range(1, assignment.tasks + 1) if _slots(assignment, each) is not None)


def _slots(assignment: Assignment, threads: int) -> list[tuple[int, ...]] | None:
    """The workers that hold each of ``threads`` groups, in turn; None if no worker holds all tasks of one."""
    homes = {task: number for number in range(len(assignment.groups)) for task in assignment.tasks_of(number)}
    slots = []
    for number in range(threads):
        held = {
            frozenset(assignment.groups[homes[task]]) for task in run_of(assignment.tasks, threads, number)
        }
        if len(held) > 1:
            return None
        slot = sorted(held.pop())
        first = number % len(slot)
        slots.append((*slot[first:], *slot[:first]))
    return slots


def unprepared(
    plans: Sequence[GroupPlan], workers: Mapping[WorkerId, WorkerRegistration]
) -> tuple[WorkerId, ...]:
    """Workers that have not registered all their replicas of a next grouping."""
    return tuple(
        sorted(
            {
                worker
                for plan in plans
                for worker in plan.replicas
                if worker not in workers or workers[worker].storage_of(plan.key) is None
            }
        )
    )


def unclosed(
    records: Sequence[GroupRecord | None], grouping: int, workers: Mapping[WorkerId, WorkerRegistration]
) -> tuple[int, ...]:
    """Present groups that may still be read: their leader has not reported that it shows nothing more."""

    def is_closed(record: GroupRecord | None) -> bool:
        if record is None or record.leader is None:
            return False
        leader = workers.get(record.leader)
        return (
            leader is not None
            and leader.incarnation == record.leader_incarnation
            and leader.closed == grouping
        )

    return tuple(number for number, record in enumerate(records) if not is_closed(record))


def record_of(
    plan: GroupPlan, before: Sequence[GroupRecord], workers: Mapping[WorkerId, WorkerRegistration]
) -> GroupRecord:
    """The first record of a next group, all of whose replicas are prepared.

    Its epochs go on from the highest of the old ones, so that those of a task never go back.
    """
    members = [Member(worker, workers[worker].members[str(plan.key)]) for worker in plan.replicas]
    return GroupRecord(
        epoch=max((record.epoch for record in before), default=Epoch(0)),
        leader=None,
        leader_incarnation=None,
        isr=tuple(sorted(members)),
        plan=plan.number,
        factor=len(plan.replicas),
    )
