"""What a leader makes of its followers: greeting, sending, fencing, and the log that is kept for them."""

from __future__ import annotations

import pytest

from stretto.replog.core import effects, events, messages
from stretto.replog.core.messages import RejectReason
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.types import Epoch, Millis, Offset
from tests.support.core_group import (
    SETTINGS,
    W0,
    W1,
    W2,
    LeaderSubject,
    entries,
    entries_message,
    every,
    history,
    incarnation_of,
    new_leader,
    only,
    record,
    registration,
    sent,
    serving_leader,
    settings,
)

RETRY_MS = SETTINGS.retry_ms
NEWS_MS = SETTINGS.news_ms


# Greeting.


def test_hello_is_answered_with_the_lineage_and_a_test_of_the_registration() -> None:
    subject = new_leader(epoch=2, log=entries(0, 3, epoch=1), applied=1)
    happened = subject.hello(W1, attempt=4, end=9)
    (lineage,) = sent(happened, messages.Lineage, to=W1)
    assert (lineage.to, lineage.attempt) == (incarnation_of(W1), 4)
    assert lineage.history == history((1, 0), (2, 3))
    assert (lineage.start, lineage.end, lineage.apply_offset) == (0, 4, 1)
    assert lineage.near_lag == SETTINGS.max_near_lag
    assert lineage.listed
    assert only(happened, effects.CheckRegistration).registration == registration(W1)


def test_a_worker_with_another_disk_is_told_that_it_is_not_listed() -> None:
    (lineage,) = sent(new_leader().hello(W1, disk=2), messages.Lineage)
    assert not lineage.listed


def test_what_a_hello_claims_is_no_confirmation() -> None:
    subject = new_leader()
    subject.persisted()
    subject.hello(W1, end=1)
    assert every(subject.hello(W2, end=1), effects.Apply) == []


def test_a_repeated_hello_is_answered_but_does_not_begin_anew() -> None:
    subject = serving_leader()
    happened = subject.hello(W1)
    assert len(sent(happened, messages.Lineage)) == 1
    assert every(happened, effects.CheckRegistration) == []
    assert subject.role.followers[W1].confirmed == 1


def test_a_hello_of_a_later_attempt_begins_anew() -> None:
    subject = serving_leader()
    subject.hello(W1, attempt=2)
    assert subject.role.followers[W1].confirmed is None
    assert subject.confirm(W1, attempt=1) == []
    assert subject.role.followers[W1].confirmed is None


def test_a_late_hello_of_a_dead_incarnation_does_not_hide_the_living_one() -> None:
    subject = serving_leader()
    subject.join(W1, life=3)
    subject.hello(W1, life=2)
    subject.gone(registration(W1, 2))
    subject.append(1)
    subject.persisted()
    subject.confirm(W2)
    assert only(subject.confirm(W1, life=3), effects.Apply).end == 2


# Sending.


def test_several_messages_are_in_flight_and_then_the_window_is_full() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    starts = []
    for request in range(1, 6):
        happened = subject.append(request)
        starts += [each.start for each in every(happened, effects.SendEntries)]
        subject.sent(happened)
    assert starts == [1, 2, 3]
    happened = subject.confirm(W1, 3, log_end=4)
    assert [each.start for each in every(happened, effects.SendEntries)] == [4]


def test_what_is_appended_while_a_message_is_made_goes_into_the_next_one() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    first = subject.append(1)
    for request in range(2, 5):
        assert every(subject.append(request), effects.SendEntries) == []
    again = subject.sent(first, end=2)
    assert only(again, effects.SendEntries).start == 2
    assert only(again, effects.SendEntries).max_bytes == SETTINGS.max_batch_bytes


def test_a_follower_that_missed_something_is_sent_all_from_where_it_resumes() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    for request in range(1, 4):
        subject.sent(subject.append(request))
    happened = subject.confirm(W1, 1, log_end=2, resume=True)
    assert only(happened, effects.SendEntries).start == 2


def test_what_was_sent_to_an_earlier_incarnation_does_not_count_for_the_next() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    late = subject.append(1)
    subject.join(W1, 0, life=2)
    assert subject.role.followers[W1].next == 0
    subject.sent(late)
    assert subject.role.followers[W1].next == 0


def test_a_new_apply_offset_is_told_when_there_is_nothing_else_to_send() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    subject.sent(subject.append(1))
    subject.persisted()
    assert sent(subject.confirm(W1), messages.Entries, to=W1) == []  # entries may come meanwhile, and tell it
    assert sent(subject.applied(), messages.Entries, to=W1) == []
    assert sent(subject.tick(after=NEWS_MS - 1), messages.Entries, to=W1) == []
    (news,) = sent(subject.tick_at_deadline(), messages.Entries, to=W1)
    assert (news.apply_offset, news.probe) == (2, False)
    assert sent(subject.tick(after=NEWS_MS), messages.Entries, to=W1) == []


def test_a_large_part_of_the_log_is_told_as_soon_as_it_is_applied() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    subject.sent(subject.append(1, count=SETTINGS.news_entries))
    subject.persisted()
    subject.confirm(W1)
    (news,) = sent(subject.applied(), messages.Entries, to=W1)
    assert news.apply_offset == subject.replica.applied


