from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stretto.pstate.changes import Packed
from stretto.vocabulary.types import Epoch, TaskId
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.executors.replies import Why
from stretto.worker.topology.machine import effects, events
from stretto.worker.topology.machine.batches import Batch, Retry
from stretto.worker.topology.machine.effects import Entry
from stretto.worker.topology.machine.settings import Settings
from stretto.worker.topology.machine.stored import Incoming, OfRecords, OfRetry, Outgoing, RecordKey, Stored
from stretto.worker.topology.machine.stream import PAUSE_MS, Stream
from tests.unit.worker.topology.machine.worlds import DEPOT, Faults, World

SETTINGS = Settings(retry="individual", retries=3, records_max=16, bytes_max=1 << 20, parked_max=100)
RECORDS = 120
EPOCH = Epoch(3)


def settings(retry: str, **others: Any) -> Settings:
    given = {"retries": 3, "records_max": 16, "bytes_max": 1 << 20, "parked_max": 100} | others
    return Settings(retry=retry, **given)


@pytest.mark.parametrize("seed", range(20))
def test_every_record_and_call_and_hop_is_run_exactly_once_whatever_happens(seed: int) -> None:
    faults = Faults(crash=0.05, refuse=0.05, epoch=0.02, cannot=0.03, hop=0.4, calls=0.1, too_large=0.3)
    world = World(seed, RECORDS, faults, SETTINGS)
    world.run()
    assert all(world.state.done[offset] == 1 for offset in range(RECORDS)), world.story[-20:]
    assert {-number for number in range(1, world.calls_made + 1)} <= world.state.done.keys()
    assert world.done_there.keys() <= world.state.done.keys()
    surplus = {offset: times for offset, times in world.done_there.items() if offset >= 0 and times > 1}
    assert surplus == {}


@pytest.mark.soak
def test_many_seeds() -> None:
    for seed in range(100, 400):
        test_every_record_and_call_and_hop_is_run_exactly_once_whatever_happens(seed)
        for retry in ("individual", "all-after", "none"):
            test_with_hops_and_failures_every_record_is_processed_or_parked(seed, retry)


@pytest.mark.parametrize("retry", ["individual", "all-after", "none"])
@pytest.mark.parametrize("seed", range(8))
def test_with_hops_and_failures_every_record_is_processed_or_parked(seed: int, retry: str) -> None:
    faults = Faults(
        crash=0.03,
        refuse=0.03,
        epoch=0.01,
        cannot=0.02,
        hop=0.4,
        hop_fails=0.1,
        calls=0.1,
        too_large=0.3,
        by_hand=0.02,
        trim=0.05,
        raising=frozenset({7, 50, 51}),
        flaky=frozenset({20, 90}),
        hanging=frozenset({33}),
    )
    world = World(seed, RECORDS, faults, settings(retry))
    world.run()
    done, failed = world.state.done, world.state.failed
    assert [offset for offset in range(RECORDS) if not done[offset] and offset not in failed] == []
    assert {7, 33, 50, 51} <= world.state.failed.keys()
    assert not any(world.state.done[offset] for offset in (7, 33, 50, 51))


@pytest.mark.parametrize("retry", ["individual", "all-after"])
@pytest.mark.parametrize("seed", range(4))
def test_of_records_taken_at_once_only_those_are_parked_whose_hops_fail(seed: int, retry: str) -> None:
    faults = Faults(
        crash=0.02,
        refuse=0.02,
        epoch=0.005,
        hop=0.4,
        raising=frozenset({70}),
        failing_elsewhere=frozenset({15, 16, 40, 119}),
    )
    world = World(seed, RECORDS, faults, settings(retry, takes_many=True))
    world.run()
    assert set(world.state.failed) == {15, 16, 40, 70, 119}
    assert world.complete == set(range(RECORDS)) - set(world.state.failed)


