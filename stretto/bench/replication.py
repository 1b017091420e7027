"""Appends to real workers, next to the floor of replication, in the same run and in turn.

Three workers over an embedded ZooKeeper hold one group with factor 3; beside them run the three processes of
:mod:`stretto.bench.floor`. Two more processes append, one to each; while one does, the others are idle. A
round is a run of one and then of the other; what is reported are the medians over the rounds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from kazoo.client import KazooClient

from stretto.bench import Result
from stretto.bench.floor import HOST, FloorClient
from stretto.client import connect
from stretto.errors import StrettoError
from stretto.specs.modules import ModuleSpec
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import WorkerId
from stretto.zk.creation import create_groups, evenly, write_assignment
from stretto.zk.server import guardian
from stretto.zk.server.embedded import EmbeddedZooKeeper, free_ports
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import encode

MODULE = "bench"
DEPOT = "events"
TASKS = 4
REPLICAS = 3
WINDOW = 5 * TASKS
"""Most batches that a producer has under way: five of each task."""

RECORDS = 1000
RECORD_BYTES = 100
BATCHES = 500
SINGLE_RECORDS = 200_000
LATENCY_APPENDS = 300
ROUNDS = 7
READY_SECONDS = 60.0

REPLICATE_TARGET = 0.70
SINGLE_TARGET = 1 / 3
LATENCY_TARGET = 1.3


def replicate(folder: Path) -> Result:
    """Measure appends of whole batches, against the floor with the same batches."""
    records = BATCHES * RECORDS
    with _both(folder) as (real, floor):
        return in_turn(
            lambda: records / real("batched", BATCHES),
            lambda: records / floor("batched", BATCHES),
            unit="rec/s",
            target=REPLICATE_TARGET,
        )


def one_by_one(folder: Path) -> Result:
    """Measure appends of records that the client batches, against batches that the caller made."""
    with _real(folder) as real:
        return in_turn(
            lambda: SINGLE_RECORDS / real("single", SINGLE_RECORDS),
            lambda: BATCHES * RECORDS / real("batched", BATCHES),
            unit="rec/s",
            target=SINGLE_TARGET,
        )


def latency(folder: Path) -> Result:
    """Measure the median latency of appends, each made after the acknowledgement of the one before.

    The floor commits each record before it acknowledges it, which workers do not wait for; so the detail
    tells of a floor, too, that does not either.
    """
    with _both(folder) as (real, floor), _floor(folder / "gathers", gathers=True) as gathering:
        # The first only warms it up.
        gathered = [1e6 * gathering("latency", LATENCY_APPENDS) for _ in range(ROUNDS + 1)][1:]
        result = in_turn(
            lambda: 1e6 * real("latency", LATENCY_APPENDS),
            lambda: 1e6 * floor("latency", LATENCY_APPENDS),
            unit="us",
            target=LATENCY_TARGET,
            at_most=True,
        )
        gathered += [1e6 * gathering("latency", LATENCY_APPENDS) for _ in range(ROUNDS)]
    lean = statistics.median(gathered)
    told = f"{result.detail}; {result.value / lean:.2f} of a floor that gathers its commits, {lean:,.0f} us"
    return replace(result, detail=told)


def in_turn(
    ours: Callable[[], float],
    floors: Callable[[], float],
    *,
    unit: str,
    target: float,
    at_most: bool = False,
) -> Result:
    """Run ours and the floor in turn, and report the medians."""
    # The first pair only warms up.
    pairs = [(ours(), floors()) for _ in range(ROUNDS + 1)][1:]
    ratios = sorted(our / floor for our, floor in pairs)
    return Result(
        value=statistics.median(our for our, _ in pairs),
        floor=statistics.median(floor for _, floor in pairs),
        unit=unit,
        target=target,
        at_most=at_most,
        detail=f"medians of {ROUNDS} rounds, with ratios from {ratios[0]:.2f} to {ratios[-1]:.2f}",
    )


Run: TypeAlias = Callable[[str, int], float]
"""Runs so many appends, and returns the seconds that they take, or the median of their latencies."""


@contextlib.contextmanager
def _both(folder: Path) -> Iterator[tuple[Run, Run]]:
    with _real(folder / "real") as real, _floor(folder / "floor") as floor:
        yield real, floor


@contextlib.contextmanager
def _real(folder: Path) -> Iterator[Run]:
    with workers(folder) as addresses, asking(append_to_workers, addresses) as run:
        yield run


@contextlib.contextmanager
def workers(
    folder: Path,
    spec: ModuleSpec | None = None,
    *,
    replicas: int = REPLICAS,
    tasks: int = TASKS,
    artifacts: Path | None = None,
) -> Iterator[list[str]]:
    """Run workers, and yield their addresses.

    Without a spec they take records for any depot; ``artifacts`` is where its code is.
    """
    folder.mkdir(exist_ok=True)
    paths = Paths("/stretto")
    with ExitStack() as stack:
        zookeeper = stack.enter_context(EmbeddedZooKeeper(folder / "zookeeper"))
        operator = KazooClient(zookeeper.address)
        operator.start(READY_SECONDS)
        stack.callback(operator.close)
        stack.callback(operator.stop)
        names = [WorkerId(f"w{number}") for number in range(replicas)]
        if spec is not None:
            operator.create(paths.spec(MODULE), encode(spec), makepath=True)
        write_assignment(operator, paths, MODULE, evenly(tasks, 1, names, replicas))
        addresses = [f"{HOST}:{port}" for port in free_ports(replicas)]
        for name, address in zip(names, addresses, strict=True):
            arguments = ["-m", "stretto", "worker", "--id", name, "--module", MODULE, "--address", address]
            arguments += ["--data-dir", str(folder / name), "--zookeeper", zookeeper.address]
            if artifacts is not None:
                arguments += ["--artifacts", str(artifacts)]
            stack.enter_context(running(arguments, folder / f"{name}.log"))
        create_groups(operator, paths, MODULE, READY_SECONDS)
        yield addresses


@contextlib.contextmanager
def _floor(folder: Path, *, gathers: bool = False) -> Iterator[Run]:
    folder.mkdir(exist_ok=True)
    commits = "gathers" if gathers else "at-once"
    leader, *followers = free_ports(REPLICAS)
    with ExitStack() as stack:
        for port in (leader, *followers):
            role, peers = ("leader", followers) if port == leader else ("follower", [leader])
            arguments = ["-m", "stretto.bench.floor", commits, port, folder / str(port), TASKS, role, *peers]
            stack.enter_context(running([str(each) for each in arguments], folder / f"{port}.log"))
        yield stack.enter_context(asking(_append_to_floor, leader))


@contextlib.contextmanager
def running(arguments: list[str], log: Path) -> Iterator[None]:
    """Run Python with these arguments until the block ends, or this process does in whatever way."""
    command = [sys.executable, "-I", "-S", guardian.__file__, sys.executable, *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield
    finally:
        # The guardian reads its end as: stop the program.
        process.communicate()


@contextlib.contextmanager
def asking(measure: Callable[[Connection, Any], None], to: Any) -> Iterator[Run]:
    """Run a measure in a process of its own, which does what it is asked until the block ends."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=measure, args=(its, to), daemon=True)
    process.start()
    its.close()

    def run(what: str, count: int) -> float:
        ours.send((what, count))
        try:
            return float(ours.recv())
        except EOFError:
            raise StrettoError("the process that measures has ended; its words are above") from None

    try:
        yield run
    finally:
        ours.close()
        process.join()


