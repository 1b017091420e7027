from __future__ import annotations

import msgspec
import pytest

from stretto.invariants import InvariantViolation
from stretto.replog.core import effects, events, messages
from stretto.replog.core.effects import Acked, Refusal
from stretto.replog.core.messages import RejectReason
from stretto.replog.core.producers import NO_PRODUCER, named_producer_id, new_producer_id, sequence_in
from stretto.replog.frame import Kind, payload
from stretto.types import Epoch, Millis, Offset
from tests.unit.core.group import (
    PRODUCER,
    SETTINGS,
    W0,
    W1,
    W2,
    LeaderSubject,
    Subject,
    append_event,
    entries,
    every,
    history,
    incarnation_of,
    new_leader,
    noted,
    only,
    record,
    refusal,
    registration,
    replies,
    sent,
    serving_leader,
    settings,
)

RETRY_MS = SETTINGS.retry_ms
NEWS_MS = SETTINGS.news_ms


def entries_message(epoch: int = 1) -> messages.Entries:
    return messages.Entries(
        Epoch(epoch),
        incarnation_of(W1),
        to=incarnation_of(W0),
        apply_offset=Offset(0),
        log_end=Offset(0),
        retain_offset=Offset(0),
        probe=False,
    )


# Beginning.


def test_a_new_leader_calls_for_the_hellos_that_came_before_it_knew() -> None:
    happened = LeaderSubject(W0).see(record(2, W0))
    calls = {each.to: each.message for each in every(happened, effects.Send)}
    assert calls.keys() == {W1, W2}
    for message in calls.values():
        assert isinstance(message, messages.Reject)
        assert (message.epoch, message.reason) == (2, RejectReason.NEW_EPOCH)


def test_a_leader_that_hears_of_newer_epochs_asks_once_at_a_time() -> None:
    subject = serving_leader()
    asked = [only(subject.receive(entries_message(epoch=9), W1), effects.ReadRecord)]
    for epoch in (9, 10, 11):
        assert every(subject.receive(entries_message(epoch=epoch), W2), effects.ReadRecord) == []
    subject.step(events.ReadFailed(token=asked[0].token))
    asked += every(subject.receive(entries_message(epoch=11), W2), effects.ReadRecord)
    assert len(asked) == 2


def test_leader_opens_its_epoch_with_an_epoch_entry() -> None:
    subject = LeaderSubject(W0, log=entries(0, 3, epoch=1))
    happened = subject.see(record(2, W0))
    (frame,) = only(happened, effects.Persist).frames
    assert (frame.header.offset, frame.header.epoch, frame.header.kind) == (3, 2, Kind.EPOCH)
    assert subject.replica.history == history((1, 0), (2, 3))
    assert "leads" in noted(happened)


def test_leader_serves_nothing_before_what_it_inherited_is_applied() -> None:
    subject = new_leader(epoch=2, log=entries(0, 3, epoch=1), applied=1)
    assert refusal(subject.append()) is Refusal.NOT_READY
    assert refusal(subject.step(events.Read(request=1))) is Refusal.NOT_READY

    subject.persisted()
    subject.join(W1)
    subject.join(W2)
    subject.applied(3)
    assert refusal(subject.append()) is Refusal.NOT_READY

    assert noted(subject.applied(4)) == ["serves"]
    assert every(subject.append(2), effects.Persist) != []


def test_leader_does_not_begin_again_when_its_record_changes() -> None:
    subject = serving_leader()
    assert every(subject.see(record(1, W0, (W0, W1))), effects.Persist) == []


def test_a_leader_alone_in_a_group_of_one_needs_nobody() -> None:
    subject = new_leader((W0,), replicas=(W0,))
    assert only(subject.persisted(), effects.Apply).end == 1
    subject.applied()
    assert subject.role.is_serving


# What its own disk and state are waited for.


def waits_for_disk(subject: Subject) -> bool:
    return subject.replica.awaits_durable


def waits_for_state(subject: Subject) -> bool:
    return subject.replica.awaits_applied