def test_records_taken_at_once_whose_hop_failed_run_one_by_one_if_nothing_may_overtake_them() -> None:
    stream = Stream((DEPOT,), settings("all-after", takes_many=True), Stored())
    (run,) = stream.step(events.Grown(DEPOT, 3), 0)
    hop = hops_of(stream, events.Ran(batch=run.batch, start=0, end=3, hops=HOPS[:1]))[0]  # type: ignore[union-attr]
    wanted = stream.step(events.HopAnswered(hop.number, (FailureNote(0, "no"),)), 2)
    assert runs(wanted) == [(0, 1), (None, 1)]
    for offset in range(2):
        run = next(each for each in wanted if isinstance(each, effects.RunRecords))
        append = append_in(stream.step(events.Ran(batch=run.batch, start=offset, end=offset + 1), 3))
        assert append.entry.parked == []
        wanted = [each for each in wanted if each is not run] + stream.step(events.Accepted(append.batch), 3)
    assert runs(wanted) == [(None, 1)]


def test_without_retries_all_records_that_were_taken_at_once_are_parked_and_told_so() -> None:
    stream = Stream((DEPOT,), settings("none", takes_many=True), Stored())
    (run,) = stream.step(events.Grown(DEPOT, 3), 0)
    hop = hops_of(stream, events.Ran(batch=run.batch, start=0, end=3, hops=HOPS[:1]))[0]  # type: ignore[union-attr]
    wanted = stream.step(events.HopAnswered(hop.number, (FailureNote(0, "no"),)), 2)
    parked = append_in(wanted).entry.parked
    assert [each.key[1] for each in parked] == [0, 1, 2]
    assert {each.note.error for each in parked} == {"no; one of 3 records taken at once led to it"}


def test_a_record_that_fails_once_is_tried_again_and_nobody_waits_for_it() -> None:
    world = World(1, RECORDS, Faults(flaky=frozenset({3})), SETTINGS)
    world.run()
    assert world.state.failed == {}
    assert all(world.state.done[offset] == 1 for offset in range(RECORDS))


def test_a_topology_without_retries_parks_at_once() -> None:
    world = World(1, RECORDS, Faults(flaky=frozenset({3})), settings("none"))
    world.run()
    assert world.state.failed[3].attempts == 1
    assert world.state.done[3] == 0


def test_a_record_that_always_fails_is_parked_after_its_retries() -> None:
    world = World(1, RECORDS, Faults(raising=frozenset({3})), SETTINGS)
    world.run()
    assert world.state.failed[3].attempts == SETTINGS.retries + 1
    assert world.state.stored.parked == ((DEPOT, 3),)


def test_parked_records_are_bounded_and_the_oldest_go() -> None:
    world = World(1, RECORDS, Faults(raising=frozenset(range(RECORDS))), settings("none"))
    world.settings = Settings(**{**vars_of(world.settings), "parked_max": 10})
    world.stream = world._new_stream()
    world.run()
    assert len(world.state.stored.parked) <= 10 + 16
    assert world.state.stored.parked[-1] == (DEPOT, RECORDS - 1)


def vars_of(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__slots__}


# How much it runs at once.


def sizes(*runs: tuple[int, int], timeout_ms: int = 10_000) -> list[int]:
    """Records of each run, when those before it took so many microseconds and were delayed for so many."""
    stream = Stream((DEPOT,), settings("individual", timeout_ms=timeout_ms, records_max=1_000), Stored())
    [*wanted] = stream.step(events.Grown(DEPOT, 1 << 20), 0)
    found, at = [], 0
    for elapsed_us, delayed_us in runs:
        run = next(each for each in wanted if isinstance(each, effects.RunRecords))
        found.append(run.records_max)
        end = at + run.records_max
        ran = events.Ran(batch=run.batch, start=at, end=end, elapsed_us=elapsed_us, delayed_us=delayed_us)
        at = end
        wanted = [each for each in wanted if each is not run]
        stepped = stream.step(ran, 0)
        while append := next((each for each in stepped if isinstance(each, effects.Append)), None):
            wanted += [each for each in stepped if each is not append]
            stepped = stream.step(events.Accepted(append.batch), 0) + stream.step(
                events.Applied(append.batch), 0
            )
        wanted += stepped
    return found


