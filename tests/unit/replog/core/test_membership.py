"""The ISR: the stall timer, min-ISR, entering, replacing, and answers that did not come."""

from __future__ import annotations

import pytest

from stretto.replog.core import effects, events
from stretto.replog.core.effects import Refusal
from stretto.replog.core.events import CasOutcome
from stretto.replog.core.following.follower import Follower
from stretto.vocabulary.types import WorkerId
from tests.support.core_group import (
    SETTINGS,
    W0,
    W1,
    W2,
    LeaderSubject,
    entries,
    every,
    member,
    new_leader,
    noted,
    only,
    record,
    refusal,
    registration,
    replies,
    serving_leader,
    settings,
)

LAG_MS = SETTINGS.max_time_lag_ms
RETRY_MS = SETTINGS.retry_ms


def workers(cas: effects.CompareAndSet) -> list[WorkerId]:
    return [each.worker for each in cas.record.isr]


def waiting_for(*silent: WorkerId, subject: LeaderSubject | None = None) -> LeaderSubject:
    """An append that all but ``silent`` hold."""
    subject = subject or serving_leader()
    subject.append(1)
    subject.persisted()
    for worker in (W1, W2):
        if worker not in silent and worker in subject.role.followers:
            subject.confirm(worker)
    return subject


def shrinking() -> tuple[LeaderSubject, effects.CompareAndSet]:
    """w2 kept an entry waiting too long; the change is on its way."""
    subject = waiting_for(W2)
    return subject, only(subject.tick(after=LAG_MS), effects.CompareAndSet)


def expanding() -> tuple[LeaderSubject, effects.CompareAndSet]:
    """w2 has caught up; the change is on its way."""
    subject = serving_leader((W0, W1))
    return subject, only(subject.join(W2), effects.CompareAndSet)


# Shrinking.


def test_the_stall_timer_drops_laggards_by_compare_and_set() -> None:
    subject = waiting_for(W2)
    assert every(subject.tick(after=LAG_MS - 1), effects.CompareAndSet) == []
    cas = only(subject.tick(after=1), effects.CompareAndSet)
    assert workers(cas) == [W0, W1]
    assert cas.record.osr == (W2,)
    assert (cas.version, cas.record.epoch, cas.must_exist) == (subject.version, 1, ())


def test_the_deadline_of_the_stall_timer_is_asked_for() -> None:
    subject = serving_leader(options=settings(retry_ms=5_000))
    subject.append(1)
    assert subject.replica.next_deadline() == subject.now + LAG_MS


def test_an_entry_is_applied_only_after_the_shrink_is_committed() -> None:
    subject, cas = shrinking()
    assert every(subject.confirm(W1), effects.Apply) == []
    happened = subject.cas(cas)
    assert only(happened, effects.Apply).end == 2
    assert "isr" in noted(happened)


def test_a_laggard_that_confirms_while_the_shrink_is_under_way_lets_the_entry_be_applied() -> None:
    subject, _ = shrinking()
    assert only(subject.confirm(W2), effects.Apply).end == 2


def test_one_change_at_a_time() -> None:
    subject, _ = shrinking()
    assert every(subject.gone(registration(W1)), effects.CompareAndSet) == []


def test_a_member_whose_registration_is_gone_is_dropped_without_waiting() -> None:
    subject = serving_leader()
    assert workers(only(subject.gone(registration(W2)), effects.CompareAndSet)) == [W0, W1]


def test_the_predecessor_known_to_be_gone_is_not_waited_for() -> None:
    subject = LeaderSubject(W0)
    subject.see(record(1, W1))
    subject.gone(registration(W1))
    happened = subject.see(record(2, W0))
    assert workers(only(happened, effects.CompareAndSet)) == [W0, W2]


def test_a_member_that_never_said_hello_is_dropped_by_the_stall_timer_alone() -> None:
    subject = new_leader()
    subject.persisted()
    subject.join(W1)
    assert every(subject.tick(after=LAG_MS - 1), effects.CompareAndSet) == []
    assert workers(only(subject.tick(after=1), effects.CompareAndSet)) == [W0, W1]


# Min-ISR.


def test_if_dropping_laggards_would_break_min_isr_nothing_moves_and_appends_are_refused() -> None:
    subject = waiting_for(W1, W2)
    happened = subject.tick(after=LAG_MS)
    assert every(happened, effects.CompareAndSet) == []
    assert every(happened, effects.Apply) == []
    assert "stalled" in noted(happened)
    assert refusal(subject.append(2)) is Refusal.STALLED


