"""What measuring costs: the telemetry of one batch, next to the CPU that a worker takes for the batch.

The worker is the cheapest there is, one without followers, so that the share is never told too small. What it
measures for a batch is done here again, call by call, because it is too little to be seen from outside.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from stretto.bench import Result
from stretto.bench.cluster import cpu_seconds, descendants
from stretto.bench.replication import (
    BATCHES,
    DEPOT,
    RECORD_BYTES,
    RECORDS,
    append_to_workers,
    asking,
    workers,
)
from stretto.errors import StrettoError
from stretto.module.runner import Times
from stretto.replog.frame import Header, Kind, encode
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId
from stretto.worker.replica.meter import Meter

TARGET = 0.02
ROUNDS = 4
REPEATS = 20_000
STEPS = 8
"""Steps of a replica for a batch, each timed: the append, writes, what followers confirm, its application."""


def per_batch(folder: Path) -> Result:
    """Measure the CPU of telemetry for one batch, in microseconds; the detail has a stream's calls."""
    with workers(folder, replicas=1) as addresses, asking(append_to_workers, addresses) as run:
        pid = _worker()
        run("batched", BATCHES)
        before = cpu_seconds([pid])
        for _ in range(ROUNDS):
            run("batched", BATCHES)
        batch_us = (cpu_seconds([pid]) - before) / (ROUNDS * BATCHES) * 1e6
    return Result(
        value=_telemetry_us(),
        floor=batch_us,
        unit="us",
        target=TARGET,
        at_most=True,
        detail=f"timing a function takes {_call_ns():.0f} ns a call more",
    )


def _worker() -> int:
    for pid in descendants(os.getpid()):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"stretto.worker" in arguments:
            return pid
    raise StrettoError("the worker of the bench is gone; its log tells why")


def _telemetry_us() -> float:
    payload = pack(DEPOT, [b"x" * RECORD_BYTES] * RECORDS)
    frames = [
        encode(Header(Offset(0), Epoch(1), Kind.DEPOT, RECORDS, TaskId(0), ProducerId(1), 0, 0), payload)
    ]
    meter = Meter()
    end = frames[0].end_offset
    began = time.process_time()
    for _ in range(REPEATS):
        for _ in range(STEPS):
            begun = time.perf_counter()
            meter.busy_seconds += time.perf_counter() - begun
        meter.created(frames)
        meter.applied_run(frames, 0.001)
        meter.decided(end)
    return (time.process_time() - began) / REPEATS * 1e6


def _call_ns() -> float:
    times = Times()
    began, at = time.process_time(), time.perf_counter_ns()
    for _ in range(REPEATS):
        at = times.until_now(at)
    return (time.process_time() - began) / REPEATS * 1e9