def test_runs_that_work_for_long_become_smaller_and_quick_ones_larger() -> None:
    # The second one was asked for together with the first.
    assert sizes((900_000, 0), (450_000, 0), (250_000, 0), (250_000, 0)) == [64, 64, 32, 32]
    assert sizes(*[(1_000, 0)] * 5) == [64, 64, 128, 128, 256]


def test_runs_that_wait_for_a_processor_do_not_become_smaller() -> None:
    assert sizes(*[(2_000_000, 1_900_000)] * 4) == [64, 64, 64, 64]


def test_runs_that_come_near_their_timeout_become_smaller_whatever_they_waited_for() -> None:
    assert sizes(*[(2_000_000, 1_900_000)] * 4, timeout_ms=4_000)[-1] < 64


# Its guards: each is taken away, and the world must notice.


class _ForgetsToWait(Stream):
    """Goes on in a new attempt while entries of the last one are not applied."""

    @property
    def _unapplied(self) -> int:
        return 0


class _KeepsTheAttempt(Stream):
    def _end_attempt(self, lost: Any) -> None:
        super()._end_attempt(lost)
        self.attempt -= 1


class _TrustsTheExecutorsPosition(Stream):
    """Does not go back to what the log says when an entry was refused."""

    def _refused(self, number: int) -> None:
        batch = self._unfinished[number]
        super()._refused(number)
        if batch.ran is not None and hasattr(batch.of, "depot"):
            self._cursors[DEPOT].position = batch.ran.end


class _SaysEverythingIsApplied(Stream):
    @property
    def _applied_below(self) -> int:
        return self._numbers


class _AnswersCallsAtOnce(Stream):
    def _accepted(self, number: int) -> None:
        self._unfinished[number].is_applied = True
        super()._accepted(number)


class _ForgetsWhatIsLeft(Stream):
    """A stream that forgets the calls of a run that did not fit."""

    def _ran(self, ran: events.Ran) -> None:
        super()._ran(replace(ran, left=0))


class _IsDoneWithWhatWasTrimmed(Stream):
    def _retried(self, batch: Batch, retry: Retry, ran: events.Ran) -> None:
        super()._retried(batch, retry, replace(ran, start=retry.key[1], end=retry.key[1] + 1))


class _TriesAgainWhatIsParked(Stream):
    def _park(self, entry: Entry, key: RecordKey, attempts: int, note: FailureNote) -> None:
        super()._park(entry, key, attempts, note)
        entry.retries.pop(key, None)


@pytest.mark.parametrize(
    "mutant",
    [
        _IsDoneWithWhatWasTrimmed,
        _TriesAgainWhatIsParked,
        _ForgetsWhatIsLeft,
        _ForgetsToWait,
        _KeepsTheAttempt,
        _TrustsTheExecutorsPosition,
        _SaysEverythingIsApplied,
        _AnswersCallsAtOnce,
    ],
)
def test_the_world_notices_a_stream_without_one_of_its_rules(mutant: Callable[..., Stream]) -> None:
    def is_caught(seed: int) -> bool:
        faults = Faults(
            crash=0.1,
            refuse=0.1,
            epoch=0.02,
            hop=0.2,
            calls=0.1,
            too_large=0.2,
            by_hand=0.5,
            trim=0.3,
            raising=frozenset({3}),
            flaky=frozenset({5, 60}),
        )
        world = World(seed, 60, faults, SETTINGS, mutant)
        try:
            world.run()
        except AssertionError:
            return True
        return any(world.state.done[offset] == 0 and offset not in world.state.failed for offset in range(60))

    assert any(is_caught(seed) for seed in range(100))


