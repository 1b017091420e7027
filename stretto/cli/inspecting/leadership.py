"""``stretto leadership``: who leads, spread over the nodes, and how to change that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, TypeAlias

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from stretto import control
from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName, Watch, reach
from stretto.cli.output import bar, paragraphs, sentences, show, table
from stretto.client.operating.cluster import Cluster
from stretto.errors import RetriableError
from stretto.specs.modules import ModuleState
from stretto.vocabulary.types import WorkerId
from stretto.wire import messages as wire

app = typer.Typer(add_completion=False, help="Show and balance who leads.")

LOOK_SECONDS = 0.1
"""How often the conductor is asked what is left; another one may have taken over meanwhile."""

NodeName: TypeAlias = Annotated[str, typer.Argument(metavar="NODE", help="The node.", show_default=False)]
NoWait: TypeAlias = Annotated[bool, typer.Option("--no-wait", help="Ask for it and return.")]
Patience: TypeAlias = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait for it.")
]


@app.command("show")
def show_leadership(
    module: ModuleName,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """Show how the leaders of a module are spread over the nodes, and what a balancing would switch.

    Example: stretto leadership show WordCount --watch
    """
    with reach(bootstrap, key) as cluster:
        show(lambda: cluster.ask(control.Leadership(module=module)), render, json=as_json, watch=watch)


@app.command()
def balance(
    module: ModuleName,
    no_wait: NoWait = False,
    timeout: Patience = 120.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> None:
    """Spread the leaders of a module evenly over the nodes, now; leaders hand over, nothing is lost.

    The conductor does so by itself when the imbalance passes leadership.balance.threshold.

    Example: stretto leadership balance WordCount
    """
    with reach(bootstrap, key) as cluster:
        planned = len(cluster.ask(control.Balance(module=module)).switches)
        if planned == 0:
            typer.echo(f"the leaders of {module} are balanced already")
        elif no_wait:
            typer.echo(f"{_groups(planned)} of {module} will be led from elsewhere")
        else:
            _wait(
                f"balancing {module}",
                planned,
                lambda: _unbalanced(cluster, module),
                timeout,
            )
            typer.echo(f"the leaders of {module} are balanced: {_groups(planned)} led from elsewhere")


@app.command()
def allow(node: NodeName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, key: Key = None) -> None:
    """Let a node lead again; the next balancing brings leaders back to it.

    Example: stretto leadership allow node-2
    """
    with reach(bootstrap, key) as cluster:
        cluster.ask(control.AllowLeadership(node=node))
    typer.echo(f"node {node} may lead; leaders come back when leadership is balanced")


@app.command()
def disallow(
    node: NodeName,
    no_wait: NoWait = False,
    timeout: Patience = 120.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> None:
    """Move all leaders away from a node, for maintenance, and let none come back until it is allowed.

    A group that no other node can lead stays where it is.

    Example: stretto leadership disallow node-2
    """
    with reach(bootstrap, key) as cluster:
        cluster.ask(control.DisallowLeadership(node=node))
        leaders = _leaders_on(cluster, node)
        if no_wait or leaders == 0:
            typer.echo(f"node {node} may not lead; it leads {_groups(leaders)} now")
            return
        _wait(f"moving leaders away from {node}", leaders, lambda: _leaders_on(cluster, node), timeout)
        typer.echo(f"node {node} may not lead, and leads nothing")


@app.command()
def resign(
    module: ModuleName,
    group: Annotated[int, typer.Argument(metavar="GROUP", help="The task group.", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="WORKER", help="Who is to lead it.", show_default=False)],
    no_wait: NoWait = False,
    timeout: Patience = 30.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> None:
    """Make the leader of a group hand over to another member of its ISR.

    Example: stretto leadership resign WordCount 0 --to WordCount-1
    """
    with reach(bootstrap, key) as cluster:
        epoch = cluster.ask(control.ResignLeader(module=module, group=group, to=WorkerId(to)))
        if no_wait:
            typer.echo(f"group {group} of {module} was asked to hand over to {to}")
            return
        _wait(
            f"handing group {group} over to {to}",
            1,
            lambda: int(_group_view(cluster, module, group).epoch <= epoch),
            timeout,
        )
        view = _group_view(cluster, module, group)
    typer.echo(f"{view.leader} leads group {group} of {module} in epoch {view.epoch}")


# Waiting.


def _wait(what: str, total: int, remaining: Callable[[], int], timeout: float) -> None:
    """Wait until nothing remains, with a progress bar on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    deadline = time.monotonic() + timeout
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        while True:
            try:
                left = remaining()
            except RetriableError:
                left = total
            progress.update(task, completed=max(0, total - left))
            if left == 0:
                return
            if time.monotonic() > deadline:
                raise RetriableError(
                    f"{what}: {left} of {total} left after {timeout:g} s, and it goes on; "
                    "'stretto leadership show' and 'stretto task-groups-status' tell why it waits"
                )
            time.sleep(LOOK_SECONDS)


def _unbalanced(cluster: Cluster, module: str) -> int:
    view = cluster.ask(control.Leadership(module=module))
    return max(len(view.switches), int(view.state == ModuleState.LEADERSHIP_BALANCING))


def _leaders_on(cluster: Cluster, node: str) -> int:
    return sum(view.leaders for view in cluster.ask(control.Nodes()) if view.node == node)


def _group_view(cluster: Cluster, module: str, group: int) -> wire.GroupView:
    told = cluster.metadata().groups
    views = [view for view in told if (view.key.module, view.key.group) == (module, group)]
    if not views:
        raise RetriableError(f"nobody tells who leads group {group} of {module}; try again")
    return max(views, key=lambda view: view.key)


# What people see.


def render(view: control.LeadershipView) -> RenderableType:
    most = max((max(node.leaders, node.ideal) for node in view.nodes), default=0)
    made = table("node", ("leaders", "right"), ("ideal", "right"), "", "")
    for node in view.nodes:
        made.add_row(
            node.node,
            str(node.leaders),
            f"{node.ideal:g}" if node.ideal == int(node.ideal) else f"{node.ideal:.1f}",
            Text(bar(node.leaders, most), style="green" if node.allowed else "yellow"),
            "" if node.allowed else Text("leadership disallowed", style="yellow"),
        )
    parts: list[RenderableType] = [Text(_summary(view)), made]
    if view.switches:
        switches = table(("group", "right"), "leader", "", "would be led by")
        for switch in view.switches:
            switches.add_row(str(switch.group.group), switch.leader, "->", switch.target)
        parts.append(switches)
    if view.leaderless:
        numbers = ", ".join(str(key.group) for key in view.leaderless)
        parts.append(sentences([f"nobody leads group {numbers}"]))
    return paragraphs(*parts)


def _summary(view: control.LeadershipView) -> str:
    verdict = "beyond" if view.imbalance > view.threshold else "within"
    balanced = (
        f"a balancing would switch {_groups(len(view.switches))}"
        if view.switches
        else "no switch would make it better"
    )
    return (
        f"{view.module} is {view.state}: imbalance {view.imbalance:.2f}, {verdict} the threshold of "
        f"{view.threshold:.2f}; {balanced}"
    )


def _groups(number: int) -> str:
    return "1 group" if number == 1 else f"{number} groups"
