from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import StorageError, StrettoError, UsageError
from stretto.replog.frame import Kind, decode
from stretto.state import environment as environment_of
from stretto.state.applied import AppliedState, NoSpace
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.records import DepotOffset, RecordBatch
from stretto.vocabulary.types import Offset, TaskId
from tests.support.entries import (
    TASKS,
    Log,
    applied_in_one_go,
    batchings,
    digests,
    logs,
    open_state,
    quick_folder,
)

T0, T1, T2 = TASKS


@pytest.fixture
def state(tmp_path: Path) -> Iterator[AppliedState]:
    state = open_state(tmp_path / "state")
    yield state
    state.close()


def all_records(state: AppliedState, task: TaskId, depot: str = "events") -> list[bytes]:
    start, end = state.depot_bounds(task, depot)
    slice_ = state.read_depot(task, depot, start, max_bytes=1 << 30, max_records=1 << 30)
    assert (slice_.start, slice_.end) == (start, end)
    return [record for batch in slice_.batches for record in RecordBatch.parse(batch.payload).records()]


def test_a_new_state_is_empty_and_at_offset_0(state: AppliedState) -> None:
    assert state.applied == state.furthest == 0
    assert state.producers().producers == {}
    assert state.depot_bounds(T0, "events") == (0, 0)
    assert state.read_depot(T0, "events", DepotOffset(7), max_bytes=1, max_records=1).batches == ()
    assert state.offset_at(T0, "events", 5) == 0


def test_depot_offsets_are_contiguous_across_batches_epochs_and_other_entries(state: AppliedState) -> None:
    log = Log()
    log.add(Kind.EPOCH)
    log.depot([b"a", b"b"], task=0)
    log.depot([b"x"], task=1)
    log.add(Kind.MARKER)
    log.depot([b"y"], task=0, depot="clicks")
    log.new_epoch()
    log.depot([b"c"], task=0)
    state.apply(log.frames[:4])
    log.new_epoch()
    log.depot([b"d", b"e"], task=0)
    state.apply(log.frames[4:])
    assert state.applied == log.end
    assert state.depot_bounds(T0, "events") == (0, 5)
    slice_ = state.read_depot(T0, "events", DepotOffset(0), max_bytes=1 << 20, max_records=100)
    assert [(batch.base, batch.end) for batch in slice_.batches] == [(0, 2), (2, 3), (3, 5)]
    assert all_records(state, T0) == [b"a", b"b", b"c", b"d", b"e"]
    assert all_records(state, T1) == [b"x"]
    assert all_records(state, T0, "clicks") == [b"y"]