def test_a_stalled_group_recovers_by_itself() -> None:
    subject = waiting_for(W1, W2)
    subject.tick(after=LAG_MS)
    happened = subject.confirm(W1)
    assert "recovered_from_stall" in noted(happened)
    assert workers(only(happened, effects.CompareAndSet)) == [W0, W1]
    happened = subject.cas(only(happened, effects.CompareAndSet))
    assert only(happened, effects.Apply).end == 2
    assert replies(subject.append(2)) == {}


def test_a_stall_ends_with_the_leaders_own_write_if_that_is_what_was_lacking() -> None:
    subject = serving_leader((W0, W1))
    subject.append(1)
    subject.confirm(W1)
    subject.gone(registration(W1))
    assert "stalled" in noted(subject.tick(after=LAG_MS))
    happened = subject.persisted()
    assert only(happened, effects.Apply).end == 2
    assert "recovered_from_stall" in noted(happened)


def test_a_lowered_min_isr_ends_a_stall() -> None:
    subject = waiting_for(W1, W2)
    subject.tick(after=LAG_MS)
    happened = subject.step(events.OptionsChanged(settings=settings(min_isr=1)))
    assert workers(only(happened, effects.CompareAndSet)) == [W0]


def test_an_isr_smaller_than_min_isr_applies_nothing() -> None:
    subject = new_leader((W0,))
    subject.persisted()
    assert subject.replica.apply_offset == 0
    happened = subject.join(W1)
    cas = only(happened, effects.CompareAndSet)
    assert workers(cas) == [W0, W1]
    assert every(happened, effects.Apply) == []
    assert only(subject.cas(cas), effects.Apply).end == 1


# Replacing.


def test_a_newcomer_replaces_a_dead_member_in_one_change() -> None:
    subject = serving_leader((W0, W1))
    subject.gone(registration(W1))
    cas = only(subject.join(W2), effects.CompareAndSet)
    assert workers(cas) == [W0, W2]
    assert cas.must_exist == (registration(W2),)


def test_a_wiped_member_takes_its_own_old_place() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1), options=settings(min_isr=2))
    happened = subject.hello(W1, life=2, disk=2)
    assert every(happened, effects.CompareAndSet) == []
    cas = only(subject.confirm(W1, life=2), effects.CompareAndSet)
    assert cas.record.isr == (member(W0), member(W1, disk=2))


def test_what_a_wiped_worker_holds_does_not_count_for_its_old_disk() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1), options=settings(min_isr=2))
    subject.append(1)
    subject.persisted()
    subject.hello(W1, life=2, disk=2)
    happened = subject.confirm(W1, life=2)
    assert every(happened, effects.Apply) == []
    happened = subject.cas(only(happened, effects.CompareAndSet))
    assert only(happened, effects.Apply).end == 2


# Entering.


def test_a_newcomer_that_reached_everything_enters_while_its_registration_exists() -> None:
    subject, cas = expanding()
    assert workers(cas) == [W0, W1, W2]
    assert cas.must_exist == (registration(W2),)
    assert cas.version == subject.version
    assert cas.record.osr == ()


def test_a_newcomer_below_the_apply_offset_does_not_enter() -> None:
    subject = serving_leader((W0, W1))
    subject.append(1)
    subject.persisted()
    subject.confirm(W1)
    assert subject.replica.apply_offset == 2
    assert every(subject.join(W2, 1), effects.CompareAndSet) == []
    assert workers(only(subject.confirm(W2, 2), effects.CompareAndSet)) == [W0, W1, W2]


def test_a_newcomer_that_lacks_the_overdue_entry_replaces_nobody() -> None:
    subject = waiting_for(W1, subject=serving_leader((W0, W1)))
    assert every(subject.tick(after=LAG_MS), effects.CompareAndSet) == []
    assert subject.role.stalled
    assert every(subject.join(W2, 1), effects.CompareAndSet) == []
    assert workers(only(subject.confirm(W2, 2), effects.CompareAndSet)) == [W0, W2]


def test_a_newcomer_below_the_start_of_the_epoch_does_not_enter() -> None:
    """The new leader may not know yet how far its predecessor let entries be applied."""
    subject = new_leader((W0, W1), epoch=2, log=entries(0, 4, epoch=1), applied=1)
    assert every(subject.join(W2, 3), effects.CompareAndSet) == []
    assert workers(only(subject.confirm(W2, 4), effects.CompareAndSet)) == [W0, W1, W2]


def test_a_newcomer_whose_registration_is_gone_does_not_enter() -> None:
    subject = serving_leader((W0, W1))
    subject.hello(W2)
    subject.gone(registration(W2))
    assert every(subject.confirm(W2), effects.CompareAndSet) == []


