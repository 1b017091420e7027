"""What the demo shows while it runs, from the same answers that every inspecting command gets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from stretto import control
from stretto.cli.demo.load import Account
from stretto.cli.output import sentences, table
from stretto.supervisor.children import RunFile
from stretto.wire.messages import GroupView


def worker_pids(folder: Path) -> dict[str, int]:
    """Return the process ids of workers, from the run files of a local cluster's supervisors."""
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
    nodes: tuple[control.NodeView, ...],
    module: control.ModuleView,
    groups: list[GroupView],
    account: Account,
    pids: dict[str, int],
    exports: list[str],
    ui: str | None,
) -> RenderableType:
    """Return a frame; ``exports`` are the lines that make a second terminal reach this cluster."""
    return Frame(
        told=[
            Text(f"stretto demo: {module.module} is {module.state}; Ctrl-C stops it", style="bold"),
            Text(f"The Cluster UI is at {ui}" if ui is not None else "There is no Cluster UI"),
            _load(account),
            _workers(nodes, module, groups, pids),
            _groups(groups),
            sentences(module.problems) if module.problems else Text("all well", style="green"),
        ],
        tries=_tries(module, groups, pids, exports),
    )


class Frame:
    """One picture of the demo, which leaves out those things to try that the terminal has no lines for.

    A terminal with room to spare gets empty lines in between.
    """

    def __init__(self, told: list[RenderableType], tries: list[str]) -> None:
        self._told = told
        self._tries = [Text("In a second terminal, try:", style="dim")]
        self._tries += [Text(f"  {each}", style="dim", overflow="fold") for each in tries]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def height(parts: Sequence[RenderableType]) -> int:
            return sum(len(console.render_lines(part, options, pad=False)) for part in parts)

        left = options.size.height - height(self._told)
        tries = self._tries
        while tries and height(tries) > left:
            tries = tries[:-1]
        # The heading alone would announce nothing.
        tries = tries if len(tries) > 1 else []
        parts = [*self._told, *tries]
        below_space = [part for part in parts if isinstance(part, Table) or part is self._tries[0]]
        spaces = min(len(below_space), left - height(tries))
        for part in parts:
            if any(part is each for each in below_space[len(below_space) - spaces :]):
                yield Text()
            yield part


def line(module: control.ModuleView, account: Account) -> str:
    """Return the state of the demo in one line, for output that is not a terminal."""
    return (
        f"{module.state}: {module.led} of {module.groups} groups led, "
        f"{account.acknowledged:,} records acknowledged, {account.per_second:,.0f}/s, "
        f"longest gap {account.longest_gap_ms:.0f} ms, {account.failed} failed"
    )


def _load(account: Account) -> Text:
    return Text(
        f"{account.acknowledged:,} records acknowledged, {account.per_second:,.0f}/s; "
        f"longest gap of the last 10 s: {account.longest_gap_ms:.0f} ms"
        + (f"\n{account.failed:,} failed: {account.last_problem}" if account.failed else "")
    )


def _workers(
    nodes: tuple[control.NodeView, ...],
    module: control.ModuleView,
    groups: list[GroupView],
    pids: dict[str, int],
) -> RenderableType:
    """Return a line for each worker, and one for each node that has none."""
    made = table("node", "worker", ("pid", "right"), "leads groups", "leadership")
    for node in nodes:
        workers = [process for process in module.processes if process.node == node.node]
        leadership = "allowed" if node.leadership_allowed else "disallowed"
        if not workers:
            made.add_row(node.node, "none" if node.address else "away", "", "", leadership)
        for process in workers:
            led = [str(view.key.group) for view in groups if view.leader == process.worker]
            pid = str(pids.get(process.worker, "")) if process.address else "away"
            made.add_row(node.node, process.worker, pid, ", ".join(led), leadership)
    return made


def _groups(groups: list[GroupView]) -> RenderableType:
    made = table(("group", "right"), "leader", ("epoch", "right"), "in sync", "out of sync")
    for view in groups:
        made.add_row(
            str(view.key.group),
            view.leader or "none",
            str(view.epoch),
            f"{len(view.isr)} of {len(view.replicas)}",
            ", ".join(worker for worker in view.replicas if worker not in view.isr),
        )
    return made


def _tries(
    module: control.ModuleView, groups: list[GroupView], pids: dict[str, int], exports: list[str]
) -> list[str]:
    leader = next((view.leader for view in groups if view.leader in pids), None)
    fail_over = [] if leader is None else [f"kill -9 {pids[leader]}    # {leader} leads: watch it fail over"]
    return [
        *exports,
        *fail_over,
        f"stretto task-groups-status {module.module} --watch",
        f"stretto leadership show {module.module}",
        f"stretto options set replication.min.isr 3 --module {module.module}",
        "stretto leadership disallow node-1",
    ]
