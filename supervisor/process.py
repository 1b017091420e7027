"""A node's supervisor: it starts the workers that are placed on its node, and sees to it that they run.

Its processes are in :mod:`stretto.supervisor.children`, what it should run in
:mod:`stretto.supervisor.desired`, and what it does for the dead in
:mod:`stretto.supervisor.dead_registrations`; here these come together. Whatever changes, one function
compares what should be with what is (:meth:`Supervisor._reconcile`), and it may run at any time.

Folder: ``workers/<id>`` the data of each worker, ``logs/<id>.log`` what it said, ``run/<id>.json`` how to
know its process, ``deleting/`` what is being deleted, ``artifacts/`` the code of modules.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import msgspec
import structlog

from stretto import control
from stretto.errors import StrettoError, UsageError
from stretto.network.endpoint import advertised
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.network.service import Service
from stretto.process import log_pages
from stretto.process.folder_lock import lock_folder
from stretto.process.logs import RECENT
from stretto.process.private_files import open_private
from stretto.snapshot.seeding import why_unseen
from stretto.supervisor.children import Child, Children, bound_logs
from stretto.supervisor.code import ModuleCode
from stretto.supervisor.dead_registrations import Burials
from stretto.supervisor.desired import Desired, Fate
from stretto.supervisor.duplicates import Namesakes
from stretto.supervisor.trials import CodeTrials
from stretto.vocabulary.backoff import Backoff
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import Incarnation, Millis, WorkerId
from stretto.worker.hosting.hosting import DELETING
from stretto.worker.replica.takeover import PREPARING
from stretto.zk.sessions.credentials import Credentials
from stretto.zk.watches.daemon_session import DaemonSession
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import ConductorRegistration, NodeRegistration, ZnodeDamaged, decode, encode

log = structlog.get_logger()

RESTART = Backoff(first_ms=500, most_ms=30_000, at_once=1)
LIFE_MS = 60_000
"""How long a worker must have lived to start again at once, as if it had never failed."""
SWEEP_MS = 10 * 60 * 1_000
"""How often code that no module uses is looked for."""
LOGS_MS = 60 * 1_000
"""How often logs that have grown too long are looked for."""
UNFINISHED = (DELETING, PREPARING)
"""Prefixes of folders beside replicas that are no replicas, or none yet."""
FAREWELL_MS = 2_000
"""Time to delete the registrations of killed workers when the supervisor itself stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """Everything that a supervisor is started with."""

    node: str
    cluster: str
    zookeeper: str
    data_dir: Path
    address: str = "127.0.0.1:0"
    advertise: str | None = None
    """Address at which others reach the supervisor and its workers, if that is not where they listen."""
    root: str = "/stretto"
    key_file: Path | None = None
    credentials_file: Path | None = None
    """File with the credentials for the metastore; the workers read it too."""
    labels: dict[str, str] = field(default_factory=dict)
    session_timeout_ms: int = 10_000
    config_file: Path | None = None
    """Configuration file of the workers: what is not given here, they read there."""


