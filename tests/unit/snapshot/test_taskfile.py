"""Files of a snapshot that several readers share, and files that are none."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import pytest

from stretto.pstate.ordered import encode
from stretto.snapshot import taskfile
from stretto.snapshot.manifest import SnapshotDamaged, file_of
from stretto.snapshot.reading import open_snapshot
from stretto.snapshot.taskfile import TaskFile
from stretto.vocabulary.types import TaskId
from tests.unit.snapshot.snapshots import a_log, made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(tmp_path / "bank" / "one", tmp_path / "state")
    return tmp_path / "bank" / "one"


def is_open(path: Path) -> bool:
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return any(link.resolve() == path.resolve() for link in links if link.is_symlink())


def test_a_file_is_open_as_long_as_one_of_its_readers_is(folder: Path) -> None:
    path = file_of(folder, TaskId(0))
    one, other = TaskFile(path, TaskId(0)), TaskFile(path, TaskId(0))
    assert is_open(path)
    one.close()
    one.close()
    assert is_open(path), "the other reads it still"
    assert other.applied == a_log().end
    third = TaskFile(path, TaskId(0))
    other.close()
    assert third.row("counts", encode("key-00000")) is not None
    third.close()
    assert not is_open(path)
    assert taskfile._shared == {}


def test_a_snapshot_that_is_closed_has_no_file_open(folder: Path) -> None:
    paths = [file_of(folder, TaskId(task)) for task in (0, 1)]
    with open_snapshot(folder) as snapshot:
        for task in (0, 1, 1):
            assert list(snapshot.rows(task, "counts"))
        assert all(map(is_open, paths))
    assert not any(map(is_open, paths))
    assert taskfile._shared == {}


def test_rows_and_databases_that_are_not_there_are_none(folder: Path) -> None:
    file = TaskFile(file_of(folder, TaskId(0)), TaskId(0))
    assert file.row("counts", encode("key-00001")) is None, "it is on the other task"
    assert file.row("nothing", encode("key-00000")) is None
    assert file.database("nothing") is None
    assert file.database("meta") is file.database("meta")
    file.close()


def test_whatever_is_no_state_of_a_task_is_told_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    with pytest.raises(SnapshotDamaged, match=r"data\.mdb is damaged .*; use another snapshot"):
        TaskFile(path, TaskId(0))
    path.write_bytes(b"no environment" * 1_000)
    with pytest.raises(SnapshotDamaged):
        TaskFile(path, TaskId(0))
    path.unlink()
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=3):
        pass
    file = TaskFile(path, TaskId(0))
    for look in (lambda: file.applied, file.digest):
        with pytest.raises(SnapshotDamaged, match="it is no state of a task"):
            look()
    file.close()


def test_what_fails_while_a_file_is_read_is_told_as_damaged(folder: Path) -> None:
    file = TaskFile(file_of(folder, TaskId(0)), TaskId(0))
    with pytest.raises(SnapshotDamaged), file.reading():
        raise lmdb.CorruptedError("a page that is none")
    for error in (lmdb.CorruptedError("no page"), IndexError("beyond the page")):
        with pytest.raises(SnapshotDamaged), file.reading_bytes():
            raise error
    with pytest.raises(ZeroDivisionError), file.reading():
        raise ZeroDivisionError
    file.close()
