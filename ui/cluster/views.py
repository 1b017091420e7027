"""What the pages show of the cluster beyond what single calls return: one judgement over all of it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stretto import control
from stretto.client.operating.status import ABSENT, SILENT, GroupState, GroupStatus
from stretto.specs.modules import ModuleState

PROBLEMS_MAX = 100
NAMED_MAX = 8
"""Most groups with the same problem that are named one by one."""


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
    groups: tuple[int, ...] = ()
    """Numbers of all groups of the module that have this problem."""
    node: str | None = None
    topology: str | None = None
    """Topology of the module that parked records, if that is the problem."""


class ModuleServing(msgspec.Struct, frozen=True, kw_only=True):
    """How well a module is served, by the word of its replicas, whatever its conductor told of it last."""

    module: str
    health: Health
    state: str
    """State in a few words: the module's own, if all its groups are served."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    health: Health
    sentence: str
    """The health in one line."""
    problems: tuple[Problem, ...]
    """Problems, worst first, and what may be the cause of others before these."""
    conductor: str | None
    nodes: tuple[control.NodeView, ...]
    modules: tuple[control.ModuleView, ...]
    serving: tuple[ModuleServing, ...] = ()
    """How well each of ``modules`` is served, in the same order."""
    planned_at_ms: int | None
    """When a conductor reported these nodes and modules; None if none ever did."""
    at_ms: int
    """When the cluster was looked at, by the server's clock, in milliseconds of the Unix epoch."""


_OF_STATE = {
    GroupState.RUNNING: Health.GOOD,
    GroupState.PAUSED: Health.GOOD,
    GroupState.CATCHING_UP: Health.DEGRADED,
    GroupState.LAUNCHING: Health.DEGRADED,
}
_ORDER = (Health.BAD, Health.UNKNOWN, Health.DEGRADED, Health.GOOD)


def problems_of(
    nodes: Iterable[control.NodeView],
    groups: Iterable[GroupStatus],
    modules: Iterable[control.ModuleView],
    parked: Mapping[tuple[str, str], int],
) -> tuple[Problem, ...]:
    """All that is wrong with the cluster, worst first."""
    of_nodes = [problem for node in nodes for problem in _of_node(node)]
    of_groups = _of_groups(groups)
    told = {problem.module for problem in of_groups}
    down = {problem.node for problem in of_nodes}
    of_modules = [
        Problem(health=Health.DEGRADED, sentence=sentence, module=view.module)
        for view in modules
        for sentence in _of_module(
            view,
            is_told=view.module in told or any(each.node in down for each in view.processes),
        )
    ]
    of_records = [
        Problem(
            health=Health.DEGRADED,
            sentence=f"{_many(count, 'record')} of {topology} of {module} {'is' if count == 1 else 'are'} "
            "parked: not processed until somebody decides",
            module=module,
            topology=topology,
        )
        for (module, topology), count in sorted(parked.items())
    ]
    found = [*of_nodes, *of_groups, *of_modules, *of_records]
    return tuple(sorted(found, key=lambda each: _ORDER.index(each.health)))


def _of_node(node: control.NodeView) -> list[Problem]:
    ran = f"{node.running} of {_many(node.workers, 'worker')}"
    if node.address is None and node.running < node.workers:
        sentence = (
            f"node {node.node} is down: no supervisor, {ran}; start 'stretto supervisor' there, "
            "or move its replicas with 'stretto deploy reassign'"
        )
    elif node.address is None and node.workers:
        sentence = (
            f"the supervisor of node {node.node} is down: its {_many(node.workers, 'worker')} "
            "would not be restarted; start 'stretto supervisor' there"
        )
    elif node.running < node.workers:
        sentence = f"node {node.node} runs {ran}; the log of its supervisor may tell why"
    else:
        return []
    return [Problem(health=Health.DEGRADED, sentence=sentence, node=node.node)]


def _of_groups(groups: Iterable[GroupStatus]) -> list[Problem]:
    """Problems of groups; those of a module that have the same one share it."""
    alike: dict[tuple[str, Health, str], list[int]] = {}
    for status in groups:
        health, words = _judged(status)
        if health is not Health.GOOD:
            alike.setdefault((status.group.module, health, words), []).append(status.group.group)
    found = []
    for (module, health, words), numbers in alike.items():
        named = ", ".join(map(str, numbers[:NAMED_MAX]))
        more = f" and {len(numbers) - NAMED_MAX} more" if len(numbers) > NAMED_MAX else ""
        which = f"group {named}" if len(numbers) == 1 else f"groups {named}{more}"
        sentence = f"{which} of {module}: {words}"
        found.append(Problem(health=health, sentence=sentence, module=module, groups=tuple(numbers)))
    return found


