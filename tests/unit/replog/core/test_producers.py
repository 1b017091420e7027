from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stretto.replog.core.producers import (
    NO_PRODUCER,
    REMEMBERED_BATCHES,
    DuplicateBatch,
    NewBatch,
    Producers,
    ProducerTable,
    SequenceGap,
    UnknownProducer,
    Verdict,
)
from stretto.replog.frame import Header, Kind
from stretto.vocabulary.types import Offset, ProducerId, TaskId
from tests.support.core_group import header

P, Q = ProducerId(7), ProducerId(8)


def opening(offset: int, producer: int = P) -> Header:
    return header(offset, kind=Kind.PRODUCER_OPEN, producer=producer)


def expiry(offset: int, producer: int = P) -> Header:
    return header(offset, kind=Kind.PRODUCER_EXPIRE, producer=producer)


def batch(offset: int, sequence: int, count: int = 1, *, producer: int = P, task: int = 0) -> Header:
    return header(offset, producer=producer, task=task, sequence=sequence, count=count)


def producers_after(headers: Iterable[Header], *, applied: int = 0) -> Producers:
    producers = Producers(ProducerTable({}), headers)
    producers.applied(Offset(applied))
    return producers


def judge(
    producers: Producers, sequence: int, count: int = 1, *, producer: int = P, task: int = 0
) -> Verdict:
    return producers.judge(Kind.DEPOT, ProducerId(producer), TaskId(task), sequence, count)


def judge_open(producers: Producers, producer: int = P) -> Verdict:
    return producers.judge(Kind.PRODUCER_OPEN, ProducerId(producer), TaskId(0), 0, 1)


# Judging.


def test_without_a_producer_every_batch_is_new() -> None:
    assert judge(producers_after([]), 5, producer=NO_PRODUCER) == NewBatch()


def test_an_unknown_producer_is_unknown_even_at_sequence_zero() -> None:
    assert judge(producers_after([]), 0) == UnknownProducer()


@pytest.mark.parametrize("applied", [0, 4])
def test_the_next_sequence_is_new_and_a_later_one_is_a_gap(applied: int) -> None:
    producers = producers_after([opening(0), batch(1, 0, 3)], applied=applied)
    assert judge(producers, 3, 2) == NewBatch()
    assert judge(producers, 4) == SequenceGap(3)


def test_tasks_have_sequences_of_their_own() -> None:
    producers = producers_after([opening(0), batch(1, 0, 3, task=1)])
    assert judge(producers, 0, task=0) == NewBatch()
    assert judge(producers, 3, task=1) == NewBatch()


def test_a_duplicate_of_an_unapplied_batch_names_the_end_to_wait_for() -> None:
    producers = producers_after([opening(0), batch(1, 0, 3)])
    assert judge(producers, 0, 3) == DuplicateBatch(Offset(4), Offset(1))


def test_a_duplicate_of_an_applied_batch_waits_for_nothing() -> None:
    producers = producers_after([opening(0), batch(1, 0, 3)], applied=4)
    assert judge(producers, 0, 3) == DuplicateBatch(None, Offset(1))


def test_a_duplicate_of_a_forgotten_batch_is_still_one_but_without_a_position() -> None:
    count = REMEMBERED_BATCHES + 1
    producers = producers_after(
        [opening(0), *(batch(1 + each, each) for each in range(count))], applied=count + 1
    )
    assert judge(producers, 0) == DuplicateBatch(None, None)
    assert judge(producers, 1) == DuplicateBatch(None, Offset(2))


def test_a_sequence_with_another_count_is_no_duplicate() -> None:
    producers = producers_after([opening(0), batch(1, 0, 3)])
    assert judge(producers, 0, 2) == SequenceGap(0)
    assert judge(producers, 2, 2) == SequenceGap(3)


# Life.


def test_opening_is_new_once_then_a_duplicate() -> None:
    assert judge_open(producers_after([])) == NewBatch()
    assert judge_open(producers_after([opening(0)])) == DuplicateBatch(Offset(1), None)
    assert judge_open(producers_after([opening(0)], applied=1)) == DuplicateBatch(None, None)


