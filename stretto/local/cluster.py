"""A whole cluster on one machine: ZooKeeper, a conductor, a supervisor for each node, and the UI.

Each daemon is a process of its own, with its own folder, log and run file, as on real machines; this one
starts them in their order, restarts what dies, and stops them in the opposite order. Killed itself, it leaves
them running: the next one on the same folder finds them and takes them over, and starts what is missing.
Ports are chosen once and remembered, so that what survived finds what was restarted.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from stretto import control
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.network.asking import ask
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.network.routing import Network
from stretto.process.folder_lock import lock_folder
from stretto.process.java import require_java
from stretto.process.private_files import open_private
from stretto.specs.modules import ModuleState
from stretto.supervisor.children import Child, Children
from stretto.vocabulary.backoff import Backoff
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import WorkerId
from stretto.zk.server.embedded import free_ports, is_free

log = structlog.get_logger()

HOST = "127.0.0.1"
CONDUCTOR_PORT = 7400
UI_PORT = 8888
PORTS_FILE = "cluster.json"
READY_SECONDS = 60.0
RESTART = Backoff(first_ms=500, most_ms=30_000, at_once=1)
CALM_MS = 60_000
"""A daemon that ran for so long before it died is restarted without the back-off of earlier deaths."""
LAST_WORDS_BYTES = 4_096
REFUSAL = "stretto: "
"""Beginning of the line that a command prints instead of a traceback."""
POLL_SECONDS = 0.1
"""Pause between two looks at daemons that start: they do not report when they are ready."""


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The number of nodes and the ports of a cluster, as its folder remembers them."""

    nodes: int
    zookeeper: int
    conductor: int
    supervisors: tuple[int, ...]
    ui: int | None = None
    """Port of the Cluster UI, once there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Where a node listens, where others reach it, and how it reaches ZooKeeper."""

    host: str
    advertised: str
    zookeeper: str


@dataclass(slots=True)
class _Daemon:
    """A process of the cluster: its command, and the back-off before it is started again."""

    name: str
    command: list[str]
    backoff: Backoff = RESTART


