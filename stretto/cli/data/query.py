"""``stretto query``: ask a query of a module.

Arguments are JSON; what is not is taken as text, so that words need no quotes. The answer is JSON too.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName
from stretto.cli.data.serving import described
from stretto.client.reading.queries import Asking, argument, named_argument


def query(
    module: ModuleName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of its queries.", show_default=False)],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARG", help="JSON, or text.", show_default=False),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option("--named", metavar="NAME=JSON", help="An argument by its name.", show_default=False),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=600, metavar="SECONDS", help="How long to wait.")
    ] = 30.0,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Ask a query of a module, and show what it answers as JSON.

    Example: stretto query WordCount top 10

    Example: stretto query PageViews history /page/7 --json
    """
    given = dict(named_argument(each) for each in named or [])
    with described(bootstrap, key, module) as (network, description):
        values = [argument(each) for each in arguments or []]
        answer = Asking(network, module, description, name, args=values, named=given, timeout=timeout).wait()
    text = msgspec.json.encode(answer)
    typer.echo((text if as_json else msgspec.json.format(text, indent=2)).decode())
    return 0