def test_entries_tell_what_is_applied_and_no_other_message_does() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    subject.sent(subject.append(1))
    subject.settle()
    happened = subject.append(2)
    assert only(happened, effects.SendEntries).message.apply_offset == subject.replica.applied
    subject.sent(happened)
    assert sent(subject.tick(after=NEWS_MS), messages.Entries, to=W1) == []


def test_news_that_meet_entries_with_the_driver_are_told_after_them() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    subject.sent(subject.append(1))
    with_driver = subject.append(2)
    subject.persisted()
    subject.confirm(W1, 2)
    subject.applied()
    assert sent(subject.tick(after=NEWS_MS), messages.Entries, to=W1) == []
    subject.sent(with_driver)
    (news,) = sent(subject.tick(after=NEWS_MS), messages.Entries, to=W1)
    assert news.apply_offset == 2


def test_a_follower_that_inquires_hears_at_once_what_is_applied() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    subject.sent(subject.append(1))
    subject.settle()
    subject.step(events.LeaseRenewed(sent_at=subject.now))
    subject.receive(messages.Inquire(Epoch(1), incarnation_of(W1), stamp=Millis(1)), W1)
    (news,) = sent(subject.step(events.ClockRead()), messages.Entries, to=W1)
    assert news.apply_offset == subject.replica.applied


def test_a_silent_follower_is_probed_once_per_retry_time_until_it_answers() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    subject.sent(subject.append(1))
    subject.persisted()
    assert sent(subject.tick(after=RETRY_MS - 1), messages.Entries) == []
    (probe,) = sent(subject.tick(after=1), messages.Entries)
    assert probe.probe
    assert sent(subject.tick(after=RETRY_MS - 1), messages.Entries) == []
    assert len(sent(subject.tick(after=1), messages.Entries)) == 1
    subject.confirm(W1)
    subject.confirm(W1)
    assert sent(subject.tick(after=5 * RETRY_MS), messages.Entries) == []


def test_entries_tell_what_to_retain_and_where_the_log_ends() -> None:
    subject = serving_leader()
    (message, _) = sent(subject.append(1), messages.Entries)
    assert (message.apply_offset, message.log_end, message.retain_offset) == (1, 2, 1)
    assert message.to == incarnation_of(W1)


# Fencing.


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_confirmation_of_an_older_epoch_is_rejected_and_counts_for_nothing(epoch: int) -> None:
    subject = serving_leader(epoch=2)
    subject.append(1)
    subject.persisted()
    subject.confirm(W1)
    (answer,) = sent(subject.confirm(W2, epoch=epoch), messages.Reject, to=W2)
    assert (answer.epoch, answer.reason) == (2, RejectReason.STALE_EPOCH)
    assert subject.replica.apply_offset == 1


def test_a_confirmation_of_another_incarnation_is_rejected_and_counts_for_nothing() -> None:
    subject = serving_leader()
    subject.append(1)
    subject.persisted()
    subject.confirm(W1)
    (answer,) = sent(subject.confirm(W2, life=2), messages.Reject, to=W2)
    assert answer.reason is RejectReason.STALE_INCARNATION
    assert subject.replica.apply_offset == 1


def test_a_confirmation_before_any_hello_is_rejected() -> None:
    (answer,) = sent(new_leader().confirm(W1), messages.Reject)
    assert answer.reason is RejectReason.STALE_INCARNATION


def test_messages_of_an_older_epoch_are_rejected() -> None:
    subject = serving_leader(epoch=2)
    (answer,) = sent(subject.receive(entries_message(1), W1), messages.Reject, to=W1)
    assert answer.reason is RejectReason.STALE_EPOCH


def test_another_leader_in_the_same_epoch_is_an_invariant_violation() -> None:
    with pytest.raises(InvariantViolation, match="another leader in our epoch"):
        serving_leader().receive(entries_message(1), W1)


def test_a_follower_that_confirms_more_than_there_is_violates_an_invariant() -> None:
    with pytest.raises(InvariantViolation, match="confirms more than the leader has"):
        serving_leader().confirm(W1, 5)


def test_a_rejection_is_not_answered() -> None:
    subject = serving_leader(epoch=2)
    for epoch in (1, 2):
        stale = messages.Reject(Epoch(epoch), incarnation_of(W1), reason=RejectReason.STALE_EPOCH)
        assert subject.receive(stale, W1) == []


# Retention and far horizon.


def leader_with_long_log() -> LeaderSubject:
    """[0, 30) applied, from which only a member may need anything."""
    subject = serving_leader(log=entries(0, 29, epoch=1), epoch=2, applied=29)
    assert subject.replica.apply_offset == 30
    return subject


def test_the_log_is_cut_below_what_is_durably_applied_and_all_confirmed() -> None:
    subject = leader_with_long_log()
    subject.append(1)
    subject.settle()
    assert only(subject.step(events.StateSynced(end=Offset(30))), effects.Cut).start == 30
    assert only(subject.step(events.StateSynced(end=Offset(31))), effects.Cut).start == 31


