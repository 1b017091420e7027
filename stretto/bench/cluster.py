"""A whole cluster: how long a failure is felt, what idling costs, how fast a large module starts.

Each measure runs a :class:`~stretto.local.cluster.LocalCluster` of three nodes in a folder of its own. Gaps
are between acknowledgements of appends made one at a time: the longest is what a user waits for at worst.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec

from stretto import control
from stretto.artifact import load
from stretto.bench import Result
from stretto.bench.waiting import until
from stretto.client.api import Client
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.upload import upload
from stretto.errors import StrettoError
from stretto.local.cluster import LocalCluster
from stretto.network.routing import Network
from stretto.supervisor.children import RunFile
from stretto.wire.messages import GroupView

MODULE = "Bench"
SOURCE = "from stretto import Depot, Module\n\n\nclass Bench(Module):\n    events = Depot()\n"
NODES = 3
READY_SECONDS = 60.0
SETTLED_SECONDS = 120.0
REPEATS = 10
IDLE_SECONDS = 10.0

FAILOVER_TARGET_MS = 150.0
HAND_OVER_TARGET_MS = 50.0
SESSION_TIMEOUT_MS = 10_000
ZOOKEEPER_TICK_MS = 1_000
NODE_LOSS_TARGET_MS = SESSION_TIMEOUT_MS + ZOOKEEPER_TICK_MS + 500
IDLE_GROUPS = 64
IDLE_TARGET_PERCENT = 5.0
MEMORY_TARGET_MB = 80.0
LARGE_GROUPS = 256
LAUNCH_TARGET_SECONDS = 30.0


class Running:
    """A cluster that runs, with a client and a network to ask it things."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.local = cluster
        self.network = Network(cluster.bootstrap, None)
        self.client = Client(self.network)
        self.admin = Cluster(self.network, cluster.bootstrap)

    def launch(self, groups: int) -> float:
        """Launch a module of so many groups, and return the seconds from asking until every one is led."""
        with tempfile.TemporaryDirectory() as scratch:
            source = Path(scratch) / "benchmodule.py"
            source.write_text(SOURCE)
            artifact, manifest = load(f"{source}:{MODULE}", Path(scratch))
            nodes = [node.address for node in self.admin.ask(control.Nodes()) if node.address]
            upload(self.network, nodes, artifact, copies=NODES)
        started = time.monotonic()
        self.admin.ask(
            control.Launch(
                module=MODULE,
                artifact=artifact.digest,
                manifest=manifest,
                tasks=groups,
                threads=groups,
                workers=1,
                replication_factor=NODES,
            )
        )
        self.until("every group is led", lambda: self.module().state == "running")
        took = time.monotonic() - started
        self.client.refresh()
        return took

    def module(self) -> control.ModuleView:
        return self.admin.ask(control.Modules(module=MODULE))[0]

    def until(self, what: str, condition: Callable[[], bool], seconds: float = READY_SECONDS) -> None:
        until(what, condition, seconds)

    def settled(self, *, spread: bool = True) -> None:
        """Wait until all replicas are in sync, leaders are spread if asked for, and nothing is under way."""

        def is_settled() -> bool:
            self.client.refresh()
            view = self.admin.ask(control.Leadership(module=MODULE))
            return (
                view.state == "running"
                and not view.leaderless
                and not (spread and view.switches)
                and all(len(group.isr) == NODES for group in self.groups())
            )

        self.until("all replicas are in sync and leaders are spread", is_settled, SETTLED_SECONDS)

    def groups(self) -> list[GroupView]:
        return [group for group in self.client.groups() if group.key.module == MODULE]

    def runs(self) -> dict[str, RunFile]:
        """Return the run files of the workers, by name."""
        found = {}
        for path in self.local.folder.glob("node-*/run/*.json"):
            file = msgspec.json.decode(path.read_bytes(), type=RunFile)
            found[str(file.worker)] = file
        return found

    def node_of(self, worker: str) -> str:
        return next(each.node for each in self.module().processes if each.worker == worker)

    def supervisor_of(self, node: str) -> int:
        path = self.local.folder / "run" / f"{node}.json"
        return msgspec.json.decode(path.read_bytes(), type=RunFile).pid

    def processes(self) -> list[int]:
        """Return the ids of all processes: daemons, workers, and ZooKeeper's JVM below its own."""
        own = [
            msgspec.json.decode(path.read_bytes(), type=RunFile).pid
            for path in self.local.folder.glob("run/*.json")
        ]
        pids = [*own, *(file.pid for file in self.runs().values())]
        return sorted({*pids, *(child for pid in pids for child in descendants(pid))})


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    """Run a cluster in a folder, and stop it at the end of the block."""
    cluster = LocalCluster(folder / "cluster", NODES, port=0)
    thread = threading.Thread(target=cluster.run, name="cluster", daemon=True)
    thread.start()
    made = Running(cluster)
    try:
        if cluster.await_ready(made.network, threading.Event(), READY_SECONDS) is None:
            raise StrettoError("the cluster of the bench did not start")
        yield made
    finally:
        made.client.close()
        cluster.stop()
        thread.join()


