"""``stretto catchup``: how replicas that fell behind get back into the ISR."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from stretto import control
from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName, Watch, reach
from stretto.cli.output import bar, duration, paragraphs, sentences, show, table
from stretto.client.operating.status import ABSENT, SILENT, GroupStatus, ReplicaStatus, group_statuses

BAR_WIDTH = 20


def catchup(
    module: ModuleName,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """Show the replicas of a module that are not in sync, and how far they have come.

    Near the leader, a replica reads what it lacks from the leader's log. Further behind it is *far*: the
    leader sends it copies of each task's state, in rounds that get smaller, and then the rest of the log.

    Example: stretto catchup WordCount --watch
    """
    with reach(bootstrap, key) as cluster:

        def fetch() -> list[GroupStatus]:
            statuses = group_statuses(cluster.network, cluster.metadata(), module)
            return [status for status in statuses if any(not each.in_isr for each in status.replicas)]

        show(fetch, lambda statuses: render(module, statuses), json=as_json, watch=watch)


def render(module: str, statuses: Sequence[GroupStatus]) -> RenderableType:
    behind = [(status, each) for status in statuses for each in status.replicas if not each.in_isr]
    if not behind:
        return Text(f"{module}: every replica is in sync")
    return paragraphs(*progress(behind))


def progress(behind: Sequence[tuple[GroupStatus, ReplicaStatus]]) -> list[RenderableType]:
    """Show how far replicas that are not in sync have come, and each of their tasks."""
    transfers = [(status, each, each.catchup) for status, each in behind if each.catchup is not None]
    parts: list[RenderableType] = [_replicas(behind)]
    if transfers:
        parts.append(_tasks(transfers))
    waits = [
        f"{each.worker} waits with group {status.group.group}: {view.waits}"
        for status, each, view in transfers
        if view.waits
    ]
    if waits:
        parts.append(sentences(waits))
    return parts


def _replicas(behind: Sequence[tuple[GroupStatus, ReplicaStatus]]) -> RenderableType:
    made = table(
        ("group", "right"),
        "worker",
        "mode",
        ("since", "right"),
        ("entries behind", "right"),
        ("round", "right"),
        ("received", "right"),
        ("left", "right"),
        ("rate", "right"),
        ("to go", "right"),
    )
    for status, each in behind:
        view = each.catchup
        made.add_row(
            str(status.group.group),
            each.worker,
            _mode(each),
            "-" if each.since_ms is None else duration(each.since_ms),
            "-" if each.lag is None else f"{each.lag:,}",
            "-" if view is None else f"{view.round} of {max(view.round, view.min_rounds)}",
            "-" if view is None else size(view.received_bytes),
            "-" if view is None else size(_left(view)),
            "-" if view is None else f"{size(view.bytes_per_second)}/s",
            "-" if view is None else _to_go(_left(view), view.bytes_per_second),
        )
    return made


def _mode(replica: ReplicaStatus) -> str:
    match replica.role:
        case "near":
            return "near: from the leader's log"
        case "far" if replica.catchup is not None and replica.catchup.waits:
            return "far: waits, as told below"
        case "far":
            return "far: copies of the leader's state"
        case role if role in (SILENT, ABSENT):
            return f"{role}: start its worker"
        case role:
            return role


def _tasks(transfers: Sequence[tuple[GroupStatus, ReplicaStatus, control.CatchupView]]) -> RenderableType:
    made = table(
        ("group", "right"),
        "worker",
        ("task", "right"),
        ("round", "right"),
        "phase",
        "",
        ("size", "right"),
        ("left", "right"),
        ("rate", "right"),
        ("to go", "right"),
    )
    for status, each, view in transfers:
        for task in view.tasks:
            made.add_row(
                str(status.group.group),
                each.worker,
                str(task.task),
                str(task.round),
                task.phase,
                _progress(task),
                "-" if task.size_bytes is None else size(task.size_bytes),
                size(task.left_bytes),
                f"{size(task.bytes_per_second)}/s",
                _to_go(task.left_bytes, task.bytes_per_second),
            )
    return made


def _progress(task: control.TaskCatchup) -> str:
    """Return how much of a task's image has arrived, as a bar; empty unless it is being fetched."""
    if not task.size_bytes or task.phase not in ("ahead", "fetching", "complete"):
        return ""
    done = task.size_bytes - min(task.left_bytes, task.size_bytes)
    return f"{bar(done, task.size_bytes, BAR_WIDTH):<{BAR_WIDTH}} {done / task.size_bytes:>4.0%}"


def _left(view: control.CatchupView) -> int:
    """Return the bytes left of this round; how many rounds are to follow is not known."""
    return sum(task.left_bytes for task in view.tasks)


def _to_go(left_bytes: int, bytes_per_second: int) -> str:
    if not left_bytes:
        return "-"
    return duration(left_bytes / bytes_per_second * 1_000) if bytes_per_second else "unknown"


def size(count: float) -> str:
    """Return a number of bytes for people: 512 B, 4.2 KB, 3 MB, 1.5 GB."""
    for unit in ("B", "KB", "MB"):
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} GB"
