from __future__ import annotations

import msgspec
import pytest

from stretto.conductor.planning.assignment import assign
from stretto.conductor.planning.regrouping import record_of, regrouped, unclosed, unprepared
from stretto.errors import UsageError
from stretto.replog.core.record import GroupRecord, Member
from stretto.specs.assignments import Assignment, plans_of
from stretto.vocabulary.types import Epoch, Incarnation, StorageId, WorkerId
from stretto.zk.znodes.records import WorkerRegistration

NODES = {"n1": 0, "n2": 0, "n3": 0}


def assignment(*, tasks: int = 8, threads: int = 4, workers: int = 2, factor: int = 3) -> Assignment:
    return assign(
        "m", generation=3, tasks=tasks, threads=threads, workers=workers, factor=factor, processes=NODES
    )


def after(before: Assignment, threads: int) -> Assignment:
    following = regrouped(before, threads=threads, generation=9, now_ms=0)
    found = msgspec.structs.replace(before, next=following).following
    assert found is not None
    return found


def homes(found: Assignment) -> dict[int, frozenset[WorkerId]]:
    """Who holds each task."""
    return {
        task: frozenset(replicas)
        for number, replicas in enumerate(found.replicas)
        for task in found.tasks_of(number)
    }


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("threads", range(1, 17))
def test_tasks_stay_where_they_are_or_it_is_refused(workers: int, threads: int) -> None:
    before = assignment(tasks=16, threads=12, workers=workers)
    try:
        found = after(before, threads)
    except UsageError:
        assert workers > 1
        return
    assert (len(found.groups), found.generation) == (threads, 9)
    assert homes(found) == homes(before)
    assert found.workers == before.workers


def test_all_numbers_of_threads_are_possible_on_one_worker() -> None:
    before = assignment(tasks=8, threads=3, workers=1)
    assert [len(after(before, threads).groups) for threads in range(1, 9)] == list(range(1, 9))


def test_preferred_leaders_are_spread_over_the_nodes() -> None:
    found = after(assignment(tasks=16, threads=1, workers=1), 6)
    leaders = [found.nodes[replicas[0]] for replicas in found.replicas]
    assert sorted(leaders) == ["n1", "n1", "n2", "n2", "n3", "n3"]


def test_what_would_need_tasks_of_different_workers_is_refused_with_what_is_possible() -> None:
    before = assignment(tasks=8, threads=4, workers=2)
    with pytest.raises(
        UsageError, match=r"with 2 workers ask for 2, 4, 5, 6, 7 or 8 threads, or scale to 1 worker"
    ):
        after(before, 3)


@pytest.mark.parametrize("threads", [0, -1, 9])
def test_a_number_beyond_the_tasks_is_refused(threads: int) -> None:
    with pytest.raises(UsageError, match=r"8 tasks cannot occupy -?\d threads; ask for 1 to 8"):
        after(assignment(), threads)


def registration(worker: str, *, closed: int = 0, prepared: Assignment | None = None) -> WorkerRegistration:
    plans = () if prepared is None else plans_of("m", prepared)
    return WorkerRegistration(
        worker=WorkerId(worker),
        incarnation=Incarnation(f"{worker}.1"),
        node="n",
        address="",
        closed=closed,
        members={
            str(plan.key): StorageId(f"{worker}/{plan.key.group}")
            for plan in plans
            if worker in plan.replicas
        },
    )


def test_it_waits_for_every_replica_of_the_next_groups() -> None:
    found = after(assignment(tasks=4, threads=2, workers=1), 4)
    plans = plans_of("m", found)
    workers = {worker: registration(worker, prepared=found) for worker in found.nodes}
    assert unprepared(plans, workers) == ()
    [first, second, third] = found.nodes
    workers[second] = registration(second)
    del workers[third]
    assert unprepared(plans, workers) == (second, third)
    assert first not in unprepared(plans, workers)


def led(leader: str | None, *, life: int = 1, epoch: int = 4) -> GroupRecord:
    return GroupRecord(
        epoch=Epoch(epoch),
        leader=None if leader is None else WorkerId(leader),
        leader_incarnation=None if leader is None else Incarnation(f"{leader}.{life}"),
        isr=(),
    )


def test_a_group_is_closed_when_its_very_leader_said_so_for_this_grouping() -> None:
    workers = {
        WorkerId("a"): registration("a", closed=9),
        WorkerId("b"): registration("b", closed=8),
    }
    records = [led("a"), led("b"), led("c"), led(None), None, led("a", life=2)]
    assert unclosed(records, 9, workers) == (1, 2, 3, 4, 5)


def test_the_record_of_a_next_group_lists_who_prepared_it_above_all_epochs_before() -> None:
    found = after(assignment(tasks=4, threads=2, workers=1), 1)
    [plan] = plans_of("m", found)
    workers = {worker: registration(worker, prepared=found) for worker in found.nodes}
    record = record_of(plan, [led("a", epoch=3), led("b", epoch=7)], workers)
    assert (record.epoch, record.leader, record.factor) == (7, None, 3)
    assert record.isr == tuple(sorted(Member(each, StorageId(f"{each}/0")) for each in found.nodes))