class Pulse:
    """A thread that appends to one task, one record at a time, and remembers when each was acknowledged."""

    def __init__(self, client: Client) -> None:
        self._producer = client.producer(MODULE, "events", linger_ms=0)
        self._stop = threading.Event()
        self._times: list[float] = []
        self._thread = threading.Thread(target=self._append, name="pulse", daemon=True)
        self._thread.start()

    def _append(self) -> None:
        while not self._stop.is_set():
            self._producer.append(b"pulse", task=0).result(60)
            self._times.append(time.monotonic())

    def mark(self) -> int:
        """Return how many appends were acknowledged, for :meth:`longest_gap_ms`."""
        return len(self._times)

    def beats_after(self, moment: float, count: int = 20) -> bool:
        """Whether enough appends were acknowledged since a moment."""
        return sum(each > moment for each in self._times[-1_000:]) >= count

    def longest_gap_ms(self, since: int) -> float:
        times = self._times[max(0, since - 1) :]
        return max((after - before for before, after in pairwise(times)), default=0.0) * 1_000

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()


def _gaps(
    made: Running,
    repeats: int,
    strike: Callable[[GroupView], None],
    *,
    spread: bool = True,
    after: Callable[[], None] = lambda: None,
) -> list[float]:
    """Return the longest gap around each strike against the group of task 0."""
    pulse = Pulse(made.client)
    gaps = []
    try:
        for _ in range(repeats):
            made.settled(spread=spread)
            made.until("appends go on", lambda: pulse.beats_after(time.monotonic() - 1))
            group = next(each for each in made.groups() if 0 in each.tasks)
            since = pulse.mark()
            strike(group)
            struck = time.monotonic()
            made.until("appends go on", partial(pulse.beats_after, struck))
            after()
            made.settled(spread=spread)
            gaps.append(pulse.longest_gap_ms(since))
    finally:
        pulse.close()
    return gaps


def failover(folder: Path) -> Result:
    """Measure the gap after kill -9 of the leading worker."""
    with running(folder) as made:
        made.launch(4)

        def strike(group: GroupView) -> None:
            os.kill(made.runs()[str(group.leader)].pid, signal.SIGKILL)

        gaps = _gaps(made, REPEATS, strike)
    return Result(
        value=statistics.median(gaps),
        unit="ms",
        target=FAILOVER_TARGET_MS,
        at_most=True,
        detail=f"{min(gaps):.0f} to {max(gaps):.0f} ms in {len(gaps)} kills",
    )