def test_own_disk_is_waited_for_once_no_other_member_holds_less() -> None:
    subject = serving_leader()
    subject.sent(subject.append(1))
    assert not waits_for_disk(subject)
    subject.confirm(W1)
    assert not waits_for_disk(subject), "the other one's confirmation decides"
    subject.confirm(W2)
    assert waits_for_disk(subject)
    assert every(subject.persisted(), effects.Apply) != []


def test_own_disk_is_waited_for_while_others_hold_more_than_it_though_not_all() -> None:
    subject = serving_leader()
    subject.sent(subject.append(1))
    first = subject.replica.log_end
    subject.sent(subject.append(2))
    for worker in (W1, W2):
        subject.confirm(worker, first)
    assert waits_for_disk(subject)
    assert only(subject.persisted(first), effects.Apply).end == first
    assert not waits_for_disk(subject)


def test_a_leader_alone_waits_for_its_own_disk() -> None:
    subject = new_leader((W0,), replicas=(W0,))
    assert waits_for_disk(subject)


def test_what_is_applied_is_waited_for_at_a_leader_only() -> None:
    subject = serving_leader()
    assert waits_for_state(subject)
    subject.see(record(2, W1))
    assert not waits_for_state(subject)
    assert waits_for_disk(subject), "a follower's leader waits for its confirmation"


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


# Appending.


def test_an_append_is_persisted_and_forwarded_at_the_same_time() -> None:
    subject = serving_leader()
    happened = subject.append(1, payload=b"hello")
    (frame,) = only(happened, effects.Persist).frames
    assert (frame.header.offset, frame.header.epoch, bytes(payload(frame))) == (1, 1, b"hello")
    assert {(each.to, each.start) for each in every(happened, effects.SendEntries)} == {(W1, 1), (W2, 1)}
    assert replies(happened) == {}


def test_an_append_is_acknowledged_only_when_applied() -> None:
    subject = serving_leader()
    subject.append(1)
    assert replies(subject.persisted()) == {}
    assert replies(subject.confirm(W1)) == {}
    happened = subject.confirm(W2)
    assert replies(happened) == {}
    assert only(happened, effects.Apply).end == 2
    assert replies(subject.applied()) == {1: Acked(offset=Offset(1))}


def test_leader_counts_itself_only_after_its_own_write_is_durable() -> None:
    subject = serving_leader()
    subject.append(1)
    subject.confirm(W1)
    assert every(subject.confirm(W2), effects.Apply) == []
    assert only(subject.persisted(), effects.Apply).end == 2


def test_every_member_of_the_isr_holds_an_entry_before_it_is_applied_not_just_min_isr() -> None:
    subject = serving_leader()
    subject.append(1)
    subject.persisted()
    assert every(subject.confirm(W1), effects.Apply) == []
    assert only(subject.confirm(W2), effects.Apply).end == 2


def test_one_confirmation_acknowledges_many_appends() -> None:
    subject = serving_leader()
    for request in range(1, 5):
        subject.append(request, count=2)
    subject.persisted()
    subject.confirm(W1)
    assert only(subject.confirm(W2), effects.Apply).end == 9
    expected = {request: Acked(offset=Offset(2 * request - 1)) for request in range(1, 5)}
    assert replies(subject.applied()) == expected


def test_appends_beyond_the_bound_of_unapplied_entries_are_refused() -> None:
    subject = serving_leader(options=settings(max_unapplied=3))
    for request in range(3):
        assert replies(subject.append(request)) == {}
    assert refusal(subject.append(3)) is Refusal.OVERLOADED
    subject.settle()
    assert replies(subject.append(4)) == {}


def test_an_append_that_takes_too_long_is_reported_as_outcome_unknown() -> None:
    subject = serving_leader()
    subject.append(1)
    assert replies(subject.tick(after=SETTINGS.append_timeout_ms - 1)) == {}
    assert replies(subject.tick(after=1)) == {1: effects.Unknown()}
    subject.persisted()
    subject.confirm(W1)
    subject.confirm(W2)
    assert replies(subject.applied()) == {}


