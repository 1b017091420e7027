"""Other replicas for the groups of a module that runs: a node drained, more or fewer replicas or workers.

The groups of a slot live together on the same processes (:mod:`stretto.conductor.planning.assignment`), and
so they move together. Of a slot's processes those on a node to be left go, and of too many the ones on the
busiest nodes; what is missing is started on the nodes that run the fewest and have none of the slot yet. What
need not move stays where it is. A process is never given a name that another had: a replica that left does
not come back.

A change has two steps. :func:`moved` gives groups their new replicas and keeps the old processes running,
because they are members until the new ones have caught up. :func:`settled`, once every group's record has
followed, names the processes that nobody counts on any more, to be stopped and their data deleted.

It is a function of its arguments: no clock, no chance, no metastore.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from stretto.errors import UsageError
from stretto.replog.core.record import GroupRecord
from stretto.specs.assignments import Assignment, PlacedWorker
from stretto.vocabulary.types import WorkerId


def moved(
    module: str,
    assignment: Assignment,
    *,
    factor: int,
    processes: Mapping[str, int],
    workers: int | None = None,
    leave: Collection[str] = (),
) -> Assignment:
    """Give the groups of a module other replicas, and keep the old processes until these have caught up.

    ``processes`` has each node that is there and how many it runs; nothing stays on a node of ``leave``.
    """
    for name, value in {"replication factor": factor, "workers": workers}.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} cannot be {value}; ask for at least 1")
    threads = len(assignment.groups)
    if workers is not None and workers > threads:
        raise UsageError(f"{threads} threads cannot occupy {workers} workers; ask for at most {threads}")
    return _Moving(module, assignment, factor, processes, leave).result(workers)


class _Moving:
    def __init__(
        self,
        module: str,
        assignment: Assignment,
        factor: int,
        processes: Mapping[str, int],
        leave: Collection[str],
    ) -> None:
        self._module = module
        self._assignment = assignment
        self._factor = factor
        self._leave = frozenset(leave)
        self._load = Counter(dict(processes))
        self._open = sorted(processes.keys() - self._leave)
        self._workers = list(assignment.workers)
        self._named = next_name(module, assignment)

    def result(self, workers: int | None) -> Assignment:
        before = self._assignment
        slots = [frozenset(replicas) for replicas in before.groups]
        if workers is not None:
            slots = self._regrouped(slots, workers)
        changes: dict[frozenset[int], tuple[list[int], list[int]]] = {}
        groups = []
        for replicas, slot in zip(before.groups, slots, strict=True):
            if slot not in changes:
                changes[slot] = self._change(sorted(slot))
            gone, fresh = changes[slot]
            gone = [*gone, *(index for index in replicas if index not in slot)]
            groups.append(_exchanged(replicas, gone, fresh))
        after = tuple(groups)
        return msgspec.structs.replace(
            before,
            workers=tuple(self._workers),
            groups=after,
            plan=before.plan + (after != before.groups),
            named=self._named,
        )

    def _regrouped(self, before: list[frozenset[int]], workers: int) -> list[frozenset[int]]:
        """The processes that each group's slot keeps.

        A slot whose groups come from one slot keeps its processes, unless another has them already; any other
        begins with none, for a process may only get groups that it has, or all anew.
        """
        threads = len(before)
        after: list[frozenset[int]] = []
        kept: set[frozenset[int]] = set()
        for slot in range(workers):
            groups = range(-(-slot * threads // workers), -(-(slot + 1) * threads // workers))
            homes = {before[group] for group in groups}
            home = homes.pop() if len(homes) == 1 else frozenset()
            if home in kept:
                home = frozenset()
            kept.add(home)
            # An empty slot of its own for each: equal ones would share their processes.
            after += [home or frozenset({-1 - slot})] * len(groups)
        return after

    def _change(self, slot: list[int]) -> tuple[list[int], list[int]]:
        """The processes that leave a slot, and those that are started for it."""
        slot = [index for index in slot if index >= 0]
        gone = [index for index in slot if self._workers[index].node in self._leave]
        stay = [index for index in slot if index not in gone]
        while len(stay) > self._factor:
            busiest = max(stay, key=lambda index: (self._load[self._workers[index].node], index))
            stay.remove(busiest)
            gone.append(busiest)
        for index in gone:
            self._load[self._workers[index].node] -= 1
        fresh = [self._start(stay) for _ in range(self._factor - len(stay))]
        return gone, fresh

    def _start(self, stay: list[int]) -> int:
        taken = {self._workers[index].node for index in stay}
        free = [node for node in self._open if node not in taken]
        if not free:
            raise UsageError(
                f"a replication factor of {self._factor} needs {self._factor} nodes, and there are "
                f"{len(self._open)}{' others' if self._leave else ''}; start more nodes or lower the factor"
            )
        node = min(free, key=lambda each: (self._load[each], each))
        self._load[node] += 1
        self._workers.append(PlacedWorker(WorkerId(f"{self._module}-{self._named}"), node))
        self._named += 1
        stay.append(len(self._workers) - 1)
        return stay[-1]


def next_name(module: str, assignment: Assignment) -> int:
    """The number of the next process; none is ever used twice."""
    given = [assignment.named, len(assignment.workers)]
    for placed in (*assignment.workers, *assignment.retired):
        number = placed.worker.removeprefix(f"{module}-")
        given.append(int(number) + 1 if number.isdigit() else 0)
    return max(given)


def _exchanged(replicas: tuple[int, ...], gone: list[int], fresh: list[int]) -> tuple[int, ...]:
    """The replicas of a group with fresh ones in place of those that are gone; the others keep theirs."""
    left = list(fresh)
    kept = []
    for index in replicas:
        if index not in gone:
            kept.append(index)
        elif left:
            kept.append(left.pop(0))
    return (*kept, *left)


def follows(record: GroupRecord | None, assignment: Assignment, group: int) -> bool:
    """Whether a group has its new replicas, all of them and no other."""
    if record is None or record.plan < assignment.plan:
        return False
    replicas = assignment.replicas[group]
    return sorted(member.worker for member in record.isr) == sorted(replicas) and record.leader in replicas


def settled(assignment: Assignment) -> Assignment:
    """The assignment without the processes that no group names: these retire."""
    named = {index for replicas in assignment.groups for index in replicas}
    places = {index: place for place, index in enumerate(sorted(named))}
    retired = [placed for index, placed in enumerate(assignment.workers) if index not in named]
    return msgspec.structs.replace(
        assignment,
        workers=tuple(assignment.workers[index] for index in places),
        groups=tuple(tuple(places[index] for index in replicas) for replicas in assignment.groups),
        retired=(*assignment.retired, *retired),
    )
