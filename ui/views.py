"""What the pages show of the cluster beyond what single calls return: one judgement over all of it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from stretto import admin
from stretto.client.status import GroupState, GroupStatus

PROBLEMS_MAX = 100


class Health(enum.StrEnum):
    GOOD = "good"
    DEGRADED = "degraded"
    """Everything is served, with less to spare."""
    BAD = "bad"
    """Something is not served."""
    UNKNOWN = "unknown"
    """Nobody who would know answers."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    health: Health
    sentence: str
    module: str | None = None
    group: int | None = None
    node: str | None = None


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    health: Health
    sentence: str
    """The health in one line."""
    problems: tuple[Problem, ...]
    """Worst first."""
    conductor: str | None
    nodes: tuple[admin.NodeView, ...]
    modules: tuple[admin.ModuleView, ...]
    at_ms: int
    """When it was looked at, by the server's clock, in milliseconds of the Unix epoch."""


_OF_STATE = {
    GroupState.RUNNING: Health.GOOD,
    GroupState.CATCHING_UP: Health.DEGRADED,
    GroupState.LAUNCHING: Health.DEGRADED,
    GroupState.PAUSED: Health.DEGRADED,
}
_ORDER = (Health.BAD, Health.UNKNOWN, Health.DEGRADED, Health.GOOD)


def health_of(status: GroupStatus) -> Health:
    found = _OF_STATE.get(status.state, Health.BAD)
    if found is Health.GOOD and status.osr:
        return Health.DEGRADED
    return found


def problems_of(
    nodes: Iterable[admin.NodeView], groups: Iterable[GroupStatus], modules: Iterable[admin.ModuleView]
) -> tuple[Problem, ...]:
    found = []
    for node in nodes:
        if node.address is None and node.workers:
            sentence = f"the supervisor of node {node.node} is down: its workers are not restarted"
            found.append(Problem(health=Health.DEGRADED, sentence=sentence, node=node.node))
        if node.running < node.workers:
            sentence = f"node {node.node} runs {node.running} of {node.workers} workers"
            found.append(Problem(health=Health.DEGRADED, sentence=sentence, node=node.node))
    for status in groups:
        health = health_of(status)
        if health is not Health.GOOD:
            found.append(_problem(status, health))
    named = {problem.module for problem in found}
    found += [
        Problem(health=Health.DEGRADED, sentence=sentence, module=view.module)
        for view in modules
        if view.module not in named
        for sentence in view.problems
    ]
    return tuple(sorted(found, key=lambda each: _ORDER.index(each.health))[:PROBLEMS_MAX])


def _problem(status: GroupStatus, health: Health) -> Problem:
    where = f"group {status.group.group} of {status.group.module}"
    if status.state is GroupState.RUNNING:
        sentence = f"{where} has {len(status.isr)} of {len(status.isr) + len(status.osr)} replicas in its ISR"
    else:
        sentence = f"{where} is {status.state.value}" + (f": {status.why}" if status.why else "")
    return Problem(health=health, sentence=sentence, module=status.group.module, group=status.group.group)


def sentence_of(
    problems: Sequence[Problem], nodes: Sequence[admin.NodeView], modules: Sequence[admin.ModuleView]
) -> tuple[Health, str]:
    """The health of all in one line."""
    if problems:
        worst = problems[0].health
        same = sum(each.health is worst for each in problems)
        others = f", and {same - 1} more" if same > 1 else ""
        return worst, problems[0].sentence + others
    if not nodes:
        return Health.DEGRADED, "no node has joined yet"
    if not modules:
        return Health.GOOD, f"{len(nodes)} nodes run, and no module is launched"
    groups = sum(view.groups for view in modules)
    many = f"{groups} task groups" if groups != 1 else "1 task group"
    return Health.GOOD, f"{many} on {len(nodes)} nodes, all led, all replicas in sync"
