"""How long a leadership plan takes: a deadline, because a conductor plans while nodes come and go."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from stretto.bench import Result
from stretto.conductor.planning.leadership import LedGroup, plan
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import WorkerId

GROUPS = 10_000
NODES = [f"node-{number:02}" for number in range(100)]
FACTOR = 3
DRAINED = 10
SECONDS_MAX = 2


def _anywhere(chance: random.Random) -> list[int]:
    return chance.sample(range(len(NODES)), FACTOR)


def _lowest(chance: random.Random) -> list[int]:
    return sorted(_anywhere(chance))


def _crowded(chance: random.Random) -> list[int]:
    return [chance.randrange(FACTOR), *chance.sample(range(FACTOR, len(NODES)), FACTOR - 1)]


def _neighbours(chance: random.Random) -> list[int]:
    first = int((len(NODES) - FACTOR) * chance.random() ** 2)
    return list(range(first, first + FACTOR))


#: Functions that draw the replicas of a group, leader first, by the name of the start.
STARTS: dict[str, Callable[[random.Random], list[int]]] = {
    "leaders anywhere": _anywhere,
    "each group led by its lowest node": _lowest,
    "all leaders on three nodes": _crowded,
    "replicas on neighbours, most on low nodes": _neighbours,
}


def planning(_folder: Path) -> Result:
    """Measure the slowest plan of all starts, each with all nodes and with some drained."""
    nodes = {WorkerId(node): node for node in NODES}
    slowest, detail = 0.0, ""
    for start, draw in STARTS.items():
        groups = _groups(draw)
        for drained in ([], NODES[:DRAINED]):
            began = time.perf_counter()
            switches = plan(groups, nodes, drained).switches
            seconds = time.perf_counter() - began
            if seconds > slowest:
                slowest = seconds
                detail = f"slowest: {start}, {len(drained)} nodes drained, {len(switches):,} switches"
    return Result(value=slowest, unit="s", target=SECONDS_MAX, at_most=True, detail=detail)


def _groups(draw: Callable[[random.Random], list[int]]) -> list[LedGroup]:
    chance = random.Random(0)
    groups = []
    for number in range(GROUPS):
        replicas = [WorkerId(NODES[node]) for node in draw(chance)]
        leader = replicas[0]
        chance.shuffle(replicas)
        groups.append(LedGroup(key=GroupKey("bench", 1, number), leader=leader, candidates=tuple(replicas)))
    return groups
