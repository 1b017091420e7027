from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from stretto.catchup.install import Install, steps
from stretto.errors import StrettoError
from stretto.pstate.changes import Changes
from stretto.replog.core.lineage import divergence
from stretto.replog.frame import Kind
from stretto.replog.storage import EpochStart
from stretto.snapshot import seeding
from stretto.snapshot.manifest import MANIFEST, SnapshotDamaged, file_of, write_manifest
from stretto.specs.assignments import GroupPlan
from stretto.specs.modules import RestoredFrom
from stretto.state.applied import AppliedState
from stretto.state.task_seed import HOPS
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId
from stretto.worker.replica import storage as storages
from stretto.worker.replica.storage import ReplicaFolder, ReplicaStorage
from stretto.worker.topology import rows
from stretto.worker.topology.machine.stored import Incoming
from tests.support.entries import Log
from tests.support.syncs import RecordedSyncs
from tests.unit.snapshot.snapshots import TASKS, a_log, copied, made

KEY = GroupKey("bank", 1, 0)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def restored(tmp_path: Path) -> RestoredFrom:
    folder = tmp_path / "bank" / "one"
    manifest = made(folder, tmp_path / "state")
    return RestoredFrom(folder=str(folder), checksum=manifest.checksum)


def replica(
    path: Path, pool: ThreadPoolExecutor, restored: RestoredFrom | None, tasks: tuple[TaskId, ...] = TASKS
) -> ReplicaFolder:
    path.mkdir(exist_ok=True)
    return ReplicaFolder(path, GroupPlan(KEY, tasks, ()), cluster="new", pool=pool, restored=restored)


def close(storage: ReplicaStorage) -> None:
    storage.log.close()
    storage.state.close()


def test_a_manifest_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bank" / "one"
    manifest = made(folder, tmp_path / "state")
    syncs = RecordedSyncs(monkeypatch)
    write_manifest(folder, manifest)
    assert (syncs.count(folder / MANIFEST), syncs.count(folder)) == (1, 1)


