"""Where a module runs: its worker processes on nodes, and the replicas of its groups on those.

A module asks for *workers* slots; the groups of a slot live together on *factor* processes, one of each of
*factor* nodes. Three choices are made, each even by itself:

1. **How many processes a node gets.** One at a time to the node that then has the fewest, what it ran before
   included, and never more of this module than there are slots.
2. **Which slots they serve.** The processes are dealt to the slots in turn, node after node. A node has no
   more processes than there are slots, so no slot gets two of the same node. Neighbouring slots share some
   of their nodes, not all, which is what lets leaders spread from a crowded slot to the rest.
3. **Who is the preferred leader.** The groups of a slot name its processes in turn, except where others must
   be named for the nodes to lead as evenly as this placement allows.

It is a function of its arguments: no clock, no chance, no metastore.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from stretto.conductor.planning.spread import spread
from stretto.errors import UsageError
from stretto.specs.assignments import Assignment, PlacedWorker
from stretto.vocabulary.types import WorkerId

TASKS_MAX = 16_384
PROCESSES_MAX = 4_096
"""Most worker processes of a module: more are too many for a znode, and too slow for one conductor."""


def assign(
    module: str,
    *,
    generation: int,
    tasks: int,
    threads: int,
    workers: int,
    factor: int,
    processes: Mapping[str, int],
) -> Assignment:
    """Place ``workers`` x ``factor`` processes; ``processes`` has each node and how many it runs already."""
    _check_shape(tasks=tasks, threads=threads, workers=workers, factor=factor)
    if factor > len(processes):
        raise UsageError(
            f"a replication factor of {factor} needs {factor} nodes, and there are {len(processes)}; "
            "start more nodes or lower the factor"
        )
    slots = _slots(workers, _shares(processes, workers, factor))
    placed = tuple(
        PlacedWorker(WorkerId(f"{module}-{number}"), node)
        for number, node in enumerate(node for slot in slots for node in slot)
    )
    return Assignment(
        generation=generation, tasks=tasks, workers=placed, groups=_groups(threads, workers, factor, placed)
    )


def _check_shape(*, tasks: int, threads: int, workers: int, factor: int) -> None:
    for name, value in {
        "tasks": tasks,
        "threads": threads,
        "workers": workers,
        "replication factor": factor,
    }.items():
        if value < 1:
            raise UsageError(f"{name} cannot be {value}; ask for at least 1")
    if tasks & (tasks - 1):
        below = 1 << (tasks.bit_length() - 1)
        raise UsageError(f"{tasks} tasks are not a power of two; ask for {below} or {below * 2}")
    if tasks > TASKS_MAX:
        raise UsageError(f"{tasks:,} tasks are beyond the limit of {TASKS_MAX:,}; ask for fewer")
    if workers * factor > PROCESSES_MAX:
        raise UsageError(
            f"{workers:,} workers of {factor} replicas are {workers * factor:,} processes; "
            f"ask for {PROCESSES_MAX:,} at most"
        )
    if threads > tasks:
        raise UsageError(f"{tasks} tasks cannot occupy {threads} threads; ask for at most {tasks} threads")
    if workers > threads:
        raise UsageError(f"{threads} threads cannot occupy {workers} workers; ask for at most {threads}")


def _shares(processes: Mapping[str, int], workers: int, factor: int) -> dict[str, int]:
    """How many of the processes each node gets."""
    shares = dict.fromkeys(sorted(processes), 0)
    waiting = [(count, node) for node, count in processes.items()]
    heapq.heapify(waiting)
    for _ in range(workers * factor):
        count, node = heapq.heappop(waiting)
        shares[node] += 1
        if shares[node] < workers:
            heapq.heappush(waiting, (count + 1, node))
    return shares


def _slots(workers: int, shares: Mapping[str, int]) -> list[list[str]]:
    """The nodes of each slot."""
    dealt = [node for node, share in shares.items() for _ in range(share)]
    return [dealt[slot::workers] for slot in range(workers)]


def _groups(
    threads: int, workers: int, factor: int, placed: tuple[PlacedWorker, ...]
) -> tuple[tuple[int, ...], ...]:
    """The replicas of each group; those after the preferred leader follow in turn."""
    groups = []
    for group in range(threads):
        slot = range(group * workers // threads * factor, (group * workers // threads + 1) * factor)
        groups.append(_turned(slot, group % factor))
    return preferring(groups, placed)


def preferring(
    groups: Sequence[tuple[int, ...]], placed: tuple[PlacedWorker, ...]
) -> tuple[tuple[int, ...], ...]:
    """Turn the replicas of each group so that the nodes lead as evenly as these allow."""
    places = {node: place for place, node in enumerate(sorted({each.node for each in placed}))}
    choices = [[places[placed[index].node] for index in replicas] for replicas in groups]
    leading = spread([None] * len(groups), choices)
    return tuple(
        _turned(replicas, choice.index(leader))
        for replicas, choice, leader in zip(groups, choices, leading, strict=True)
    )


def _turned(replicas: Sequence[int], first: int) -> tuple[int, ...]:
    return (*replicas[first:], *replicas[:first])
