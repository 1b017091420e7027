"""Catching up: how fast a state travels, what later rounds send, what it costs those who append meanwhile.

The cluster is two workers with one group of one task; one of them is killed, the other goes on alone, and the
first comes back. Floors are files of the same size that are copied, sent over a socket and written by
processes that have nothing to do with the cluster.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from kazoo.client import KazooClient

from stretto.bench import Result
from stretto.bench.state import RECORDS as STATE_RECORDS
from stretto.bench.state import _frame, _life
from stretto.catchup import blocks, messages
from stretto.catchup.fetch import PART_BYTES, WINDOW
from stretto.client import Client, connect
from stretto.conductor.creation import create_groups, evenly, write_assignment
from stretto.errors import StrettoError
from stretto.invariants import present
from stretto.options import Level
from stretto.records import pack
from stretto.replog.core.record import GroupRecord
from stretto.types import Epoch, Incarnation, Offset, TaskId, WorkerId
from stretto.worker.hasher import be_nice, open_direct, write
from stretto.worker.hashing import HashedParts, copy_and_hash
from stretto.worker.images import SpooledImage, make_image
from stretto.worker.plan import plans_of
from stretto.worker.state import AppliedState
from stretto.zk.embedded import EmbeddedZooKeeper, free_ports
from stretto.zk.options import set_options
from stretto.zk.paths import Paths
from stretto.zk.records import decode

MODULE = "bench"
DEPOT = "events"
HOST = "127.0.0.1"
PATHS = Paths("/stretto")
RECORDS = 1_000
RECORD_BYTES = 100
CHUNK_BYTES = 1 << 20
PAGE_BYTES = 4_096
PASSES_MAX = 1_000_000
_SIZE = struct.Struct("<Q")
READY_SECONDS = 60.0
PATIENCE_SECONDS = 600.0

TRANSFER_BYTES = 2_000_000_000
TRANSFERS = 3
SERVED_BYTES = 1_000_000_000
REPLAYED_BATCHES = 2_000
ROUNDS = 8

TRANSFER_TARGET = 0.60
LATER_ROUNDS_TARGET = 3.0
SERVING_TARGET = 0.80
REPLAY_TARGET = 0.50


def transfer(folder: Path) -> Result:
    """A far-horizon transfer, from its first question to the installed state, with nothing else to do."""
    ours, floors = [], []
    with _Cluster(folder) as cluster:
        cluster.leave_behind(TRANSFER_BYTES)
        source = cluster.state_file(cluster.leader)
        size_bytes = source.stat().st_size
        for number in range(1, TRANSFERS + 1):
            cluster.wipe(cluster.follower)
            cluster.start(cluster.follower)
            ours.append(size_bytes * 1_000 / cluster.ended(number)["took_ms"] / 1e6)
            cluster.whole()
            floors.append(size_bytes / _pipeline(source, folder / "floor") / 1e6)
            cluster.kill(cluster.follower)
            cluster.alone()
    ratios = sorted(our / floor for our, floor in zip(ours, floors, strict=True))
    return Result(
        value=statistics.median(ours),
        floor=statistics.median(floors),
        unit="MB/s",
        target=TRANSFER_TARGET,
        detail=f"{size_bytes / 1e9:.1f} GB, medians of {TRANSFERS}, with ratios from {ratios[0]:.2f} to "
        f"{ratios[-1]:.2f}",
    )


def later_rounds(folder: Path) -> Result:
    """What rounds after the first send under a steady load, by the pages that differ between their images."""
    task = TaskId(0)
    payload = pack(DEPOT, [os.urandom(RECORD_BYTES) for _ in range(STATE_RECORDS)])
    numbers = iter(range(1 << 30))
    with ThreadPoolExecutor(2) as pool:
        state = AppliedState.open(folder / "state", [task], pool=pool)
        state.apply([_life(Offset(0))])
        _apply(state, numbers, payload, 1_500)
        previous: SpooledImage | None = None
        sent = differing = 0
        for number in range(1, ROUNDS + 1):
            ask = messages.AskImage(Epoch(1), Incarnation("x"), 1, task=task, round=number, base=number - 1)
            image = make_image(state, folder, ask, previous)
            if previous is not None:
                runs = blocks.missing_runs(previous.hashes, image.hashes)
                described = image.described
                sent += len(image.listed) + sum(
                    blocks.length_of(run, described.size_bytes, described.block_bytes) for run in runs
                )
                differing += _differing_pages(previous, image) * PAGE_BYTES
            previous = image
            _apply(state, numbers, payload, 20)
        state.close()
    return Result(
        value=sent / 1e6,
        floor=differing / 1e6,
        unit="MB",
        target=LATER_ROUNDS_TARGET,
        at_most=True,
        detail=f"hashes and blocks of {ROUNDS - 1} rounds, 20 batches of {STATE_RECORDS} records between",
    )


def serving(folder: Path) -> Result:
    """Appends while a state is sent as fast as possible, against the same load made by somebody else.

    What the load costs is measured first, without appends: it must be the same for the comparison to be fair.
    Beside the appends, the others move no more bytes in a second than the transfer did.
    """
    ours, controls, rates, control_rates = [], [], [], []
    with _Cluster(folder) as cluster:
        cluster.leave_behind(SERVED_BYTES)
        source = cluster.state_file(cluster.leader)
        size_bytes = source.stat().st_size
        of_control = _cost_of_control(source, folder / "control")
        of_transfer = _cost_of_transfer(cluster)
        for number in range(2, TRANSFERS + 2):
            cluster.wipe(cluster.follower)
            rounds = cluster.count(cluster.follower, "round_begins")
            cluster.start(cluster.follower)
            cluster.said(cluster.follower, "round_begins", rounds + 1)
            started = time.perf_counter()
            # The first round; with appends as fast as can be there would be no last one.
            ours.append(
                cluster.append_until(lambda: cluster.count(cluster.follower, "round_ends") > rounds)  # noqa: B023
            )
            seconds = time.perf_counter() - started
            rates.append(source.stat().st_size / seconds / 1e6)
            cluster.ended(number)
            cluster.whole()
            cluster.kill(cluster.follower)
            cluster.alone()
            with _busy(source, folder / "control", rates[-1] * 1e6) as moved_bytes:
                before = moved_bytes()
                deadline = time.perf_counter() + seconds
                controls.append(cluster.append_until(lambda: time.perf_counter() > deadline))  # noqa: B023
                control_rates.append((moved_bytes() - before) / seconds / 1e6)
    return Result(
        value=statistics.median(ours),
        floor=statistics.median(controls),
        unit="rec/s",
        target=SERVING_TARGET,
        detail=f"medians of {TRANSFERS}; {size_bytes / 1e9:.1f} GB cost the transfer {of_transfer}, "
        f"others {of_control}; beside the appends it went at {statistics.median(rates):.0f} MB/s, others at "
        f"{statistics.median(control_rates):.0f}",
    )


@dataclass(frozen=True)
class _Cost:
    cpu_seconds: float
    written_bytes: float

    def __str__(self) -> str:
        return f"{self.cpu_seconds:.1f} s of CPU and {self.written_bytes / 1e9:.1f} GB written"


def _cost_of_control(source: Path, folder: Path) -> _Cost:
    """Of one pass: what two cost more than one, so that the start of processes does not count."""
    one, two = (_cost_of_passes(source, folder, passes) for passes in (1, 2))
    return _Cost(two.cpu_seconds - one.cpu_seconds, two.written_bytes - one.written_bytes)


def _cost_of_passes(source: Path, folder: Path, passes: int) -> _Cost:
    """Children that were waited for count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(_loading(source, folder, passes), check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _Cost(cpu_seconds, (after.ru_oublock - before.ru_oublock) * 512)


def _loading(source: Path, folder: Path, passes: int, bytes_per_second: float = math.inf) -> list[str]:
    command = [sys.executable, "-m", "stretto.bench.catchup", "load", str(source), str(folder)]
    return [*command, str(passes), str(bytes_per_second)]


def _cost_of_transfer(cluster: _Cluster) -> _Cost:
    """What both workers spend from the start of one until it has taken the other's state."""
    cluster.wipe(cluster.follower)
    before = cluster.spent(cluster.leader)
    cluster.start(cluster.follower)
    cluster.said(cluster.follower, "round_begins")
    idle = cluster.spent(cluster.follower)
    cluster.ended()
    spent = [cluster.spent(name) for name in (cluster.leader, cluster.follower)]
    cluster.whole()
    cluster.kill(cluster.follower)
    cluster.alone()
    return _Cost(
        sum(each.cpu_seconds for each in spent) - before.cpu_seconds - idle.cpu_seconds,
        sum(each.written_bytes for each in spent) - before.written_bytes - idle.written_bytes,
    )


def replay(folder: Path) -> Result:
    """A follower that catches up from the log, against the live appends that it missed."""
    with _Cluster(folder) as cluster:
        before = cluster.count(cluster.leader, "options_in_force")
        cluster.options({"replication.max.near.sync.message.lag": 1_000_000_000})
        cluster.said(cluster.leader, "options_in_force", before + 1)
        cluster.kill(cluster.follower)
        cluster.alone()
        started = time.perf_counter()
        cluster.append(REPLAYED_BATCHES)
        live = REPLAYED_BATCHES * RECORDS / (time.perf_counter() - started)
        cluster.start(cluster.follower)
        cluster.whole()
        # By their own clocks: a person who looks every now and then would see both at once.
        expanded = cluster.said(cluster.leader, "isr", 2)
        agreed = cluster.said(cluster.follower, "reconciled", 2)
        replayed = REPLAYED_BATCHES * RECORDS / (_moment(expanded) - _moment(agreed))
    return Result(
        value=replayed,
        floor=live,
        unit="rec/s",
        target=REPLAY_TARGET,
        detail=f"{REPLAYED_BATCHES} batches, from its agreement with the leader until the ISR lists it",
    )


class _Cluster:
    """Two workers, as processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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
        self._zookeeper = self._stack.enter_context(EmbeddedZooKeeper(folder / "zookeeper"))
        self._operator = KazooClient(self._zookeeper.address)
        self._operator.start(READY_SECONDS)
        self._stack.callback(self._operator.close)
        self._stack.callback(self._operator.stop)
        names = ["w0", "w1"]
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
        _until(f"{name} says {event}", lambda: self.count(name, event) >= times)
        return self.lines(name, event)[-1]

    def ended(self, number: int = 1) -> dict[str, int]:
        """What the follower told at the end of its first transfer, or of a later one."""
        found: dict[str, int] = json.loads(self.said(self.follower, "far_horizon_ends", number))
        return found

    # The group.

    def record(self) -> GroupRecord:
        path = PATHS.group(self._key)
        return decode(self._operator.get(path)[0], GroupRecord, path)

    def whole(self) -> None:
        _until("both replicas are in the ISR", lambda: self._isr() == 2 and self.record().leader is not None)

    def alone(self) -> None:
        _until("the leader is alone in the ISR", lambda: self._isr() == 1)

    def _isr(self) -> int:
        return len(self.record().isr)

    def leave_behind(self, size_bytes: int) -> None:
        """The follower is dead, and lacks so many bytes of records."""
        self.kill(self.follower)
        self.alone()
        self.append(size_bytes // (RECORDS * RECORD_BYTES))

    def append(self, batches: int) -> None:
        for _ in range(batches):
            _ = self._producer.append_batch(self._batch)
        self._producer.flush()

    def spent(self, name: str) -> _Cost:
        """By a worker since it started, with the processes that it has waited for."""
        pid = self._processes[name].pid
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        ticks = sum(int(each) for each in fields[11:15])
        return _Cost(ticks / os.sysconf("SC_CLK_TCK"), int(io["write_bytes"]))

    def append_until(self, is_over: Callable[[], bool]) -> float:
        """Records per second."""
        count, started = 0, time.perf_counter()
        while not is_over():
            self.append(20)
            count += 20
        return count * RECORDS / (time.perf_counter() - started)


def _moment(line: str) -> float:
    """When a line was logged, in seconds."""
    return datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp()


def _until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise StrettoError(f"the cluster of the bench did not get there: {what}")
        time.sleep(0.01)


# What no cluster has a part in.


def _pipeline(source: Path, folder: Path) -> float:
    """Copy a file to a spool, send it over a socket, write and sync it elsewhere; returns the seconds."""
    with _receiver(folder, "receive") as connection:
        started = time.perf_counter()
        with source.open("rb", 0) as file, (folder / "spool").open("wb", 0) as spool:
            while chunk := file.read(CHUNK_BYTES):
                spool.write(chunk)
                connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        seconds = time.perf_counter() - started
    shutil.rmtree(folder)
    return seconds


def _load(source: Path, folder: Path, passes: int, bytes_per_second: float = math.inf) -> None:
    """The work of a transfer, by processes that have no part in a cluster: a spool that is hashed while it is
    copied and sent as far as it has come; what arrives is written, hashed and synced now and then. So many
    times, without a pause between."""
    with _receiver(folder, "take") as connection:
        be_nice()
        progress, pace = _Progress(folder), _Pace(bytes_per_second)
        for _ in range(passes):
            spool = open_direct(folder / "spool", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            _load_once(source, spool, connection, progress, pace)
            os.close(spool)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    shutil.rmtree(folder)


def _load_once(source: Path, spool: int, connection: socket.socket, progress: _Progress, pace: _Pace) -> None:
    size_bytes = source.stat().st_size
    sent, moved = 0, progress.read()
    buffer = memoryview(mmap.mmap(-1, PART_BYTES))
    connection.sendall(_SIZE.pack(size_bytes))

    def copy(fd: int) -> None:
        written = 0
        with source.open("rb", 0) as file:
            while chunk := file.read(min(CHUNK_BYTES, size_bytes - written)):
                written += os.write(fd, chunk)
                pace.keep(len(chunk))

    def send(end: int) -> None:
        nonlocal sent
        while sent < end:
            part = buffer[: os.preadv(spool, [buffer[: min(PART_BYTES, end - sent)]], sent)]
            connection.sendall(part)
            sent += len(part)
            progress.write(moved + sent)

    def grew(count: int) -> None:
        sending.submit(send, min(count * blocks.BLOCK_BYTES, size_bytes))

    with ThreadPoolExecutor(1) as sending:
        copy_and_hash(copy, spool, blocks.BLOCK_BYTES, grew)


class _Pace:
    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._bytes = 0
        self._started = time.monotonic()

    def keep(self, more_bytes: int) -> None:
        self._bytes += more_bytes
        due = self._started + self._bytes / self._bytes_per_second
        time.sleep(max(0.0, due - time.monotonic()))


@contextlib.contextmanager
def _receiver(folder: Path, kind: str) -> Iterator[socket.socket]:
    folder.mkdir(exist_ok=True)
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    listener.close()
    arguments = [sys.executable, "-m", "stretto.bench.catchup", kind, str(port), str(folder / "received")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True) as receiver:
        present(receiver.stdout, "output of the receiver").readline()
        with socket.create_connection((HOST, port)) as connection:
            yield connection


@contextlib.contextmanager
def _accepted(port: int) -> Iterator[socket.socket]:
    with socket.create_server((HOST, port)) as listener:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        connection, _ = listener.accept()
    with connection:
        yield connection
        connection.sendall(b".")


def _receive(port: int, path: Path) -> None:
    with _accepted(port) as connection, path.open("wb", 0) as file:
        while chunk := connection.recv(CHUNK_BYTES):
            file.write(chunk)
        os.fdatasync(file.fileno())


def _take(port: int, path: Path) -> None:
    parts = HashedParts(WINDOW, PART_BYTES)
    room = threading.Semaphore(WINDOW)
    with _accepted(port) as connection:
        file = open_direct(path, os.O_WRONLY | os.O_CREAT)

        def store(position: int, chunk: bytes) -> None:
            with parts.put(memoryview(chunk), blocks.BLOCK_BYTES) as (copied, _):
                write(file, copied, position)
            room.release()

        while size := connection.recv(_SIZE.size, socket.MSG_WAITALL):
            (size_bytes,) = _SIZE.unpack(size)
            os.ftruncate(file, 0)
            os.ftruncate(file, size_bytes)
            position = 0
            with ThreadPoolExecutor(WINDOW) as storing:
                while position < size_bytes:
                    room.acquire()
                    chunk = connection.recv(min(PART_BYTES, size_bytes - position), socket.MSG_WAITALL)
                    if not chunk:
                        # Whoever sends was killed.
                        return
                    storing.submit(store, position, chunk)
                    position += len(chunk)
            os.fdatasync(file)
    parts.close()


@contextlib.contextmanager
def _busy(source: Path, folder: Path, bytes_per_second: float) -> Iterator[Callable[[], int]]:
    """The load of a transfer, again and again, by a process of its own; tells how many bytes it has moved."""
    progress = _Progress(folder)
    progress.write(0)
    command = _loading(source, folder, PASSES_MAX, bytes_per_second)
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            _until("the others' load has begun", lambda: progress.read() > 0)
            yield progress.read
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


class _Progress:
    """A number that one process tells another, in a file beside the folder it works in."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder.with_suffix(".moved"), os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, number: int) -> None:
        os.pwrite(self._fd, b"%020d" % number, 0)

    def read(self) -> int:
        return int(os.pread(self._fd, 20, 0) or 0)


def _apply(state: AppliedState, numbers: Iterator[int], payload: bytes, count: int) -> None:
    for _ in range(count):
        state.apply([_frame(next(numbers), payload)])


def _differing_pages(before: SpooledImage, after: SpooledImage) -> int:
    size_bytes = after.described.size_bytes
    return sum(
        os.pread(before.spool.fd, PAGE_BYTES, at) != os.pread(after.spool.fd, PAGE_BYTES, at)
        for at in range(0, size_bytes, PAGE_BYTES)
    )


def main(arguments: list[str]) -> None:
    """What the measures run beside themselves."""
    match arguments:
        case ["receive", port, path]:
            _receive(int(port), Path(path))
        case ["take", port, path]:
            _take(int(port), Path(path))
        case ["load", source, folder, passes, bytes_per_second]:
            _load(Path(source), Path(folder), int(passes), float(bytes_per_second))
        case _:
            raise StrettoError("this is run by the measures of stretto bench")


if __name__ == "__main__":
    main(sys.argv[1:])