# One by one.


def begin(retry: str = "individual", **stored: Any) -> Stream:
    return Stream((DEPOT,), settings(retry), Stored(**stored))


def runs(wanted: list[effects.Effect]) -> list[tuple[int | None, int]]:
    return [
        (effect.offset, effect.records_max) for effect in wanted if isinstance(effect, effects.RunRecords)
    ]


def test_runs_are_pipelined_and_the_second_goes_on_where_the_first_ends() -> None:
    stream = begin(progress={DEPOT: 10})
    assert runs(stream.step(events.Grown(DEPOT, 100), 0)) == [(10, 16), (None, 16)]


def test_a_batch_without_hops_carries_its_progress() -> None:
    stream = begin()
    (run, _) = stream.step(events.Grown(DEPOT, 100), 0)
    assert isinstance(run, effects.RunRecords)
    (append,) = stream.step(events.Ran(batch=run.batch, start=0, end=16), 1)
    assert isinstance(append, effects.Append)
    assert append.entry.progress == {DEPOT: 16}


def test_progress_and_hops_are_in_one_entry_and_the_hops_leave_when_it_is_applied() -> None:
    stream = begin(latest_hop=7)
    first, second = stream.step(events.Grown(DEPOT, 32), 0)
    assert isinstance(first, effects.RunRecords)
    assert isinstance(second, effects.RunRecords)
    append = append_in(stream.step(events.Ran(batch=first.batch, start=0, end=16, hops=HOPS), 1))
    assert append.entry.progress == {DEPOT: 16}
    assert [(number, row.task) for number, row in append.entry.made.items()] == [(8, 1), (9, 2)]
    assert hops_in(stream.step(events.Accepted(first.batch), 1)) == []
    hops = hops_in(stream.step(events.Applied(first.batch), 2))
    assert [(hop.number, hop.task) for hop in hops] == [(8, 1), (9, 2)]
    assert stream.processed == {DEPOT: 0}
    append = append_in(stream.step(events.Ran(batch=second.batch, start=16, end=32, hops=HOPS[:1]), 3))
    assert list(append.entry.made) == [10]
    stream.step(events.Accepted(second.batch), 3)
    stream.step(events.Applied(second.batch), 4)
    for number in (8, 9):
        stream.step(events.HopAnswered(number), 5)
    assert stream.processed == {DEPOT: 16}


def test_who_leads_next_sends_unanswered_hops_again_and_waits_for_them() -> None:
    stored = Stored(
        progress={DEPOT: 32},
        ends={DEPOT: 32},
        outbox={9: Outgoing(TaskId(1), OfRecords(DEPOT, 16, 32), b"again")},
        latest_hop=12,
    )
    stream = Stream((DEPOT,), settings("individual"), stored)
    (hop,) = stream.step(events.Tick(), 0)
    assert hop == effects.Hop(9, TaskId(1), 9, b"again")
    assert stream.processed == {DEPOT: 16}
    assert not stream.is_quiet
    wanted = stream.step(events.HopAnswered(9, (FailureNote(3, "not there"),)), 1)
    assert append_in(wanted).entry.retries == {(DEPOT, 19): 1}
    assert append_in(wanted).entry.cleared == [9]
    assert stream.processed == {DEPOT: 32}


def test_a_hop_that_has_run_is_answered_as_it_was_and_not_run_again() -> None:
    key, note = (TaskId(4), 7), FailureNote(0, "not here")
    stream = begin(inbox={TaskId(4): Incoming(7)}, failed={key: (note,)})
    assert stream.step(events.Called(1, key, EPOCH, 0, 7, CALLS), 0) == [effects.Answer(1, (note,))]
    (append,) = stream.step(events.Called(2, (TaskId(4), 9), EPOCH, 8, 8, CALLS), 0)[1:]
    assert isinstance(append, effects.Append)
    assert (append.entry.forgotten, append.entry.run) == (
        [key],
        {TaskId(4): Incoming(7, None, 8, EPOCH)},
    )
    stream.step(events.Accepted(append.batch), 0)
    assert stream.step(events.Called(3, key, EPOCH, 0, 7, CALLS), 0) == [effects.Decline(3)], "it was settled"


