"""How a command reaches a cluster: through any address of it, to the daemon that can answer.

The options here are shared by all such commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from stretto.client.operating.cluster import Cluster
from stretto.network.keys import ClusterKey
from stretto.network.routing import Network

DEFAULT_BOOTSTRAP = "127.0.0.1:7400"

Bootstrap: TypeAlias = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        envvar="STRETTO_BOOTSTRAP",
        help="Any conductor, supervisor or worker of the cluster.",
    ),
]
Key: TypeAlias = Annotated[
    Path | None,
    typer.Option("--key", envvar="STRETTO_KEY", help="The cluster key, if it has one.", show_default=False),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="For programs.")]
Watch: TypeAlias = Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")]
ModuleName: TypeAlias = Annotated[str, typer.Argument(metavar="M", help="The module.", show_default=False)]


@contextmanager
def reach(bootstrap: str, key: Path | None) -> Iterator[Cluster]:
    addresses = [each.strip() for each in bootstrap.split(",") if each.strip()]
    network = Network(addresses, ClusterKey.load(key) if key is not None else None)
    try:
        yield Cluster(network, addresses)
    finally:
        network.close()
