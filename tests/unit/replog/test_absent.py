"""Whether entries are in memory is known before they are read, and they are brought there by who may wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stretto.replog.folder import OsFolder
from stretto.replog.log import Replog
from stretto.types import Offset
from tests.unit.replog.frames import make_frame

SEGMENT_BYTES = 200_000
ENTRIES = 100


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Replog]:
    log = Replog.open(OsFolder(tmp_path), segment_bytes=SEGMENT_BYTES, tail_bytes=30_000)
    for offset in range(ENTRIES):
        log.append([make_frame(offset, content=os.urandom(10_000))])
        log.sync()
    yield log
    log.close()


def forgotten(log: Replog, folder: Path, max_bytes: int) -> Callable[[], None]:
    """What fetches the log's beginning, no longer in memory. The kernel may take its time to forget."""
    for _ in range(100):
        for path in folder.glob("*.replog"):
            fd = os.open(path, os.O_RDWR)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        fetch = log.absent(Offset(0), max_bytes)
        if fetch is not None:
            return fetch
    pytest.skip("this file system keeps its files in memory, or cannot tell")


def test_what_was_just_written_is_in_memory(log: Replog) -> None:
    assert log.absent(Offset(0), 1 << 20) is None
    assert log.absent(log.end_offset, 1 << 20) is None


def test_what_is_not_in_memory_is_fetched_over_all_segments_that_a_read_needs(
    log: Replog, tmp_path: Path
) -> None:
    max_bytes = 3 * SEGMENT_BYTES
    forgotten(log, tmp_path, max_bytes)()
    assert log.absent(Offset(0), max_bytes) is None
    assert log.read(Offset(0), log.end_offset, max_bytes).end > 2 * SEGMENT_BYTES // 10_100
    assert log.absent(Offset(ENTRIES - 1), max_bytes) is None, "the newest ones are in the log's own memory"


def test_a_segment_may_be_dropped_while_it_is_fetched(log: Replog, tmp_path: Path) -> None:
    fetch = forgotten(log, tmp_path, SEGMENT_BYTES)
    assert log.cut(Offset(50)) > 0
    fetch()
