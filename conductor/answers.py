"""What the conductor tells people of the cluster, made from its view of it."""

from __future__ import annotations

from collections import Counter

from stretto import control
from stretto.conductor.planning.moving import follows
from stretto.conductor.scaling import regrouping_awaits
from stretto.conductor.updating import going_by_other_code, trials
from stretto.conductor.view import Module, View
from stretto.options import TABLE, Level, OptionSet, Resolved
from stretto.specs.modules import ModuleState
from stretto.vocabulary.plurals import many, some
from stretto.vocabulary.types import Epoch
from stretto.wire import messages as wire


def metadata(view: View, request: int, module: str | None) -> wire.Metadata:
    """The task groups with their leaders, and the addresses of workers: what a client routes requests by."""
    groups = tuple(
        wire.GroupView(
            group.plan.key,
            group.plan.tasks,
            group.plan.replicas,
            group.record.epoch if group.record else Epoch(0),
            group.record.leader if group.record else None,
            tuple(member.worker for member in group.record.isr) if group.record else (),
            each.assignment.tasks,
        )
        for each in view.modules.values()
        if module is None or each.name == module
        for group in each.groups
    )
    return wire.Metadata(request, {worker: each.address for worker, each in view.workers.items()}, groups)


def module(view: View, found: Module) -> control.ModuleView:
    """What people are shown of a module."""
    spec = found.spec
    return control.ModuleView(
        module=found.name,
        state=spec.state,
        artifact=spec.artifact,
        tasks=spec.tasks,
        threads=spec.threads,
        next_threads=0 if found.assignment.next is None else len(found.assignment.next.groups),
        workers=spec.workers,
        replication_factor=spec.replication_factor,
        depots=spec.depots,
        pstates=spec.pstates,
        topologies=spec.topologies,
        queries=spec.queries,
        processes=tuple(
            control.WorkerView(
                worker=placed.worker,
                node=placed.node,
                address=view.workers[placed.worker].address if placed.worker in view.workers else None,
                paused=placed.worker in view.workers and view.workers[placed.worker].paused,
            )
            for placed in found.assignment.workers
        ),
        version=spec.version,
        failed_update=spec.failed_update,
        groups=len(found.groups),
        led=sum(view.is_led(group) for group in found.groups),
        moved=sum(
            follows(group.record, found.assignment, number) for number, group in enumerate(found.groups)
        ),
        problems=tuple(_problems(view, found)),
    )


def _problems(view: View, module: Module) -> list[str]:
    problems = [problem for problem in view.problems if f"/modules/{module.name}/" in problem]
    if module.spec.state is ModuleState.DESTROYING:
        left = Counter(placed.node for placed in module.assignment.workers if placed.worker in view.workers)
        return problems + [
            f"{many(left[node], 'worker')} of node {node} cannot be stopped: "
            "its supervisor is not registered; start it"
            for node in sorted(left.keys() - view.nodes.keys())
        ]
    problems += _problems_of_update(view, module)
    if module.assignment.next is not None:
        threads = many(len(module.assignment.next.groups), "thread")
        why = regrouping_awaits(view, module) or "the new groups take over"
        problems.append(f"it is being scaled to {threads} and takes no records meanwhile: {why}")
    if module.spec.is_paused:
        problems.append(f"it takes no records until 'stretto deploy resume {module.name}'")
    missing = [placed for placed in module.assignment.workers if placed.worker not in view.workers]
    for node, count in sorted(Counter(placed.node for placed in missing).items()):
        why = "its supervisor is not registered" if node not in view.nodes else "see its supervisor's log"
        problems.append(f"{many(count, 'worker')} of node {node} not registered: {why}")
    leaderless = [group.plan.key.group for group in module.groups if not view.is_led(group)]
    if leaderless and module.spec.state is not ModuleState.LAUNCHING:
        problems.append(
            f"no leader registered for {many(len(leaderless), 'group')}: {some(leaderless)}; "
            "see task-groups-status"
        )
    short = [
        group.plan.key.group
        for group in module.groups
        if group.record is not None and len(group.record.isr) < len(group.plan.replicas)
    ]
    if short:
        problems.append(f"{many(len(short), 'group')} with replicas out of sync: {some(short)}")
    return problems


def _problems_of_update(view: View, module: Module) -> list[str]:
    update, failed = module.spec.update, module.spec.failed_update
    if failed is not None:
        where = f"the update to version {failed.version} was rolled back, because of node {failed.node}"
        return [f"{where}: {failed.why}"]
    if update is None:
        return []
    if update.is_switched:
        late = going_by_other_code(view, module)
        return [f"{', '.join(late)} still go by the code of before"] if late else []
    waiting = trials(view, module, update, update.began_ms).waiting
    return [f"the new code is being tried on {', '.join(waiting)}"] if waiting else []


def nodes(view: View) -> tuple[control.NodeView, ...]:
    """What people are shown of each known node."""
    assigned: Counter[str] = Counter()
    running: Counter[str] = Counter()
    leaders: Counter[str] = Counter()
    for module in view.modules.values():
        places = module.assignment.nodes
        assigned.update(places.values())
        running.update(node for worker, node in places.items() if worker in view.workers)
        leaders.update(
            places[group.record.leader]
            for group in module.groups
            if group.record is not None and group.record.leader in places and view.is_led(group)
        )
    return tuple(
        control.NodeView(
            node=node,
            address=view.nodes[node].address if node in view.nodes else None,
            labels=view.nodes[node].labels if node in view.nodes else {},
            workers=assigned[node],
            running=running[node],
            leaders=leaders[node],
            leadership_allowed=node not in view.drained,
        )
        for node in view.known_nodes()
    )


def options(found: OptionSet, level: Level) -> tuple[control.OptionView, ...]:
    """Every option that has a meaning at the level, with what holds there."""
    return tuple(_option(found.resolve(each.name, level)) for each in TABLE if level.scope in each.scopes)


def _option(resolved: Resolved) -> control.OptionView:
    option = resolved.option
    default = option.default_means if option.default is None else option.default
    return control.OptionView(
        name=option.name,
        value=default if resolved.value is None else resolved.value,
        origin="default" if resolved.origin is None else str(resolved.origin),
        default=default,
        unit=option.unit,
        doc=option.doc,
    )
