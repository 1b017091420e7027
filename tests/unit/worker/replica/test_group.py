"""What the driver of a replica makes of the core's effects."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from stretto.catchup.transfers import Transfers
from stretto.replog.core import effects, events, messages
from stretto.replog.folder import OsFile, OsFolder
from stretto.replog.frame import decode
from stretto.replog.log import Replog
from stretto.replog.storage import EpochStart
from stretto.state.applied import AppliedState
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.records import RecordBatch, pack
from stretto.vocabulary.types import Epoch, Millis, Offset, WorkerId
from stretto.wire import catchup as transfers
from stretto.wire import messages as wire
from stretto.worker.hosting.replicas import Replicas
from stretto.worker.reads.reads import _slice, _with_uncommitted
from stretto.worker.replica.storage import ReplicaStorage
from tests.support.core_group import ALL, W0, W1, W2, entry, incarnation_of, record, settings
from tests.unit.worker.replica.driving import KEY, TASK, Driven

RECORD = b"x" * 100


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Driven]:
    options = settings(
        min_isr=1, max_near_lag=4, max_batch_bytes=150, max_in_flight_messages=8, max_unapplied=1_000
    )
    driven = Driven(tmp_path, options, segment_bytes=300)
    driven.lead()
    yield driven
    driven.close()


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Driven]:
    driven = Driven(tmp_path, settings())
    driven.follow(W1, ALL)
    yield driven
    driven.close()


def append(driven: Driven, count: int) -> None:
    for number in range(count):
        driven.append(number + 1, [RECORD])
        driven.end_turn()
        driven.apply_all()


def test_a_log_is_cut_under_a_follower_that_is_sent_what_goes(driven: Driven) -> None:
    append(driven, 3)
    driven.join(W2)
    driven.end_turn()
    append(driven, 30)
    driven.confirm(W2, 3)
    # Entries for it wait for the end of the turn in which the log is cut beyond what comes after them.
    driven.group.step(events.StateSynced(end=driven.group.replica.applied))
    driven.end_turn()
    assert driven.group.log.start_offset == 0, "the loop waits for no disk"
    driven.work()
    assert driven.group.log.start_offset > 10
    assert driven.stopped == []

    driven.now += 1_000
    driven.group.step(events.Tick())
    driven.sent.clear()
    driven.confirm(W2, 4)
    driven.end_turn()
    told = [message for to, message in driven.sent if to == W2]
    assert [each.reason for each in told if isinstance(each, messages.Reject)] == [
        messages.RejectReason.OUT_OF_RANGE
    ]


def test_entries_travel_as_one_body_and_what_has_none_without_any(driven: Driven) -> None:
    append(driven, 1)
    start = driven.group.log.end_offset
    driven.join(W1, start)
    driven.end_turn()
    driven.append(1, [b"a"])
    driven.append(2, [b"b"])
    driven.end_turn()
    assert any(driven.bodies)
    for (_, message), bodies in zip(driven.sent, driven.bodies, strict=True):
        assert len(bodies) <= isinstance(message, messages.Entries)
        assert all(bodies), "what is empty is not sent"
    frames = [frame for bodies in driven.bodies for body in bodies for frame in decode(memoryview(body))]
    assert [frame.header.offset for frame in frames] == [start, start + 1]


def test_old_entries_are_sent_once_they_are_in_memory_and_live_ones_do_not_wait_for_them(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(driven, 3)
    log = driven.group.log
    live = int(log.end_offset)
    fetched: list[int] = []

    def absent(start: Offset, _: int) -> Callable[[], None] | None:
        return (lambda: fetched.append(start)) if start < live else None

    monkeypatch.setattr(log, "absent", absent)
    driven.join(W1, live)
    driven.join(W2)
    driven.end_turn()
    driven.sent.clear()
    append(driven, 1)
    assert entries_to(driven, W1)
    assert not entries_to(driven, W2), "the loop waits for no disk"
    assert fetched == []

    driven.work()
    assert fetched == [0]
    assert entries_to(driven, W2), "what is in memory is sent, though the log would not say so again"


def entries_to(driven: Driven, worker: WorkerId) -> list[messages.Entries]:
    return [each for to, each in driven.sent if to == worker and isinstance(each, messages.Entries)]


def read(driven: Driven) -> list[tuple[int, list[bytes]]]:
    """All of the depot, uncommitted records too, as they are found after they were looked for."""
    message = wire.ReadDepot(1, KEY, TASK, "events", 0, 1 << 20, committed=False)
    found = _with_uncommitted(driven.group, message, _slice(driven.group, message, 1 << 20))
    return [(batch.base, RecordBatch.parse(batch.payload).records()) for batch in found.batches]


def test_uncommitted_reads_skip_nothing_that_is_being_applied(driven: Driven) -> None:
    driven.append(1, [b"applied"])
    driven.end_turn()
    driven.apply_all()
    driven.append(2, [b"being", b"applied"])
    driven.end_turn()
    driven.append(3, [b"not decided"])
    expected = [(0, [b"applied"]), (1, [b"being", b"applied"]), (3, [b"not decided"])]
    assert driven.group.replica.apply_offset > driven.group.state.applied
    assert read(driven) == expected
    driven.write_to_state()
    assert read(driven) == expected


def test_uncommitted_reads_need_nothing_of_the_state_on_the_loop(driven: Driven) -> None:
    """It may have no room for a reader, or be about to grow: nothing for the loop to fail at or wait for."""
    driven.append(1, [b"applied"])
    driven.end_turn()
    driven.apply_all()
    driven.append(2, [b"not applied"])
    for offset, expected in ((0, [b"applied", b"not applied"]), (1, [b"not applied"]), (9, [b"not applied"])):
        message = wire.ReadDepot(1, KEY, TASK, "events", offset, 1 << 20, committed=False)
        looked = _slice(driven.group, message, 1 << 20)
        state, driven.group.state = driven.group.state, cast(Any, None)
        found = _with_uncommitted(driven.group, message, looked)
        driven.group.state = state
        assert [RecordBatch.parse(each.payload).records() for each in found.batches] == [
            [x] for x in expected
        ]
        assert found.end == 2


def test_a_leader_that_finds_its_log_damaged_while_it_serves_its_state_stops(
    driven: Driven, tmp_path: Path
) -> None:
    append(driven, 20)
    worker = SimpleNamespace(
        loop=driven,
        worker=driven.worker,
        option=lambda _: 1_000,
        groups={KEY: driven.group},
    )
    catchup = Transfers(cast(Any, worker), node_dir=None, key=None)
    first = min((tmp_path / "replog").glob("*.replog"))
    damaged = bytearray(first.read_bytes())
    damaged[-20] ^= 1
    first.write_bytes(damaged)
    ask = transfers.AskEntries(Epoch(1), incarnation_of(W2), 1, start=Offset(0), end=Offset(10))
    catchup.serving._send_entries((KEY, W2), ask)
    driven.end_turn()
    catchup.close()
    [why] = driven.stopped
    assert "corrupt" in why


def test_a_follower_gathers_what_nobody_waits_for_and_applies_it_when_it_leads(following: Driven) -> None:
    for offset in range(3):
        following.take(W1, [entry(offset, payload=pack("events", [RECORD]))], apply_offset=offset)
    assert following.group.replica.apply_offset == 2
    assert following.handed_on == []
    following.group.step(events.RecordRead(record=record(2, W0, ALL), version=2))
    following.end_turn()
    assert following.handed_on == [2]


def test_a_follower_applies_at_once_what_a_reader_waits_for(following: Driven) -> None:
    following.take(W1, [entry(0, payload=pack("events", [RECORD]))], apply_offset=0)
    following.take(W1, [], apply_offset=1)
    assert following.handed_on == []
    following.group.step(events.Read(request=1, max_staleness_ms=Millis(1_000)))
    following.end_turn()
    assert following.handed_on == [1]


def test_a_leader_gathers_what_nobody_waits_for_and_has_acknowledged_it(driven: Driven) -> None:
    driven.is_tailed = False
    driven.append(1, [b"one"])
    driven.end_turn()
    driven.append(2, [b"two"])
    driven.end_turn()
    assert set(driven.replies) == {1, 2}
    assert driven.handed_on == []


@pytest.mark.parametrize("is_sampled", [False, True])
def test_a_leader_applies_at_once_what_a_reader_waits_for(driven: Driven, is_sampled: bool) -> None:
    driven.is_tailed = False
    sampled: list[int] = []
    driven.sample = lambda _, request: sampled.append(request)
    driven.append(1, [b"one"])
    driven.end_turn()
    driven.group.step(events.Read(request=2, is_sampled=is_sampled))
    driven.end_turn()
    assert driven.handed_on == [driven.group.replica.log_end]
    assert sampled == [], "what was acknowledged is not there yet"
    driven.apply_all()
    assert sampled == [2]


def segments(driven: Driven) -> int:
    return len(list(cast(OsFolder, driven.group.log._folder).path.glob("*.replog")))


def test_one_cut_at_a_time_and_the_log_is_not_quiet_meanwhile(driven: Driven) -> None:
    append(driven, 30)
    before = segments(driven)
    for _ in range(2):
        driven.group.step(events.StateSynced(end=driven.group.replica.applied))
        driven.end_turn()
    assert driven.holds == 1
    assert segments(driven) == before
    append(driven, 5)
    driven.work()
    assert driven.holds == 0
    assert segments(driven) < before
    assert driven.group.replica.log_start == driven.group.log.start_offset > 10
    assert driven.stopped == []


def test_a_cut_that_fails_stops_the_replica(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    append(driven, 30)
    monkeypatch.setattr(driven.group.log._folder, "remove", failing)
    driven.group.step(events.StateSynced(end=driven.group.replica.applied))
    driven.end_turn()
    driven.work()
    [why] = driven.stopped
    assert "a cut of the replog failed" in why
    assert driven.holds == 0


def failing(*_: object) -> None:
    raise OSError(errno.EIO, "a bad sector")


def diverge(following: Driven) -> None:
    """It has three entries of epoch 1, of which the leader of epoch 2, who sends its own at once, has one."""
    for offset in range(3):
        following.take(W1, [entry(offset, payload=pack("events", [RECORD]))], apply_offset=0)
    following.group.step(events.RecordRead(record=record(2, W2, (W0, W2)), version=2))
    following.end_turn()
    history = (EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(2), Offset(1)))
    following.reconcile(W2, epoch=2, history=history, end=2)
    following.take(W2, [entry(1, epoch=2, payload=pack("events", [RECORD]))], apply_offset=0, epoch=2)


def test_what_follows_a_truncation_waits_for_the_disk_and_the_loop_does_not(following: Driven) -> None:
    diverge(following)
    assert following.group.replica.log_end == 2
    assert following.group.log.end_offset == 3, "nothing is in the log that the truncation would take along"
    assert following.holds == 1
    following.work()
    assert following.holds == 0
    assert following.group.log.durable_end_offset == 2
    assert following.group.log.history[-1] == EpochStart(Epoch(2), Offset(1))
    confirms = [message for _, message in following.sent if isinstance(message, messages.Confirm)]
    assert confirms[-1].end == 2
    assert following.stopped == []


def test_what_was_truncated_is_never_applied(following: Driven) -> None:
    diverge(following)
    following.work()
    [(base, frame)] = list(following.group.unapplied_batches(TASK, "events"))[1:]
    assert (base, frame.header.offset, frame.header.epoch) == (1, 1, 2)
    following.group._apply(Offset(2))
    [(frames, end)] = following._unapplied
    assert [(each.header.offset, each.header.epoch) for each in frames] == [(0, 1), (1, 2)]
    assert end == 2


def test_a_truncation_that_fails_stops_the_replica(
    following: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(following)
    monkeypatch.setattr(OsFile, "truncate", failing)
    following.work()
    [why] = following.stopped
    assert "a truncation of the replog failed" in why
    assert following.holds == 0


def test_a_replica_that_is_stopped_during_a_truncation_lets_go_of_its_log(following: Driven) -> None:
    diverge(following)
    following.group.closed = True
    following.work()
    assert following.holds == 0
    assert following.group.log.end_offset == 1


def test_what_was_not_applied_before_an_install_is_forgotten_with_the_log_that_had_it(
    following: Driven, tmp_path: Path
) -> None:
    """It is below the state that takes its place; what follows that state is applied, and nothing else."""
    for offset in range(3):
        following.take(W1, [entry(offset, payload=pack("events", [b"old"]))], apply_offset=offset + 1)
    assert following.handed_on == [], "decided, and gathered"
    following.group.step(events.RecordRead(record=record(2, W2, (W1, W2)), version=2))
    following.end_turn()
    history = (EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(2), Offset(5)))
    following.reconcile(W2, epoch=2, history=history, start=8, end=9, listed=False)
    attempt = [each for _, each in following.sent if isinstance(each, messages.FetchState)][-1].attempt
    following.group.step(events.StateArrived(epoch=Epoch(2), attempt=attempt, end=Offset(8)))
    following.end_turn()
    assert following.installs == [8]

    storage = arrived_state(tmp_path / "arrived", end=8)
    following.group.state.close()
    following.group.log.close()
    following.group.installed(storage, history)
    following.end_turn()
    following.reconcile(W2, epoch=2, history=history, start=8, end=9, listed=False)
    following.take(W2, [entry(8, epoch=2, payload=pack("events", [b"new"]))], apply_offset=9, epoch=2)
    assert following.group.log.end_offset == 9
    following.group._gathering.hand_on()
    assert following.handed_on == [9]
    following.apply_all()
    assert following.stopped == []
    assert following.group.replica.applied == storage.state.applied == 9
    assert following.group.depot_ends == {(TASK, "events"): 9}
    assert storage.state.depot_bounds(TASK, "events") == (0, 9)


def arrived_state(folder: Path, *, end: int) -> ReplicaStorage:
    """A leader's state of so many records, and an empty log that begins there."""
    (folder / "replog").mkdir(parents=True)
    log = Replog.open(OsFolder(folder / "replog"))
    log.reset(Offset(end), (EpochStart(Epoch(2), Offset(5)),))
    state = AppliedState.open(folder / "state", (TASK,))
    state.apply([entry(offset, epoch=1, payload=pack("events", [b"leader"])) for offset in range(end)])
    return cast(ReplicaStorage, SimpleNamespace(log=log, state=state))


