"""``stretto task-groups-status``: what every replica of every task group of a module does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from stretto import control
from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName, Watch, reach
from stretto.cli.inspecting import catchup
from stretto.cli.output import duration, paragraphs, sentences, show, table
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.status import (
    ABSENT,
    SILENT,
    GroupState,
    GroupStatus,
    ReplicaStatus,
    group_statuses,
)
from stretto.errors import StrettoError
from stretto.vocabulary.types import WorkerId

_STYLES = {
    GroupState.RUNNING: "green",
    GroupState.CATCHING_UP: "yellow",
    GroupState.PAUSED: "yellow",
    GroupState.ELECTING: "yellow",
    GroupState.LAUNCHING: "yellow",
}
_TROUBLE = "bold red"
_BEHIND = ("near", "far")
GROUPS_NAMED_MAX = 8
NODES_SECONDS = 1.0


def task_groups_status(
    module: ModuleName,
    group: Annotated[
        int | None, typer.Option("--group", metavar="N", help="Only this one.", show_default=False)
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """Show the task groups of a module: leader, epoch, who is in sync, and what each replica has.

    Every worker is asked what its replicas do, so the answer is theirs and needs no conductor. One that does
    not answer is shown as silent if it is registered, and as absent if not. Offsets count entries of the
    group's log: it starts at start, ends before end, and everything below apply is decided. What catches up
    is shown once more, with what is left of the round under way, as by stretto catchup.

    Example: stretto task-groups-status WordCount --group 0 --watch
    """
    with reach(bootstrap, key) as cluster:
        fetch = _fetcher(cluster, module, group)
        show(fetch, render, json=as_json, watch=watch)


def _fetcher(cluster: Cluster, module: str, group: int | None) -> Callable[[], list[GroupStatus]]:
    def fetch() -> list[GroupStatus]:
        with ThreadPoolExecutor(1) as beside:
            nodes = beside.submit(_nodes, cluster, module)
            statuses = group_statuses(cluster.network, cluster.metadata(), module, group=group)
            return [status.placed_on(nodes.result()) for status in statuses]

    return fetch


def _nodes(cluster: Cluster, module: str) -> dict[WorkerId, str]:
    """Return the node of each worker, which only a conductor knows; empty without one."""
    try:
        [view] = cluster.ask(control.Modules(module=module), timeout=NODES_SECONDS)
    except StrettoError:
        return {}
    return {process.worker: process.node for process in view.processes}


# What people see.


def render(statuses: Sequence[GroupStatus]) -> RenderableType:
    counts = Counter(status.state for status in statuses)
    summary = ", ".join(f"{counts[state]} {state}" for state in GroupState if counts[state])
    parts: list[RenderableType] = [
        Text(f"{statuses[0].group.module}: {_count(len(statuses), 'group')}, {summary}"),
        _groups(statuses),
        _replicas(statuses),
    ]
    behind = [(status, each) for status in statuses for each in status.replicas if each.role in _BEHIND]
    if behind:
        parts += catchup.progress(behind)
    problems = _problems(statuses)
    if problems:
        parts.append(sentences(problems))
    return paragraphs(*parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _groups(statuses: Sequence[GroupStatus]) -> RenderableType:
    made = table(
        ("group", "right"),
        "state",
        ("since", "right"),
        "leader",
        ("epoch", "right"),
        "ISR",
        "OSR",
        ("min-ISR", "right"),
    )
    for status in statuses:
        made.add_row(
            str(status.group.group),
            Text(status.state, style=_STYLES.get(status.state, _TROUBLE)),
            _or_dash(status.since_ms, duration),
            status.leader or "-",
            str(status.epoch),
            " ".join(status.isr) or "-",
            " ".join(status.osr) or "-",
            _or_dash(status.min_isr),
        )
    return made


def _replicas(statuses: Sequence[GroupStatus]) -> RenderableType:
    made = table(
        ("group", "right"),
        "worker",
        "node",
        "role",
        ("since", "right"),
        ("start", "right"),
        ("end", "right"),
        ("apply", "right"),
        ("lag", "right"),
    )
    for status in statuses:
        for replica in status.replicas:
            made.add_row(
                str(status.group.group),
                replica.worker,
                replica.node or "-",
                Text(replica.role, style=_role_style(replica)),
                _or_dash(replica.since_ms, duration),
                _or_dash(replica.start),
                _or_dash(replica.end),
                _or_dash(replica.apply),
                _or_dash(replica.lag),
            )
    return made


def _role_style(replica: ReplicaStatus) -> str:
    match replica.role:
        case "leader":
            return "bold green"
        case "follower":
            return "green"
        case "near" | "far" | "candidate":
            return "yellow"
        case _:
            return _TROUBLE


def _or_dash(value: int | None, shown: Callable[[int], str] = str) -> str:
    return "-" if value is None else shown(value)


def _problems(statuses: Sequence[GroupStatus]) -> list[str]:
    """Return what is wrong, each problem once, with the groups that it concerns."""
    groups: dict[str, list[int]] = {}
    for status in statuses:
        for problem in _problems_of(status):
            groups.setdefault(problem, []).append(status.group.group)
    return [f"{_groups_named(numbers)}: {problem}" for problem, numbers in groups.items()]


def _problems_of(status: GroupStatus) -> Iterator[str]:
    if status.why:
        yield status.why
    for replica in status.replicas:
        is_told = status.state is GroupState.LEADER_SILENT and replica.worker == status.leader
        if replica.role in (SILENT, ABSENT) and replica.in_isr and not is_told:
            what = "does not answer" if replica.role == SILENT else "is not registered"
            yield f"worker {replica.worker} is in the ISR and {what}"
        elif replica.why and replica.why not in status.why:
            yield f"worker {replica.worker}: {replica.why}"


def _groups_named(numbers: Sequence[int]) -> str:
    named = ", ".join(map(str, numbers[:GROUPS_NAMED_MAX]))
    more = f" and {len(numbers) - GROUPS_NAMED_MAX} more" if len(numbers) > GROUPS_NAMED_MAX else ""
    return f"group {named}" if len(numbers) == 1 else f"groups {named}{more}"