def node_loss(folder: Path) -> Result:
    """Measure the gap after kill -9 of the leading worker and its supervisor, which stays down.

    Nothing but the expiry of the session tells of it.
    """
    with running(folder) as made:
        made.launch(4)
        lost: list[str] = []

        def strike(group: GroupView) -> None:
            pid = made.runs()[str(group.leader)].pid
            lost.append(made.node_of(str(group.leader)))
            made.local.hold(lost[-1])
            os.kill(made.supervisor_of(lost[-1]), signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)

        gaps = _gaps(made, 3, strike, after=lambda: made.local.release(lost[-1]))
    return Result(
        value=max(gaps),
        unit="ms",
        target=NODE_LOSS_TARGET_MS,
        at_most=True,
        detail=f"session time-out {SESSION_TIMEOUT_MS} ms + tick {ZOOKEEPER_TICK_MS} ms + 500 ms; "
        f"{', '.join(f'{gap:.0f}' for gap in gaps)} ms",
    )


def hand_over(folder: Path) -> Result:
    """Measure the gap while a leader hands over to another member."""
    with running(folder) as made:
        made.launch(4)
        made.admin.ask(
            control.SetOption(level=control.OptionLevel(), name="leadership.balance.threshold", value="10")
        )

        def strike(group: GroupView) -> None:
            to = next(worker for worker in group.isr if worker != group.leader)
            made.admin.ask(control.ResignLeader(module=MODULE, group=group.key.group, to=to))

            def moved() -> bool:
                made.client.refresh()
                return any(each.key == group.key and each.epoch > group.epoch for each in made.groups())

            made.until("it is handed over", moved)

        gaps = _gaps(made, REPEATS, strike, spread=False)
    return Result(
        value=statistics.median(gaps),
        unit="ms",
        target=HAND_OVER_TARGET_MS,
        at_most=True,
        detail=f"{min(gaps):.0f} to {max(gaps):.0f} ms in {len(gaps)} hand-overs",
    )


def idle(folder: Path) -> Result:
    """Measure the CPU of all processes, with 64 groups and nothing to do."""
    with running(folder) as made:
        made.launch(IDLE_GROUPS)
        made.settled()
        pids = made.processes()
        before, started = cpu_seconds(pids), time.monotonic()
        time.sleep(IDLE_SECONDS)
        used = (cpu_seconds(pids) - before) / (time.monotonic() - started) * 100
    return Result(
        value=used,
        unit="%",
        target=IDLE_TARGET_PERCENT,
        at_most=True,
        detail=f"of one core, {len(pids)} processes, {IDLE_GROUPS} groups",
    )


def memory(folder: Path) -> Result:
    """Measure the resident memory of an idle worker."""
    with running(folder) as made:
        made.launch(IDLE_GROUPS)
        made.settled()
        sizes = [_resident_mb(file.pid) for file in made.runs().values()]
    return Result(
        value=max(sizes),
        unit="MB",
        target=MEMORY_TARGET_MB,
        at_most=True,
        detail=f"the largest of {len(sizes)} workers with {IDLE_GROUPS} replicas each",
    )


def launch(folder: Path) -> Result:
    """Measure a launch of 256 groups on three nodes, from asking until all are led.

    Then the conductor restarts under it.
    """
    with running(folder) as made:
        took = made.launch(LARGE_GROUPS)
        made.settled()
        # Once more: the last leaders may have moved after the groups were asked, before the conductor was.
        made.settled()
        before = {group.key: (group.leader, group.epoch) for group in made.groups()}
        run = msgspec.json.decode((made.local.folder / "run" / "conductor.json").read_bytes(), type=RunFile)
        os.kill(run.pid, signal.SIGKILL)
        made.until("a conductor is active again", lambda: made.module().state == "running")
        made.settled()
        after = {group.key: (group.leader, group.epoch) for group in made.groups()}
        changed = sum(after[key] != was for key, was in before.items())
    return Result(
        value=took,
        unit="s",
        target=LAUNCH_TARGET_SECONDS,
        at_most=True,
        detail=f"{LARGE_GROUPS} groups; {changed} leaders changed by a restart of the conductor",
    )


_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time of processes, in seconds."""
    return sum(sum(int(each) for each in _stat(pid)[11:13]) for pid in pids) / _TICKS


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below one."""
    children = [
        int(each)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for each in (task / "children").read_text("ascii").split()
    ]
    return children + [below for child in children for below in descendants(child)]