def requests(commands: Connection) -> Iterator[tuple[str, int]]:
    """Yield what the measuring process is asked to do, until the other end is closed."""
    with contextlib.suppress(EOFError):
        while True:
            yield commands.recv()


def append_to_workers(commands: Connection, addresses: list[str]) -> None:
    client = connect(addresses, timeout=READY_SECONDS)
    producer = client.producer(MODULE, DEPOT)
    prompt = client.producer(MODULE, DEPOT, linger_ms=0)
    record = os.urandom(RECORD_BYTES)
    batch = [record] * RECORDS

    def seconds(what: str, count: int) -> float:
        started = time.perf_counter()
        if what == "batched":
            for _ in range(count):
                _ = producer.append_batch(batch)
            producer.flush()
        elif what == "single":
            for _ in range(count):
                _ = producer.append(record)
            producer.flush()
        else:
            _ = prompt.append_and_wait(record)
        return time.perf_counter() - started

    with client:
        for what, count in requests(commands):
            if what == "latency":
                commands.send(statistics.median(seconds(what, 1) for _ in range(count)))
            else:
                commands.send(seconds(what, count))


def _append_to_floor(commands: Connection, leader: int) -> None:
    client = FloorClient(leader, window=WINDOW)
    record = os.urandom(RECORD_BYTES)
    batch, single = pack(DEPOT, [record] * RECORDS), pack(DEPOT, [record])
    for what, count in requests(commands):
        if what == "latency":
            commands.send(statistics.median(client.append(1, single) for _ in range(count)))
        else:
            commands.send(client.append(count, batch))
    client.close()
