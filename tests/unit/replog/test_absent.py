"""Whether entries are in memory is known before they are read, and they are brought there by who may wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stretto.replog.folder import OsFolder
from stretto.replog.log import Replog
from stretto.vocabulary.types import Offset
from tests.support.frames import make_frame
from tests.support.power import PowerFile, PowerFolder

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


class Forgetful(PowerFolder):
    """Nothing is in memory: each look writes down which bytes of which file it was about."""

    def __init__(self) -> None:
        super().__init__()
        self.looked: list[tuple[str, int, int]] = []
        self.fetched: list[tuple[str, int, int]] = []

    def open(self, name: str, *, create: bool = False) -> PowerFile:
        file = super().open(name, create=create)

        def absent(position: int, length: int) -> Callable[[], None]:
            where = (name.removesuffix(".tmp"), position, position + length)
            self.looked.append(where)
            return lambda: self.fetched.append(where)

        file.absent = absent  # type: ignore[assignment, method-assign]
        return file


def test_as_much_is_looked_for_and_fetched_as_a_read_may_need_and_no_more() -> None:
    folder = Forgetful()
    log = Replog.open(folder, segment_bytes=SEGMENT_BYTES, tail_bytes=30_000)
    for offset in range(ENTRIES):
        log.append([make_frame(offset, content=bytes(10_000))])
        log.sync()
    first, second, third, *_ = log._segments
    walk = 16 * 1024

    def ranges(start: int, max_bytes: int) -> list[tuple[str, int, int]]:
        folder.looked.clear()
        folder.fetched.clear()
        fetch = log.absent(Offset(start), max_bytes)
        if fetch is not None:
            fetch()
        assert folder.fetched == folder.looked
        return list(folder.looked)

    assert ranges(0, 1) == [(first.name, 64, 65 + walk)]
    assert ranges(0, first.size) == [(first.name, 64, first.size), (second.name, 64, 64 + 64 + walk)]
    assert ranges(0, 2 * first.size - 128) == [(first.name, 64, first.size), (second.name, 64, second.size)]
    _, position = second.index.floor(Offset(second.base + 5))
    assert ranges(int(second.base) + 5, 1) == [(second.name, position, position + 1 + walk)]
    assert ranges(int(third.base), 0) == []
    assert ranges(ENTRIES - 1, 1 << 20) == [], "the newest ones are in the log's own memory"
    assert ranges(ENTRIES, 1 << 20) == []
    log.cut(second.base)
    assert ranges(0, 1 << 20) == [], "it is gone"


def test_nothing_is_fetched_of_what_is_in_memory_beside_what_is_not() -> None:
    folder = Forgetful()
    log = Replog.open(folder, segment_bytes=SEGMENT_BYTES, tail_bytes=30_000)
    for offset in range(50):
        log.append([make_frame(offset, content=bytes(10_000))])
        log.sync()
    first, second, *_ = log._segments
    first.file.absent = lambda *_: None  # type: ignore[method-assign]
    fetch = log.absent(Offset(0), 2 * SEGMENT_BYTES)
    assert fetch is not None
    fetch()
    assert [name for name, *_ in folder.fetched] == [second.name]
