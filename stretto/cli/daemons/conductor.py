"""``stretto conductor``: one conductor, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.daemons.common import ZookeeperCredentials
from stretto.conductor.process import Conductor, ConductorConfig
from stretto.network.endpoint import advertised
from stretto.network.keys import ClusterKey
from stretto.process.exit_codes import run_daemon
from stretto.process.logs import configure
from stretto.process.private_files import create_private_files
from stretto.zk.sessions.credentials import Credentials


def conductor(
    zookeeper: Annotated[
        str, typer.Option(metavar="HOST:PORT,...", help="The metastore.")
    ] = "127.0.0.1:2181",
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0: any.")
    ] = "127.0.0.1:7400",
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="Where others reach it, if elsewhere.", show_default=False),
    ] = None,
    cluster: Annotated[str, typer.Option(help="The cluster it belongs to.")] = "stretto",
    root: Annotated[str, typer.Option(help="The cluster's path in the metastore.")] = "/stretto",
    key: Annotated[Path | None, typer.Option(help="The cluster key.", show_default=False)] = None,
    zookeeper_credentials: ZookeeperCredentials = None,
    session_timeout_millis: Annotated[
        int, typer.Option(min=1_000, help="Of its metastore session: how soon a standby takes over.")
    ] = 6_000,
) -> int:
    """Run a conductor until SIGTERM or Ctrl-C. Run two or three: one is active, the others stand by.

    Example: stretto conductor --zookeeper zk1:2181,zk2:2181 --address 10.0.0.5:7400 --key cluster.key
    """
    create_private_files()
    advertised(address, advertise)
    configure(remember=True)
    daemon = Conductor(
        ConductorConfig(
            cluster=cluster,
            zookeeper=zookeeper,
            address=address,
            advertise=advertise,
            root=root,
            key=ClusterKey.load(key) if key is not None else None,
            session_timeout_ms=session_timeout_millis,
            credentials=(
                Credentials.load(zookeeper_credentials) if zookeeper_credentials is not None else None
            ),
        )
    )
    daemon.handle_signals()
    typer.echo(f"the conductor listens on {daemon.address}; Ctrl-C stops it")
    run_daemon(daemon.run)
    return 0
