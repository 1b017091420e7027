"""``stretto up``: a whole cluster on this machine, in the foreground."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.cluster import Key
from stretto.cli.daemons.common import ZookeeperCredentials
from stretto.cli.hints import exports
from stretto.local.cluster import CONDUCTOR_PORT, UI_PORT, LocalCluster
from stretto.network.routing import Network


def up(
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes.")] = 3,
    data_dir: Annotated[Path, typer.Option(help="Where everything is kept; made if missing.")] = Path(
        "stretto-data"
    ),
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help=f"Where the conductor listens; 0: anywhere. At first {CONDUCTOR_PORT}, then as before.",
            show_default=False,
        ),
    ] = None,
    ui_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help=f"Where the Cluster UI listens; 0: anywhere. At first {UI_PORT}, then as before.",
            show_default=False,
        ),
    ] = None,
    ui: Annotated[bool, typer.Option(help="Run the Cluster UI.")] = True,
    key: Key = None,
    zookeeper_credentials: ZookeeperCredentials = None,
) -> int:
    """Run a whole cluster here until Ctrl-C: ZooKeeper, a conductor, some nodes and the UI, each a process.

    Started again on the same folder it brings back everything that was there.

    Example: stretto up --nodes 3 --data-dir /var/tmp/cluster
    """
    started = time.monotonic()

    def serve(conductor: str, stop: threading.Event) -> None:
        typer.echo(f"The cluster is ready after {time.monotonic() - started:.1f} s.")
        if cluster.ui is not None:
            typer.echo(f"  UI          {cluster.ui}")
        typer.echo(f"  conductor   {conductor}")
        typer.echo(f"  nodes       {', '.join(cluster.bootstrap[1:])}")
        typer.echo(f"  ZooKeeper   {cluster.zookeeper}")
        typer.echo(f"  data, logs  {cluster.folder.resolve()}")
        for line in exports(conductor, key):
            typer.echo(f"For other commands: {line}")
        typer.echo("Ctrl-C stops it; twice, at once.")
        stop.wait()

    cluster = LocalCluster(
        data_dir,
        nodes,
        port=port,
        key=key,
        credentials=zookeeper_credentials,
        has_ui=ui,
        ui_port=ui_port,
    )
    run_cluster(cluster, serve)
    return 0


def run_cluster(cluster: LocalCluster, serve: Callable[[str, threading.Event], None]) -> None:
    """Run a cluster for as long as ``serve`` does.

    ``serve`` gets the conductor's address, and an event that is set when it is to stop.
    """
    told = threading.Event()

    def stop(*_: object) -> None:
        if told.is_set():
            cluster.stop(hurry=True)
        told.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    cluster.tell = typer.echo

    def session() -> None:
        network = Network(cluster.bootstrap, cluster.key)
        try:
            conductor = cluster.await_ready(network, told)
            if conductor is not None:
                serve(conductor, told)
            typer.echo("Stopping: leaders hand over first.")
            cluster.stop()
        except BaseException as error:  # noqa: BLE001 - raised again by run()
            cluster.fail(error)
        finally:
            network.close()

    thread = threading.Thread(target=session, name="session", daemon=True)
    thread.start()
    cluster.run()
    thread.join()
    typer.echo("Stopped.")
