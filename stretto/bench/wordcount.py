"""A word count as a stream on real workers, next to the same function in one process.

The floor decodes the same records, runs the same function over batches of them, and puts what it counted into
LMDB, once for each distinct word of a batch and in one transaction: no log, no client, nobody who could take
over. Both are measured in the same run and in turn. What else is told: three replicas with the CPU of all
processes, the time from an append until its words are visible, the word count of the examples, which takes
one record at a time, and a dataflow of bytewax over the same records in memory, if that is installed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import lmdb
import msgspec

from stretto.artifact.importing import manifest
from stretto.bench import Result, counting
from stretto.bench.cluster import cpu_seconds, descendants
from stretto.bench.counting import Counting, Sentence, counted
from stretto.bench.replication import MODULE, READY_SECONDS, Run, asking, in_turn, requests, workers
from stretto.client import connect
from stretto.examples.wordcount import wordcount as example
from stretto.examples.wordcount.sentences import sentences
from stretto.module.module import Module
from stretto.specs.modules import ModuleSpec, ModuleState

DEPOT = "sentences"
RECORDS = 1_000
BATCHES = 40
APPENDS = 200
TARGET = 0.30
"""Least share of the floor's rate that one replica has to reach."""
ARTIFACT = "code"
PEER = "bytewax"


def stream(folder: Path) -> Result:
    """Measure sentences per second, from the first append until all their words are visible."""
    with _floor(folder) as floor:
        with _streaming(folder / "one", 1, counting, Counting) as real:
            result = in_turn(
                lambda: BATCHES * RECORDS / real("count", BATCHES),
                lambda: BATCHES * RECORDS / floor("count", BATCHES),
                unit="rec/s",
                target=TARGET,
            )
            told = [_latency(real, "one replica")]
        with _streaming(folder / "three", 3, counting, Counting) as real:
            told += [_three(real), _latency(real, "three")]
        with _streaming(folder / "example", 1, example, example.WordCount) as real:
            told.append(f"{_rate(real):,.0f} rec/s record by record")
    told.append(_peer())
    return replace(result, detail="; ".join([result.detail, *told]))


def _rate(run: Run) -> float:
    """Return the best rate of three runs; the first one warms up."""
    return max(BATCHES * RECORDS / run("count", BATCHES) for _ in range(3))


def _three(real: Run) -> str:
    rate = _rate(real)
    pids = descendants(os.getpid())
    before = cpu_seconds(pids)
    real("count", BATCHES)
    cpu_us = (cpu_seconds(pids) - before) / (BATCHES * RECORDS) * 1e6
    return f"three replicas {rate:,.0f} rec/s with {cpu_us:.0f} us of CPU a record in all processes"


def _latency(real: Run, what: str) -> str:
    p50, p99 = (1_000 * real(each, APPENDS) for each in ("p50", "p99"))
    return f"visible after {p50:.1f} ms, p99 {p99:.1f} ms ({what})"


# The real thing.


@contextmanager
def _streaming(folder: Path, replicas: int, source: ModuleType, module: type[Module]) -> Iterator[Run]:
    code = folder / "artifacts" / ARTIFACT
    code.mkdir(parents=True)
    shutil.copy(str(source.__file__), code / "module.py")
    told = manifest(module, f"module:{module.__name__}")
    spec = ModuleSpec(
        artifact=ARTIFACT,
        tasks=1,
        threads=1,
        workers=1,
        replication_factor=replicas,
        state=ModuleState.RUNNING,
        entry=told.entry,
        depots=told.depots,
        pstates=told.pstates,
        topologies=told.topologies,
        queries=told.queries,
    )
    with (
        workers(folder, spec, replicas=replicas, tasks=1, artifacts=code.parent) as addresses,
        asking(_append, addresses) as run,
    ):
        yield run


def _records() -> list[bytes]:
    return [msgspec.json.encode(each) for each in islice(sentences(), BATCHES * RECORDS)]


def _append(commands: Connection, addresses: list[str]) -> None:
    records = _records()
    with connect(addresses, timeout=READY_SECONDS) as client:
        producer = client.producer(MODULE, DEPOT)
        prompt = client.producer(MODULE, DEPOT, ack="all", linger_ms=0)

        def seconds(record: bytes) -> float:
            started = time.perf_counter()
            prompt.append(record, task=0).result()
            return time.perf_counter() - started

        for what, count in requests(commands):
            if what != "count":
                taken = statistics.quantiles([seconds(record) for record in records[:count]], n=100)
                commands.send(taken[49 if what == "p50" else 98])
                continue
            started = time.perf_counter()
            for batch in range(count):
                _ = producer.append_batch(records[batch * RECORDS : (batch + 1) * RECORDS], task=0)
            producer.flush()
            # In order, so all before it are processed, too.
            seconds(records[0])
            commands.send(time.perf_counter() - started)


# The floor.


@contextmanager
def _floor(folder: Path) -> Iterator[Run]:
    with asking(_count, folder / "floor") as run:
        yield run


def _count(commands: Connection, folder: Path) -> None:
    records = _records()
    environment = lmdb.open(str(folder), map_size=1 << 30, metasync=False)
    decode = msgspec.json.Decoder(Sentence).decode
    for _, count in requests(commands):
        started = time.perf_counter()
        for batch in range(count):
            some = records[batch * RECORDS : (batch + 1) * RECORDS]
            counts = counted([decode(record) for record in some])
            with environment.begin(write=True) as txn:
                for word, added in counts.items():
                    key = word.encode()
                    before = txn.get(key)
                    total = added + (int.from_bytes(before, "big") if before else 0)
                    txn.put(key, total.to_bytes(8, "big"))
        commands.send(time.perf_counter() - started)
    environment.close()


# The peer.


def _peer() -> str:
    if importlib.util.find_spec(PEER) is None:
        return f"to compare with {PEER}, install it next to stretto: pip install {PEER}"
    with asking(_flow, None) as run:
        return f"{PEER} {_rate(run):,.0f} rec/s, in memory"


def _flow(commands: Connection, _: Any) -> None:
    operators, dataflow, testing = (
        importlib.import_module(f"{PEER}.{name}") for name in ("operators", "dataflow", "testing")
    )
    records = _records()
    decode = msgspec.json.Decoder(Sentence).decode

    def split(batch: list[bytes]) -> Iterator[tuple[str, int]]:
        return iter(counted([decode(record) for record in batch]).items())

    def add(before: int | None, more: int) -> tuple[int, int]:
        total = (before or 0) + more
        return total, total

    for _what, count in requests(commands):
        flow = dataflow.Dataflow("wordcount")
        source = testing.TestingSource(records[: count * RECORDS], batch_size=RECORDS)
        lines = operators.input("sentences", flow, source)
        words = operators.flat_map_batch("split", lines, split)
        totals = operators.stateful_map("count", words, add)
        operators.output("totals", totals, testing.TestingSink([]))
        started = time.perf_counter()
        testing.run_main(flow)
        commands.send(time.perf_counter() - started)