def test_an_append_can_have_a_time_out_of_its_own() -> None:
    subject = serving_leader()
    subject.append(1, timeout_ms=100)
    subject.append(2)
    assert replies(subject.tick(after=99)) == {}
    assert replies(subject.tick(after=1)) == {1: effects.Unknown()}
    assert replies(subject.tick(after=SETTINGS.append_timeout_ms - 100)) == {2: effects.Unknown()}


# Producers.


def test_a_duplicate_of_an_unapplied_batch_is_acknowledged_with_the_original() -> None:
    subject = serving_leader()
    subject.open_producer()
    subject.append(1, producer=PRODUCER)
    again = subject.append(2, producer=PRODUCER)
    assert again == []
    subject.persisted()
    subject.confirm(W1)
    subject.confirm(W2)
    assert replies(subject.applied()) == {1: Acked(offset=Offset(2)), 2: Acked(offset=Offset(2))}


def test_a_duplicate_of_an_applied_batch_is_acknowledged_at_once() -> None:
    subject = serving_leader()
    subject.open_producer()
    subject.append(1, producer=PRODUCER)
    subject.settle()
    happened = subject.append(2, producer=PRODUCER)
    assert replies(happened) == {2: Acked(offset=Offset(2))}
    assert every(happened, effects.Persist) == []


def test_gaps_and_unknown_producers_are_refused() -> None:
    subject = serving_leader()
    assert refusal(subject.append(1, producer=PRODUCER)) is Refusal.UNKNOWN_PRODUCER
    subject.open_producer()
    assert refusal(subject.append(1, producer=PRODUCER, sequence=1)) is Refusal.SEQUENCE_GAP


@pytest.mark.parametrize(
    ("age_ms", "admitted"), [(0, True), (29_999, True), (30_000, False), (-30_000, False)]
)
def test_an_id_is_admitted_only_while_nobody_can_have_forgotten_it(age_ms: int, admitted: bool) -> None:
    subject = serving_leader()
    born = 1_000_000
    event = msgspec.structs.replace(
        append_event(1, kind=Kind.PRODUCER_OPEN, producer=new_producer_id(born, 5)),
        timestamp_ms=born + age_ms,
    )
    assert bool(every(subject.step(event), effects.Persist)) is admitted


def test_a_silent_producer_is_expired_by_an_entry() -> None:
    subject = serving_leader(options=settings(producer_expiry_ms=Millis(4_000)))
    subject.open_producer()
    subject.tick(after=3_999)
    assert subject.replica.producers.is_open(PRODUCER)
    expired = []
    for _ in range(8):
        happened = subject.tick(after=1_000)
        expired += [frame.header for each in every(happened, effects.Persist) for frame in each.frames]
    (header,) = expired
    assert (header.kind, header.producer) == (Kind.PRODUCER_EXPIRE, PRODUCER)
    subject.settle()
    assert refusal(subject.append(5, producer=PRODUCER)) is Refusal.UNKNOWN_PRODUCER


def test_a_producer_that_appends_is_not_expired() -> None:
    subject = serving_leader(options=settings(producer_expiry_ms=Millis(4_000)))
    subject.open_producer()
    for sequence in range(12):
        subject.tick(after=1_000)
        subject.append(sequence, producer=PRODUCER, sequence=sequence)
        subject.settle()
    assert subject.replica.producers.is_open(PRODUCER)


def test_a_new_leader_gives_producers_it_inherited_their_full_time() -> None:
    subject = serving_leader(options=settings(producer_expiry_ms=Millis(4_000)))
    subject.open_producer()
    subject.see(record(2, W0))
    subject.settle()
    subject.tick(after=3_000)
    assert subject.replica.producers.is_open(PRODUCER)


def test_a_producer_that_retries_is_not_silent() -> None:
    subject = serving_leader(options=settings(producer_expiry_ms=Millis(4_000)))
    subject.open_producer()
    subject.append(1, producer=PRODUCER)
    subject.settle()
    for request in range(20):
        subject.append(request, producer=PRODUCER)
        subject.tick(after=1_000)
    assert subject.replica.producers.is_open(PRODUCER)


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


# Reads.


