from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stretto.control import MicrobatchCut, SnapshotView
from stretto.errors import StrettoError, UsageError
from stretto.pstate.changes import pack
from stretto.snapshot.creating import check_name, default_name
from stretto.snapshot.cuts import microbatch_at, why_torn
from stretto.snapshot.keeping import delete_files, too_many
from stretto.snapshot.manifest import MANIFEST, SnapshotDamaged, file_of, read_manifest
from stretto.snapshot.unfinished import CREATING, note_suffix
from stretto.state import microbatch_entries
from stretto.state.microbatch_entries import Batch, Span, Version
from stretto.vocabulary.types import TaskId
from tests.unit.snapshot.snapshots import made


def cut(rolled: int, latest: int = 0, tasks: tuple[int, ...] | None = None) -> MicrobatchCut:
    return MicrobatchCut(id=latest, tasks=None if tasks is None else tuple(map(TaskId, tasks)), rolled=rolled)


@pytest.mark.parametrize(
    ("cuts", "why"),
    [
        ([cut(0), cut(0)], ""),
        ([cut(5, 5, (0, 1)), cut(5), cut(3)], ""),  # task 2 had no part in the fifth
        ([cut(5, 5, (0, 1)), cut(4)], "task 1 was cut before microbatch 5 of book took effect there"),
        ([cut(5, 5, (0,)), cut(6)], "task 1 was cut after microbatch 6 of book, task 0 before it"),
        ([cut(0), cut(1)], "task 1 was cut after microbatch 1 of book, task 0 before it"),
        ([cut(5, 6, None), cut(5)], "microbatch 6 of book was under way"),
    ],
)
def test_cuts_are_whole_only_between_the_same_two_microbatches(cuts: list[MicrobatchCut], why: str) -> None:
    assert why_torn("book", {TaskId(task): each for task, each in enumerate(cuts)}) == why


def test_the_rows_of_a_task_tell_how_far_its_microbatches_are() -> None:
    rows: dict[bytes, bytes] = {}

    def apply(entry: microbatch_entries.Entry) -> None:
        changes = microbatch_entries.resolve(entry, rows.get)[microbatch_entries.DATABASE]
        for key in changes.deletes:
            rows.pop(key, None)
        rows.update(changes.puts)

    assert microbatch_at("book", rows.get) == cut(0)
    version = Version(1, 0)
    apply(microbatch_entries.Prime("book", Batch(version, {}, (Span("orders", TaskId(0), 0, 1),))))
    assert microbatch_at("book", rows.get) == cut(0, 1, None)
    apply(microbatch_entries.Stage("book", version, pack({})))
    apply(microbatch_entries.Commit("book", version, (TaskId(0), TaskId(1))))
    assert microbatch_at("book", rows.get) == cut(0, 1, (0, 1))
    apply(microbatch_entries.Roll("book", version))
    assert microbatch_at("book", rows.get) == cut(1, 1, (0, 1))


def view(name: str, at_ms: int, folder: str = "", state: str = "complete") -> SnapshotView:
    return SnapshotView(
        module="bank", name=name, folder=folder, state=state, at_ms=at_ms, tasks=2, size_bytes=1
    )


def test_the_oldest_complete_ones_are_too_many() -> None:
    known = [view("c", 3), view("a", 1), view("half", 2, state="creating"), view("b", 2)]
    assert [each.name for each in too_many(known, 1)] == ["a", "b"]
    assert too_many(known, 3) == []
    assert too_many(known, 0) == []


def test_only_the_files_of_that_snapshot_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "bank" / "one"
    made(folder, tmp_path / "state")
    with pytest.raises(StrettoError, match=r"no manifest in .* says that it is snapshot two of bank"):
        delete_files(view("two", 1, str(folder)))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(StrettoError, match="delete it yourself"):
        delete_files(view("one", 1, str(tmp_path / "photos")))
    with pytest.raises(StrettoError, match="is not there"):
        delete_files(view("one", 1, str(tmp_path / "gone")))
    delete_files(view("one", 1, str(folder)))
    assert not folder.exists()


def test_a_folder_that_only_looks_like_a_snapshot_stays(tmp_path: Path) -> None:
    folder = tmp_path / "chores"
    (folder / "task-1").mkdir(parents=True)
    (folder / "task-1" / "notes.txt").touch()
    (folder / CREATING).write_text("a token of somebody else", "utf-8")
    with pytest.raises(StrettoError, match="no manifest in"):
        delete_files(view("one", 1, str(folder)))
    assert (folder / "task-1" / "notes.txt").exists()
    (folder / MANIFEST).write_bytes(b"{}")
    with pytest.raises(StrettoError, match="no manifest in"):
        delete_files(view("one", 1, str(folder)))
    assert (folder / "task-1" / "notes.txt").exists()


def test_a_deletion_that_was_interrupted_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bank" / "one"
    made(folder, tmp_path / "state")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            delete_files(view("one", 1, str(folder)))
    with pytest.raises(SnapshotDamaged):
        read_manifest(folder)
    assert file_of(folder, TaskId(0)).exists()
    with pytest.raises(StrettoError, match="no manifest in"):
        delete_files(view("two", 1, str(folder)))
    delete_files(view("one", 1, str(folder)))
    assert not folder.exists()


def _interrupted(_: Path) -> None:
    raise KeyboardInterrupt


def test_a_snapshot_that_was_never_finished_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "bank" / "one"
    (folder / "task-0").mkdir(parents=True)
    (folder / CREATING).write_text("0123" + note_suffix("bank", "one"), "utf-8")
    with pytest.raises(StrettoError, match="no manifest in"):
        delete_files(view("two", 1, str(folder)))
    delete_files(view("one", 1, str(folder)))
    assert not folder.exists()


def test_names_of_snapshots_are_plain() -> None:
    assert check_name(default_name())
    for name in ("", ".", "..", "a/b", "-x", "a b", "x" * 101):
        with pytest.raises(UsageError, match="cannot be called"):
            check_name(name)
