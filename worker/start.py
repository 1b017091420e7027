"""From the settings of a worker to a :class:`Worker` that runs."""

from __future__ import annotations

import signal
import threading

from stretto.process import lean  # noqa: F401 - before structlog is imported

# isort: split
from stretto.control import ModuleDescription, describe
from stretto.network.endpoint import advertised
from stretto.network.keys import ClusterKey, require_key
from stretto.process.allocator import keep_freed_memory
from stretto.process.exit_codes import run_daemon
from stretto.process.logs import configure
from stretto.process.private_files import create_private_files
from stretto.specs.assignments import plans_of
from stretto.worker.hosting.hosting import hosted
from stretto.worker.process import Worker, WorkerConfig
from stretto.worker.settings import WorkerSettings
from stretto.zk.creation import await_module
from stretto.zk.sessions.client import await_connection, close, new_client
from stretto.zk.sessions.credentials import Credentials
from stretto.zk.znodes.paths import Paths


def run(given: WorkerSettings) -> None:
    """Until SIGTERM or Ctrl-C."""
    create_private_files()
    cluster_key = ClusterKey.load(given.key) if given.key is not None else None
    credentials = Credentials.load(given.credentials) if given.credentials is not None else None
    for each in (given.address, advertised(given.address, given.advertise)):
        require_key(each, cluster_key)
    configure()
    keep_freed_memory()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    client = new_client(given.zookeeper, given.session_timeout_ms, credentials)
    try:
        found = None
        if await_connection(client, given.zookeeper, stop):
            found = await_module(client, Paths(given.root), given.module, stop)
    finally:
        close(client)
    if found is None:
        return
    assignment, spec = found
    process = Worker(
        WorkerConfig(
            worker=given.worker,
            node=given.node,
            launch=given.launch,
            cluster=given.cluster,
            zookeeper=given.zookeeper,
            data_dir=given.data_dir,
            module=given.module,
            description=(
                ModuleDescription(tasks=assignment.tasks, depots=None) if spec is None else describe(spec)
            ),
            artifact="" if spec is None else spec.artifact,
            plans=hosted(given.data_dir, given.worker, plans_of(given.module, assignment)),
            entry="" if spec is None else spec.entry,
            restored=None if spec is None else spec.restored,
            artifacts=None if given.artifacts is None else given.artifacts.absolute(),
            address=given.address,
            advertise=given.advertise,
            root=given.root,
            key=cluster_key,
            session_timeout_ms=given.session_timeout_ms,
            credentials=credentials,
            node_dir=given.node_dir,
        )
    )
    process.handle_signals()
    if stop.is_set():
        process.loop.call_soon(process.stop)
    groups = len(process.config.plans)
    print(f"worker {given.worker} serves {groups} groups of {given.module} at {process.address}", flush=True)
    run_daemon(process.run)