class LocalCluster:
    """Starts, watches and stops the daemons of a cluster on this machine.

    :meth:`run` is the thread that watches them; the other methods may be called from any thread.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        *,
        port: int | None = None,
        key: Path | None = None,
        credentials: Path | None = None,
        has_ui: bool = False,
        ui_port: int | None = None,
        place: Callable[[str, Ports], NodePlace] | None = None,
        session_timeout_ms: int | None = None,
    ) -> None:
        """Take the folder and choose the ports; :meth:`run` starts the daemons.

        ``port`` is where the conductor listens; 0 takes a free one, None the one it had before. ``key`` is
        the cluster key's file, ``credentials`` the one for the metastore. ``has_ui`` runs the UI too;
        ``ui_port`` says where, as ``port`` does. ``place`` puts each node somewhere else than all others;
        ``session_timeout_ms`` is of every daemon.
        """
        if nodes < 1:
            raise UsageError(f"a cluster cannot have {nodes} nodes; ask for at least 1")
        require_java()
        self.folder = folder
        self.key_file = key
        self._credentials_file = credentials
        self.key = ClusterKey.load(key) if key is not None else None
        try:
            self._lock = lock_folder(folder)
        except UsageError:
            raise UsageError(
                f"a cluster runs in {folder} already; use it, stop it, or choose another --data-dir"
            ) from None
        #: Daemons that have to be restarted, if they still run, since they are to listen elsewhere.
        self._moved: set[str] = set()
        self._has_ui = has_ui
        self.ports = self._remembered(nodes, port, ui_port)
        everywhere = NodePlace(host=HOST, advertised=HOST, zookeeper=self.zookeeper)
        self._places = {
            f"node-{number}": everywhere if place is None else place(f"node-{number}", self.ports)
            for number in range(1, nodes + 1)
        }
        self._session_timeout_ms = session_timeout_ms
        self._loop = Loop()
        self._children = Children(self._loop, folder / "run", self._exited)
        self._daemons = {daemon.name: daemon for daemon in self._commands()}
        self._stopping = False
        #: Daemons that stay down when they die.
        self._held: set[str] = set()
        self._failure: BaseException | None = None
        #: Called with a message at every death and restart.
        self.tell: Callable[[str], None] = lambda _: None

    @property
    def bootstrap(self) -> tuple[str, ...]:
        """Addresses of the conductor and of all supervisors, for clients."""
        nodes = zip(self._places.values(), self.ports.supervisors, strict=True)
        return (f"{HOST}:{self.ports.conductor}", *(f"{place.advertised}:{port}" for place, port in nodes))

    @property
    def zookeeper(self) -> str:
        """Address of ZooKeeper."""
        return f"{HOST}:{self.ports.zookeeper}"

    @property
    def ui(self) -> str | None:
        """The address of the Cluster UI, if there is one."""
        return f"http://{HOST}:{self.ports.ui}" if self._has_ui else None

    def log_of(self, daemon: str) -> Path:
        """Return the log file of a daemon."""
        return self.folder / "logs" / f"{daemon}.log"

    def _remembered(self, nodes: int, port: int | None, ui_port: int | None) -> Ports:
        """Return the ports of last time, but for those that are asked for now."""
        path = self.folder / PORTS_FILE
        if path.exists():
            try:
                ports = msgspec.json.decode(path.read_bytes(), type=Ports)
            except MALFORMED as error:
                raise StrettoError(
                    f"{path} is damaged ({error}); restore it, or delete it to begin anew"
                ) from None
            if nodes < ports.nodes:
                raise UsageError(
                    f"the cluster in {self.folder} has {ports.nodes} nodes; ask for as many or more"
                )
            if port and port != ports.conductor:
                self._moved.add("conductor")
            ports = msgspec.structs.replace(ports, conductor=port or ports.conductor)
        else:
            zookeeper, conductor = free_ports(2)
            conductor = CONDUCTOR_PORT if port is None else port or conductor
            ports = Ports(nodes=0, zookeeper=zookeeper, conductor=conductor, supervisors=())
        if self._has_ui:
            if ui_port and ui_port != ports.ui:
                self._moved.add("ui")
            before = ports.ui or (UI_PORT if ui_port is None else free_ports(1)[0])
            ports = msgspec.structs.replace(ports, ui=ui_port or before)
        more = free_ports(nodes - ports.nodes)
        return msgspec.structs.replace(ports, nodes=nodes, supervisors=(*ports.supervisors, *more))

    def _remember(self) -> None:
        path = self.folder / PORTS_FILE
        draft = path.with_suffix(".tmp")
        with open_private(draft, "wb") as file:
            file.write(msgspec.json.encode(self.ports))
        draft.rename(path)

    def _commands(self) -> list[_Daemon]:
        """Return the daemons of the cluster in the order in which they are started."""
        this = [sys.executable, "-m", "stretto"]
        folder = self.folder
        shared = []
        if self.key_file is not None:
            shared += ["--key", str(self.key_file.absolute())]
        if self._credentials_file is not None:
            shared += ["--zookeeper-credentials", str(self._credentials_file.absolute())]
        if self._session_timeout_ms is not None:
            shared += ["--session-timeout-millis", str(self._session_timeout_ms)]
        daemons = [
            _Daemon(
                "zookeeper",
                [
                    *this,
                    "zookeeper",
                    "--data-dir",
                    str(folder / "zookeeper"),
                    "--port",
                    str(self.ports.zookeeper),
                ],
            ),
            _Daemon(
                "conductor",
                [
                    *this,
                    "conductor",
                    *shared,
                    "--zookeeper",
                    self.zookeeper,
                    "--address",
                    f"{HOST}:{self.ports.conductor}",
                ],
            ),
        ]
        for (node, place), port in zip(self._places.items(), self.ports.supervisors, strict=True):
            own = ["--node", node, "--data-dir", str(folder / node), "--address", f"{place.host}:{port}"]
            own += ["--zookeeper", place.zookeeper]
            if place.advertised != place.host:
                own += ["--advertise", place.advertised]
            daemons.append(_Daemon(node, [*this, "supervisor", *shared, *own]))
        if self._has_ui:
            key = ["--key", str(self.key_file.absolute())] if self.key_file is not None else []
            own = ["--port", str(self.ports.ui), "--data-dir", str(folder / "ui")]
            daemons.append(_Daemon("ui", [*this, "ui", "--bootstrap", ",".join(self.bootstrap), *own, *key]))
        return daemons

    # The thread that watches.

    def run(self) -> None:
        """Start the daemons and watch them until :meth:`stop`; raises why if they cannot be started."""
        try:
            self._begin()
            self._loop.run()
        finally:
            self._children.let_go()
            self._loop.close()
            os.close(self._lock)
        if self._failure is not None:
            raise self._failure

    def _begin(self) -> None:
        adopted, dead = self._children.recover()
        for each in dead:
            self._children.buried(each.worker, each.launch)
        self._check_ports()
        # Not before: daemons that run listen where they did when others are refused.
        self._remember()
        for child in adopted:
            if child.worker not in self._daemons or child.worker in self._moved:
                self._children.stop(child)
            else:
                self.tell(f"{child.worker} still runs (pid {child.pid})")
        for name in self._daemons:
            self._start(name)

    def _check_ports(self) -> None:
        """Raise UsageError if a port is in use: a daemon that cannot listen would be restarted for ever."""
        listening = {"zookeeper": self.ports.zookeeper, "conductor": self.ports.conductor}
        listening |= {f"node-{number}": port for number, port in enumerate(self.ports.supervisors, start=1)}
        if self._has_ui and self.ports.ui is not None:
            listening["ui"] = self.ports.ui
        there = self._children.alive.keys() - self._moved
        for name, port in listening.items():
            if name not in there and not is_free(port):
                advice = f"stop who has it, or delete {self.folder / PORTS_FILE} to have others chosen"
                if name in ("conductor", "ui"):
                    advice = f"choose another with {'--port' if name == 'conductor' else '--ui-port'}"
                raise UsageError(f"port {port}, where {name} is to listen, is in use; {advice}")

    def _start(self, name: str) -> None:
        if not self._stopping and WorkerId(name) not in self._children.alive:
            command = self._daemons[name].command
            self._children.start(WorkerId(name), "", secrets.token_hex(8), command, self.log_of(name))

    def _exited(self, child: Child, how: str) -> None:
        self._children.buried(child.worker, child.launch)
        if self._stopping:
            self._go_on_stopping()
            return
        daemon = self._daemons.get(child.worker)
        if daemon is None:
            return
        if daemon.name in self._held:
            return
        lived_ms = self._loop.now - child.started_ms
        daemon.backoff = daemon.backoff.reset() if lived_ms > CALM_MS else daemon.backoff.next()
        self._start_later(daemon, f"ended with {how}{_refusal_in(self.log_of(daemon.name))}")

    def _start_later(self, daemon: _Daemon, why: str) -> None:
        delay_ms = daemon.backoff.delay_ms
        self.tell(
            f"{daemon.name} {why} and is started again in {delay_ms / 1_000:.1f} s; "
            f"its log is {self.log_of(daemon.name)}"
        )
        self._loop.call_after(delay_ms, self._start_again, daemon)

    def _start_again(self, daemon: _Daemon) -> None:
        """Start a daemon again, or later if that fails: a full disk must not end the watch over others."""
        try:
            self._start(daemon.name)
        except OSError as error:
            daemon.backoff = daemon.backoff.next()
            self._start_later(daemon, f"cannot be started ({error.strerror})")

    def hold(self, name: str) -> None:
        """Leave this daemon down when it dies, until :meth:`release`. Safe to call from any thread."""
        self._held.add(name)

    def release(self, name: str) -> None:
        """Start a daemon again that :meth:`hold` kept down. Safe to call from any thread."""
        self._held.discard(name)
        self._loop.call_soon(self._start, name)

    # Stopping, from any thread: supervisors first, so that workers can still hand over.

    def stop(self, *, hurry: bool = False) -> None:
        """Stop all daemons and end :meth:`run`; with ``hurry``, kill them. Safe to call from any thread."""
        self._loop.call_soon(self._stop, hurry)

    def fail(self, why: BaseException) -> None:
        """Stop all daemons, and let :meth:`run` raise this error."""
        self._failure = why
        self.stop()

    def _stop(self, hurry: bool) -> None:
        self._stopping = True
        if hurry:
            for child in self._children.alive.values():
                child.signal(signal.SIGKILL)
        self._go_on_stopping()

    def _go_on_stopping(self) -> None:
        alive = self._children.alive
        nodes = [child for name, child in alive.items() if name not in ("conductor", "zookeeper")]
        rest = [alive[name] for name in (WorkerId("conductor"), WorkerId("zookeeper")) if name in alive]
        if not alive:
            self._kill_orphans()
            self._loop.stop()
        for child in nodes or rest[:1]:
            self._children.stop(child)

    def _kill_orphans(self) -> None:
        """Kill workers left behind by supervisors that were killed, also by us while they stopped workers."""
        for name in self._daemons:
            if name.startswith("node-"):
                workers = Children(self._loop, self.folder / name / "run", lambda *_: None)
                for child in workers.recover()[0]:
                    child.signal(signal.SIGKILL)
                workers.let_go()

    # Looking, from another thread.

    def await_ready(
        self, network: Network, stop: threading.Event, timeout: float = READY_SECONDS
    ) -> str | None:
        """Wait until all nodes are registered and modules that ran before are led; return the conductor.

        Returns None if ``stop`` is set first.
        """
        deadline = time.monotonic() + timeout
        missing = "its conductor"
        while time.monotonic() < deadline:
            if stop.is_set():
                return None
            try:
                conductor = ask(network, self.bootstrap[0], control.FindConductor(), timeout=1)
                if conductor is not None:
                    missing = self._missing(network, conductor)
                    if not missing:
                        return conductor
            except RetriableError:
                pass
            stop.wait(POLL_SECONDS)
        raise StrettoError(f"the cluster waits for {missing}; see the logs in {self.folder / 'logs'}")

    def _missing(self, network: Network, conductor: str) -> str:
        registered = {node.node for node in ask(network, conductor, control.Nodes()) if node.address}
        nodes = [name for name in self._daemons if name.startswith("node-") and name not in registered]
        if nodes:
            return f"nodes {', '.join(nodes)}"
        states = (ModuleState.RUNNING, ModuleState.LEADERSHIP_BALANCING)
        modules = [
            module.module
            for module in ask(network, conductor, control.Modules())
            if module.state in states and module.led < module.groups
        ]
        return f"leaders of {', '.join(modules)}" if modules else ""


def _refusal_in(log_file: Path) -> str:
    """Return the sentence with which a daemon refused to run, if its log ends with one."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    last = lines[-1] if lines else ""
    return f" ({last.removeprefix(REFUSAL)})" if last.startswith(REFUSAL) else ""
