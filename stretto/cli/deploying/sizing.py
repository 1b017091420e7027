"""How large a module is that nobody gave a size: as the cluster allows, with room to grow."""

from __future__ import annotations

from dataclasses import dataclass

FACTOR_MAX = 3
"""Most replicas that are chosen: two may be lost, or one while another is replaced."""
GROUPS_OF_NODE = 2
TASKS_OF_NODE = 4
TASKS_MIN = 8
"""Fewest tasks that are chosen: tasks are for good, and a module cannot use more threads than tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The four sizes that a module is launched with."""

    tasks: int
    threads: int
    workers: int
    factor: int


def shape_for(
    nodes: int,
    *,
    tasks: int | None = None,
    threads: int | None = None,
    workers: int | None = None,
    factor: int | None = None,
) -> Shape:
    """Return the sizes that are given, and for the others what fits them and so many nodes.

    Three replicas where there are nodes for them, and as many workers as it takes for each node to run one;
    two groups for each node, so that all lead as many; four tasks for each, in a power of two.
    """
    some = max(1, nodes)
    replicas = factor if factor is not None else min(FACTOR_MAX, some)
    processes = -(-some // max(1, replicas)) if workers is None else workers
    groups = max(GROUPS_OF_NODE * some, processes) if threads is None else threads
    parts = _power_of_two(max(TASKS_MIN, TASKS_OF_NODE * some, groups)) if tasks is None else tasks
    if threads is None:
        groups = max(1, min(groups, parts))
    if workers is None:
        processes = max(1, min(processes, groups))
    return Shape(tasks=parts, threads=groups, workers=processes, factor=replicas)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
