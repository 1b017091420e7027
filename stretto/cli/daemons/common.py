"""Options that daemons have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

ZookeeperCredentials: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Holds user:password; the cluster's znodes are theirs.", show_default=False
    ),
]
