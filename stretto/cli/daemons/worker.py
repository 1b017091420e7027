"""``stretto worker``: becomes a worker process, in the foreground (``stretto/worker/__main__.py``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from stretto.cli.daemons.common import ZookeeperCredentials
from stretto.errors import StrettoError
from stretto.vocabulary.types import WorkerId
from stretto.worker.settings import WorkerSettings


def worker(
    worker_id: Annotated[str, typer.Option("--id", help="Its name, the same at every start.")],
    module: Annotated[str, typer.Option(help="The module whose task groups it serves.")],
    data_dir: Annotated[Path, typer.Option(help="Where its replicas live; its own.")],
    zookeeper: Annotated[
        str, typer.Option(metavar="HOST:PORT,...", help="The metastore.")
    ] = "127.0.0.1:2181",
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0: any.")
    ] = "127.0.0.1:0",
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="Where others reach it, if elsewhere.", show_default=False),
    ] = None,
    node: Annotated[str, typer.Option(help="The machine it runs on.")] = "localhost",
    cluster: Annotated[str, typer.Option(help="The cluster it belongs to.")] = "stretto",
    root: Annotated[str, typer.Option(help="The cluster's path in the metastore.")] = "/stretto",
    key: Annotated[Path | None, typer.Option(help="The cluster key.", show_default=False)] = None,
    zookeeper_credentials: ZookeeperCredentials = None,
    session_timeout_millis: Annotated[
        int, typer.Option(min=1_000, help="Of its metastore session.")
    ] = 10_000,
    artifacts: Annotated[
        Path | None,
        typer.Option(help="Where its supervisor keeps the code of modules.", show_default=False),
    ] = None,
    launch: Annotated[
        str, typer.Option(help="What its supervisor knows this process by.", show_default=False)
    ] = "",
    node_dir: Annotated[
        Path | None, typer.Option(help="What the workers of its machine share.", show_default=False)
    ] = None,
) -> NoReturn:
    """Run one worker until SIGTERM or Ctrl-C; it hands its leaderships over first.

    While ZooKeeper does not answer it keeps trying, and says so.

    Example: stretto worker --id a --module counts --data-dir a --address 127.0.0.1:7001
    """
    settings = WorkerSettings(
        worker=WorkerId(worker_id),
        module=module,
        data_dir=data_dir,
        zookeeper=zookeeper,
        address=address,
        advertise=advertise,
        node=node,
        cluster=cluster,
        root=root,
        key_file=key,
        credentials_file=zookeeper_credentials,
        session_timeout_ms=session_timeout_millis,
        artifacts=artifacts,
        launch=launch,
        node_dir=node_dir,
    )
    command = settings.command()
    try:
        os.execv(command[0], command)  # noqa: S606 - a shell would only be in the way
    except OSError as error:
        raise StrettoError(f"cannot run {command[0]}: {error.strerror}") from None