def test_a_producer_is_open_from_its_entry_on_applied_or_not() -> None:
    assert not producers_after([]).is_open(P)
    assert producers_after([opening(0)]).is_open(P)
    assert producers_after([opening(0)], applied=1).is_open(P)


@pytest.mark.parametrize("applied", [1, 2])
def test_an_expired_producer_is_unknown_as_soon_as_the_leader_decided(applied: int) -> None:
    producers = producers_after([opening(0), expiry(1)], applied=applied)
    assert judge(producers, 0) == UnknownProducer()
    assert producers.open_producers() == []


def test_only_applied_producers_that_nobody_expires_are_candidates_for_expiry() -> None:
    headers = [opening(0), opening(1, Q), expiry(2, Q), opening(3, 9)]
    assert producers_after(headers, applied=2).open_producers() == [P]


def test_a_batch_behind_its_producers_expiry_leaves_no_trace() -> None:
    producers = producers_after([opening(0), expiry(1), batch(2, 0)], applied=3)
    assert producers.table == ProducerTable({})


@pytest.mark.parametrize("applied", [1, 2])
def test_an_id_that_is_about_to_be_forgotten_is_not_admitted_again(applied: int) -> None:
    producers = producers_after([opening(0), batch(1, 0), expiry(2)], applied=applied)
    assert judge_open(producers) == UnknownProducer()


# Truncation and replacement.


def test_truncation_takes_unapplied_sequences_back() -> None:
    producers = producers_after([opening(0), batch(1, 0), batch(2, 1), batch(3, 2)], applied=2)
    producers.truncated(Offset(3))
    assert judge(producers, 1) == DuplicateBatch(Offset(3), Offset(2))
    assert judge(producers, 2) == NewBatch()


def test_truncation_takes_an_unapplied_opening_and_expiry_back() -> None:
    producers = producers_after([opening(0), opening(1, Q), expiry(2)], applied=1)
    producers.truncated(Offset(1))
    assert producers.is_open(P)
    assert not producers.is_open(Q)


def test_an_installed_table_replaces_everything() -> None:
    producers = producers_after([opening(0), batch(1, 0)], applied=1)
    installed = ProducerTable({})
    installed.apply(opening(0, Q))
    producers.replaced(installed)
    assert not producers.is_open(P)
    assert producers.is_open(Q)
    assert judge(producers, 0, producer=Q) == NewBatch()


def test_a_copied_table_does_not_change_with_the_original() -> None:
    table = ProducerTable({})
    table.apply(opening(0))
    copy = table.copy()
    table.apply(batch(1, 0))
    assert copy.producers == {P: {}}
    assert table != copy


# Against a model.


@dataclass
class Naive:
    """The log, and everything asked of it by reading it from its beginning."""

    log: list[Header]
    applied: int = 0

    @property
    def end(self) -> int:
        return self.log[-1].end_offset if self.log else 0

    def life_of(self, producer: int, upto: int) -> list[Header] | None:
        """Its batches since it was last opened, or None if it is not open."""
        batches: list[Header] | None = None
        for each in self.log:
            if each.producer == producer and each.end_offset <= upto:
                if each.kind is Kind.PRODUCER_OPEN:
                    batches = [] if batches is None else batches
                elif each.kind is Kind.PRODUCER_EXPIRE:
                    batches = None
                elif batches is not None:
                    batches.append(each)
        return batches

    def judge(self, producer: int, task: int, sequence: int, count: int) -> Verdict:
        batches = self.life_of(producer, self.end)
        if batches is None:
            return UnknownProducer()
        mine = [each for each in batches if each.task == task]
        for each in mine:
            if (each.sequence, each.count) == (sequence, count):
                if each.end_offset > self.applied:
                    return DuplicateBatch(each.end_offset, each.offset)
                done = [other for other in mine if other.end_offset <= self.applied]
                remembered = each in done[-REMEMBERED_BATCHES:]
                return DuplicateBatch(None, each.offset if remembered else None)
        expected = mine[-1].sequence + mine[-1].count if mine else 0
        return NewBatch() if sequence == expected else SequenceGap(expected)


