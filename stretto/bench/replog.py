"""The replog against the disk, and its recovery against reading the same bytes."""

from __future__ import annotations

import os
import queue
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crc32c import crc32c

from stretto.bench import Result
from stretto.errors import StorageError
from stretto.replog.commit import GroupCommit
from stretto.replog.folder import OsFolder
from stretto.replog.frame import Header, Kind, encode
from stretto.replog.log import SEGMENT_BYTES, Replog
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId

RECORDS = 1000
RECORD_BYTES = 100
BATCH_BYTES = RECORDS * RECORD_BYTES

IN_FLIGHT = 64
APPEND_BATCHES = 1280
APPEND_ROUNDS = 15

RECOVERY_BATCHES = 2000
RECOVERY_ROUNDS = 9
READ_BYTES = 1024 * 1024

APPEND_TARGET = 0.80
RECOVERY_TARGET = 0.60


def append(folder: Path) -> Result:
    """Measure appends of batches through group commit, against the same groups written to a bare file."""
    payload = os.urandom(BATCH_BYTES)
    ours: list[float] = []
    floors: list[float] = []
    groups: list[int] = []
    # The first pair only warms up file system and allocator.
    for round_ in range(APPEND_ROUNDS + 1):
        seconds, groups = _append_round(folder / f"log-{round_}", payload)
        floor_seconds = _bare_round(folder / f"bare-{round_}", payload, groups)
        if round_:
            ours.append(seconds)
            floors.append(floor_seconds)
    megabytes = APPEND_BATCHES * BATCH_BYTES / 1e6
    return Result(
        value=megabytes / statistics.median(ours),
        floor=megabytes / statistics.median(floors),
        unit="MB/s",
        target=APPEND_TARGET,
        detail=f"{APPEND_BATCHES} batches in {len(groups)} fdatasyncs, medians of {APPEND_ROUNDS} rounds",
    )


def recovery(folder: Path) -> Result:
    """Measure the opening of a log, against reading its segment and computing one checksum over it."""
    payload = os.urandom(BATCH_BYTES)
    with _log(folder, segment_bytes=1 << 40) as log:
        for number in range(RECOVERY_BATCHES):
            log.append([encode(_header(number), payload)])
            if number % IN_FLIGHT == 0:
                log.sync()
        log.sync()
    (segment,) = folder.iterdir()
    ours: list[float] = []
    floors: list[float] = []
    for round_ in range(RECOVERY_ROUNDS + 1):
        seconds = _timed(lambda: Replog.open(OsFolder(folder)).close())
        floor_seconds = _timed(lambda: _read_with_checksum(segment))
        if round_:
            ours.append(seconds)
            floors.append(floor_seconds)
    megabytes = segment.stat().st_size / 1e6
    return Result(
        value=megabytes / statistics.median(ours),
        floor=megabytes / statistics.median(floors),
        unit="MB/s",
        target=RECOVERY_TARGET,
        detail=f"{megabytes:.0f} MB in the page cache, medians of {RECOVERY_ROUNDS} rounds",
    )


def _append_round(folder: Path, payload: bytes) -> tuple[float, list[int]]:
    """Return the seconds for all batches, ``IN_FLIGHT`` of them at a time, and the batches per fdatasync."""
    inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    groups: list[int] = []

    def on_durable(_: Replog, end: Offset | StorageError) -> None:
        if isinstance(end, StorageError):
            raise end
        groups.append(end // RECORDS - sum(groups))

    folder.mkdir()
    with _log(folder) as log:
        commit = GroupCommit(on_durable, deliver=inbox.put)
        started = time.perf_counter()
        appended = 0
        while log.durable_end_offset < APPEND_BATCHES * RECORDS:
            while appended < min(APPEND_BATCHES, log.durable_end_offset // RECORDS + IN_FLIGHT):
                log.append([encode(_header(appended), payload)])
                commit.submit(log)
                appended += 1
                # Like an event loop, which does not keep a finished write waiting for the next request.
                if not inbox.empty():
                    inbox.get()()
            inbox.get()()
        seconds = time.perf_counter() - started
        commit.close()
    _remove(folder)
    return seconds, groups


def _bare_round(path: Path, payload: bytes, groups: list[int]) -> float:
    """Return the seconds to write the same groups to one file, with one writev and one fdatasync each."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        started = time.perf_counter()
        position = 0
        for count in groups:
            position += os.pwritev(fd, [payload] * count, position)
            os.fdatasync(fd)
        return time.perf_counter() - started
    finally:
        os.close(fd)
        path.unlink()


def _read_with_checksum(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        checksum = position = 0
        while data := os.pread(fd, READ_BYTES, position):
            checksum = crc32c(data, checksum)
            position += len(data)
        return checksum
    finally:
        os.close(fd)


def _header(number: int) -> Header:
    return Header(
        offset=Offset(number * RECORDS),
        epoch=Epoch(1),
        kind=Kind.DEPOT,
        count=RECORDS,
        task=TaskId(0),
        producer=ProducerId(1),
        sequence=number * RECORDS,
        timestamp_ms=0,
    )


@contextmanager
def _log(folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> Iterator[Replog]:
    log = Replog.open(OsFolder(folder), segment_bytes=segment_bytes)
    try:
        yield log
    finally:
        log.close()


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
