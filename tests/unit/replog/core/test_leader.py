from __future__ import annotations

import msgspec
import pytest

from stretto.replog.core import effects, events, messages
from stretto.replog.core.effects import Acked, Refusal
from stretto.replog.core.messages import RejectReason
from stretto.replog.core.producers import (
    NAMED_SILENCE_MS,
    NO_PRODUCER,
    named_producer_id,
    new_producer_id,
    sequence_in,
)
from stretto.replog.frame import Kind, payload
from stretto.vocabulary.types import Epoch, Millis, Offset
from tests.support.core_group import (
    PRODUCER,
    SETTINGS,
    W0,
    W1,
    W2,
    LeaderSubject,
    Subject,
    append_event,
    entries,
    entries_message,
    every,
    history,
    new_leader,
    noted,
    only,
    record,
    refusal,
    replies,
    sent,
    serving_leader,
    settings,
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


def test_a_new_leader_waits_for_what_is_applied() -> None:
    subject = new_leader()
    assert waits_for_state(subject)
    subject.persisted()
    subject.join(W1)
    subject.join(W2)
    subject.applied()
    assert not waits_for_state(subject)


def test_a_producer_does_not_wait_for_what_is_applied_and_who_asks_for_that_does() -> None:
    subject = serving_leader()
    subject.append(1)
    assert not waits_for_state(subject)
    subject.append(2, until_applied=True)
    assert waits_for_state(subject)
    subject.settle()
    assert not waits_for_state(subject)


def test_while_much_is_not_applied_producers_wait_for_that_and_readers_do_not() -> None:
    subject = serving_leader(options=settings(early_bytes=300))
    subject.append(1, payload=bytes(400))
    assert replies(decide(subject)) == {}
    assert waits_for_state(subject)
    assert only(subject.step(events.Read(request=7)), effects.Sample).request == 7
    assert replies(subject.applied()) == {1: Acked(offset=Offset(1))}
    subject.append(2, payload=bytes(10))
    assert replies(decide(subject)) == {2: Acked(offset=Offset(2))}


def test_producers_that_need_not_wait_any_more_are_answered_when_the_option_changes() -> None:
    subject = serving_leader(options=settings(early_bytes=300))
    subject.append(1, payload=bytes(400))
    assert replies(decide(subject)) == {}
    happened = subject.step(events.OptionsChanged(settings=settings(early_bytes=10_000)))
    assert replies(happened) == {1: Acked(offset=Offset(1))}
    assert not waits_for_state(subject)


def test_who_is_behind_many_entries_waits_for_what_is_applied() -> None:
    """A bound of one unapplied entry would refuse whoever goes on at once."""
    subject = serving_leader(options=settings(max_unapplied=1))
    subject.append(1)
    assert replies(decide(subject)) == {}
    assert replies(subject.applied()) == {1: Acked(offset=Offset(1))}


def test_who_reads_waits_for_what_was_acknowledged_before_and_for_nothing_else() -> None:
    subject = serving_leader()
    subject.append(1)
    subject.step(events.Read(request=7))
    assert not waits_for_state(subject), "what is not decided need not be seen"
    decide(subject)
    happened = subject.step(events.Read(request=8))
    assert every(happened, effects.Sample) == []
    assert waits_for_state(subject)
    assert only(subject.applied(), effects.Sample).request == 8
    assert not waits_for_state(subject)


def test_a_read_that_was_sampled_too_early_is_sampled_again() -> None:
    subject = serving_leader()
    subject.append(1)
    decide(subject)
    assert replies(subject.step(events.Read(request=8, is_sampled=True))) == {}
    assert only(subject.applied(), effects.Sample).request == 8


def test_a_read_that_waits_for_what_is_applied_is_refused_when_its_leader_steps_down() -> None:
    subject = serving_leader()
    subject.append(1)
    decide(subject)
    subject.step(events.Read(request=8))
    happened = subject.see(record(2, W1))
    assert refusal(happened) is Refusal.NOT_LEADER
    assert every(subject.applied(), effects.Sample) == []


def test_a_leader_that_hands_over_waits_for_what_is_applied() -> None:
    subject = serving_leader()
    subject.step(events.Resign(epoch=Epoch(1), target=W1))
    assert waits_for_state(subject)


def test_a_leader_waits_for_what_is_applied_before_it_has_to_refuse_appends() -> None:
    subject = serving_leader(options=settings(max_unapplied=6))
    for request in (1, 2):
        subject.append(request)
    assert not waits_for_state(subject)
    subject.append(3)
    assert waits_for_state(subject)


def test_a_follower_waits_for_its_disk_and_not_for_its_state() -> None:
    subject = serving_leader()
    subject.see(record(2, W1))
    assert not waits_for_state(subject)
    assert waits_for_disk(subject), "a follower's leader waits for its confirmation"


def decide(subject: LeaderSubject) -> list[effects.Effect]:
    subject.persisted()
    subject.confirm(W1)
    return subject.confirm(W2)


# Appending.


def test_an_append_is_persisted_and_forwarded_at_the_same_time() -> None:
    subject = serving_leader()
    happened = subject.append(1, payload=b"hello")
    (frame,) = only(happened, effects.Persist).frames
    assert (frame.header.offset, frame.header.epoch, bytes(payload(frame))) == (1, 1, b"hello")
    assert {(each.to, each.start) for each in every(happened, effects.SendEntries)} == {(W1, 1), (W2, 1)}
    assert replies(happened) == {}


def test_an_append_is_acknowledged_when_it_is_decided_and_not_before() -> None:
    subject = serving_leader()
    subject.append(1)
    assert replies(subject.persisted()) == {}
    assert replies(subject.confirm(W1)) == {}
    happened = subject.confirm(W2)
    assert only(happened, effects.Apply).end == 2
    assert replies(happened) == {1: Acked(offset=Offset(1))}
    assert replies(subject.applied()) == {}


def test_an_append_that_asks_for_it_is_acknowledged_when_it_is_applied() -> None:
    subject = serving_leader()
    subject.append(1, until_applied=True)
    subject.persisted()
    subject.confirm(W1)
    assert replies(subject.confirm(W2)) == {}
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
    subject = serving_leader(options=settings(max_unapplied=100))
    for request in range(1, 5):
        subject.append(request, count=2)
    subject.persisted()
    subject.confirm(W1)
    happened = subject.confirm(W2)
    assert only(happened, effects.Apply).end == 9
    assert replies(happened) == {request: Acked(offset=Offset(2 * request - 1)) for request in range(1, 5)}


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


def test_a_duplicate_of_an_undecided_batch_is_acknowledged_with_the_original() -> None:
    subject = serving_leader()
    subject.open_producer()
    subject.append(1, producer=PRODUCER)
    again = subject.append(2, producer=PRODUCER)
    assert again == []
    subject.persisted()
    subject.confirm(W1)
    assert replies(subject.confirm(W2)) == {1: Acked(offset=Offset(2)), 2: Acked(offset=Offset(2))}


def test_a_duplicate_of_a_decided_batch_is_acknowledged_at_once_or_when_it_is_applied() -> None:
    subject = serving_leader()
    subject.open_producer()
    subject.append(1, producer=PRODUCER)
    decide(subject)
    assert replies(subject.append(2, producer=PRODUCER)) == {2: Acked(offset=Offset(2))}
    assert replies(subject.append(3, producer=PRODUCER, until_applied=True)) == {}
    assert replies(subject.applied()) == {3: Acked(offset=Offset(2))}


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


def test_a_claim_is_void_once_a_later_one_is_acknowledged_applied_or_not() -> None:
    subject = serving_leader()
    claim(subject, 1, 5, 1)
    decide(subject)
    claim(subject, 2, 6, 1)
    assert replies(decide(subject)) == {2: Acked(offset=Offset(2))}
    assert refusal(claim(subject, 3, 5, 1)) is Refusal.CLAIMED
    assert replies(claim(subject, 4, 6, 1)) == {4: Acked(offset=Offset(2))}
    subject.applied()
    assert refusal(claim(subject, 5, 5, 1)) is Refusal.CLAIMED


def test_of_silent_named_producers_those_that_last_are_kept_and_the_others_for_a_week() -> None:
    """Whatever the option says: those who repeat a write within days were promised that it is stored once."""
    subject = serving_leader(options=settings(producer_expiry_ms=Millis(4_000)))
    for request, producer in enumerate((NAMED, LASTING)):
        subject.append(request, producer=producer, sequence=sequence_in(0, 0))
    subject.settle()
    for _ in range(8):
        subject.tick(after=NAMED_SILENCE_MS // 9)
    subject.settle()
    assert set(subject.replica.producers.table.producers) == {NAMED, LASTING}
    subject.tick(after=NAMED_SILENCE_MS // 8)
    subject.settle()
    assert list(subject.replica.producers.table.producers) == [LASTING]
