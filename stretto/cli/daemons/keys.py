"""``stretto keys``: the cluster key."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from stretto.network.keys import ClusterKey

app = typer.Typer(add_completion=False, help="Make the key that the processes of a cluster share.")


@app.command()
def generate(path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")]) -> int:
    """Make a new cluster key. Whoever has the file can join the cluster: treat it like a password.

    Example: stretto keys generate cluster.key
    """
    ClusterKey.generate().save(path)
    option = f"--key {shlex.quote(str(path))}"
    typer.echo(f"wrote a new cluster key to {path}; give it to every process with {option}")
    return 0
