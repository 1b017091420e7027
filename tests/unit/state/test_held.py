from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.errors import StorageError
from stretto.snapshot.taskfile import TaskFile
from stretto.state.applied import AppliedState
from stretto.vocabulary.types import TaskId
from tests.support.syncs import RecordedSyncs
from tests.unit.snapshot.snapshots import TASKS, a_log


@pytest.fixture
def state(tmp_path: Path) -> Iterator[AppliedState]:
    state = AppliedState.open(tmp_path / "state", TASKS)
    state.apply(a_log().frames[:300])
    yield state
    state.close()


def digest_of(path: Path, task: TaskId) -> str:
    file = TaskFile(path, task)
    try:
        return file.digest()
    finally:
        file.close()


def test_a_copy_is_the_state_at_the_marker_whatever_is_applied_meanwhile(
    state: AppliedState, tmp_path: Path
) -> None:
    before = [state.digest(task) for task in TASKS]
    held = state.hold()
    state.apply(a_log().frames[300:])
    assert [state.digest(task) for task in TASKS] != before
    for task, digest in zip(TASKS, before, strict=True):
        path = tmp_path / f"copy-{task}.mdb"
        told: list[int] = []
        copied = held.copy(task, path, 0, told.append)
        assert held.digest(task) == digest
        assert digest_of(path, task) == digest
        assert copied.size_bytes == path.stat().st_size == sum(told)
    held.release()


def test_a_copy_goes_no_faster_than_allowed_and_ends_when_it_is_let_go(
    state: AppliedState, tmp_path: Path
) -> None:
    held = state.hold()
    begun = threading.Event()
    failures: list[StorageError] = []

    def copy() -> None:
        try:
            held.copy(TaskId(0), tmp_path / "slow.mdb", 1, lambda _: begun.set())
        except StorageError as error:
            failures.append(error)

    copying = threading.Thread(target=copy)
    copying.start()
    assert begun.wait(30)
    assert copying.is_alive()  # at a byte a second it would take hours
    held.release()
    copying.join(30)
    assert not copying.is_alive()
    assert [str(failure) for failure in failures] == ["the state is no longer held"]
    assert list(tmp_path.glob("slow*")) == []


def test_a_copy_is_on_disk_before_it_has_its_name(
    state: AppliedState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = state.hold()
    syncs = RecordedSyncs(monkeypatch)
    held.copy(TaskId(0), tmp_path / "copy.mdb", 0)
    assert syncs.count(tmp_path / "copy.mdb") == 1
    held.release()


def test_a_state_that_closes_lets_go_of_what_is_held_first(state: AppliedState, tmp_path: Path) -> None:
    held = state.hold()
    state.close()
    with pytest.raises(StorageError, match="no longer held"):
        held.digest(TaskId(0))
    with pytest.raises(StorageError, match="closed"):
        state.hold()


def test_a_folder_that_cannot_be_written_leaves_the_state_as_it_is(
    state: AppliedState, tmp_path: Path
) -> None:
    held = state.hold()
    with pytest.raises(FileNotFoundError):
        held.copy(TaskId(0), tmp_path / "nowhere" / "data.mdb", 0)
    assert held.digest(TaskId(0)) == state.digest(TaskId(0))
    held.release()
    state.apply(a_log().frames[300:])
