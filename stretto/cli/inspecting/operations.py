"""``stretto operations``: what was done to the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from stretto import control
from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, Watch, reach
from stretto.cli.output import show, table
from stretto.specs.operations import Operation


def operations(
    module: Annotated[
        str | None, typer.Option("--module", metavar="M", help="Only of this module.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Only the latest.")] = 20,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """Show what was done to the cluster, by people and by the conductor itself, the latest last.

    Example: stretto operations --module WordCount --limit 5
    """
    with reach(bootstrap, key) as cluster:
        call = control.Operations(module=module, limit=limit)
        show(lambda: cluster.ask(call), render, json=as_json, watch=watch)


def render(done: Sequence[Operation]) -> RenderableType:
    if not done:
        return Text("nothing was done yet")
    made = table("when", "module", "what", "outcome")
    for operation in done:
        at = datetime.fromtimestamp(operation.at_ms / 1_000).astimezone()
        made.add_row(
            at.strftime("%Y-%m-%d %H:%M:%S"),
            operation.module or "-",
            operation.what,
            Text(operation.outcome, style="" if operation.outcome == "done" else "yellow"),
        )
    return made