def test_an_expansion_counts_as_soon_as_it_is_proposed() -> None:
    subject, _ = expanding()
    subject.append(1)
    subject.persisted()
    assert every(subject.confirm(W1), effects.Apply) == []
    assert only(subject.confirm(W2), effects.Apply).end == 2


def test_a_registration_that_is_missing_refuses_the_expansion_and_is_tested() -> None:
    subject, cas = expanding()
    happened = subject.cas(cas, CasOutcome.NO_REGISTRATION)
    assert registration(W2) in [each.registration for each in every(happened, effects.CheckRegistration)]
    again = every(happened, effects.CompareAndSet)
    assert all(each.must_exist == (registration(W2),) for each in again)
    for each in again:
        subject.cas(each, CasOutcome.NO_REGISTRATION)
    assert every(subject.gone(registration(W2)), effects.CompareAndSet) == []


def test_a_newcomer_whose_registration_was_missing_is_not_proposed_again_before_it_was_tested() -> None:
    subject, cas = expanding()
    assert every(subject.cas(cas, CasOutcome.NO_REGISTRATION), effects.CompareAndSet) == []


# Answers.


@pytest.mark.parametrize("outcome", [CasOutcome.UNKNOWN, CasOutcome.BAD_VERSION])
def test_an_expansion_whose_reply_was_lost_or_refused_counts_until_a_synced_read_settles_it(
    outcome: CasOutcome,
) -> None:
    subject, cas = expanding()
    read = only(subject.cas(cas, outcome), effects.ReadRecord)
    assert read.sync
    subject.append(1)
    subject.persisted()
    assert every(subject.confirm(W1), effects.Apply) == []

    assert only(subject.see_again(token=read.token), effects.Apply).end == 2
    assert workers(only(subject.confirm(W2), effects.CompareAndSet)) == [W0, W1, W2]


def test_a_lost_reply_of_a_change_that_was_made_is_settled_by_what_is_read() -> None:
    subject, cas = expanding()
    read = only(subject.cas(cas, CasOutcome.UNKNOWN), effects.ReadRecord)
    happened = subject.see(cas.record, token=read.token)
    assert every(happened, effects.CompareAndSet) == []
    assert subject.role.membership.committed == frozenset(cas.record.isr)
    assert subject.role.membership.change is None


def test_a_shrink_whose_reply_was_lost_is_not_believed() -> None:
    subject, cas = shrinking()
    happened = subject.cas(cas, CasOutcome.UNKNOWN)
    assert every(happened, effects.Apply) == []
    read = only(happened, effects.ReadRecord)
    assert only(subject.see(cas.record, token=read.token), effects.Apply).end == 2


def test_an_older_read_settles_nothing() -> None:
    subject, cas = expanding()
    read = only(subject.cas(cas, CasOutcome.UNKNOWN), effects.ReadRecord)
    assert every(subject.see_again(token=read.token - 1), effects.CompareAndSet) == []
    assert subject.role.membership.change is not None


def test_a_settling_read_that_is_lost_is_repeated() -> None:
    subject, cas = expanding()
    read = only(subject.cas(cas, CasOutcome.UNKNOWN), effects.ReadRecord)
    subject.step(events.ReadFailed(token=read.token))
    assert every(subject.tick(after=RETRY_MS - 1), effects.ReadRecord) == []
    again = only(subject.tick(after=1), effects.ReadRecord)
    assert again.sync
    assert again.token > read.token


def test_a_refused_change_is_not_sent_again_before_the_record_was_read() -> None:
    subject, cas = shrinking()
    happened = subject.cas(cas, CasOutcome.BAD_VERSION)
    assert every(happened, effects.CompareAndSet) == []
    assert every(subject.tick(after=10), effects.CompareAndSet) == []


def test_leader_steps_down_when_the_read_shows_that_the_epoch_moved() -> None:
    subject, cas = shrinking()
    read = only(subject.cas(cas, CasOutcome.BAD_VERSION), effects.ReadRecord)
    happened = subject.see(record(2, W1), token=read.token)
    assert replies(happened) == {1: effects.Unknown()}
    assert isinstance(subject.replica.role, Follower)


def test_a_reply_to_an_earlier_change_is_ignored() -> None:
    subject, cas = shrinking()
    late = events.CasReply(token=cas.token - 1, outcome=CasOutcome.OK, version=99)
    subject.step(late)
    assert subject.version != 99
    assert subject.role.membership.change is not None


def test_a_stall_timer_that_expires_while_a_change_is_under_way_does_not_ask_for_a_past_deadline() -> None:
    subject, _ = expanding()
    subject.append(1)
    subject.tick(after=LAG_MS)
    deadline = subject.replica.next_deadline()
    assert deadline is not None
    assert deadline > subject.now
