"""What the demo shows while it runs, from the same answers that every inspecting command gets."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from stretto import admin
from stretto.cli.output import bar, sentences, table
from stretto.demo.load import Account
from stretto.wire import GroupView
from stretto.worker.children import RunFile


def worker_pids(folder: Path) -> dict[str, int]:
    """From the run files of a local cluster's supervisors."""
    found = {}
    for path in sorted(folder.glob("node-*/run/*.json")):
        try:
            file = msgspec.json.decode(path.read_bytes(), type=RunFile)
        except (OSError, msgspec.DecodeError):
            continue
        found[str(file.worker)] = file.pid
    return found


def render(
    *,
    nodes: tuple[admin.NodeView, ...],
    module: admin.ModuleView,
    groups: list[GroupView],
    account: Account,
    pids: dict[str, int],
    bootstrap: str,
    ui: str | None,
) -> RenderableType:
    return Group(
        Text(f"stretto demo: {module.module} is {module.state}", style="bold"),
        Text(f"The Cluster UI is at {ui}" if ui is not None else ""),
        _load(account),
        _nodes(nodes),
        _groups(groups),
        _workers(module, groups, pids),
        sentences(module.problems) if module.problems else Text("all well", style="green"),
        _advice(module, groups, pids, bootstrap),
    )


def line(module: admin.ModuleView, account: Account) -> str:
    """The same in one line, for where there is no terminal."""
    return (
        f"{module.state}: {module.led} of {module.groups} groups led, "
        f"{account.acknowledged:,} records acknowledged, {account.per_second:,.0f}/s, "
        f"longest gap {account.longest_gap_ms:.0f} ms, {account.failed} failed"
    )


def _load(account: Account) -> Text:
    return Text(
        f"{account.acknowledged:,} records acknowledged, {account.per_second:,.0f} per second; "
        f"longest gap of the last 10 s between one-at-a-time appends: {account.longest_gap_ms:.0f} ms"
        + (f"; {account.failed} failed: {account.last_problem}" if account.failed else "")
    )


def _nodes(nodes: tuple[admin.NodeView, ...]) -> RenderableType:
    made = table("node", "workers", ("leads", "right"), "", "leadership")
    most = max((node.leaders for node in nodes), default=0)
    for node in nodes:
        made.add_row(
            node.node,
            f"{node.running} of {node.workers}" if node.address else "away",
            str(node.leaders),
            bar(node.leaders, most, 16),
            "allowed" if node.leadership_allowed else "disallowed",
        )
    return made


def _groups(groups: list[GroupView]) -> RenderableType:
    made = table(("group", "right"), "leader", ("epoch", "right"), "in sync", "out of sync")
    for view in groups:
        made.add_row(
            str(view.key.group),
            view.leader or "none",
            str(view.epoch),
            ", ".join(view.isr),
            ", ".join(worker for worker in view.replicas if worker not in view.isr),
        )
    return made


def _workers(module: admin.ModuleView, groups: list[GroupView], pids: dict[str, int]) -> RenderableType:
    made = table("worker", "node", ("pid", "right"), "leads groups")
    for process in module.processes:
        led = [str(view.key.group) for view in groups if view.leader == process.worker]
        made.add_row(
            process.worker,
            process.node,
            str(pids.get(process.worker, "")) if process.address else "away",
            ", ".join(led),
        )
    return made


def _advice(
    module: admin.ModuleView, groups: list[GroupView], pids: dict[str, int], bootstrap: str
) -> RenderableType:
    leader = next((view.leader for view in groups if view.leader in pids), None)
    tries = [
        f"export STRETTO_BOOTSTRAP={bootstrap}",
        f"stretto task-groups-status {module.module} --watch",
        f"stretto leadership show {module.module}",
        f"stretto options set replication.min.isr 3 --module {module.module}",
        "stretto leadership disallow node-1",
    ]
    if leader is not None:
        tries.insert(1, f"kill -9 {pids[leader]}    # {leader}, a leader: watch it fail over")
    return Text("In a second terminal, try:\n" + "\n".join(f"  {each}" for each in tries), style="dim")
