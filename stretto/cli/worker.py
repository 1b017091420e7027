"""``stretto worker``: one worker process, in the foreground."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from stretto import lean  # noqa: F401 - before structlog is imported
from stretto.admin import ModuleDescription, describe
from stretto.allocator import keep_freed_memory
from stretto.cli.daemons import ZookeeperCredentials, run
from stretto.conductor.creation import await_module
from stretto.endpoint import advertised
from stretto.keys import ClusterKey, require_key
from stretto.logs import configure
from stretto.types import WorkerId
from stretto.worker.hosting import hosted
from stretto.worker.plan import plans_of
from stretto.worker.process import Worker, WorkerConfig
from stretto.zk.client import await_connection, close, new_client
from stretto.zk.credentials import Credentials
from stretto.zk.paths import Paths


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
) -> int:
    """Run one worker until SIGTERM or Ctrl-C; it hands its leaderships over first.

    While ZooKeeper does not answer it keeps trying, and says so.

    Example: stretto worker --id a --module counts --data-dir a --address 127.0.0.1:7001
    """
    cluster_key = ClusterKey.load(key) if key is not None else None
    credentials = Credentials.load(zookeeper_credentials) if zookeeper_credentials is not None else None
    for each in (address, advertised(address, advertise)):
        require_key(each, cluster_key)
    configure()
    keep_freed_memory()
    paths = Paths(root)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    client = new_client(zookeeper, session_timeout_millis, credentials)
    try:
        found = None
        if await_connection(client, zookeeper, stop):
            found = await_module(client, paths, module, stop)
    finally:
        close(client)
    if found is None:
        return 0
    assignment, spec = found
    me = WorkerId(worker_id)
    process = Worker(
        WorkerConfig(
            worker=me,
            node=node,
            launch=launch,
            cluster=cluster,
            zookeeper=zookeeper,
            data_dir=data_dir,
            module=module,
            description=(
                ModuleDescription(tasks=assignment.tasks, depots=None) if spec is None else describe(spec)
            ),
            artifact="" if spec is None else spec.artifact,
            plans=hosted(data_dir, me, plans_of(module, assignment)),
            entry="" if spec is None else spec.entry,
            restored=None if spec is None else spec.restored,
            artifacts=None if artifacts is None else artifacts.absolute(),
            address=address,
            advertise=advertise,
            root=root,
            key=cluster_key,
            session_timeout_ms=session_timeout_millis,
            credentials=credentials,
            node_dir=node_dir,
        )
    )
    process.handle_signals()
    if stop.is_set():
        process.loop.call_soon(process.stop)
    typer.echo(f"worker {me} serves {len(process.config.plans)} groups of {module} at {process.address}")
    run(process.run)
    return 0