def test_a_leader_whose_log_was_given_up_may_ask_for_what_the_one_before_had_settled() -> None:
    """Else it would ask for ever, and no record behind that hop would ever count as processed."""
    stream = begin(inbox={TaskId(4): Incoming(7, None, 8, EPOCH)})
    key = (TaskId(4), 7)
    for epoch in (Epoch(EPOCH - 1), EPOCH):
        assert stream.step(events.Called(1, key, epoch, 0, 7, CALLS), 0) == [effects.Decline(1)]
    assert stream.step(events.Called(2, key, Epoch(EPOCH + 1), 0, 7, CALLS), 0) == [effects.Answer(2, ())]


def test_what_runs_again_because_a_hop_before_it_failed_keeps_no_stream_busy_and_is_told_once() -> None:
    stream = begin("all-after", latest_hop=100)
    (run,) = stream.step(events.Grown(DEPOT, 16), 0)
    assert isinstance(run, effects.RunRecords)
    results = tuple((index, b"1") for index in range(16))
    (hop,) = hops_of(stream, events.Ran(batch=run.batch, start=0, end=16, hops=HOPS[:1], results=results))
    (run,) = stream.step(events.Grown(DEPOT, 20), 1)
    assert isinstance(run, effects.RunRecords)
    through(stream, events.Ran(batch=run.batch, start=16, end=20))
    wanted = stream.step(events.HopAnswered(hop.number, (FailureNote(7, "not there"),)), 2)
    (told,) = [each for each in wanted if isinstance(each, effects.Processed)]
    assert (told.start, told.end, told.failures) == (0, 7, ())
    assert told.results == tuple((offset, b"1") for offset in range(7))
    append = append_in(wanted)
    assert append.entry.progress == {DEPOT: 7}
    stream.step(events.Accepted(append.batch), 2)
    stream.step(events.Applied(append.batch), 2)
    assert stream.is_quiet, "nothing is under way until the record is tried again"
    (run,) = [each for each in stream.step(events.Tick(), 10_000) if isinstance(each, effects.RunRecords)][:1]
    assert run.offset == 7


def test_a_hop_that_ran_in_part_goes_on_behind_that_part() -> None:
    calls = [["step", b"", index] for index in range(4)]
    stream = begin(inbox={TaskId(4): Incoming(7, 3)})
    assert stream.step(events.Called(1, (TaskId(4), 8), EPOCH, 7, 7, CALLS), 0) == [effects.Decline(1)]
    run = run_of_calls(
        stream.step(events.Called(2, (TaskId(4), 7), EPOCH, 6, 7, msgspec.msgpack.encode(calls)), 0)
    )
    assert msgspec.msgpack.decode(run.calls) == calls[3:]
    append = append_in(stream.step(events.Ran(batch=run.batch, start=0, end=1), 1))
    assert append.entry.run == {TaskId(4): Incoming(7, None, 7, EPOCH)}


def test_a_hop_is_asked_for_by_two_and_both_are_answered_when_what_it_led_to_is() -> None:
    stream = begin()
    run = run_of_calls(stream.step(called(1), 0))
    stream.step(called(1, ticket=2), 0)
    (hop,) = hops_of(stream, events.Ran(batch=run.batch, start=0, end=1, hops=HOPS[:1]))
    wanted = stream.step(events.HopAnswered(hop.number, (FailureNote(0, "further on"),)), 3)
    answers = [each for each in wanted if isinstance(each, effects.Answer)]
    assert answers == [effects.Answer(ticket, (FailureNote(0, "further on"),)) for ticket in (1, 2)]
    assert append_in(wanted).entry.failed == {(TaskId(4), 1): (FailureNote(0, "further on"),)}