class ProducersAgainstModel(RuleBasedStateMachine):
    """A leader's log: whatever it takes is judged first, and an id that expired is never used again."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Naive([])
        self.producers = Producers(ProducerTable({}), ())
        self.fresh = 1

    def append(self, each: Header) -> None:
        self.model.log.append(each)
        self.producers.appended(each)

    def open_ids(self) -> list[int]:
        end = self.model.end
        return [each for each in range(1, self.fresh) if self.model.life_of(each, end) is not None]

    @rule()
    def open_a_producer(self) -> None:
        assert judge_open(self.producers, self.fresh) == NewBatch()
        self.append(opening(self.model.end, self.fresh))
        self.fresh += 1

    @rule(pick=st.integers(0), task=st.integers(0, 1), count=st.integers(1, 3))
    def take_the_next_batch(self, pick: int, task: int, count: int) -> None:
        ids = self.open_ids()
        if ids:
            producer = ids[pick % len(ids)]
            mine = [each for each in self.model.life_of(producer, self.model.end) or [] if each.task == task]
            sequence = mine[-1].sequence + mine[-1].count if mine else 0
            assert judge(self.producers, sequence, count, producer=producer, task=task) == NewBatch()
            self.append(batch(self.model.end, sequence, count, producer=producer, task=task))

    @rule(pick=st.integers(0))
    def expire_a_producer(self, pick: int) -> None:
        ids = self.producers.open_producers()
        if ids:
            self.append(expiry(self.model.end, ids[pick % len(ids)]))

    @rule(pick=st.integers(0))
    def apply_some(self, pick: int) -> None:
        ends = [each.end_offset for each in self.model.log if each.end_offset > self.model.applied]
        if ends:
            self.model.applied = ends[pick % len(ends)]
            self.producers.applied(Offset(self.model.applied))

    @rule(pick=st.integers(0))
    def truncate(self, pick: int) -> None:
        unapplied = [each.offset for each in self.model.log if each.offset >= self.model.applied]
        if unapplied:
            end = unapplied[pick % len(unapplied)]
            self.model.log = [each for each in self.model.log if each.offset < end]
            self.producers.truncated(end)

    @rule()
    def install_the_applied_state(self) -> None:
        self.model.log = [each for each in self.model.log if each.end_offset <= self.model.applied]
        self.producers.replaced(self.producers.table.copy())

    @rule()
    def restart(self) -> None:
        unapplied = [each for each in self.model.log if each.offset >= self.model.applied]
        self.producers = Producers(self.producers.table.copy(), unapplied)

    @rule(producer=st.integers(1, 4), task=st.integers(0, 1), sequence=st.integers(0, 9))
    def judge_something(self, producer: int, task: int, sequence: int) -> None:
        """What a client could send: the very batch again, or one at a place where none begins."""
        taken = self.model.life_of(producer, self.model.end) or []
        same = [each.count for each in taken if (each.task, each.sequence) == (task, sequence)]
        inside = any(
            each.task == task and each.sequence < sequence < each.sequence + each.count for each in taken
        )
        if not inside:
            count = same[0] if same else 1
            found = judge(self.producers, sequence, count, producer=producer, task=task)
            assert found == self.model.judge(producer, task, sequence, count)

    @invariant()
    def the_same_producers_are_open(self) -> None:
        for producer in range(1, self.fresh + 1):
            expected = self.model.life_of(producer, self.model.end) is not None
            assert self.producers.is_open(ProducerId(producer)) == expected

    @invariant()
    def the_table_is_a_function_of_the_applied_entries(self) -> None:
        expected = ProducerTable({})
        for each in self.model.log:
            if each.end_offset <= self.model.applied:
                expected.apply(each)
        assert self.producers.table == expected
        for producer, tasks in self.producers.table.producers.items():
            batches = self.model.life_of(producer, self.model.applied)
            assert batches is not None
            for task, sequences in tasks.items():
                last = [each for each in batches if each.task == task][-REMEMBERED_BATCHES:]
                assert sequences.next == last[-1].sequence + last[-1].count
                assert [each.offset for each in sequences.recent] == [each.offset for each in last]


TestProducersAgainstModel = ProducersAgainstModel.TestCase
TestProducersAgainstModel.settings = settings(
    max_examples=120, stateful_step_count=40, derandomize=True, database=None, deadline=None
)
