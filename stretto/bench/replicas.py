"""Two or three workers as processes, with one group of one task, for measures of catching up.

One of them is killed, the others go on without it, and it comes back.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from kazoo.client import KazooClient

from stretto.bench.loads import PATIENCE_SECONDS
from stretto.bench.waiting import until
from stretto.client import Client, connect
from stretto.options import Level
from stretto.replog.core.record import GroupRecord
from stretto.specs.assignments import plans_of
from stretto.vocabulary.types import WorkerId
from stretto.zk.creation import create_groups, evenly, write_assignment
from stretto.zk.server.embedded import EmbeddedZooKeeper, free_ports
from stretto.zk.watches.options import set_options
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import decode

MODULE = "bench"
DEPOT = "events"
HOST = "127.0.0.1"
PATHS = Paths("/stretto")
RECORDS = 1_000
RECORD_BYTES = 100
READY_SECONDS = 60.0


@dataclass(frozen=True)
class Cost:
    """What processes have spent."""

    cpu_seconds: float
    written_bytes: float

    def __str__(self) -> str:
        return f"{self.cpu_seconds:.1f} s of CPU and {self.written_bytes / 1e9:.1f} GB written"


class Replicas:
    """The workers of a group, each a process, and a client that appends to it."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._names = [f"w{number}" for number in range(workers)]
        self._stack = ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _begin(self) -> None:
        folder = self._folder
        folder.mkdir(exist_ok=True)
        self._zookeeper = self._stack.enter_context(EmbeddedZooKeeper(folder / "zookeeper"))
        self._operator = KazooClient(self._zookeeper.address)
        self._operator.start(READY_SECONDS)
        self._stack.callback(self._operator.close)
        self._stack.callback(self._operator.stop)
        names = self._names
        assignment = evenly(1, 1, [WorkerId(name) for name in names], len(names))
        self._key = plans_of(MODULE, assignment)[0].key
        write_assignment(self._operator, PATHS, MODULE, assignment)
        ports = free_ports(len(names))
        self._addresses = {name: f"{HOST}:{port}" for name, port in zip(names, ports, strict=True)}
        self._stack.callback(self._end)
        for name in names:
            self.start(name)
        create_groups(self._operator, PATHS, MODULE, READY_SECONDS)
        self.options(
            {
                "replication.catchup.max.bytes.per.second": 0,
                "replication.max.near.sync.message.lag": 10_000,
                "replication.min.isr": 1,
            }
        )
        self.whole()
        self.leader = str(self.record().leader)
        self.follower = next(name for name in names if name != self.leader)
        self._client: Client = connect(list(self._addresses.values()), timeout=READY_SECONDS)
        self._stack.callback(self._client.close)
        self._producer = self._client.producer(MODULE, DEPOT)
        self._batch = [os.urandom(RECORD_BYTES)] * RECORDS

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def options(self, values: dict[str, int]) -> None:
        set_options(self._operator, PATHS, Level.of(MODULE), values)

    # Workers.

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "stretto", "worker", "--id", name, "--module", MODULE]
        command += ["--address", self._addresses[name], "--data-dir", str(self._folder / name)]
        command += ["--zookeeper", self._zookeeper.address, "--session-timeout-millis", "4000"]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes[name].wait()

    def wipe(self, name: str) -> None:
        shutil.rmtree(self._folder / name)

    def state_file(self, name: str) -> Path:
        key = self._key
        replica = f"{key.module}-{key.generation}-{key.group}"
        return self._folder / name / "groups" / replica / "state" / "task-0" / "data.mdb"

    def lines(self, name: str, event: str) -> list[str]:
        path = self._folder / f"{name}.log"
        return [line for line in path.read_text(errors="replace").splitlines() if f'"{event}"' in line]

    def count(self, name: str, event: str) -> int:
        return len(self.lines(name, event))

    def said(self, name: str, event: str, times: int = 1) -> str:
        """Wait until a worker has logged an event so many times, and return the last line."""
        until(f"{name} says {event}", lambda: self.count(name, event) >= times, PATIENCE_SECONDS)
        return self.lines(name, event)[-1]

    def ended(self, number: int = 1) -> dict[str, int]:
        """Return what the follower logged at the end of its first transfer, or of a later one."""
        found: dict[str, int] = json.loads(self.said(self.follower, "far_horizon_ends", number))
        return found

    # The group.

    def record(self) -> GroupRecord:
        path = PATHS.group(self._key)
        return decode(self._operator.get(path)[0], GroupRecord, path)

    def whole(self) -> None:
        """Wait until all replicas are in the ISR under a leader."""
        until(
            "all replicas are in the ISR",
            lambda: self.is_whole and self.record().leader is not None,
            PATIENCE_SECONDS,
        )

    @property
    def is_whole(self) -> bool:
        return self._isr() == len(self._names)

    def without_follower(self) -> None:
        """Wait until the ISR is without the follower."""
        until(
            "the ISR goes on without the follower",
            lambda: self._isr() == len(self._names) - 1,
            PATIENCE_SECONDS,
        )

    def _isr(self) -> int:
        return len(self.record().isr)

    def leave_behind(self, size_bytes: int) -> None:
        """Kill the follower, and append so many bytes of records that it will lack."""
        self.kill(self.follower)
        self.without_follower()
        self.append(size_bytes // (RECORDS * RECORD_BYTES))

    def append(self, batches: int) -> None:
        for _ in range(batches):
            _ = self._producer.append_batch(self._batch)
        self._producer.flush()

    def spent(self, name: str) -> Cost:
        """Return what a worker has spent since it started, with the processes that it has waited for."""
        pid = self._processes[name].pid
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        ticks = sum(int(each) for each in fields[11:15])
        return Cost(ticks / os.sysconf("SC_CLK_TCK"), int(io["write_bytes"]))

    def append_until(self, is_over: Callable[[], bool]) -> float:
        """Append until ``is_over``, and return the records per second."""
        count, started = 0, time.perf_counter()
        while not is_over():
            self.append(20)
            count += 20
        return count * RECORDS / (time.perf_counter() - started)


def moment(line: str) -> float:
    """Return when a line was logged, in seconds."""
    return datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp()