def test_a_batch_that_takes_too_long_is_run_record_by_record_and_only_one_is_blamed() -> None:
    stream = begin("none")
    (run,) = stream.step(events.Grown(DEPOT, 3), 0)
    assert isinstance(run, effects.RunRecords)
    wanted = stream.step(events.NotRun(run.batch, Why.TIME_OUT, "ran longer than 10 s"), 1)
    assert runs(wanted)[0] == (0, 1)
    again = next(each for each in wanted if isinstance(each, effects.RunRecords))
    (append,) = [
        each
        for each in stream.step(events.NotRun(again.batch, Why.TIME_OUT, "ran longer than 10 s"), 2)
        if isinstance(each, effects.Append)
    ]
    assert append.entry.progress == {DEPOT: 1}
    assert [(each.key, each.note.error) for each in append.entry.parked] == [
        ((DEPOT, 0), "ran longer than 10 s")
    ]


def test_a_record_is_not_blamed_for_the_first_crash() -> None:
    stream = begin("none")
    (run,) = stream.step(events.Grown(DEPOT, 1), 0)
    parked: list[effects.Append] = []
    now = 0
    for now in (1, 2, 3):
        assert isinstance(run, effects.RunRecords)
        wanted = stream.step(events.NotRun(run.batch, Why.CRASH, "exit code 3"), now * 10_000)
        wanted += stream.step(events.Tick(), now * 10_000 + 5_000)
        parked = [each for each in wanted if isinstance(each, effects.Append)]
        if parked:
            break
        (run,) = [each for each in wanted if isinstance(each, effects.RunRecords)]
    assert parked[0].entry.parked[0].key == (DEPOT, 0)
    assert now == 3, "the whole batch first, then alone, then alone again"


def test_what_a_person_wants_tried_again_is_and_what_is_forgotten_goes() -> None:
    stream = begin(progress={DEPOT: 9}, ends={DEPOT: 9}, parked=((DEPOT, 3), (DEPOT, 5)))
    (append,) = stream.step(events.Settle(((DEPOT, 3),), again=True), 0)
    assert isinstance(append, effects.Append)
    assert append.entry.unparked == [(DEPOT, 3)]
    assert append.entry.retries == {(DEPOT, 3): 0}
    assert runs(stream.step(events.Accepted(append.batch), 0)) == [(3, 1)]
    (append,) = begin(parked=((DEPOT, 5),)).step(events.Settle(((DEPOT, 5),), again=False), 0)
    assert isinstance(append, effects.Append)
    assert (append.entry.unparked, append.entry.retries) == ([(DEPOT, 5)], {})


def test_how_many_parked_records_were_settled_is_told_once_that_is_applied() -> None:
    stream = begin(progress={DEPOT: 9}, ends={DEPOT: 9}, parked=((DEPOT, 3), (DEPOT, 5)))
    keys = ((DEPOT, 3), (DEPOT, 4), (DEPOT, 3))
    (append,) = stream.step(events.Settle(keys, again=False, ticket=1), 0)
    assert isinstance(append, effects.Append)
    # It is in nobody's log yet, and not parked any more for whoever asks next.
    stream.step(events.Accepted(append.batch), 0)
    assert stream.step(events.Settle(keys, again=True, ticket=2), 0) == [effects.Settled(2, 0)]
    assert stream.step(events.Applied(append.batch), 0) == [effects.Settled(1, 1)]


def test_what_is_settled_is_told_although_its_entry_was_refused_at_first() -> None:
    stream = begin(progress={DEPOT: 9}, ends={DEPOT: 9}, parked=((DEPOT, 3),))
    (append,) = stream.step(events.Settle(((DEPOT, 3),), again=False, ticket=1), 0)
    assert isinstance(append, effects.Append)
    assert stream.step(events.Refused(append.batch), 0) == [], "what is refused is not tried again at once"
    again = append_in(stream.step(events.Tick(), PAUSE_MS))
    stream.step(events.Accepted(again.batch), 0)
    assert stream.step(events.Applied(again.batch), 0) == [effects.Settled(1, 1)]