def test_what_a_replica_begins_with_is_on_disk_before_it_begins(
    tmp_path: Path, restored: RestoredFrom, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = RecordedSyncs(monkeypatch)
    staged = tmp_path / "incoming" / "state"
    seeding.stage(restored, TASKS, staged)
    assert [path for path in syncs.lacks(staged) if path.name != "lock.mdb"] == []


def test_every_replica_begins_with_the_same_state_above_offset_0(
    tmp_path: Path, pool: ThreadPoolExecutor, restored: RestoredFrom
) -> None:
    original = AppliedState.open(tmp_path / "state", TASKS)
    storages_ = [replica(tmp_path / name, pool, restored).open() for name in ("a", "b")]
    for storage in storages_:
        assert storage.state.applied == storage.log.start_offset == storage.log.end_offset == a_log().end > 0
        assert storage.log.history == (EpochStart(Epoch(0), Offset(0)),)
        assert storage.state.producers() == original.producers()
        assert [storage.state.digest(task) for task in TASKS] == [original.digest(task) for task in TASKS]
        close(storage)
    assert storages_[0].storage_id != storages_[1].storage_id
    original.close()


def test_tasks_of_a_snapshot_forget_what_they_heard_of_hops(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    """A task that was cut before another has not made the hop that the other remembers; it will, again."""
    log = a_log(10)
    log.state(Changes(puts=((rows.key_of("t", "in", 1), rows._encode([9])),)), pstate=HOPS)
    state = AppliedState.open(tmp_path / "state", TASKS)
    state.apply(log.frames)
    manifest = copied(state, tmp_path / "one")
    restored = RestoredFrom(folder=str(tmp_path / "one"), checksum=manifest.checksum)
    storage = replica(tmp_path / "a", pool, restored).open()
    assert rows.read(state, TASKS[0], "t", 5).inbox == {TaskId(1): Incoming(9)}
    assert rows.read(storage.state, TASKS[0], "t", 5).inbox == {}
    close(storage)
    state.close()


def test_a_replica_goes_on_with_what_it_has_when_it_is_opened_again(
    tmp_path: Path, pool: ThreadPoolExecutor, restored: RestoredFrom
) -> None:
    storage = replica(tmp_path / "a", pool, restored).open()
    log = Log()
    log.frames = a_log().frames
    frame = log.depot([b"later"], task=0)
    storage.log.append([frame])
    storage.log.sync()
    storage.state.apply([frame])
    close(storage)
    again = replica(tmp_path / "a", pool, restored).open()
    assert again.storage_id == storage.storage_id
    assert again.state.applied == log.end
    close(again)


def test_followers_that_began_with_it_agree_with_their_leader_and_an_empty_one_does_not() -> None:
    end = Offset(100)
    began = (EpochStart(Epoch(0), Offset(0)),)
    leaders = (*began, EpochStart(Epoch(1), end))
    assert divergence(began, end, leaders, Offset(101)) == end
    assert divergence((), Offset(0), leaders, Offset(101)) == 0  # below the leader's log: the far horizon


@pytest.mark.parametrize("after", range(8))
def test_a_crash_at_any_step_leaves_nothing_or_all_of_it(
    tmp_path: Path,
    pool: ThreadPoolExecutor,
    restored: RestoredFrom,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
) -> None:
    class Crash(Exception):
        pass

    def crash(path: Path, install: Install) -> None:
        for number, _ in enumerate(steps(path, install)):
            if number == after:
                raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(storages, "carry_out", crash)
        with contextlib.suppress(Crash):
            close(replica(tmp_path / "a", pool, restored).open())
    storage = replica(tmp_path / "a", pool, restored).open()
    assert storage.state.applied == storage.log.start_offset == a_log().end
    assert sum(end for _, end in (storage.state.depot_bounds(task, "events") for task in TASKS)) == 400
    close(storage)


def test_a_crash_while_it_is_copied_begins_anew(
    tmp_path: Path, pool: ThreadPoolExecutor, restored: RestoredFrom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(seeding, "make_seed", failing)
        with pytest.raises(OSError, match="No space"):
            replica(tmp_path / "a", pool, restored).open()
    storage = replica(tmp_path / "a", pool, restored).open()
    assert storage.state.applied == a_log().end
    close(storage)


def test_a_damaged_file_or_another_snapshot_is_refused_and_nothing_begins_empty(
    tmp_path: Path, pool: ThreadPoolExecutor, restored: RestoredFrom
) -> None:
    other = msgspec.structs.replace(restored, checksum="0" * 64)
    with pytest.raises(SnapshotDamaged, match="not the snapshot that was to be restored"):
        replica(tmp_path / "a", pool, other).open()
    assert "another snapshot" in seeding.why_unseen(Path(restored.folder), other.checksum)
    assert seeding.why_unseen(Path(restored.folder), restored.checksum) == ""
    path = file_of(Path(restored.folder), TaskId(1))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for _ in range(2):
        with pytest.raises(StrettoError, match="its hash is not that of the manifest"):
            replica(tmp_path / "a", pool, restored).open()
    path.unlink()
    assert "cannot be read" in seeding.why_unseen(Path(restored.folder), restored.checksum)


def test_tasks_of_different_groups_make_one_whose_producers_all_of_them_know(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """The files were those of two groups, at different offsets, with different producers."""
    folder = tmp_path / "bank" / "one"
    ours, theirs = Log(), Log()
    for log, task, producer in ((ours, 0, 7), (theirs, 1, 8)):
        log.add(Kind.EPOCH)
        log.add(Kind.PRODUCER_OPEN, producer=producer)
        log.depot([b"a"], task=task, producer=producer, sequence=0)
    theirs.add(Kind.EPOCH)
    states = [AppliedState.open(tmp_path / f"s{task}", (TaskId(task),)) for task in (0, 1)]
    for state, log in zip(states, (ours, theirs), strict=True):
        state.apply(log.frames)
    manifest = _joined(states, folder, tmp_path)
    restored = RestoredFrom(folder=str(folder), checksum=manifest)
    storage = replica(tmp_path / "a", pool, restored).open()
    assert storage.state.applied == theirs.end
    assert storage.state.producers().producers.keys() == {7, 8}
    log = Log()
    log.frames = theirs.frames[:]
    storage.state.apply([log.depot([b"b"], task=1, producer=7, sequence=0)])
    table = storage.state.producers().producers
    assert {task: rows.next for task, rows in table[ProducerId(7)].items()} == {0: 1, 1: 1}
    assert {task: rows.next for task, rows in table[ProducerId(8)].items()} == {1: 1}
    close(storage)


def _joined(states: list[AppliedState], folder: Path, scratch: Path) -> str:
    parts = [copied(state, scratch / f"part-{number}") for number, state in enumerate(states)]
    for number, state in enumerate(states):
        state.close()
        file = file_of(folder, TaskId(number))
        file.parent.mkdir(parents=True)
        file_of(scratch / f"part-{number}", TaskId(number)).rename(file)
    stored = tuple(task for part in parts for task in part.tasks)
    return write_manifest(folder, msgspec.structs.replace(parts[0], tasks=stored)).checksum