def renew(subject: Subject, *, ago: int = 0) -> None:
    subject.step(events.LeaseRenewed(sent_at=Millis(subject.now - ago)))


def test_a_read_is_sampled_first_and_then_the_lease_is_checked() -> None:
    subject = serving_leader()
    renew(subject)
    assert subject.step(events.Read(request=1)) == [effects.Sample(request=1)]
    assert replies(subject.step(events.Sampled(request=1))) == {1: effects.ReadServed(epoch=Epoch(1))}


def test_the_lease_is_checked_with_the_clock_after_the_sample() -> None:
    """A leader that was paused between the two serves nothing stale."""
    subject = serving_leader()
    renew(subject)
    subject.step(events.Read(request=1))
    assert refusal(subject.step(events.Sampled(request=1), after=SETTINGS.lease_ms)) is Refusal.NO_LEASE


def test_without_a_lease_a_read_is_refused() -> None:
    subject = serving_leader()
    subject.step(events.Read(request=1))
    assert refusal(subject.step(events.Sampled(request=1))) is Refusal.NO_LEASE


@pytest.mark.parametrize(("ago", "served"), [(2_499, True), (2_500, False)])
def test_the_lease_is_timed_from_the_sending_of_the_write(ago: int, served: bool) -> None:
    subject = serving_leader()
    renew(subject, ago=ago)
    subject.step(events.Read(request=1))
    result = replies(subject.step(events.Sampled(request=1)))[1]
    assert (result == effects.ReadServed(epoch=Epoch(1))) is served


def test_a_late_answer_does_not_shorten_the_lease() -> None:
    subject = serving_leader()
    renew(subject)
    renew(subject, ago=2_000)
    assert subject.replica.lease_end == subject.now + SETTINGS.lease_ms


def test_a_sample_of_an_earlier_leadership_is_refused() -> None:
    subject = serving_leader()
    renew(subject)
    subject.step(events.Read(request=1))
    subject.see(record(2, W0))
    assert refusal(subject.step(events.Sampled(request=1))) is Refusal.NOT_LEADER


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
    assert subject.role.needed_by_others() == 30


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
        assert subject.role.needed_by_others() == kept


def test_a_pin_is_moved_only_for_the_incarnation_and_in_the_epoch_that_it_was_set_for() -> None:
    subject = transferring()
    subject.step(pin_moved(35, life=2))
    subject.step(pin_moved(35, epoch=1))
    assert subject.role.needed_by_others() == 30


def test_a_pin_that_keeps_too_much_is_released_and_the_log_says_what_to_raise() -> None:
    subject = transferring()
    subject.step(events.OptionsChanged(settings=settings(max_pinned=29)))
    happened = subject.step(events.StateSynced(end=subject.replica.applied))
    assert only(happened, effects.StopServing).to == W2
    note = only(happened, effects.Note)
    assert note.event == "pin_released"
    assert "replication.far.horizon.max.pinned.entries" in note.fields["advice"]
    assert subject.role.needed_by_others() == 40


def test_a_follower_that_took_the_state_is_within_reach_of_the_log_that_is_kept_for_it() -> None:
    subject = transferring()
    subject.step(pin_moved(35))
    (lineage,) = sent(subject.hello(W2, attempt=3, end=36), messages.Lineage, to=W2)
    assert lineage.near_lag == subject.replica.apply_offset - 35
    subject.confirm(W2, 36, attempt=3, resume=True)
    assert subject.role.needed_by_others() == 36
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


# Options.


def test_a_raised_min_isr_stops_applying_and_a_lowered_one_resumes() -> None:
    subject = serving_leader((W0, W1))
    subject.step(events.OptionsChanged(settings=settings(min_isr=3)))
    assert refusal(subject.append(1)) is Refusal.STALLED
    subject.step(events.OptionsChanged(settings=settings(min_isr=2)))
    subject.append(2)
    subject.persisted()
    assert only(subject.confirm(W1), effects.Apply).end == 2


