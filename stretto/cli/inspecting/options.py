"""``stretto options``: what can be tuned while the cluster runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from typer.core import TyperCommand

from stretto import control
from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, Watch, reach
from stretto.cli.output import print_json, show, table
from stretto.client.operating.cluster import Cluster
from stretto.errors import StrettoError
from stretto.options import CLUSTER, Level, option_named, shown

app = typer.Typer(add_completion=False, help="Tune the cluster, a module or one of its objects.")

NAME_WIDTH_MAX = 60
_NEGATIVE = re.compile(r"-\.?\d.*")

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The option.", show_default=False)]
OfModule: TypeAlias = Annotated[
    str | None, typer.Option("--module", metavar="M", help="For this module.", show_default=False)
]
OfDepot: TypeAlias = Annotated[
    str | None, typer.Option("--depot", metavar="D", help="For this depot of it.", show_default=False)
]
OfTopology: TypeAlias = Annotated[
    str | None, typer.Option("--topology", metavar="T", help="For this topology of it.", show_default=False)
]
OfPState: TypeAlias = Annotated[
    str | None, typer.Option("--pstate", metavar="P", help="For this PState of it.", show_default=False)
]


@app.command("list")
def list_options(
    module: OfModule = None,
    depot: OfDepot = None,
    topology: OfTopology = None,
    pstate: OfPState = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """Show every option with the value in force, where that is set, its default, and what it does.

    Without --module: for the whole cluster. Most specific wins: a value of a depot before one of its module,
    one of the module before one of the cluster.

    Example: stretto options list --module WordCount
    """
    level = Level.of(module, depot=depot, topology=topology, pstate=pstate)
    with reach(bootstrap, key) as cluster:
        show(lambda: cluster.ask(control.Options(level=_asked(level))), render, json=as_json, watch=watch)


@app.command("get")
def get_option(
    name: Name,
    module: OfModule = None,
    depot: OfDepot = None,
    topology: OfTopology = None,
    pstate: OfPState = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Print the value in force of one option.

    Example: stretto options get replication.min.isr --module WordCount
    """
    level = Level.of(module, depot=depot, topology=topology, pstate=pstate)
    with reach(bootstrap, key) as cluster:
        view = _one(cluster, level, name)
    print_json(view) if as_json else typer.echo(shown(view.value))


class _TakesNegatives(TyperCommand):
    """A command that takes ``-5`` as a value: no option begins with a digit."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        plain = args[: args.index("--")] if "--" in args else args
        negative = [each for each in plain if _NEGATIVE.fullmatch(each)]
        others = [each for each in plain if each not in negative]
        behind = args[len(plain) + 1 :]
        return list(super().parse_args(ctx, [*others, "--", *negative, *behind]))


@app.command("set", cls=_TakesNegatives)
def set_option(
    name: Name,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its new value.", show_default=False)],
    module: OfModule = None,
    depot: OfDepot = None,
    topology: OfTopology = None,
    pstate: OfPState = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> None:
    """Set an option; every worker goes by it within a second, and it survives restarts.

    Example: stretto options set replication.min.isr 2 --module WordCount
    """
    level = Level.of(module, depot=depot, topology=topology, pstate=pstate)
    with reach(bootstrap, key) as cluster:
        cluster.ask(control.SetOption(level=_asked(level), name=name, value=value))
        typer.echo(_in_force(level, _one(cluster, level, name)))


@app.command("unset")
def unset_option(
    name: Name,
    module: OfModule = None,
    depot: OfDepot = None,
    topology: OfTopology = None,
    pstate: OfPState = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> None:
    """Take a value back: what is set for a level around it holds again, or the default.

    Example: stretto options unset replication.min.isr --module WordCount
    """
    level = Level.of(module, depot=depot, topology=topology, pstate=pstate)
    with reach(bootstrap, key) as cluster:
        cluster.ask(control.UnsetOption(level=_asked(level), name=name))
        typer.echo(_in_force(level, _one(cluster, level, name)))


def _asked(level: Level) -> control.OptionLevel:
    named = {} if level.name is None else {str(level.scope): level.name}
    return control.OptionLevel(module=level.module, **named)


def _one(cluster: Cluster, level: Level, name: str) -> control.OptionView:
    views = {view.name: view for view in cluster.ask(control.Options(level=_asked(level)))}
    if name not in views:
        option_named(name).check_scope(level.scope)
        raise StrettoError(f"the conductor does not know {name}; run the same release everywhere")
    return views[name]


def _in_force(level: Level, view: control.OptionView) -> str:
    value = shown(view.value)
    where = "the whole cluster" if level == CLUSTER else str(level)
    if view.origin == str(level):
        return f"{view.name} is {value} for {where}"
    origin = "its default" if view.origin == "default" else f"as set for the {view.origin}"
    return f"{view.name} is {value} for {where}, {origin}"


# What people see.


def render(views: Sequence[control.OptionView]) -> RenderableType:
    """Return a table of options, with what each does below its name: names are long, and terminals narrow."""
    made = table("option", "value", "origin", "default")
    made.columns[0].max_width = NAME_WIDTH_MAX
    for view in views:
        is_set = view.origin != "default"
        made.add_row(
            Group(view.name, Padding(Text(view.doc, style="dim"), (0, 0, 1, 2))),
            Text(_with_unit(view.value, view.unit), style="bold" if is_set else ""),
            Text(view.origin, style="bold" if is_set else "dim"),
            _with_unit(view.default, view.unit),
        )
    return made


def _with_unit(value: object, unit: str) -> str:
    """Return a value with its unit; words, such as of a default that depends on the group, have none."""
    return shown(value) if isinstance(value, str) else f"{shown(value)} {unit}".rstrip()