def test_who_reads_at_a_replica_that_is_given_up_is_told(following: Driven) -> None:
    following.group.step(events.Read(request=1, max_staleness_ms=Millis(1_000)))
    following.end_turn()
    assert following.replies == {}
    worker = MagicMock(groups={KEY: following.group})
    worker.config.plans = ()
    replicas = Replicas(worker)
    replicas._storages[KEY] = replicas._fsync[KEY] = MagicMock()
    replicas.give_up(following.group, "its replica moved to another worker", lambda: None)
    assert isinstance(following.replies[1], effects.Refused)
    assert following.group.closed


def test_where_records_lie_is_known_for_a_while_after_they_are_applied(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that is sent again is told of the same records."""
    monkeypatch.setattr("stretto.worker.replica.group.BASES_KEPT", 3)
    append(driven, 5)
    assert list(driven.group.bases.values()) == [2, 3, 4]


def test_a_step_that_is_not_carried_out_whole_is_a_broken_invariant(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever answers errors of messages and goes on must not do so with a replica between two states."""

    def deliver(_: int, __: effects.Result) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(driven, "deliver", deliver)
    driven.append(1, [b"x"])
    with pytest.raises(InvariantViolation, match=r"not carried out .*ZeroDivisionError"):
        driven.end_turn()
