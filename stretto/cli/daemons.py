"""What daemons have in common: options, and how they end when they must not go on."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from stretto.errors import UsageError

ZookeeperCredentials: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Holds user:password; the cluster's znodes are theirs.", show_default=False
    ),
]


def run(daemon: Callable[[], None]) -> None:
    """Until it is told to stop. One that fails ends as if it were killed.

    An interpreter that ends waits for the threads of pools, which may copy files for minutes. Meanwhile the
    threads that speak to ZooKeeper would keep a session alive whose process does nothing any more, and nobody
    would take its place.
    """
    try:
        daemon()
    except (UsageError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - whatever it is, it is told
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