def append_in(wanted: list[effects.Effect]) -> effects.Append:
    (append,) = [each for each in wanted if isinstance(each, effects.Append)]
    return append


def retrying() -> tuple[Stream, effects.RunRecords]:
    """A stream that has nothing to do but to try record 3 again."""
    stream = begin(progress={DEPOT: 9}, ends={DEPOT: 9}, retries={(DEPOT, 3): 1})
    (run,) = stream.step(events.Tick(), 0)
    assert isinstance(run, effects.RunRecords)
    return stream, run


HOPS = ((TaskId(1), b""), (TaskId(2), b""))
CALLS = msgspec.msgpack.encode([["step", b"", 0]])


def called(number: int, calls: bytes = CALLS, *, ticket: int = 0) -> events.Called:
    return events.Called(ticket or number, (TaskId(4), number), EPOCH, number - 1, 1, calls)


def hops_in(wanted: list[effects.Effect]) -> list[effects.Hop]:
    return [each for each in wanted if isinstance(each, effects.Hop)]


def hops_of(stream: Stream, ran: events.Ran) -> list[effects.Hop]:
    """What leaves when that is applied."""
    append = append_in(stream.step(ran, 1))
    return hops_in(
        [*stream.step(events.Accepted(append.batch), 1), *stream.step(events.Applied(append.batch), 1)]
    )


def test_a_record_that_is_tried_again_is_in_the_outbox_until_its_hops_are_answered() -> None:
    stream, run = retrying()
    ran = events.Ran(batch=run.batch, start=3, end=4, changes=Packed(1, b""), hops=HOPS)
    append = append_in(stream.step(ran, 1))
    assert append.entry.retries == {(DEPOT, 3): None}
    assert {row.origin for row in append.entry.made.values()} == {OfRetry(DEPOT, 3, 1)}
    stream.step(events.Accepted(append.batch), 1)
    assert stream.waiting == 0


@pytest.mark.parametrize("failing", [0, 1])
def test_a_record_that_is_tried_again_and_fails_elsewhere_is_judged_once(failing: int) -> None:
    stream, run = retrying()
    first, second = hops_of(stream, events.Ran(batch=run.batch, start=3, end=4, hops=HOPS))
    note = FailureNote(0, "not there")
    judged: list[Entry] = []
    for hop, fails in ((first, failing == 0), (second, True)):
        append = append_in(stream.step(events.HopAnswered(hop.number, (note,) if fails else ()), 2))
        judged += [append.entry] if append.entry.retries else []
        assert append.entry.cleared == [hop.number]
        stream.step(events.Accepted(append.batch), 2)
        stream.step(events.Applied(append.batch), 2)
    assert [entry.retries for entry in judged] == [{(DEPOT, 3): 2}]


def test_a_record_that_was_trimmed_is_not_tried_again_and_no_other_is_counted_as_it() -> None:
    for start, end in ((7, 7), (7, 8), (3, 3)):
        stream, run = retrying()
        append = append_in(stream.step(events.Ran(batch=run.batch, start=start, end=end), 1))
        assert append.entry.retries == {(DEPOT, 3): None}
        (parked,) = append.entry.parked
        assert (parked.key, parked.attempts) == ((DEPOT, 3), 1)
        assert "was trimmed" in parked.note.error


