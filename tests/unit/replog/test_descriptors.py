"""Files that were opened are closed again: a worker has a log for each of its groups, and lives long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.errors import StorageCorrupt
from stretto.replog import inspect
from stretto.replog.folder import OsFolder
from stretto.replog.log import Replog
from stretto.replog.segment import SEGMENT_HEADER_BYTES, segment_name
from stretto.vocabulary.types import Offset
from tests.support.frames import epoch_start, make_frame


def open_files(folder: Path) -> list[str]:
    """Names of the files of a folder that this process has open, also of removed ones."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue
        if path.parent == folder:
            found.append(path.name)
    return sorted(found)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Replog]:
    """Three segments."""
    log = Replog.open(OsFolder(tmp_path), segment_bytes=400, tail_bytes=0)
    for offset in range(24):
        log.append([make_frame(offset)])
        log.sync()
    yield log
    log.close()


def names(log: Replog) -> list[str]:
    return [segment.name for segment in log._segments]


def test_a_log_has_its_segments_open_and_nothing_else(log: Replog, tmp_path: Path) -> None:
    assert len(names(log)) > 2
    assert open_files(tmp_path) == names(log)
    log.cut(Offset(7))
    assert open_files(tmp_path) == names(log)
    log.truncate(log._segments[-2].base)
    assert open_files(tmp_path) == names(log)
    log.reset(Offset(100), (epoch_start(1, 0),))
    assert open_files(tmp_path) == names(log) == [segment_name(Offset(100))]
    log.close()
    assert open_files(tmp_path) == []


def test_a_log_that_cannot_be_opened_leaves_no_file_open(log: Replog, tmp_path: Path) -> None:
    log.close()
    for position in (0, SEGMENT_HEADER_BYTES):
        path = tmp_path / segment_name(log.start_offset)
        whole = path.read_bytes()
        path.write_bytes(whole[:position] + b"?" + whole[position + 1 :])
        (tmp_path / f"{Offset(0):020d}.index").unlink(missing_ok=True)
        with pytest.raises(StorageCorrupt):
            Replog.open(OsFolder(tmp_path))
        assert open_files(tmp_path) == []
        path.write_bytes(whole)


def test_whoever_inspects_a_log_closes_its_files(log: Replog, tmp_path: Path) -> None:
    log.close()
    folder = OsFolder(tmp_path, read_only=True)
    assert inspect.size_bytes(folder) == sum(path.stat().st_size for path in tmp_path.glob("*.replog"))
    assert open_files(tmp_path) == []
    assert inspect.verify(folder).entries == 24
    assert open_files(tmp_path) == []
    assert [place.header.offset for place in inspect.frames(folder, Offset(9))] == list(range(9, 24))
    assert open_files(tmp_path) == []
    walk = inspect.frames(folder)
    next(walk)
    assert len(open_files(tmp_path)) == 1
    walk.close()  # type: ignore[attr-defined]
    assert open_files(tmp_path) == []
