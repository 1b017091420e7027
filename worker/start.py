"""Make a :class:`Worker` from the settings of its process, and run it."""

from __future__ import annotations

import signal
import threading

from stretto.process import lean  # noqa: F401 - before structlog is imported

# isort: split
import msgspec

from stretto.control import ModuleDescription, describe
from stretto.network.endpoint import advertised
from stretto.network.keys import ClusterKey, require_key
from stretto.process.allocator import keep_freed_memory
from stretto.process.exit_codes import run_daemon
from stretto.process.logs import configure
from stretto.process.private_files import create_private_files
from stretto.specs.assignments import Assignment, plans_of
from stretto.specs.modules import ModuleSpec
from stretto.worker.hosting.hosting import hosted
from stretto.worker.process import Worker, WorkerConfig
from stretto.worker.settings import WorkerSettings
from stretto.zk.creation import await_module
from stretto.zk.sessions.client import await_connection, close, new_client
from stretto.zk.sessions.credentials import Credentials
from stretto.zk.znodes.paths import Paths


def run(given: WorkerSettings) -> None:
    """Run a worker until SIGTERM or Ctrl-C."""
    create_private_files()
    cluster_key = ClusterKey.load(given.key_file) if given.key_file is not None else None
    file = given.credentials_file
    credentials = Credentials.load(file) if file is not None else None
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
    process = Worker(_config(given, cluster_key, credentials, *found))
    process.handle_signals()
    if stop.is_set():
        process.loop.call_soon(process.stop)
    groups = len(process.config.plans)
    print(f"worker {given.worker} serves {groups} groups of {given.module} at {process.address}", flush=True)
    run_daemon(process.run)


def _config(
    given: WorkerSettings,
    key: ClusterKey | None,
    credentials: Credentials | None,
    assignment: Assignment,
    spec: ModuleSpec | None,
) -> WorkerConfig:
    """Complete the settings with what the metastore says of the module. Without a spec the module was made by
    hand: it takes any records, and has no code."""
    by_hand = ModuleDescription(tasks=assignment.tasks, depots=None)
    return WorkerConfig(
        **msgspec.structs.asdict(given),
        key=key,
        credentials=credentials,
        description=by_hand if spec is None else describe(spec),
        artifact="" if spec is None else spec.artifact,
        entry="" if spec is None else spec.entry,
        restored=None if spec is None else spec.restored,
        plans=hosted(given.data_dir, given.worker, plans_of(given.module, assignment)),
    )