def test_a_batch_is_stored_as_it_came(state: AppliedState) -> None:
    log = Log()
    frame = log.depot([b"one", b"three"])
    (received,) = decode(b"".join(frame.parts))
    state.apply([received])
    (batch,) = state.read_depot(T0, "events", DepotOffset(0), max_bytes=1, max_records=1).batches
    assert batch.payload == frame.parts[1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_batching_leads_to_the_same_state(data: st.DataObject) -> None:
    log = data.draw(logs())
    with quick_folder() as folder:
        state = open_state(folder / "state")
        for group in data.draw(batchings(log.frames)):
            state.apply(group)
        assert state.applied == log.end
        assert digests(state) == applied_in_one_go(folder / "other", log.frames)
        state.close()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_producer_table_is_the_cores_own_at_every_offset_and_survives_a_restart(
    data: st.DataObject,
) -> None:
    log = data.draw(logs())
    with quick_folder() as folder:
        state = open_state(folder / "state")
        for group in data.draw(batchings(log.frames)):
            state.apply(group)
            assert state.producers() == log.producers(state.applied)
            if data.draw(st.booleans()):
                state.checkpoint()
                state.close()
                state = open_state(folder / "state")
                assert state.producers() == log.producers(state.applied)
        state.close()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_replaying_what_is_applied_changes_nothing(data: st.DataObject) -> None:
    log = data.draw(logs())
    with quick_folder() as folder:
        state = open_state(folder / "state")
        state.apply(log.frames)
        before = digests(state), state.producers()
        start = data.draw(st.integers(0, len(log.frames)))
        for group in data.draw(batchings(log.frames[start:])):
            state.apply(group)
        assert (digests(state), state.producers()) == before
        # Also when the process, and with it the group's offset, began anew.
        state.close()
        state = open_state(folder / "state")
        state.apply(log.frames)
        assert (digests(state), state.producers()) == before
        assert state.applied == log.end
        state.close()


def test_a_map_that_fills_up_within_a_batch_leaves_no_trace_of_the_first_attempt(tmp_path: Path) -> None:
    log = Log()
    log.add(Kind.PRODUCER_OPEN, producer=1)
    for number in range(12):
        log.depot([bytes(20_000), b"%d" % number], producer=1, sequence=2 * number, timestamp_ms=12 - number)
    state = open_state(tmp_path / "state", map_bytes=64 * 1024)
    state.apply(log.frames)
    assert state.depot_bounds(T0, "events") == (0, 24)
    assert all_records(state, T0)[1::2] == [b"%d" % number for number in range(12)]
    assert state.producers() == log.producers()
    assert digests(state) == applied_in_one_go(tmp_path / "other", log.frames)
    state.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_batch_that_failed_after_some_of_its_tasks_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    monkeypatch.setattr(environment_of, "PLENTY_BYTES", 1 << 60)
    log = Log()
    log.add(Kind.PRODUCER_OPEN, producer=1)
    for number in range(9):
        log.depot([b"%d" % number], task=number % 3, producer=1, sequence=number // 3)
    state = open_state(tmp_path / "state")
    state.apply(log.frames[:4])

    free = os.statvfs
    full = SimpleNamespace(f_bavail=0, f_frsize=4096)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: full if Path(path).name == "task-1" else free(path))
        with pytest.raises(NoSpace):
            state.apply(log.frames[4:])
    assert (state.applied, state.furthest) == (4, 10)
    assert [state.depot_bounds(task, "events")[1] for task in TASKS] == [3, 1, 3]

    with pytest.raises(InvariantViolation, match="recover first"):
        state.producers()
    if restarts:
        state.close()
        state = open_state(tmp_path / "state")
        replog = log.stored(tmp_path / "replog")
        assert state.recover(replog) == 10
        replog.close()
    else:
        state.apply(log.frames[4:])
    assert state.applied == 10
    assert state.producers() == log.producers()
    assert digests(state) == applied_in_one_go(tmp_path / "other", log.frames)
    state.close()


def test_different_content_has_different_digests(tmp_path: Path) -> None:
    def digest_of(name: str, **changes: int | str) -> str:
        log = Log()
        log.add(Kind.PRODUCER_OPEN, producer=1)
        if "expired" in changes:
            log.add(Kind.PRODUCER_EXPIRE, producer=1)
            changes.pop("expired")
        log.depot([b"a", b"b"], **changes)  # type: ignore[arg-type]
        return applied_in_one_go(tmp_path / name, log.frames)[0]

    plain = digest_of("plain")
    assert plain == digest_of("same")
    others = [
        digest_of("depot", depot="clicks"),
        digest_of("time", timestamp_ms=1),
        digest_of("task", task=1),
        digest_of("producer", producer=1),
        digest_of("expired", expired=1),
    ]
    assert len({plain, *others}) == 6


def test_an_idle_task_lags_until_a_checkpoint_advances_it(tmp_path: Path) -> None:
    log = Log()
    for number in range(10):
        log.depot([b"%d" % number], task=1)
    state = open_state(tmp_path / "state")
    state.apply(log.frames[:8])
    state.close()
    state = open_state(tmp_path / "state")
    assert (state.applied, state.furthest) == (0, 8)
    assert state.recover(log.stored(tmp_path / "replog")) == state.applied == 8
    assert state.checkpoint() == 8
    state.close()
    state = open_state(tmp_path / "state")
    assert (state.applied, state.furthest) == (8, 8)
    state.close()


def test_a_checkpoint_returns_the_offset_that_was_applied_when_it_began(state: AppliedState) -> None:
    log = Log()
    log.depot([b"a", b"b", b"c"])
    assert state.checkpoint() == 0
    state.apply(log.frames)
    assert state.checkpoint() == 3
    assert state.checkpoint() == 3


def test_entries_are_applied_and_read_while_checkpoints_run(state: AppliedState) -> None:
    log = Log()
    for number in range(150):
        log.depot([b"%d" % number], task=number % 2)
    done = threading.Event()
    synced: list[Offset] = []

    def checkpoint() -> None:
        while not done.is_set():
            synced.append(state.checkpoint())

    thread = threading.Thread(target=checkpoint)
    thread.start()
    for frame in log.frames:
        state.apply([frame])
    done.set()
    thread.join()
    assert synced == sorted(synced)
    assert state.checkpoint() == log.end
    assert len(all_records(state, T0)) == len(all_records(state, T1)) == 75


def test_a_gap_before_or_between_frames_is_an_invariant_violation(state: AppliedState) -> None:
    log = Log()
    for number in range(3):
        log.depot([b"%d" % number])
    with pytest.raises(InvariantViolation, match="frames are missing before these"):
        state.apply(log.frames[1:])
    with pytest.raises(InvariantViolation, match="frames are not contiguous"):
        state.apply([log.frames[0], log.frames[2]])
    assert state.depot_bounds(T0, "events") == (0, 0)


@pytest.mark.parametrize(
    ("kind", "task", "payload", "why"),
    [
        (Kind.DEPOT, 0, b"nonsense", "cannot be applied here: a record batch"),
        (Kind.DEPOT, 0, b"\1\1\0\0\2\0\0\0d" + bytes(8), "1 entries for 2 records"),
        (Kind.DEPOT, 9, b"", "is for task 9, which is not here"),
        (Kind.STATE, 0, b"", "changes of PStates are malformed"),
    ],
)
def test_an_entry_that_cannot_be_applied_stops_the_replica_and_changes_nothing(
    state: AppliedState, kind: Kind, task: int, payload: bytes, why: str
) -> None:
    log = Log()
    log.depot([b"a"])
    log.add(kind, task=task, payload=payload)
    with pytest.raises(StorageError, match=why):
        state.apply(log.frames)
    assert state.applied == 0
    assert state.depot_bounds(T0, "events") == (0, 0)


def test_a_task_of_another_group_cannot_be_read(state: AppliedState) -> None:
    with pytest.raises(UsageError, match=r"task 9 is not in this group, which has \[0, 1, 2\]"):
        state.depot_bounds(TaskId(9), "events")


def test_a_group_has_tasks_and_each_once(tmp_path: Path) -> None:
    for tasks in ([], [T0, T0]):
        with pytest.raises(UsageError, match="one or more different tasks"):
            AppliedState.open(tmp_path, tasks)


def test_a_closed_state_says_so(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state")
    log = Log()
    log.depot([b"a"])
    state.apply(log.frames)
    state.close()
    with pytest.raises(StorageError, match="is closed"):
        state.depot_bounds(T0, "events")
    log.depot([b"b"])
    with pytest.raises(StorageError, match="is closed"):
        state.apply(log.frames[1:])
    with pytest.raises(StorageError, match="is closed"):
        state.checkpoint()
    state.close()


def test_states_may_share_the_threads_they_commit_on(tmp_path: Path) -> None:
    log = Log()
    for number in range(6):
        log.depot([b"%d" % number], task=number % 3)
    with ThreadPoolExecutor(2) as pool:
        states = [AppliedState.open(tmp_path / name, TASKS, pool=pool) for name in ("a", "b")]
        for state in states:
            state.apply(log.frames)
            assert state.checkpoint() == 6
        assert digests(states[0]) == digests(states[1])
        states[0].close()
        states[1].apply([log.depot([b"x"], task=0), log.depot([b"y"], task=1)])
        states[1].close()


def test_a_state_of_another_format_or_task_is_refused_with_a_sentence(tmp_path: Path) -> None:
    open_state(tmp_path / "state").close()
    (tmp_path / "state" / "task-1").rename(tmp_path / "state" / "task-7")
    with pytest.raises(StrettoError, match=r"task-7 is that of task 1, not of 7$"):
        AppliedState.open(tmp_path / "state", [TaskId(7)])
    with lmdb.open(str(tmp_path / "state" / "task-0"), max_dbs=4) as env, env.begin(write=True) as txn:
        txn.put(b"format", b"\2", db=env.open_db(b"meta", txn=txn))
    with pytest.raises(StrettoError, match="has format 02, and this release reads 01; run the release"):
        AppliedState.open(tmp_path / "state", [T0])
    # A refused state is left closed.
    with lmdb.open(str(tmp_path / "state" / "task-0")):
        pass


def test_several_files_stay_closed_if_one_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "task-2").mkdir()
    (tmp_path / "task-2" / "data.mdb").write_bytes(b"nonsense" * 2000)
    with pytest.raises(StorageError, match="task-2 is damaged"):
        open_state(tmp_path)
    with lmdb.open(str(tmp_path / "task-0")):
        pass