def _judged(status: GroupStatus) -> tuple[Health, str]:
    health = _OF_STATE.get(status.state, Health.BAD)
    in_isr = f"{len(status.isr)} of {_many(len(status.isr) + len(status.osr), 'replica')} in the ISR"
    if status.min_isr is not None:
        in_isr += f", min-ISR {status.min_isr}"
    if health is not Health.GOOD:
        said = f"{status.state.value}: {status.why}" if status.why else status.state.value
        return health, f"{said} ({in_isr})" if status.state is GroupState.CATCHING_UP else said
    lost = [
        each.worker for each in status.replicas if each.in_isr and each.role in (ABSENT, SILENT, "stopped")
    ]
    if lost:
        return Health.DEGRADED, f"{', '.join(lost)} of the ISR cannot take entries ({in_isr})"
    if status.osr:
        return Health.DEGRADED, in_isr
    return Health.GOOD, ""


def serving_of(modules: Iterable[control.ModuleView], groups: Iterable[GroupStatus]) -> list[ModuleServing]:
    """Judge each module by its groups. One that says it runs does not, if nobody may lead it."""
    by_module: dict[str, list[GroupStatus]] = {}
    for status in groups:
        by_module.setdefault(status.group.module, []).append(status)
    return [_serving(view, by_module.get(view.module, [])) for view in modules]


def _serving(view: control.ModuleView, groups: Sequence[GroupStatus]) -> ModuleServing:
    judged = [(_judged(status)[0], status.state) for status in groups]
    out = [state for health, state in judged if health is Health.BAD]
    if out:
        what = out[0].value if len(set(out)) == 1 else "not served"
        state = f"{len(out)} of {_many(len(groups), 'group')}: {what}"
        return ModuleServing(module=view.module, health=Health.BAD, state=state)
    is_good = view.state == ModuleState.RUNNING and all(health is Health.GOOD for health, _ in judged)
    health = Health.GOOD if is_good else Health.DEGRADED
    return ModuleServing(module=view.module, health=health, state=view.state)


def serving_unknown(modules: Iterable[control.ModuleView]) -> list[ModuleServing]:
    """What can be said of modules none of whose workers answers."""
    return [ModuleServing(module=view.module, health=Health.UNKNOWN, state="not known") for view in modules]


def _of_module(view: control.ModuleView, *, is_told: bool) -> list[str]:
    """What is wrong with a module, in sentences.

    With ``is_told``, its problems with workers and replicas are left out: nodes and groups have them already.
    """
    found = []
    if view.state == ModuleState.PAUSED:
        found.append(
            f"{view.module} is paused: it takes no records until 'stretto deploy resume {view.module}'"
        )
    if view.next_threads:
        many = _many(view.next_threads, "thread")
        found.append(f"{view.module} is being scaled to {many} and takes no records meanwhile")
    if view.failed_update is not None:
        found.append(f"the latest update of {view.module} was rolled back: {view.failed_update.why}")
    if not found and not is_told:
        found += [f"{view.module}: {sentence}" for sentence in view.problems]
    return found


def sentence_of(
    problems: Sequence[Problem], nodes: Sequence[control.NodeView], modules: Sequence[control.ModuleView]
) -> tuple[Health, str]:
    """The health of all in one line."""
    if problems:
        more = f" (and {_many(len(problems) - 1, 'more problem')})" if len(problems) > 1 else ""
        return problems[0].health, problems[0].sentence + more
    if not nodes:
        return Health.DEGRADED, "no node has joined yet; start 'stretto supervisor' on each machine"
    many = _many(len(nodes), "node")
    if not modules:
        return Health.GOOD, f"{many} {'runs' if len(nodes) == 1 else 'run'}, and no module is launched"
    groups = sum(view.groups for view in modules)
    return Health.GOOD, f"{_many(groups, 'task group')} on {many}, all led, all replicas in sync"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
