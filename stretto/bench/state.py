"""Applying entries against a bare LMDB loop that puts the same values in as many transactions."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path

import lmdb

from stretto.bench import Result
from stretto.replog.frame import Frame, Header, Kind, encode
from stretto.state.applied import AppliedState
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId

RECORDS = 1000
RECORD_BYTES = 100
GROUP_FRAMES = 16
GROUPS = 40
ROUNDS = 15
MAP_BYTES = 1 << 30

APPLY_TARGET = 0.70

_TASK = TaskId(0)
_PRODUCER = ProducerId(1)


def apply(folder: Path) -> Result:
    """Measure applying batches of records to a depot, against putting the same bytes under 8-byte keys."""
    payload = pack("events", [os.urandom(RECORD_BYTES) for _ in range(RECORDS)])
    groups = [
        [_frame(group * GROUP_FRAMES + number, payload) for number in range(GROUP_FRAMES)]
        for group in range(GROUPS)
    ]
    ours: list[float] = []
    floors: list[float] = []
    # The first pair only warms up file system and allocator.
    for round_ in range(ROUNDS + 1):
        seconds = _apply_round(folder / f"state-{round_}", groups)
        floor_seconds = _bare_round(folder / f"bare-{round_}", payload)
        if round_:
            ours.append(seconds)
            floors.append(floor_seconds)
    megabytes = GROUPS * GROUP_FRAMES * RECORDS * RECORD_BYTES / 1e6
    return Result(
        value=megabytes / statistics.median(ours),
        floor=megabytes / statistics.median(floors),
        unit="MB/s",
        target=APPLY_TARGET,
        detail=f"{GROUPS} transactions of {GROUP_FRAMES} batches, medians of {ROUNDS} rounds",
    )


def _apply_round(folder: Path, groups: list[list[Frame]]) -> float:
    state = AppliedState.open(folder, [_TASK], map_bytes=MAP_BYTES)
    state.apply([_life(Offset(0))])
    started = time.perf_counter()
    for frames in groups:
        state.apply(frames)
    seconds = time.perf_counter() - started
    state.close()
    shutil.rmtree(folder)
    return seconds


def _bare_round(folder: Path, payload: bytes) -> float:
    env = lmdb.open(os.fspath(folder), map_size=MAP_BYTES, metasync=False)
    started = time.perf_counter()
    number = 0
    for _ in range(GROUPS):
        with env.begin(write=True) as txn:
            for _ in range(GROUP_FRAMES):
                txn.put(number.to_bytes(8, "big"), payload, append=True)
                number += 1
    seconds = time.perf_counter() - started
    env.close()
    shutil.rmtree(folder)
    return seconds


def _life(offset: Offset) -> Frame:
    return encode(Header(offset, Epoch(1), Kind.PRODUCER_OPEN, 1, _TASK, _PRODUCER, 0, 0))


def _frame(number: int, payload: bytes) -> Frame:
    header = Header(
        offset=Offset(1 + number * RECORDS),
        epoch=Epoch(1),
        kind=Kind.DEPOT,
        count=RECORDS,
        task=_TASK,
        producer=_PRODUCER,
        sequence=number * RECORDS,
        timestamp_ms=number,
    )
    return encode(header, payload)
