"""``stretto supervisor``: the supervisor of one node, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import config
from stretto.cli.daemons.common import ZookeeperCredentials
from stretto.errors import UsageError
from stretto.network.endpoint import advertised
from stretto.process.exit_codes import run_daemon
from stretto.process.logs import configure
from stretto.process.private_files import create_private_files
from stretto.supervisor.process import Supervisor, SupervisorConfig


def supervisor(
    node: Annotated[str, typer.Option(help="The node's name, the same at every start.")],
    data_dir: Annotated[Path, typer.Option(help="Where the data of its workers is; its own.")],
    zookeeper: Annotated[
        str, typer.Option(metavar="HOST:PORT,...", help="The metastore.")
    ] = "127.0.0.1:2181",
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen, its workers too; port 0: any.")
    ] = "127.0.0.1:0",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Where others reach it and its workers, if elsewhere.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[str, typer.Option(help="The cluster it belongs to.")] = "stretto",
    root: Annotated[str, typer.Option(help="The cluster's path in the metastore.")] = "/stretto",
    key: Annotated[Path | None, typer.Option(help="The cluster key.", show_default=False)] = None,
    zookeeper_credentials: ZookeeperCredentials = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of the node; may be repeated.")
    ] = None,
    session_timeout_millis: Annotated[
        int, typer.Option(min=1_000, help="Of its metastore session, and its workers'.")
    ] = 10_000,
    *,
    context: typer.Context,
) -> int:
    """Run the supervisor of one node until SIGTERM or Ctrl-C, which stop its workers too.

    It starts the workers that are placed on its node and restarts those that end. Killed, it leaves them
    running; started again on the same folder, it takes them back.

    Example: stretto supervisor --node n1 --data-dir /var/lib/stretto --zookeeper zk1:2181,zk2:2181
    """
    create_private_files()
    advertised(address, advertise)
    labels = dict(_label(each) for each in label or [])
    configure(remember=True)
    daemon = Supervisor(
        SupervisorConfig(
            node=node,
            cluster=cluster,
            zookeeper=zookeeper,
            data_dir=data_dir,
            address=address,
            advertise=advertise,
            root=root,
            key_file=key,
            credentials_file=zookeeper_credentials,
            labels=labels,
            session_timeout_ms=session_timeout_millis,
            config_file=config.file_of(context),
        )
    )
    daemon.handle_signals()
    typer.echo(f"the supervisor of node {node} listens on {daemon.address}; Ctrl-C stops it and its workers")
    run_daemon(daemon.run)
    return 0


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"a label is NAME=VALUE, not {text!r}")
    return name, value