class _Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The node and the cluster that a data folder belongs to."""

    version: int = 1
    cluster: str
    node: str
    folder: str
    """Random word that stands for the folder."""


@dataclass(slots=True, eq=False)
class _Post:
    """A worker that should run here, or did."""

    worker: WorkerId
    module: str
    backoff: Backoff = RESTART
    """Delay of the next start, which grows until the worker has lived long enough."""
    not_before: Millis = Millis(0)
    """When the worker may start again."""

    def back_off(self, now: Millis) -> int:
        """Delay the next start: not at all after the first failure, then twice as long each time."""
        wait_ms = self.backoff.delay_ms
        self.backoff = self.backoff.next()
        self.not_before = Millis(now + wait_ms)
        return wait_ms


class Supervisor:
    """The process of a supervisor: it makes the workers of its node what the metastore wants.

    Everything here runs on the loop's thread, except what says otherwise.
    """

    def __init__(self, config: SupervisorConfig) -> None:
        self.config = config
        key = ClusterKey.load(config.key_file) if config.key_file is not None else None
        file = config.credentials_file
        credentials = Credentials.load(file) if file is not None else None
        paths = Paths(config.root)
        paths.node_parent(config.node)
        self._paths = paths
        self._data = config.data_dir.absolute()
        self._lock = lock_folder(self._data)
        owner = _claim(self._data, config.cluster, config.node)
        self.loop = Loop()
        self._view = DaemonSession(
            config.zookeeper,
            session_timeout_ms=config.session_timeout_ms,
            registration=self._registration,
            started=self._registered,
            credentials=credentials,
            on_failure=self.loop.end_with,
        )
        self._code = ModuleCode(
            self.loop,
            self._view,
            paths,
            folder=self._data / "artifacts",
            node=config.node,
            key=key,
            changed=self._reconcile,
        )
        self._trials = CodeTrials(
            self.loop, paths, node=config.node, store=self._code.store, write=self._view.write
        )
        self._service = Service(
            self.loop,
            address=config.address,
            cluster=config.cluster,
            name=f"the supervisor of node {config.node}",
            key=key,
            handle=self._answer,
        )
        self._children = Children(self.loop, self._data / "run", self._exited)
        self._burials = Burials(self.loop, self._view, paths, self._buried)
        self._desired = Desired(self.loop, self._view, paths, config.node, self._reconcile)
        self._namesakes = Namesakes(
            self.loop, self._view, paths, node=config.node, folder=owner.folder, changed=self._reconcile
        )
        #: Whether it is known that nobody else runs the workers of this node.
        self._is_ours = False
        self._folder = owner.folder
        self._posts: dict[WorkerId, _Post] = {}
        #: Workers whose data is deleted, as long as that is what is wanted of them.
        self._deleted: set[WorkerId] = set()
        #: Folders that no assignment claims, and that were logged: once each.
        self._told_left: set[str] = set()
        #: The thread that deletes folders and cuts logs.
        self._pool = ThreadPoolExecutor(1, "files")
        self._conductor: str | None = None
        self._stopping_at: Millis | None = None

    @property
    def address(self) -> str:
        return self._service.address

    def run(self) -> None:
        """Run until :meth:`stop` has done its work."""
        config = self.config
        log.info("supervisor_started", node=config.node, address=self.address, data_dir=str(self._data))
        self._view.start()
        self._recover()
        self._view.follow_data(self._paths.conductor_leader, self._conductor_read)
        self._desired.start()
        self.loop.call_after(SWEEP_MS, self._sweep)
        self.loop.call_after(LOGS_MS, self._bound_logs)
        self.loop.run()
        self._close()

    def handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.loop.call_soon(self.stop))

    # The metastore: called from its threads.

    def _registration(self, incarnation: Incarnation) -> tuple[str, bytes]:
        node = self.config.node
        registration = NodeRegistration(
            node=node,
            incarnation=incarnation,
            address=advertised(self.address, self.config.advertise),
            folder=self._folder,
            labels=self.config.labels,
        )
        return self._paths.node(node, incarnation), encode(registration)

    def _registered(self, incarnation: Incarnation) -> None:
        log.info("supervisor_registered", node=self.config.node, incarnation=incarnation)
        self.loop.call_soon(self._namesakes.start)

    def _conductor_read(self, data: bytes | None) -> None:
        path = self._paths.conductor_leader
        try:
            self._conductor = decode(data, ConductorRegistration, path).address if data else None
        except ZnodeDamaged as damage:
            log.error("znode_damaged", path=damage.path, problem=damage.problem)

    # Calls: on the service's threads.

    def _answer(self, call: control.AnyCall, bodies: list[memoryview]) -> object:
        if not isinstance(call, control.SupervisorCall):
            raise StrettoError(
                f"the supervisor of node {self.config.node} does not know {type(call).__name__}; "
                "ask the conductor"
            )
        match call:
            case (
                control.HasArtifact()
                | control.HeldOfArtifact()
                | control.PutArtifact()
                | control.GetArtifact()
            ):
                return self._code.store.handle(call, bodies)
            case control.FindConductor():
                return self._conductor
            case control.Log(worker=worker):
                return self._log(call, worker)
            case control.SeesSnapshot(folder=folder, checksum=checksum):
                return why_unseen(Path(folder), checksum)
            case control.LocalWorkers():
                node = self.config.node
                addresses = self._burials.addresses.items()
                return [control.WorkerView(worker=each, node=node, address=at) for each, at in addresses]
            case _:
                assert_never(call)

    def _log(self, call: control.Log, worker: WorkerId | None) -> control.LogPage:
        if worker is None:
            return log_pages.of_memory(RECENT, call)
        self._paths.worker(worker)  # Refuses what is no name, such as a path.
        return log_pages.of_file(self._log_of(worker), call)

    # Workers.

    def _recover(self) -> None:
        """Take over what an earlier supervisor left: live processes, the dead, and folders half deleted."""
        adopted, dead = self._children.recover()
        for each in dead:
            log.info("worker_died_meanwhile", worker=each.worker, launch=each.launch)
            self._burials.died(each.worker, each.launch)
        self._is_ours = bool(adopted)
        for child in adopted:
            self._posts[child.worker] = _Post(child.worker, child.module)
            self._burials.watch(child.worker)
            log.info("worker_adopted", worker=child.worker, module=child.module, pid=child.pid)
        deleting = self._data / "deleting"
        for left in sorted(deleting.iterdir()) if deleting.exists() else ():
            self._pool.submit(_delete, left)

    def _reconcile(self) -> None:
        """Make the workers of this node what the metastore wants. May run at any time."""
        if self._stopping_at is not None:
            return
        self._is_ours = self._is_ours or self._namesakes.are_none
        for worker, module in self._desired.here().items():
            if worker in self._deleted and self._desired.fate(worker, module) is Fate.DESTROY:
                continue
            self._deleted.discard(worker)
            self._posts.setdefault(worker, _Post(worker, module))
        for module, update in self._desired.updates():
            if self._code.is_here(update.next.artifact):
                self._trials.begin(module, update)
        for post in list(self._posts.values()):
            child = self._children.alive.get(post.worker)
            match self._desired.fate(post.worker, post.module):
                case Fate.RUN if child is None and self._is_ours:
                    self._start(post)
                case Fate.LEAVE | Fate.DESTROY as fate if child is not None:
                    self._end(child, fate)
                case Fate.DESTROY:
                    self._destroy(post)
                case Fate.LEAVE:
                    self._forget(post)
                case _:
                    pass
        self._delete_destroyed()
        self._tell_left()

    def _start(self, post: _Post) -> None:
        if self.loop.now < post.not_before or not self._code.is_here(self._desired.artifact(post.module)):
            return
        self._burials.watch(post.worker)
        launch = secrets.token_hex(8)
        command = self._command(post, launch)
        try:
            child = self._children.start(post.worker, post.module, launch, command, self._log_of(post.worker))
        except OSError as error:
            self._try_again(post, "worker_not_started", why=str(error))
        else:
            log.info("worker_started", worker=post.worker, module=post.module, pid=child.pid, launch=launch)

    def _command(self, post: _Post, launch: str) -> list[str]:
        config = self.config
        command = [sys.executable, "-m", "stretto", "worker", "--id", post.worker, "--module", post.module]
        if config.config_file is not None:
            command += ["--config", str(config.config_file.absolute())]
        command += ["--data-dir", str(self._data / "workers" / post.worker), "--node", config.node]
        command += ["--zookeeper", config.zookeeper, "--root", config.root, "--cluster", config.cluster]
        command += ["--address", f"{self.address.rpartition(':')[0]}:0", "--launch", launch]
        command += ["--session-timeout-millis", str(config.session_timeout_ms)]
        command += ["--node-dir", str(self._data)]
        command += ["--artifacts", str(self._data / "artifacts")]
        if config.advertise is not None:
            host, colon, _ = config.advertise.rpartition(":")
            command += ["--advertise", host if colon else config.advertise]
        if config.key_file is not None:
            command += ["--key", str(config.key_file.absolute())]
        if config.credentials_file is not None:
            command += ["--zookeeper-credentials", str(config.credentials_file.absolute())]
        return command

    def _try_again(self, post: _Post, event: str, **fields: object) -> None:
        wait_ms = post.back_off(self.loop.now)
        log.warning(event, worker=post.worker, again_in_ms=wait_ms, **fields)
        self.loop.call_after(wait_ms, self._reconcile)

    def _end(self, child: Child, fate: Fate) -> None:
        if not child.is_stopping:
            log.info("worker_stopping", worker=child.worker, pid=child.pid, fate=fate.value)
            self._children.stop(child)

    def _exited(self, child: Child, how: str) -> None:
        """Deal with a death, the registration first: until it is gone, others wait for the dead."""
        self._burials.died(child.worker, child.launch)
        lived_ms = self.loop.now - child.started_ms
        fields = {"pid": child.pid, "how": how, "lived_ms": lived_ms}
        post = self._posts.get(child.worker)
        if self._stopping_at is not None or post is None or child.is_stopping:
            log.info("worker_stopped", worker=child.worker, **fields)
            self._reconcile()
            self._go_if_done()
            return
        if lived_ms >= LIFE_MS:
            post.backoff = post.backoff.reset()
        self._try_again(post, "worker_exited", log=str(self._log_of(child.worker)), **fields)

    def _log_of(self, worker: WorkerId) -> Path:
        return self._data / "logs" / f"{worker}.log"

    def _buried(self, worker: WorkerId, launch: str) -> None:
        self._children.buried(worker, launch)
        if worker not in self._posts:
            self._burials.unwatch(worker)
        self._go_if_done()

    # Data.

    def _forget(self, post: _Post) -> None:
        del self._posts[post.worker]
        self._burials.unwatch(post.worker)

    def _destroy(self, post: _Post) -> None:
        """Delete the data of a worker; the conductor waits for this before it forgets the module."""
        if not self._delete_data(post.worker):
            self._try_again(post, "not_destroyed")
            return
        self._forget(post)
        self._deleted.add(post.worker)
        self._view.delete(self._paths.remains_of(post.module, post.worker), lambda: None)

    def _delete_data(self, worker: WorkerId) -> bool:
        """Delete the data of a worker, and its logs."""
        folder = self._data / "workers" / worker
        if folder.exists() and not self._delete(folder):
            return False
        said = self._log_of(worker)
        for path in (said, said.with_suffix(".log.1")):
            path.unlink(missing_ok=True)
        return True

    def _delete(self, folder: Path) -> bool:
        """Delete a folder, renamed first: a crash then leaves nothing that looks like a worker's data."""
        doomed = self._data / "deleting" / f"{folder.name}-{secrets.token_hex(4)}"
        try:
            doomed.parent.mkdir(exist_ok=True)
            folder.rename(doomed)
        except OSError as error:
            log.error("not_deleted", path=str(folder), error=str(error))
            return False
        log.info("worker_data_deleted", folder=str(folder))
        self._pool.submit(_delete, doomed)
        return True

    def _delete_destroyed(self) -> None:
        """Delete replicas of modules destroyed while this node was away, as their grouping proves."""
        if not self._desired.is_known or not self._desired.is_any_destroyed:
            return
        named = self._named()
        for folder in (self._data / "workers").glob("*"):
            replicas = [each for each in folder.glob("groups/*") if not each.name.startswith(UNFINISHED)]
            doomed = [each for each in replicas if self._is_destroyed(each.name)]
            if doomed and doomed == replicas and folder.name not in named:
                self._delete_data(WorkerId(folder.name))
            else:
                # A worker of a namesake has them beside its own.
                for each in doomed:
                    self._delete(each)

    def _is_destroyed(self, replica: str) -> bool:
        module, *numbers = replica.rsplit("-", 2)
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            return False
        return self._desired.is_destroyed(module, int(numbers[0]))

    def _named(self) -> set[str]:
        """Workers that the metastore places here, or that may still run."""
        return {str(worker) for worker in (*self._desired.here(), *self._posts)}

    def _sweep(self) -> None:
        if self._desired.is_known:
            self._code.sweep(self._desired.artifacts())
        self.loop.call_after(SWEEP_MS, self._sweep)

    def _bound_logs(self) -> None:
        self._pool.submit(bound_logs, self._data / "logs")
        self.loop.call_after(LOGS_MS, self._bound_logs)

    def _tell_left(self) -> None:
        """Log folders that no assignment names: data is never deleted because somebody does not name it."""
        folder = self._data / "workers"
        if not self._desired.is_known or not folder.exists():
            return
        for name in sorted({each.name for each in folder.iterdir()} - self._named() - self._told_left):
            self._told_left.add(name)
            log.warning(
                "folder_left_alone",
                folder=str(folder / name),
                advice="no assignment places this worker here; delete it by hand if nobody needs it",
            )

    # Stopping.

    def stop(self) -> None:
        """Stop all workers, side by side, and go; asked a second time, by force."""
        if self._stopping_at is None:
            self._stopping_at = self.loop.now
            log.info("supervisor_stopping", node=self.config.node, workers=len(self._children.alive))
            for child in list(self._children.alive.values()):
                self._children.stop(child)
        else:
            for child in list(self._children.alive.values()):
                child.signal(signal.SIGKILL)
        self._go_if_done()

    def _go_if_done(self) -> None:
        if self._stopping_at is None or self._children.alive:
            return
        if self._burials.is_done or not self._view.is_connected:
            self.loop.stop()
        else:
            self.loop.call_after(FAREWELL_MS, self.loop.stop)

    def _close(self) -> None:
        self._view.close()
        self._service.close()
        self._pool.shutdown()
        self._code.close()
        self._trials.close()
        self._children.let_go()
        self.loop.close()
        os.close(self._lock)
        log.info("supervisor_stopped", node=self.config.node)


def _claim(folder: Path, cluster: str, node: str) -> _Owner:
    """Make a data folder this node's; refuse the folder of another node or cluster."""
    path = folder / "supervisor.json"
    if not path.exists():
        owner = _Owner(cluster=cluster, node=node, folder=secrets.token_hex(8))
        draft = path.with_suffix(".tmp")
        with open_private(draft, "wb") as file:
            file.write(msgspec.json.encode(owner))
        draft.rename(path)
        return owner
    try:
        owner = msgspec.json.decode(path.read_bytes(), type=_Owner)
    except MALFORMED:
        raise UsageError(f"{path} is damaged; remove it if {folder} is this node's folder") from None
    if (owner.cluster, owner.node) != (cluster, node):
        raise UsageError(
            f"{folder} belongs to node {owner.node} of cluster {owner.cluster}, not to node {node} "
            f"of cluster {cluster}; give this one its own --data-dir"
        )
    return owner


def _delete(folder: Path) -> None:
    def failed(_: Callable[..., object], path: str, error: tuple[object, BaseException, object]) -> None:
        log.error("not_deleted", path=path, error=str(error[1]))

    shutil.rmtree(folder, onerror=failed)