@pytest.mark.parametrize("how", [{"retry": "none"}, {"retry": "individual", "retries": 0}])
def test_a_record_that_a_person_tries_again_is_not_tried_further_when_it_is_parked(how: Any) -> None:
    stored = Stored(progress={DEPOT: 9}, ends={DEPOT: 9}, parked=((DEPOT, 3),))
    stream = Stream((DEPOT,), settings(**how), stored)
    append = append_in(stream.step(events.Settle(((DEPOT, 3),), again=True), 0))
    (run,) = stream.step(events.Accepted(append.batch), 0)
    ran = events.Ran(batch=run.batch, start=3, end=4, failures=(FailureNote(0, "no"),))  # type: ignore[union-attr]
    append = append_in(stream.step(ran, 1))
    assert [each.key for each in append.entry.parked] == [(DEPOT, 3)]
    assert append.entry.retries == {(DEPOT, 3): None}
    stream.step(events.Accepted(append.batch), 1)
    assert stream.waiting == 0


def test_a_paused_module_begins_no_record_and_ends_what_it_began() -> None:
    stream = begin()
    (run, _) = stream.step(events.Grown(DEPOT, 100), 0)
    assert isinstance(run, effects.RunRecords)
    stream.step(events.SettingsChanged(settings("individual", is_paused=True)), 1)
    (append,) = stream.step(events.Ran(batch=run.batch, start=0, end=16), 1)
    assert isinstance(append, effects.Append)
    assert runs(stream.step(events.Accepted(append.batch), 1)) == []
    assert runs(stream.step(events.SettingsChanged(settings("individual")), 2)) != []


def through(stream: Stream, ran: events.Ran) -> list[effects.Effect]:
    """What follows when its entry is accepted and applied."""
    append = append_in(wanted := stream.step(ran, 1))
    wanted += stream.step(events.Accepted(append.batch), 1)
    return [*wanted, *stream.step(events.Applied(append.batch), 1)]


def run_of_calls(wanted: list[effects.Effect]) -> effects.RunCalls:
    (run,) = [each for each in wanted if isinstance(each, effects.RunCalls)]
    return run


def test_a_hop_whose_outcome_is_too_large_is_answered_when_the_rest_of_it_is_done_too() -> None:
    stream = begin()
    calls = [["step", b"%d" % index, index] for index in range(5)]
    run = run_of_calls(stream.step(called(1, msgspec.msgpack.encode(calls)), 0))
    ran = events.Ran(batch=run.batch, start=0, end=2, left=3, failures=(FailureNote(1, "no"),))
    run = run_of_calls(through(stream, ran))
    assert msgspec.msgpack.decode(run.calls) == calls[2:]
    ran = events.Ran(batch=run.batch, start=0, end=2, left=1, failures=(FailureNote(0, "nor this"),))
    run = run_of_calls(through(stream, ran))
    assert msgspec.msgpack.decode(run.calls) == calls[4:]
    wanted = through(stream, events.Ran(batch=run.batch, start=0, end=1))
    assert wanted[-1] == effects.Answer(1, (FailureNote(1, "no"), FailureNote(2, "nor this")))


def test_what_is_left_of_a_hop_is_run_before_what_was_sent_after_it() -> None:
    stream = begin()
    calls = [["step", b"", index] for index in range(4)]
    first = run_of_calls(stream.step(called(1, msgspec.msgpack.encode(calls[:3])), 0))
    run_of_calls(stream.step(called(2, msgspec.msgpack.encode(calls[3:])), 0))
    again = through(stream, events.Ran(batch=first.batch, start=0, end=1, left=2))
    runs = [each for each in again if isinstance(each, effects.RunCalls)]
    assert [msgspec.msgpack.decode(each.calls) for each in runs] == [calls[1:3], calls[3:]]
    assert {each.attempt for each in runs} == {2}


def test_calls_of_others_run_although_records_wait_for_their_hops() -> None:
    stream = begin()
    (run,) = stream.step(events.Grown(DEPOT, 1), 0)
    assert isinstance(run, effects.RunRecords)
    stream.step(events.Ran(batch=run.batch, start=0, end=1, hops=((1, b""),)), 1)  # type: ignore[arg-type]
    stream.step(events.Accepted(run.batch), 1)
    run_of_calls(stream.step(called(1), 1))
