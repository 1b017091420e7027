"""Reads at followers: answered within a bound since the leader's word, and refused otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stretto.replog.core import effects, events, messages
from stretto.replog.core.effects import Effect, Refusal
from stretto.vocabulary.types import Epoch, Millis, Offset
from tests.support.core_group import (
    SETTINGS,
    W0,
    W1,
    W2,
    FollowerSubject,
    LeaderSubject,
    entries,
    every,
    incarnation_of,
    new_leader,
    only,
    reconciled_follower,
    record,
    refusal,
    replies,
    sent,
    serving_leader,
)

BOUND_MS = 700
RECENT_MS = 599
"""Six sevenths of it, less the millisecond that a clock leaves out."""
WAIT_MS = SETTINGS.follower_read_wait_ms


def read(request: int = 1, *, after: int = 0, after_epoch: int = 1, asks_first: bool = False) -> events.Read:
    return events.Read(
        request=request,
        max_staleness_ms=Millis(BOUND_MS),
        after=Offset(after),
        after_epoch=Epoch(after_epoch),
        asks_first=asks_first,
    )


def inquiry(happened: Sequence[Effect]) -> messages.Inquire:
    (found,) = sent(happened, messages.Inquire, to=W0)
    return found


def assure(subject: FollowerSubject, stamp: int, apply_offset: int, *, epoch: int = 1) -> list[Effect]:
    message = messages.Assure(
        Epoch(epoch),
        incarnation_of(W0),
        to=incarnation_of(W1),
        stamp=Millis(stamp),
        apply_offset=Offset(apply_offset),
    )
    return subject.receive(message, W0)


def covered_follower() -> FollowerSubject:
    """It has applied 5 entries, and its leader has just said that no more are visible."""
    subject = reconciled_follower()
    subject.entries(entries(0, 5), apply_offset=5)
    subject.persisted()
    subject.applied(5)
    stamp = inquiry(subject.step(read())).stamp
    assert only(assure(subject, stamp, 5), effects.Sample).request == 1
    assert replies(subject.step(events.Sampled(request=1))) == {1: effects.ReadServed(epoch=Epoch(1))}
    return subject


def test_a_reader_who_wants_the_latest_is_sent_to_the_leader() -> None:
    assert refusal(covered_follower().step(events.Read(request=2))) is Refusal.NOT_LEADER


def test_a_follower_outside_the_isr_sends_readers_to_the_leader() -> None:
    subject = reconciled_follower((W0, W2))
    assert refusal(subject.step(read())) is Refusal.NOT_LEADER


def test_the_first_read_waits_for_the_leaders_word_and_later_ones_do_not() -> None:
    subject = covered_follower()
    happened = subject.step(read(2), after=RECENT_MS // 2 - 1)
    assert happened == [effects.Sample(request=2)]


def test_the_next_word_is_asked_for_before_the_last_is_too_old() -> None:
    subject = covered_follower()
    happened = subject.step(read(2), after=RECENT_MS // 2 + 1)
    assert only(happened, effects.Sample).request == 2
    assert inquiry(happened).stamp == subject.now


def test_a_read_that_asks_first_sees_what_became_visible_since_the_last_word() -> None:
    subject = covered_follower()
    happened = subject.step(read(2, asks_first=True), after=10)
    assert every(happened, effects.Sample) == []
    subject.entries(entries(5, 7), apply_offset=7)
    subject.persisted()
    assert every(assure(subject, inquiry(happened).stamp, 7), effects.Sample) == []
    assert only(subject.applied(7), effects.Sample).request == 2


def test_a_word_that_was_asked_for_by_another_is_not_new_enough_for_who_asks_first() -> None:
    subject = covered_follower()
    stamp = inquiry(subject.step(read(2), after=RECENT_MS + 1)).stamp
    subject.step(read(3, asks_first=True), after=10)
    happened = assure(subject, stamp, 5)
    assert only(happened, effects.Sample).request == 2
    assert only(assure(subject, inquiry(happened).stamp, 5), effects.Sample).request == 3


def test_a_read_that_asks_first_does_with_an_older_word_if_its_leader_says_nothing() -> None:
    subject = covered_follower()
    subject.step(read(2, asks_first=True), after=10)
    assert only(subject.tick(after=WAIT_MS), effects.Sample).request == 2
    subject.step(read(3, asks_first=True), after=RECENT_MS)
    assert refusal(subject.tick(after=WAIT_MS)) is Refusal.TOO_STALE


def test_a_word_that_is_too_old_is_asked_for_anew_and_the_read_waits_only_so_long() -> None:
    subject = covered_follower()
    assert inquiry(subject.step(read(2), after=RECENT_MS + 1)).stamp == subject.now
    assert subject.role.stale_reads.next_deadline() == subject.now + WAIT_MS
    assert refusal(subject.tick(after=WAIT_MS)) is Refusal.TOO_STALE


def test_the_bound_is_checked_by_the_clock_after_the_sample() -> None:
    subject = covered_follower()
    assert every(subject.step(read(2), after=RECENT_MS), effects.Sample)
    assert refusal(subject.step(events.Sampled(request=2), after=1)) is Refusal.TOO_STALE


def test_a_word_counts_from_the_question() -> None:
    subject = covered_follower()
    stamp = inquiry(subject.step(read(2), after=RECENT_MS + 1)).stamp
    subject.tick(after=WAIT_MS)
    subject.now = Millis(subject.now + RECENT_MS)
    assert assure(subject, stamp, 5) == []
    assert every(subject.step(read(3)), effects.Sample) == []


def test_a_word_covers_reads_once_what_it_speaks_of_is_applied() -> None:
    subject = covered_follower()
    stamp = inquiry(subject.step(read(2), after=RECENT_MS + 1)).stamp
    subject.entries(entries(5, 7), apply_offset=7)
    subject.persisted()
    assert every(assure(subject, stamp, 7), effects.Sample) == []
    assert only(subject.applied(7), effects.Sample).request == 2


def test_a_reader_waits_for_what_it_has_seen_elsewhere() -> None:
    subject = covered_follower()
    subject.entries(entries(5, 7), apply_offset=7)
    subject.persisted()
    assert every(subject.step(read(2, after=7)), effects.Sample) == []
    assert only(subject.applied(7), effects.Sample).request == 2


def test_an_unclean_election_voids_what_was_seen_before_it() -> None:
    subject = reconciled_follower(epoch=3)
    subject.see(record(3, W0, unclean_epoch=2))
    stamp = inquiry(subject.step(read(1, after=90, after_epoch=1))).stamp
    assert only(assure(subject, stamp, 0, epoch=3), effects.Sample).request == 1
    assert every(subject.step(read(2, after=90, after_epoch=2)), effects.Sample) == []


def test_one_question_is_under_way_at_a_time_and_repeated_when_it_was_lost() -> None:
    subject = reconciled_follower()
    assert sent(subject.step(read(1)), messages.Inquire)
    assert sent(subject.step(read(2)), messages.Inquire) == []
    assert sent(subject.step(read(3), after=WAIT_MS), messages.Inquire)


def test_readers_are_sent_away_when_another_epoch_begins() -> None:
    subject = covered_follower()
    subject.step(read(2))
    subject.step(read(3, after=9))
    refused = replies(subject.see(record(2, W2)))
    assert {
        request: result.reason for request, result in refused.items() if isinstance(result, effects.Refused)
    } == {
        2: Refusal.NOT_LEADER,
        3: Refusal.NOT_LEADER,
    }
    assert refusal(subject.step(events.Sampled(request=2))) is Refusal.NOT_LEADER


# The leader.


def inquire(subject: LeaderSubject) -> list[Effect]:
    message = messages.Inquire(Epoch(1), incarnation_of(W1), stamp=Millis(77))
    return subject.receive(message, W1)


def test_a_leader_answers_by_a_clock_that_is_read_after_the_question() -> None:
    subject = serving_leader()
    subject.step(events.LeaseRenewed(sent_at=subject.now))
    assert inquire(subject) == [effects.ReadClock()]
    (word,) = sent(subject.step(events.ClockRead()), messages.Assure, to=W1)
    assert (word.to, word.stamp, word.apply_offset) == (incarnation_of(W1), 77, subject.replica.apply_offset)
    assert subject.step(events.ClockRead()) == []


def test_a_leader_whose_lease_has_ended_says_nothing() -> None:
    subject = serving_leader()
    subject.step(events.LeaseRenewed(sent_at=subject.now))
    inquire(subject)
    assert sent(subject.step(events.ClockRead(), after=SETTINGS.lease_ms), messages.Assure) == []


def test_a_leader_that_does_not_serve_yet_says_nothing() -> None:
    subject = new_leader()
    subject.step(events.LeaseRenewed(sent_at=subject.now))
    inquire(subject)
    assert sent(subject.step(events.ClockRead()), messages.Assure) == []


def test_a_leader_that_hands_over_says_nothing() -> None:
    subject = serving_leader()
    subject.step(events.LeaseRenewed(sent_at=subject.now))
    inquire(subject)
    subject.step(events.Resign(epoch=Epoch(1), target=W1))
    subject.step(events.WorkFinished(epoch=Epoch(1)))
    assert subject.role.handover_sent
    assert sent(subject.step(events.ClockRead()), messages.Assure) == []


@pytest.mark.parametrize("bound_ms", [7, 100, BOUND_MS])
def test_a_bound_leaves_a_margin_for_clocks(bound_ms: int) -> None:
    guards = serving_leader().replica.guards
    oldest = max(age for age in range(bound_ms) if guards.is_recent(age, Millis(bound_ms)))
    assert (oldest + 1) / 0.87 <= bound_ms
