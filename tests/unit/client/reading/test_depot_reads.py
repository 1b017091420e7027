"""What a reader of a depot asks of a worker that stores batches, and what it makes of the answers."""

from __future__ import annotations

import itertools

import pytest

from stretto.client.asking.question import Question
from stretto.client.reading.depot import Reader, Record
from stretto.errors import OffsetTrimmed, RetriableError, UsageError
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import Epoch, Offset, TaskId
from stretto.wire import messages as wire
from tests.unit.client.answering import FOLLOWER, LEADER, MODULE, Answer, answered_by

BATCH = 3


class Depot:
    """Every task has the records ``[start, end)``, three in each batch; the time of a batch is its base."""

    def __init__(self, start: int = 0, end: int = 9) -> None:
        self.start, self.end = start, end

    def answer(self, message: wire.ToWorker, _: list[bytes]) -> Answer:
        match message:
            case wire.FindOffset(request=request, timestamp_ms=timestamp_ms):
                found = None
                if timestamp_ms is not None and timestamp_ms < self.end:
                    found = -(-timestamp_ms // BATCH) * BATCH
                return wire.DepotOffsets(request, self.start, self.end, found, Epoch(1), Offset(7))
            case wire.ReadDepot(request=request, offset=offset):
                return self._read(request, offset)
            case _:
                return None

    def _read(self, request: int, offset: int) -> Answer:
        if offset < self.start or offset >= self.end:
            return wire.DepotBatches(
                request, self.start, max(offset, self.start), (), (), Epoch(1), Offset(7)
            )
        base = offset // BATCH * BATCH
        batch = pack("events", [b"%d" % at for at in range(base, base + BATCH)])
        return wire.DepotBatches(request, self.start, base + BATCH, (base,), (base,), Epoch(1), Offset(7)), [
            bytes(batch)
        ]


def record(task: int, offset: int) -> Record:
    return Record(task, offset, offset // BATCH * BATCH, b"%d" % offset)


def test_a_slice_begins_at_its_offset_within_a_batch() -> None:
    with answered_by((LEADER, Depot().answer)) as (network, [worker]):
        reader = Reader(network, MODULE, "events")
        assert reader.tasks == [0, 1, 2, 3]
        found = reader.read(1, 4, max_bytes=99)
        assert found == ([record(1, 4), record(1, 5)], 6)
        assert reader.read(1, 9) == ([], 9)
        asked = worker.asked[0]
        assert isinstance(asked, wire.ReadDepot)
        assert (asked.task, asked.depot, asked.offset, asked.max_bytes) == (1, "events", 4, 99)
        assert (asked.committed, asked.wait_ms, asked.stale) == (True, 0, None)
        assert reader.token == "m/1/0:1.7"


def test_what_is_no_offset_or_no_task_is_refused_and_what_was_trimmed_tells_the_beginning() -> None:
    with answered_by((LEADER, Depot(start=6).answer)) as (network, _):
        reader = Reader(network, MODULE, "events")
        with pytest.raises(UsageError, match="-1 is no offset"):
            reader.read(0, -1)
        with pytest.raises(UsageError, match="module m has no task 4"):
            reader.read(4, 0)
        with pytest.raises(OffsetTrimmed) as trimmed:
            reader.read(0, 5)
        assert trimmed.value.start == 6
        assert reader.read(0, 6).next_offset == 9


def test_bounds_and_times_of_a_depot() -> None:
    with answered_by((LEADER, Depot(start=3).answer)) as (network, [worker]):
        reader = Reader(network, MODULE, "events")
        assert reader.bounds(2) == (3, 9)
        assert reader.all_bounds() == dict.fromkeys(range(4), (3, 9))
        assert [reader.offset_at(0, at) for at in (4, 8, 9)] == [6, 9, 9]
        asked = worker.asked[-1]
        assert isinstance(asked, wire.FindOffset)
        assert (asked.task, asked.timestamp_ms, asked.stale) == (0, 9, None)


def test_batches_are_those_that_hold_the_records() -> None:
    with answered_by((LEADER, Depot().answer)) as (network, [worker]):
        reader = Reader(network, MODULE, "events")
        assert [batch.base for batch in reader.batches(0, 1, 9)] == [0, 3, 6]
        assert len(worker.asked) == 3
        assert [batch.base for batch in reader.batches(0, 1, 3)] == [0]
        assert len(worker.asked) == 4


def test_everything_visible_is_read_once() -> None:
    with answered_by((LEADER, Depot(start=3).answer)) as (network, _):
        found = list(Reader(network, MODULE, "events").read_all())
        assert found == [record(task, at) for task in range(4) for at in range(3, 9)]


def test_a_tail_begins_where_it_is_told_and_waits_at_the_workers() -> None:
    with answered_by((LEADER, Depot().answer)) as (network, [worker]):
        tail = Reader(network, MODULE, "events").tail(start={0: 4}, tasks=[0, 1], committed=False)
        found = sorted(itertools.islice(tail, 5 + 9))
        assert found == [*(record(0, at) for at in range(4, 9)), *(record(1, at) for at in range(9))]
        asked = [each for each in worker.asked if isinstance(each, wire.ReadDepot)]
        assert {(each.committed, each.wait_ms) for each in asked} == {(False, 1_000)}


def test_a_tail_from_the_beginning_begins_where_the_depot_does_now() -> None:
    with answered_by((LEADER, Depot(start=3).answer)) as (network, _):
        reader = Reader(network, MODULE, "events")
        assert list(itertools.islice(reader.tail(tasks=[1]), 6)) == [record(1, at) for at in range(3, 9)]
        with pytest.raises(OffsetTrimmed):
            next(reader.tail(start={1: 0}, tasks=[1]))


def test_a_tail_that_retention_has_overtaken_says_so() -> None:
    depot = Depot()
    with answered_by((LEADER, depot.answer)) as (network, _):
        tail = Reader(network, MODULE, "events").tail(tasks=[1])
        assert next(tail) == record(1, 0)
        depot.start, depot.end = 30, 33
        with pytest.raises(OffsetTrimmed):
            list(itertools.islice(tail, 100))


def test_answers_that_do_not_fit_are_not_taken() -> None:
    def answer(message: wire.ToWorker, _: list[bytes]) -> Answer:
        if isinstance(message, wire.ReadDepot):
            return wire.DepotOffsets(message.request, 0, 0, None)
        assert isinstance(message, wire.FindOffset)
        return wire.DepotBatches(message.request, 0, 0, (), ())

    with answered_by((LEADER, answer)) as (network, _):
        reader = Reader(network, MODULE, "events")
        with pytest.raises(RetriableError, match="unexpected answer came: DepotOffsets"):
            reader.read(0, 0)
        with pytest.raises(RetriableError, match="unexpected answer came: DepotBatches"):
            reader.bounds(0)


def test_followers_are_asked_for_what_is_committed_and_the_leader_for_the_rest() -> None:
    depot = Depot()
    with answered_by((LEADER, depot.answer), (FOLLOWER, depot.answer)) as (network, [leader, follower]):
        reader = Reader(network, MODULE, "events", max_staleness=2.0)
        reader.read(0, 0)
        reader.read(0, 3)
        reader.bounds(0)
        assert (len(leader.asked), len(follower.asked)) == (0, 3)
        asked = follower.asked[1]
        assert isinstance(asked, wire.ReadDepot)
        assert asked.stale == wire.Stale(2_000, Offset(7), Epoch(1))
        reader.read(0, 0, committed=False)
        assert (len(leader.asked), len(follower.asked)) == (1, 3)
        uncommitted = leader.asked[0]
        assert isinstance(uncommitted, wire.ReadDepot)
        assert uncommitted.stale is None


@pytest.mark.parametrize("silent", [False, True])
def test_the_leader_is_asked_instead_of_a_follower_that_refuses_or_is_silent(silent: bool) -> None:
    def follower(message: wire.ToWorker, _: list[bytes]) -> Answer:
        assert isinstance(message, wire.ReadDepot)
        return None if silent else wire.Unknown(message.request)

    with answered_by((LEADER, Depot().answer), (FOLLOWER, follower)) as (network, [leader, second]):
        reader = Reader(network, MODULE, "events", max_staleness=2.0)
        assert reader.read(0, 0).next_offset == 3
        # It is left alone for a while.
        assert reader.read(0, 3).next_offset == 6
        assert (len(leader.asked), len(second.asked)) == (2, 1)


def test_a_question_is_asked_again_until_it_is_answered_or_its_time_is_over() -> None:
    refusals = 2
    depot = Depot()

    def answer(message: wire.ToWorker, bodies: list[bytes]) -> Answer:
        nonlocal refusals
        assert isinstance(message, wire.ReadDepot)
        refusals -= 1
        if refusals >= 0:
            return wire.Refused(message.request, Refusal.NOT_LEADER, None, Epoch(0))
        return depot.answer(message, bodies)

    with answered_by((LEADER, answer)) as (network, [worker]):
        assert Reader(network, MODULE, "events").read(0, 0).next_offset == 3
        assert len(worker.asked) == 3
        refusals = 1_000
        with pytest.raises(RetriableError, match=r"task 0 of m cannot be read now \(not_leader\)"):
            Reader(network, MODULE, "events", timeout=0.3).read(0, 0)


def test_what_does_not_work_is_told_at_once_and_final_refusals_are_answers() -> None:
    def answer(message: wire.ToWorker, _: list[bytes]) -> Answer:
        assert isinstance(message, wire.ReadDepot | wire.FindOffset)
        if isinstance(message, wire.FindOffset):
            return wire.Refused(message.request, Refusal.NOT_LEADER, None, Epoch(0))
        return wire.Failed(message.request, "there is no such depot", wire.Fault.USAGE)

    def find(number: int, group: GroupKey) -> wire.ToWorker:
        return wire.FindOffset(number, group, TaskId(0), "events", None)

    with answered_by((LEADER, answer)) as (network, [worker]):
        with pytest.raises(UsageError, match="there is no such depot"):
            Reader(network, MODULE, "events").read(0, 0)
        told: list[Question] = []
        question = Question(
            network, MODULE, TaskId(0), find, 20.0, then=told.append, final=(Refusal.NOT_LEADER,)
        )
        reply, _ = question.begin().wait()
        assert isinstance(reply, wire.Refused)
        assert (told, len(worker.asked)) == ([question], 2)


def test_a_question_without_a_message_has_moved_and_one_of_no_group_ends() -> None:
    with answered_by((LEADER, Depot().answer)) as (network, [worker]):
        moved = Question(network, MODULE, TaskId(0), lambda *_: None, 20.0).begin()
        with pytest.raises(RetriableError):
            moved.wait()
        assert moved.has_moved
        gone = Question(network, MODULE, TaskId(9), lambda *_: None, 20.0).begin()
        with pytest.raises(RetriableError, match="no answer"):
            gone.wait()
        assert (gone.has_moved, worker.asked) == (False, [])