def test_the_log_is_kept_for_a_replica_within_the_near_lag() -> None:
    subject = new_leader(log=entries(0, 29, epoch=1), epoch=2, applied=29)
    subject.persisted()
    subject.join(W1)
    subject.join(W2, 15)
    assert only(subject.step(events.StateSynced(end=Offset(29))), effects.Cut).start == 15


def test_the_log_is_not_kept_for_a_replica_further_behind() -> None:
    subject = new_leader(log=entries(0, 29, epoch=1), epoch=2, applied=29)
    subject.persisted()
    subject.join(W1)
    assert only(subject.step(events.StateSynced(end=Offset(29))), effects.Cut).start == 29 - 20


def test_a_follower_that_retention_passed_by_is_told_to_begin_again() -> None:
    subject = leader_with_long_log()
    subject.step(events.LogCut(start=Offset(20)))
    subject.hello(W2, attempt=2)
    (answer,) = sent(subject.confirm(W2, 12, attempt=2, resume=True), messages.Reject, to=W2)
    assert answer.reason is RejectReason.OUT_OF_RANGE
    assert sent(subject.tick(after=RETRY_MS - 1), messages.Reject) == []
    assert len(sent(subject.tick(after=1), messages.Reject, to=W2)) == 1
    subject.hello(W2, attempt=3)
    assert sent(subject.tick(after=5 * RETRY_MS), messages.Reject) == []


def test_a_running_transfer_pins_the_log() -> None:
    subject = leader_with_long_log()
    subject.hello(W2, attempt=2)
    fetch = messages.FetchState(Epoch(2), incarnation_of(W2), attempt=2)
    assert only(subject.receive(fetch, W2), effects.ServeState).to == W2
    for request in range(30):
        subject.append(request)
        subject.persisted()
        subject.confirm(W1)
        subject.see(record(2, W0, (W0, W1)))
        subject.applied()
    subject.step(events.StateSynced(end=subject.replica.applied))
    assert subject.role.followers.needed() == 30


def transferring() -> LeaderSubject:
    """Its log is pinned for W2 from 30 on, and 30 more entries are applied since."""
    subject = leader_with_long_log()
    subject.hello(W2, attempt=2)
    subject.receive(messages.FetchState(Epoch(2), incarnation_of(W2), attempt=2), W2)
    for request in range(30):
        subject.append(request)
        subject.persisted()
        subject.confirm(W1)
        subject.see(record(2, W0, (W0, W1)))
        subject.applied()
    return subject


def pin_moved(start: int | None, *, life: int = 1, epoch: int = 2) -> events.PinMoved:
    offset = None if start is None else Offset(start)
    return events.PinMoved(to=W2, epoch=Epoch(epoch), incarnation=incarnation_of(W2, life), start=offset)


def test_a_pin_moves_forward_with_the_rounds_and_goes_with_the_transfer() -> None:
    subject = transferring()
    for moved, kept in ((35, 35), (32, 35), (None, 40)):
        subject.step(pin_moved(moved))
        assert subject.role.followers.needed() == kept


def test_a_pin_is_moved_only_for_the_incarnation_and_in_the_epoch_that_it_was_set_for() -> None:
    subject = transferring()
    subject.step(pin_moved(35, life=2))
    subject.step(pin_moved(35, epoch=1))
    assert subject.role.followers.needed() == 30


def test_a_pin_that_keeps_too_much_is_released_and_the_log_says_what_to_raise() -> None:
    subject = transferring()
    subject.step(events.OptionsChanged(settings=settings(max_pinned=29)))
    happened = subject.step(events.StateSynced(end=subject.replica.applied))
    assert only(happened, effects.StopServing).to == W2
    note = only(happened, effects.Note)
    assert note.event == "pin_released"
    assert "replication.far.horizon.max.pinned.entries" in note.fields["advice"]
    assert subject.role.followers.needed() == 40


def test_a_follower_that_took_the_state_is_within_reach_of_the_log_that_is_kept_for_it() -> None:
    subject = transferring()
    subject.step(pin_moved(35))
    (lineage,) = sent(subject.hello(W2, attempt=3, end=36), messages.Lineage, to=W2)
    assert lineage.near_lag == subject.replica.apply_offset - 35
    subject.confirm(W2, 36, attempt=3, resume=True)
    assert subject.role.followers.needed() == 36
    subject.confirm(W2, 55, attempt=3)
    assert subject.role.followers[W2].pinned is None


@pytest.mark.parametrize(("life", "attempt"), [(2, 1), (1, 2)])
def test_a_request_for_the_state_of_an_earlier_life_or_attempt_is_ignored(life: int, attempt: int) -> None:
    subject = serving_leader()
    fetch = messages.FetchState(Epoch(1), incarnation_of(W2, life), attempt=attempt)
    assert subject.receive(fetch, W2) == []


def test_a_leader_never_installs_anothers_state() -> None:
    subject = serving_leader()
    event = events.StateInstalled(
        end=Offset(9), history=history((1, 0)), producers=subject.replica.producers.table
    )
    with pytest.raises(InvariantViolation, match="installed"):
        subject.step(event)
