"""``stretto zookeeper``: a ZooKeeper server here, for development."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from stretto.process.private_files import create_private_files
from stretto.zk.server.embedded import EmbeddedZooKeeper, ZooKeeperFailed

_LOOK_SECONDS = 0.2
"""How often to look whether the server still runs; signals end the wait at once."""


def zookeeper(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="D", help="Its folder; made if missing.", show_default=False)
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="P", help="0 takes a free one.")] = 2181,
) -> int:
    """Run one ZooKeeper server, on loopback only, until Ctrl-C.

    It is a real ZooKeeper, started from the jars that pyspark brings along. For production run an ensemble
    of your own and give its addresses to the other daemons.

    Example: stretto zookeeper --data-dir zk
    """
    create_private_files()
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    server = EmbeddedZooKeeper(data_dir, port)
    with server:
        typer.echo(f"ZooKeeper listens on {server.address}, its data is in {data_dir}; Ctrl-C stops it.")
        while not stopping.wait(_LOOK_SECONDS):
            if not server.is_running:
                raise ZooKeeperFailed(f"ZooKeeper ended by itself; see {data_dir / 'zookeeper.log'}")
    typer.echo("ZooKeeper stopped.")
    return 0