def test_a_shorter_lag_time_counts_for_entries_that_wait_already() -> None:
    subject = serving_leader()
    subject.append(1)
    subject.persisted()
    subject.confirm(W1)
    assert every(subject.tick(after=200), effects.CompareAndSet) == []
    happened = subject.step(events.OptionsChanged(settings=settings(max_time_lag_ms=Millis(150))))
    assert only(happened, effects.CompareAndSet).record.isr == record(1, W0, (W0, W1)).isr


def test_a_new_near_lag_is_what_followers_are_told() -> None:
    subject = serving_leader()
    subject.step(events.OptionsChanged(settings=settings(max_near_lag=3)))
    (lineage,) = sent(subject.hello(W1, attempt=2), messages.Lineage)
    assert lineage.near_lag == 3


def test_a_paused_module_admits_nobody_and_takes_nothing_new_but_acknowledges_what_it_has() -> None:
    subject = serving_leader()
    subject.open_producer()
    subject.append(1, producer=PRODUCER)
    subject.settle()
    subject.step(events.OptionsChanged(settings=settings(paused=True)))
    assert refusal(subject.append(2, producer=PRODUCER, sequence=1)) is Refusal.PAUSED
    assert isinstance(replies(subject.append(3, producer=PRODUCER))[3], Acked)
    opening = append_event(4, kind=Kind.PRODUCER_OPEN, producer=new_producer_id(0, 99))
    assert refusal(subject.step(opening)) is Refusal.PAUSED
    before = subject.replica.log_end
    subject.step(append_event(5, kind=Kind.MARKER, producer=NO_PRODUCER))
    assert subject.replica.log_end == before + 1
    subject.step(events.OptionsChanged(settings=settings(paused=False)))
    subject.append(6, producer=PRODUCER, sequence=1)
    assert subject.replica.log_end == before + 2


# Named producers.

NAMED = named_producer_id(77, lasting=False)
LASTING = named_producer_id(77, lasting=True)


def claim(subject: LeaderSubject, request: int, round_: int, digest: int) -> list[effects.Effect]:
    sequence = sequence_in(round_, digest)
    return subject.append(request, kind=Kind.CLAIM, producer=NAMED, sequence=sequence)


def test_a_named_producer_begins_any_later_round_at_its_first_record_only() -> None:
    subject = serving_leader()
    assert refusal(subject.append(1, producer=NAMED, sequence=sequence_in(5, 1))) is Refusal.SEQUENCE_GAP
    subject.append(2, producer=NAMED, sequence=sequence_in(5, 0), count=3)
    subject.settle()
    assert refusal(subject.append(3, producer=NAMED, sequence=sequence_in(7, 3))) is Refusal.SEQUENCE_GAP
    assert every(subject.append(4, producer=NAMED, sequence=sequence_in(7, 0)), effects.Persist)
    subject.settle()
    again = subject.append(5, producer=NAMED, sequence=sequence_in(5, 3))
    assert replies(again) == {5: Acked(offset=None)}
    assert every(again, effects.Persist) == []


def test_a_round_is_claimed_for_one_content_and_none_before_it_any_more() -> None:
    subject = serving_leader()
    assert every(claim(subject, 1, 5, 1), effects.Persist)
    assert refusal(claim(subject, 2, 5, 2)) is Refusal.CLAIMED  # also while the first is unapplied
    subject.settle()
    assert refusal(claim(subject, 3, 5, 2)) is Refusal.CLAIMED
    assert refusal(claim(subject, 4, 4, 1)) is Refusal.CLAIMED
    assert replies(claim(subject, 5, 5, 1)) == {5: Acked(offset=Offset(1))}
    assert every(claim(subject, 6, 6, 2), effects.Persist)


def test_of_silent_named_producers_those_that_last_are_kept() -> None:
    subject = serving_leader(options=settings(producer_expiry_ms=Millis(4_000)))
    for request, producer in enumerate((NAMED, LASTING)):
        subject.append(request, producer=producer, sequence=sequence_in(0, 0))
    subject.settle()
    for _ in range(8):
        subject.tick(after=1_000)
    subject.settle()
    assert list(subject.replica.producers.table.producers) == [LASTING]
