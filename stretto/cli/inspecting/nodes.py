"""``stretto nodes``: the machines of the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from stretto import control
from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, Watch, reach
from stretto.cli.output import show, table


def nodes(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """Show the nodes: where their supervisors listen, how many of their workers run, what they lead.

    A node whose supervisor is down may still run its workers.

    Example: stretto nodes --watch
    """
    with reach(bootstrap, key) as cluster:
        show(lambda: cluster.ask(control.Nodes()), render, json=as_json, watch=watch)


def render(views: Sequence[control.NodeView]) -> RenderableType:
    if not views:
        return Text("no node has joined; start one with 'stretto supervisor'")
    made = table("node", "supervisor", ("workers", "right"), ("leaders", "right"), "leadership", "labels")
    for view in views:
        made.add_row(
            view.node,
            Text(view.address) if view.address else Text("down", style="bold red"),
            Text(
                f"{view.running} of {view.workers}",
                style="" if view.running == view.workers else "bold red",
            ),
            str(view.leaders),
            Text("allowed") if view.leadership_allowed else Text("disallowed", style="yellow"),
            " ".join(f"{name}={value}" for name, value in sorted(view.labels.items())) or "-",
        )
    return made
