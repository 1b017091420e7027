"""A cluster of real processes on this machine, and everything that can happen to them.

Workers run as ``python -m stretto worker``; each has a name, a folder, a port that it keeps over restarts,
and a log. What holds is read where it is decided, in the metastore. When a test fails, the ends of its
workers' logs are printed with it (:func:`pytest_runtest_makereport`, which conftests import).
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
import pytest
from kazoo.client import KazooClient

from stretto import control
from stretto.artifact.importing import manifest
from stretto.client import Client, connect
from stretto.client.operating.status import judge
from stretto.errors import StrettoError
from stretto.network.asking import ask
from stretto.network.keys import ClusterKey
from stretto.options import CLUSTER
from stretto.replog.core.record import GroupRecord
from stretto.replog.folder import OsFolder
from stretto.replog.frame import decode
from stretto.replog.log import Replog
from stretto.specs.assignments import GroupPlan, plans_of
from stretto.specs.modules import DepotSpec, ModuleSpec, ModuleState, PStateSpec
from stretto.state.applied import AppliedState
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Offset, WorkerId
from stretto.wire import messages as wire
from stretto.zk.creation import create_groups, evenly, write_assignment
from stretto.zk.watches.options import set_options
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import decode as decode_record
from stretto.zk.znodes.records import encode
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

MODULE = "counts"
DEPOT = "events"
SESSION_TIMEOUT_MS = 3_000
#: Deadline of waits: long enough for a session to expire, an election, and a busy machine.
DEADLINE_SECONDS = 40.0
LOG_LINES_SHOWN = 30
_EXIT_SECONDS = 25.0

_RECENT: deque[Cluster] = deque(maxlen=2)


class Code:
    """The code of a module for a cluster: its source, in a folder of its own."""

    def __init__(self, folder: Path, source: str, name: str) -> None:
        self.folder = folder
        self.artifact = secrets.token_hex(32)
        module = f"module_{secrets.token_hex(4)}"
        (folder / self.artifact).mkdir(parents=True)
        path = folder / self.artifact / f"{module}.py"
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(module, path)
        assert spec is not None
        assert spec.loader is not None
        imported = importlib.util.module_from_spec(spec)
        sys.modules[module] = imported
        spec.loader.exec_module(imported)
        self.manifest = manifest(getattr(imported, name), f"{module}:{name}")


class WorkerProcess:
    """One worker over all its lives: each start is a new process with the same name, folder and port."""

    def __init__(self, name: str, folder: Path, command: Callable[[WorkerProcess], list[str]]) -> None:
        self.name = name
        self.data_dir = folder / name
        self.log_path = folder / f"{name}.log"
        self.address = f"127.0.0.1:{free_port()}"
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.is_paused = False
        self._lives = 0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    def start(self) -> None:
        assert not self.is_running, f"{self.name} runs already"
        self._lives = self.said("worker_started") + 1
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(self), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.is_paused = False

    def has_started(self) -> bool:
        """Whether the worker has started in this life; before that, no handler of signals is installed."""
        return self.said("worker_started") >= self._lives

    def send(self, number: signal.Signals) -> None:
        # Not Popen.send_signal: it reaps first, and a worker that ended by itself should be noticed.
        assert self.is_running, f"{self.name} is not running; its log is {self.log_path}"
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        self.send(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self.send(signal.SIGCONT)
        self.is_paused = False

    def terminate(self) -> None:
        """Ask the worker to stop; :meth:`wait` for its end."""
        self.send(signal.SIGTERM)

    def wait(self, timeout_seconds: float = _EXIT_SECONDS) -> int:
        assert self.process is not None
        return self.process.wait(timeout_seconds)

    def restart(self) -> None:
        if self.is_running:
            self.kill()
        self.start()

    def wipe(self) -> None:
        assert not self.is_running, f"{self.name} runs on the folder that is to be wiped"
        shutil.rmtree(self.data_dir)

    def log(self) -> list[str]:
        return self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []

    def said(self, event: str) -> int:
        """Return how often its log has this event."""
        return sum(event in line for line in self.log())

    def finish(self) -> None:
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


class Cluster:
    """Workers with groups of a module, over a ZooKeeper; as a context manager it is started and stopped."""

    def __init__(
        self,
        folder: Path,
        zookeeper: str,
        *,
        workers: int = 3,
        tasks: int = 2,
        groups: int = 2,
        factor: int = 3,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        key: Path | None = None,
        depots: tuple[DepotSpec, ...] | None = None,
        pstates: tuple[PStateSpec, ...] = (),
        hosts_of: Callable[[str], str] | None = None,
        options: Mapping[str, object] | None = None,
        proxied: bool = False,
        code: Code | None = None,
    ) -> None:
        """Prepare a cluster; with ``proxied`` each worker is reached through a proxy, which can be cut."""
        self.folder = folder
        self.zookeeper = zookeeper
        self.session_timeout_ms = session_timeout_ms
        self.key = key
        self.code = code
        self.manifest = None if code is None else code.manifest
        self.depots = depots if self.manifest is None else self.manifest.depots
        self.pstates = pstates if self.manifest is None else self.manifest.pstates
        self.paths = Paths(f"/test-{secrets.token_hex(4)}")
        names = [f"w{number}" for number in range(workers)]
        self._hosts_of = hosts_of or (lambda _: zookeeper)
        self.workers = {name: WorkerProcess(name, folder, self.command) for name in names}
        self.assignment = evenly(tasks, groups, [WorkerId(name) for name in names], factor)
        self.plans: tuple[GroupPlan, ...] = plans_of(MODULE, self.assignment)
        self._options = options
        self._closing = contextlib.ExitStack()
        self.roads: dict[str, Proxy] = {}
        for worker in self.workers.values() if proxied else ():
            port = int(worker.address.rpartition(":")[2])
            self.roads[worker.name] = self._closing.enter_context(Proxy(port))
        self._operator: KazooClient | None = None
        folder.mkdir(parents=True, exist_ok=True)
        _RECENT.append(self)

    def command(self, worker: WorkerProcess) -> list[str]:
        command = [sys.executable, "-m", "stretto", "worker"]
        command += ["--id", worker.name, "--module", MODULE, "--data-dir", str(worker.data_dir)]
        command += ["--zookeeper", self._hosts_of(worker.name), "--root", self.paths.root]
        command += ["--address", worker.address, "--node", f"node-of-{worker.name}"]
        command += ["--session-timeout-millis", str(self.session_timeout_ms)]
        if self.code is not None:
            command += ["--artifacts", str(self.code.folder)]
        if worker.name in self.roads:
            command += ["--advertise", self.roads[worker.name].address]
        return command + (["--key", str(self.key)] if self.key is not None else [])

    # Life.

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all workers, and return when every group has a full ISR and a leader that serves."""
        self._operator = KazooClient(self.zookeeper)
        self._operator.start(DEADLINE_SECONDS)
        if self.depots is not None:
            self._write_spec(self.depots)
        if self._options:
            set_options(self._operator, self.paths, CLUSTER, self._options)
        write_assignment(self._operator, self.paths, MODULE, self.assignment)
        for worker in self.workers.values():
            worker.start()
        create_groups(self._operator, self.paths, MODULE, DEADLINE_SECONDS)
        self.wait_healed()
        reader = self.connect().reader(MODULE, self.depots[0].name if self.depots else DEPOT)
        for task in reader.tasks:
            reader.bounds(task)

    def _write_spec(self, depots: tuple[DepotSpec, ...]) -> None:
        """Write the module's spec, as a launch would; without it the workers take records for any depot."""
        spec = ModuleSpec(
            artifact="" if self.code is None else self.code.artifact,
            tasks=self.assignment.tasks,
            threads=len(self.plans),
            workers=len(self.workers),
            replication_factor=len(self.plans[0].replicas),
            state=ModuleState.RUNNING,
            depots=depots,
            pstates=self.pstates,
            entry="" if self.manifest is None else self.manifest.entry,
            topologies=() if self.manifest is None else self.manifest.topologies,
            queries=() if self.manifest is None else self.manifest.queries,
        )
        self.operator.create(self.paths.spec(MODULE), encode(spec), makepath=True)

    def assign(self, *groups: Iterable[str]) -> None:
        """Give each group these replicas from now on."""
        places = {name: place for place, name in enumerate(self.workers)}
        self.assignment = msgspec.structs.replace(
            self.assignment,
            groups=tuple(tuple(places[name] for name in group) for group in groups),
            plan=self.assignment.plan + 1,
        )
        self.plans = plans_of(MODULE, self.assignment)
        self.operator.set(self.paths.assignment(MODULE), encode(self.assignment))

    def stop(self) -> None:
        """Stop everything by force; no process is left."""
        for worker in self.workers.values():
            worker.finish()
        self._closing.close()
        if self._operator is not None:
            self._operator.stop()
            self._operator.close()
            self._operator = None

    def kill_at_once(self) -> None:
        """Kill all workers, frozen first, so that none hands over, elects or shrinks an ISR meanwhile."""
        running = [worker for worker in self.workers.values() if worker.is_running]
        for worker in running:
            worker.pause()
        for worker in running:
            worker.kill()

    # Looking.

    @property
    def operator(self) -> KazooClient:
        assert self._operator is not None, "the cluster is not started"
        return self._operator

    def record(self, group: int = 0) -> GroupRecord:
        path = self.paths.group(self.key_of(group))
        return decode_record(self.operator.get(path)[0], GroupRecord, path)

    def key_of(self, group: int = 0) -> GroupKey:
        return self.plans[group].key

    def leader(self, group: int = 0) -> WorkerProcess:
        leader = self.record(group).leader
        assert leader is not None, f"group {group} never had a leader"
        return self.workers[leader]

    def followers(self, group: int = 0) -> list[WorkerProcess]:
        leader = self.record(group).leader
        return [self.workers[name] for name in self.plans[group].replicas if name != leader]

    def isr(self, group: int = 0) -> set[str]:
        return {member.worker for member in self.record(group).isr}

    def addresses(self, names: Iterable[str] | None = None) -> list[str]:
        return [self.workers[name].address for name in names or self.workers]

    def connect(self, names: Iterable[str] | None = None) -> Client:
        """Return a client of these workers; it is closed with the cluster at the latest."""
        key = ClusterKey.load(self.key) if self.key is not None else None
        client = connect(self.addresses(names), key=key, timeout=DEADLINE_SECONDS)
        self._closing.callback(client._network.close)  # without waiting for what it has under way
        return client

    # Waiting.

    def wait_led_by(self, names: Iterable[str], group: int = 0, *, above_epoch: int = 0) -> WorkerProcess:
        """Wait until one of these leads, in an epoch above the given one."""
        wanted = set(names)

        def leads() -> bool:
            record = self.record(group)
            return record.leader in wanted and record.epoch > above_epoch

        what = f"one of {sorted(wanted)} leads group {group} above epoch {above_epoch}"
        wait_until(what, leads, DEADLINE_SECONDS)
        return self.leader(group)

    def wait_isr(self, names: Iterable[str], group: int = 0) -> None:
        """Wait until the ISR of a group is exactly these."""
        wanted = set(names)
        wait_until(
            f"the ISR of group {group} is {sorted(wanted)}",
            lambda: self.isr(group) == wanted,
            DEADLINE_SECONDS,
        )

    def wait_healed(self) -> None:
        """Wait until every group is led, and all its replicas are in the ISR.

        The record still has those that died a moment ago, so the processes that run now are asked too.
        """
        key = ClusterKey.load(self.key) if self.key is not None else None
        with connect(self.addresses(), key=key, timeout=DEADLINE_SECONDS) as client:
            for number, plan in enumerate(self.plans):
                wait_until(
                    f"group {number} is led, and all of {plan.replicas} say that they are in its ISR",
                    partial(self._is_whole, client, number),
                    DEADLINE_SECONDS,
                )

    def _is_whole(self, client: Client, group: int) -> bool:
        plan, record = self.plans[group], self.record(group)
        isr = tuple(member.worker for member in record.isr)
        if record.leader is None or set(isr) != set(plan.replicas):
            return False
        told: dict[WorkerId, control.ReplicaView] = {}
        for name in plan.replicas:
            with contextlib.suppress(StrettoError):
                views = ask(client._network, self.workers[name].address, control.Replicas(), timeout=1.0)
                told |= {view.worker: view for view in views if view.group == plan.key}
        view = wire.GroupView(plan.key, plan.tasks, plan.replicas, record.epoch, record.leader, isr, 0)
        return judge(view, told, frozenset(told)).is_whole

    def heal(self) -> None:
        """Resume and restart whatever needs it, and wait until the cluster is healed."""
        self.revive()
        self.wait_healed()

    def revive(self) -> None:
        """Resume and restart whatever needs it."""
        for worker in self.workers.values():
            if not worker.is_running:
                worker.start()
            elif worker.is_paused:
                worker.resume()

    # After the end.

    def check_replicas_agree(self) -> None:
        """Kill all workers, and compare the replicas of each group at the highest offset any applied.

        Every entry below it was decided, so each member of the ISR has it in its log: those that had not
        applied it yet do so here.
        """
        self.wait_healed()
        self.kill_at_once()
        for number, plan in enumerate(self.plans):
            members = sorted(self.isr(number))
            assert set(members) == set(plan.replicas), f"group {number} is not whole: {members}"
            with contextlib.ExitStack() as closing:
                replicas = {name: self._open_replica(name, plan, closing) for name in members}
                decided = max(state.furthest for _, state in replicas.values())
                digests = {}
                for name, (log, state) in replicas.items():
                    assert log.end_offset >= decided, f"{name} lacks decided entries of group {number}"
                    bring_to(state, log, decided)
                    digests[name] = (state.applied, *(state.digest(task) for task in plan.tasks))
            assert len(set(digests.values())) == 1, f"replicas of group {number} differ: {digests}"

    def _open_replica(
        self, name: str, plan: GroupPlan, closing: contextlib.ExitStack
    ) -> tuple[Replog, AppliedState]:
        folder = self.replica_folder(name, plan.key.group)
        log = Replog.open(OsFolder(folder / "replog"))
        closing.callback(log.close)
        state = AppliedState.open(folder / "state", plan.tasks)
        closing.callback(state.close)
        return log, state

    def replica_folder(self, name: str, group: int = 0) -> Path:
        key = self.key_of(group)
        return self.workers[name].data_dir / "groups" / f"{key.module}-{key.generation}-{key.group}"

    def znode_sizes(self, path: str | None = None) -> dict[str, int]:
        """Return the number of bytes in every znode of the cluster."""
        path = path or self.paths.root
        sizes = {path: len(self.operator.get(path)[0])}
        for child in self.operator.get_children(path):
            sizes |= self.znode_sizes(f"{path}/{child}")
        return sizes

    def describe(self) -> str:
        """Return the ends of the workers' logs, for the report of a failed test."""
        lines = [f"worker folders and logs are in {self.folder}"]
        for worker in self.workers.values():
            state = "runs" if worker.is_running else "does not run"
            lines += [f"--- {worker.name} {state}; the end of {worker.log_path}:"]
            lines += worker.log()[-LOG_LINES_SHOWN:]
        return "\n".join(lines)


def bring_to(state: AppliedState, log: Replog, end: Offset) -> None:
    """Apply the entries of a log up to ``end`` to a state."""
    state.recover(log)
    while state.applied < end:
        chunk = log.read(state.applied, end, 8 * 1024 * 1024)
        state.apply(decode(b"".join(chunk.buffers)))


def _ports() -> Iterator[int]:
    """Yield each of 1,000 ports before any comes again: those given out are not always in use."""
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    begin = random.SystemRandom().randrange(_PORTS)
    return (12_000 + place % 8 * _PORTS + (begin + number) % _PORTS for number in itertools.count())


_PORTS = 1_000
_NEXT_PORTS = _ports()


def free_port() -> int:
    """Return a free port below those of outgoing connections: it stays free while a worker is down."""
    while True:
        port = next(_NEXT_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add its workers' logs and the command that repeats it to the report of a failed test; for conftests."""
    report = yield
    if report.failed:
        for cluster in _RECENT:
            report.sections.append((f"cluster at {cluster.paths.root}", cluster.describe()))
        report.sections.append(("reproduce with", f"pytest '{item.nodeid}' --count 20 -x"))
    if call.when == "teardown":
        _RECENT.clear()
    return report
