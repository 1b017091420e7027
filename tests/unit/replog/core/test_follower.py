from __future__ import annotations

import pytest

from stretto.replog.core import effects, events, messages
from stretto.replog.core.effects import Refusal
from stretto.replog.core.messages import RejectReason
from stretto.replog.core.producers import ProducerTable
from stretto.replog.core.replica import RoleName
from stretto.replog.frame import Kind
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.types import Epoch, Offset, StorageId, WorkerId
from tests.support.core_group import (
    PRODUCER,
    SETTINGS,
    W0,
    W1,
    W2,
    FollowerSubject,
    append_event,
    entries,
    entry,
    every,
    history,
    incarnation_of,
    last_confirm,
    new_follower,
    noted,
    only,
    reconciled_follower,
    record,
    refusal,
    registration,
    sent,
)

RETRY_MS = SETTINGS.retry_ms


def reject(reason: RejectReason, epoch: int = 1) -> messages.Reject:
    return messages.Reject(Epoch(epoch), incarnation_of(W0), reason=reason)


# Learning of a leader.


def test_first_tick_asks_for_the_record_and_asks_again_until_told() -> None:
    subject = FollowerSubject(W1)
    first = only(subject.tick(), effects.ReadRecord)
    assert first.sync
    assert every(subject.tick(after=RETRY_MS - 1), effects.ReadRecord) == []
    second = only(subject.tick(after=1), effects.ReadRecord)
    assert second.token > first.token


def test_a_lost_read_is_repeated_after_the_retry_time_not_at_once() -> None:
    subject = FollowerSubject(W1)
    token = only(subject.tick(), effects.ReadRecord).token
    assert subject.step(events.ReadFailed(token=token)) == []
    assert subject.replica.next_deadline() == subject.now + RETRY_MS


def test_follower_greets_its_leader_and_tests_its_registration() -> None:
    subject = FollowerSubject(W1, log=entries(0, 3))
    happened = subject.see(record(2, W0))

    (hello,) = sent(happened, messages.Hello, to=W0)
    assert (hello.epoch, hello.attempt, hello.end) == (2, 1, 3)
    assert hello.incarnation == incarnation_of(W1)
    assert only(happened, effects.CheckRegistration).registration == registration(W0)


def test_hello_is_repeated_with_a_new_attempt_until_answered() -> None:
    subject = new_follower()
    assert subject.tick(after=RETRY_MS - 1) == []
    (again,) = sent(subject.tick(after=1), messages.Hello)
    assert again.attempt == 2
    subject.lineage(end=0)
    assert sent(subject.tick(after=10 * RETRY_MS), messages.Hello) == []


def test_a_record_of_an_older_version_is_ignored() -> None:
    subject = new_follower(epoch=3)
    stale = events.RecordRead(record=record(2, W2), version=subject.version - 1)
    assert subject.step(stale) == []
    assert subject.role.leader == W0


def test_a_new_epoch_begins_with_a_new_hello() -> None:
    subject = reconciled_follower()
    (hello,) = sent(subject.see(record(2, W2)), messages.Hello, to=W2)
    assert hello.epoch == 2
    assert not subject.role.reconciled


def test_a_change_of_the_isr_alone_does_not_disturb_the_stream() -> None:
    subject = reconciled_follower()
    happened = subject.see(record(1, W0, (W0, W1)))
    assert sent(happened, messages.Hello) == []
    assert subject.role.reconciled
    assert only(happened, effects.CheckRegistration).registration == registration(W0)


# Reconciliation.


def test_lineage_truncates_where_the_logs_part_then_confirms() -> None:
    subject = new_follower(epoch=3, log=[*entries(0, 4, epoch=1), *entries(4, 7, epoch=2)])
    happened = subject.lineage((1, 0), (3, 5), end=6)

    truncate = only(happened, effects.Truncate)
    assert truncate.end == 4
    assert truncate.then == events.Persisted(end=Offset(4), generation=1)
    confirm = last_confirm(happened)
    assert (confirm.end, confirm.log_end, confirm.resume) == (4, 4, True)
    assert subject.replica.history == history((1, 0))


def test_a_log_that_is_a_prefix_is_not_truncated() -> None:
    subject = new_follower(epoch=2, log=entries(0, 3))
    happened = subject.lineage((1, 0), (2, 5), end=6)
    assert every(happened, effects.Truncate) == []
    assert last_confirm(happened).end == 3


def test_first_confirmation_is_repeated_until_the_leader_is_heard() -> None:
    subject = new_follower()
    subject.lineage(end=0)
    assert sent(subject.tick(after=RETRY_MS - 1), messages.Confirm) == []
    assert last_confirm(subject.tick(after=1)).resume
    subject.entries(entries(0, 1))
    assert sent(subject.tick(after=2 * RETRY_MS), messages.Confirm) == []


@pytest.mark.parametrize("attempt", [1, 3])
def test_only_the_answer_to_the_latest_hello_is_obeyed(attempt: int) -> None:
    subject = new_follower()
    subject.tick(after=RETRY_MS)
    assert subject.lineage(end=0, attempt=attempt) == []
    assert not subject.role.reconciled


def test_a_lineage_is_obeyed_once() -> None:
    subject = new_follower(epoch=2)
    subject.lineage((2, 0), end=1)
    subject.entries(entries(0, 3, epoch=2))
    assert subject.lineage((2, 0), end=1) == []
    assert subject.replica.log_end == 3


def test_a_lineage_for_another_incarnation_is_ignored() -> None:
    subject = new_follower()
    assert subject.lineage(end=0, life=2) == []


def test_truncation_takes_back_what_producers_had_pending() -> None:
    opening = entry(0, kind=Kind.PRODUCER_OPEN, producer=PRODUCER)
    subject = new_follower(epoch=2, log=[opening])
    assert subject.replica.producers.is_open(PRODUCER)
    subject.lineage((2, 0), end=1)
    assert not subject.replica.producers.is_open(PRODUCER)


def test_logs_that_part_below_the_apply_offset_are_an_invariant_violation() -> None:
    subject = new_follower(epoch=2, log=entries(0, 5), applied=4)
    with pytest.raises(InvariantViolation, match="logs part below the apply offset") as violated:
        subject.lineage((1, 0), (2, 3), end=6)
    assert any("follows" in line for line in violated.value.story)


def test_after_an_unclean_election_a_diverging_state_is_set_aside() -> None:
    subject = new_follower(epoch=2, unclean_epoch=2, log=entries(0, 5), applied=4)
    happened = subject.lineage((1, 0), (2, 3), end=6)
    assert "from 3 on" in only(happened, effects.SetAside).why
    assert subject.replica.stopped
    assert subject.replica.role_name is RoleName.STOPPED
    assert subject.tick(after=10_000) == []


def test_an_unclean_election_of_long_ago_excuses_nothing() -> None:
    subject = new_follower(epoch=4, unclean_epoch=2, log=entries(0, 5, epoch=3), applied=4)
    with pytest.raises(InvariantViolation, match="logs part below the apply offset"):
        subject.lineage((3, 0), (4, 3), end=6)


def test_a_pruned_log_does_not_confirm_beyond_the_log_of_an_unclean_leader_that_was_empty() -> None:
    subject = new_follower(
        (W0,), epoch=9, unclean_epoch=9, log=entries(40, 50, epoch=5), log_start=40, applied=40
    )
    happened = subject.lineage((9, 0), end=1, apply_offset=1, listed=False)
    assert [confirm for confirm in sent(happened, messages.Confirm) if confirm.end > 1] == []


# Taking entries.


def test_entries_are_persisted_and_confirmed_when_durable() -> None:
    subject = reconciled_follower()
    happened = subject.entries(entries(0, 3))
    persist = only(happened, effects.Persist)
    assert [frame.header.offset for frame in persist.frames] == [0, 1, 2]
    assert sent(happened, messages.Confirm) == []

    confirm = last_confirm(subject.step(persist.then))
    assert (confirm.end, confirm.log_end, confirm.resume) == (3, 3, False)


def test_follower_confirms_only_what_is_durable() -> None:
    subject = reconciled_follower()
    subject.entries(entries(0, 3))
    subject.entries(entries(3, 5))
    confirm = last_confirm(subject.persisted(3))
    assert (confirm.end, confirm.log_end) == (3, 5)


def test_one_confirmation_covers_many_entries() -> None:
    subject = reconciled_follower()
    for offset in range(4):
        subject.entries(entries(offset, offset + 1))
    assert [confirm.end for confirm in sent(subject.persisted(), messages.Confirm)] == [4]


def test_entries_before_reconciliation_are_ignored() -> None:
    subject = new_follower()
    assert subject.entries(entries(0, 3)) == []
    assert subject.replica.log_end == 0


def test_entries_for_another_incarnation_are_ignored() -> None:
    subject = reconciled_follower()
    assert subject.entries(entries(0, 3), life=2) == []


def test_entries_it_has_are_skipped_and_confirmed_again() -> None:
    subject = reconciled_follower(log=entries(0, 3))
    happened = subject.entries(entries(1, 3))
    assert every(happened, effects.Persist) == []
    confirm = last_confirm(happened)
    assert (confirm.end, confirm.resume) == (3, False)


def test_of_overlapping_entries_only_the_new_ones_are_taken() -> None:
    subject = reconciled_follower(log=entries(0, 3))
    persist = only(subject.entries(entries(1, 5)), effects.Persist)
    assert [frame.header.offset for frame in persist.frames] == [3, 4]


def test_a_gap_is_not_taken_and_asks_to_resume_at_the_end_of_the_log() -> None:
    subject = reconciled_follower(log=entries(0, 3))
    happened = subject.entries(entries(5, 7))
    assert every(happened, effects.Persist) == []
    confirm = last_confirm(happened)
    assert (confirm.log_end, confirm.resume) == (3, True)


def test_a_probe_is_answered_although_there_is_nothing_new() -> None:
    subject = reconciled_follower(log=entries(0, 3))
    confirm = last_confirm(subject.entries(probe=True))
    assert (confirm.end, confirm.log_end, confirm.resume) == (3, 3, True)


def test_a_message_without_entries_or_probe_needs_no_answer() -> None:
    subject = reconciled_follower(log=entries(0, 3))
    assert subject.entries() == []


def test_a_persisted_of_before_a_truncation_is_void() -> None:
    subject = reconciled_follower(epoch=1)
    late = only(subject.entries(entries(0, 4)), effects.Persist).then
    subject.see(record(2, W0))
    subject.lineage((1, 0), (2, 2), end=3)
    subject.entries(entries(2, 4, epoch=2))
    assert subject.step(late) == []
    assert subject.replica.durable_end == 0
    assert last_confirm(subject.persisted()).end == 4


def test_entries_newer_than_the_message_that_brings_them_are_not_taken() -> None:
    """Their sender's log was replaced between making the message and reading the entries."""
    subject = reconciled_follower(epoch=1)
    assert every(subject.entries(entries(0, 2, epoch=2)), effects.Persist) == []
    assert subject.replica.log_end == 0


# Applying.


def test_follower_applies_what_its_leader_applied_and_its_own_disk_holds() -> None:
    subject = reconciled_follower()
    assert every(subject.entries(entries(0, 4), apply_offset=3), effects.Apply) == []
    assert only(subject.persisted(2), effects.Apply).end == 2
    assert only(subject.persisted(4), effects.Apply).end == 3


def test_follower_never_applies_beyond_what_its_leader_decided() -> None:
    subject = reconciled_follower()
    subject.entries(entries(0, 4), apply_offset=0)
    assert every(subject.persisted(), effects.Apply) == []
    assert only(subject.entries(apply_offset=4), effects.Apply).end == 4


def test_an_old_apply_offset_does_not_take_a_newer_one_back() -> None:
    subject = reconciled_follower()
    subject.entries(entries(0, 4), apply_offset=4)
    subject.entries(apply_offset=1)
    assert only(subject.persisted(), effects.Apply).end == 4


def test_what_is_confirmed_tells_which_apply_offset_is_known() -> None:
    subject = reconciled_follower()
    subject.entries(entries(0, 4), apply_offset=2)
    assert last_confirm(subject.persisted()).known_apply_offset == 2


# Retention.


def test_the_log_is_cut_below_what_is_durably_applied_and_the_leader_wants_kept() -> None:
    subject = reconciled_follower(log=entries(0, 6), applied=5)
    subject.entries(apply_offset=5, retain_offset=3)
    assert only(subject.step(events.StateSynced(end=Offset(5))), effects.Cut).start == 3
    subject.step(events.LogCut(start=Offset(2)))
    assert subject.replica.log_start == 2
    subject.entries(apply_offset=5, retain_offset=6)
    assert only(subject.step(events.StateSynced(end=Offset(5))), effects.Cut).start == 5


def test_the_log_is_not_cut_before_the_leader_said_what_to_keep() -> None:
    subject = reconciled_follower(log=entries(0, 6), applied=5)
    assert subject.step(events.StateSynced(end=Offset(5))) == []


# Fencing.


def test_entries_of_an_older_epoch_are_answered_with_a_rejection_not_obeyed() -> None:
    subject = reconciled_follower(epoch=3)
    happened = subject.entries(entries(0, 1), epoch=2)
    (answer,) = sent(happened, messages.Reject, to=W0)
    assert (answer.epoch, answer.reason) == (3, RejectReason.STALE_EPOCH)
    assert every(happened, effects.Persist) == []


def test_a_message_of_a_newer_epoch_makes_it_read_the_record_once() -> None:
    subject = reconciled_follower()
    assert only(subject.entries(entries(0, 1), epoch=2), effects.ReadRecord).sync
    assert subject.entries(entries(0, 1), epoch=2) == []


@pytest.mark.parametrize(
    "message",
    [
        messages.Hello(Epoch(1), incarnation_of(W2), storage=StorageId("s"), attempt=1, end=Offset(0)),
        messages.FetchState(Epoch(1), incarnation_of(W2), attempt=1),
        messages.Confirm(
            Epoch(1),
            incarnation_of(W2),
            attempt=1,
            end=Offset(0),
            log_end=Offset(0),
            known_apply_offset=Offset(0),
            resume=False,
        ),
    ],
)
def test_what_only_a_leader_takes_is_rejected(message: messages.AnyMessage) -> None:
    subject = reconciled_follower()
    assert len(sent(subject.receive(message, W2), messages.Reject, to=W2)) == 1


def test_a_worker_outside_the_group_is_not_heard() -> None:
    subject, stranger = reconciled_follower(), WorkerId("stranger")
    hello = messages.Hello(
        Epoch(9), incarnation_of(stranger), storage=StorageId("s"), attempt=1, end=Offset(0)
    )
    assert subject.receive(hello, stranger) == []


def test_a_rejection_of_a_newer_epoch_makes_it_read_the_record() -> None:
    subject = reconciled_follower()
    assert only(subject.receive(reject(RejectReason.STALE_EPOCH, epoch=2), W0), effects.ReadRecord).sync


@pytest.mark.parametrize(
    "reason", [RejectReason.STALE_INCARNATION, RejectReason.OUT_OF_RANGE, RejectReason.NEW_EPOCH]
)
def test_a_leader_that_does_not_know_us_any_more_is_greeted_again(reason: RejectReason) -> None:
    subject = reconciled_follower()
    (hello,) = sent(subject.receive(reject(reason), W0), messages.Hello)
    assert hello.attempt == 2
    assert not subject.role.reconciled


def test_a_rejection_is_never_answered_with_a_rejection() -> None:
    subject = reconciled_follower(epoch=2)
    assert subject.receive(reject(RejectReason.STALE_EPOCH, epoch=1), W0) == []
    assert subject.receive(reject(RejectReason.STALE_EPOCH, epoch=2), W0) == []


# Far horizon.


def out_of_reach(subject: FollowerSubject) -> list[effects.Effect]:
    return subject.lineage((4, 30), start=40, end=60, apply_offset=60, listed=False)


def test_follower_that_the_log_does_not_reach_asks_for_the_state() -> None:
    subject = new_follower((W0, W2), epoch=4, log=entries(0, 3), applied=2)
    happened = out_of_reach(subject)
    assert only(happened, effects.Truncate).end == 2
    (fetch,) = sent(happened, messages.FetchState, to=W0)
    assert fetch.attempt == 1
    assert subject.replica.role_name is RoleName.FAR


def test_follower_further_behind_than_the_near_lag_asks_for_the_state() -> None:
    subject = new_follower((W0, W2), log=entries(0, 3), applied=3)
    near = subject.lineage((1, 0), end=30, apply_offset=23, listed=False)
    assert sent(near, messages.FetchState) == []

    subject = new_follower((W0, W2), log=entries(0, 3), applied=3)
    far = subject.lineage((1, 0), end=30, apply_offset=24, listed=False)
    assert len(sent(far, messages.FetchState)) == 1


def test_a_listed_member_never_goes_far() -> None:
    subject = new_follower(log=entries(0, 3), applied=3)
    with pytest.raises(InvariantViolation, match="does not reach a member"):
        subject.lineage((1, 0), end=60, apply_offset=50, listed=True)


def test_a_state_that_does_not_come_is_asked_for_again_from_the_hello_on() -> None:
    subject = new_follower((W0, W2), epoch=4, log=entries(0, 3), applied=2)
    out_of_reach(subject)
    assert subject.tick(after=SETTINGS.state_timeout_ms - 1) == []
    (hello,) = sent(subject.tick(after=1), messages.Hello)
    assert hello.attempt == 2
    assert subject.replica.role_name is RoleName.NEAR


def test_a_state_that_keeps_coming_is_not_asked_for_again() -> None:
    subject = new_follower((W0, W2), epoch=4, log=entries(0, 3), applied=2)
    fetch = only(out_of_reach(subject), effects.FetchState)
    assert (fetch.leader, fetch.epoch, fetch.attempt) == (W0, 4, 1)
    subject.tick(after=SETTINGS.state_timeout_ms - 1)
    subject.step(events.TransferProgressed(epoch=Epoch(4), attempt=1))
    assert subject.tick(after=SETTINGS.state_timeout_ms - 1) == []
    subject.step(events.TransferProgressed(epoch=Epoch(4), attempt=0))
    assert len(sent(subject.tick(after=1), messages.Hello)) == 1


def test_a_failed_transfer_begins_again_at_once() -> None:
    subject = new_follower((W0, W2), epoch=4, log=entries(0, 3), applied=2)
    out_of_reach(subject)
    assert len(sent(subject.step(events.TransferFailed()), messages.Hello)) == 1


def arrived(subject: FollowerSubject, end: int, *, attempt: int = 1, epoch: int = 4) -> list[effects.Effect]:
    return subject.step(events.StateArrived(epoch=Epoch(epoch), attempt=attempt, end=Offset(end)))


def far_follower() -> FollowerSubject:
    """It has applied [0, 2) and waits for the state of epoch 4."""
    subject = new_follower((W0, W2), epoch=4, log=entries(0, 3), applied=2)
    out_of_reach(subject)
    return subject


def installed(end: int) -> events.StateInstalled:
    table = ProducerTable({PRODUCER: {}})
    return events.StateInstalled(end=Offset(end), history=history((4, 30)), producers=table)


def test_a_state_that_was_asked_for_is_installed() -> None:
    assert arrived(far_follower(), 50) == [effects.InstallState(end=Offset(50))]


@pytest.mark.parametrize(("attempt", "epoch"), [(2, 4), (1, 3)])
def test_a_state_that_answers_another_request_is_not_installed(attempt: int, epoch: int) -> None:
    assert arrived(far_follower(), 50, attempt=attempt, epoch=epoch) == []


def test_a_state_behind_the_log_is_not_installed() -> None:
    assert arrived(far_follower(), 1) == []


def test_a_state_that_nobody_waits_for_is_not_installed() -> None:
    assert arrived(reconciled_follower(epoch=4), 50) == []
    with pytest.raises(InvariantViolation, match="not asked for"):
        far_follower().step(installed(50))


def test_a_state_is_installed_once() -> None:
    subject = far_follower()
    arrived(subject, 50)
    assert arrived(subject, 60) == []


def test_an_installed_state_replaces_log_producers_and_offsets_and_a_hello_follows() -> None:
    subject = far_follower()
    arrived(subject, 50)
    (hello,) = sent(subject.step(installed(50)), messages.Hello)
    replica = subject.replica
    assert hello.end == 50
    assert (replica.log_start, replica.log_end, replica.durable_end) == (50, 50, 50)
    assert (replica.applied, replica.apply_offset, replica.durably_applied) == (50, 50, 50)
    assert replica.producers.is_open(PRODUCER)
    assert last_confirm(subject.lineage((4, 30), start=40, end=60, apply_offset=60)).end == 50


def test_while_a_state_is_installed_it_greets_nobody_and_does_not_stand() -> None:
    subject = far_follower()
    arrived(subject, 50)
    assert sent(subject.tick(after=SETTINGS.state_timeout_ms), messages.Hello) == []
    assert sent(subject.see(record(5, W2)), messages.Hello) == []
    subject.gone(registration(W2))
    assert every(subject.tick(after=10_000), effects.CompareAndSet) == []
    (hello,) = sent(subject.step(installed(50)), messages.Hello, to=W2)
    assert (hello.epoch, hello.end) == (5, 50)


def test_an_installation_that_failed_begins_again() -> None:
    subject = far_follower()
    arrived(subject, 50)
    (hello,) = sent(subject.step(events.TransferFailed()), messages.Hello)
    assert (hello.attempt, hello.end) == (2, 2)


# Clients and operators.


def test_clients_are_sent_to_the_leader() -> None:
    subject = reconciled_follower(epoch=3)
    for event in (append_event(5), events.Read(request=5), events.Sampled(request=5)):
        result = only(subject.step(event), effects.Reply).result
        assert result == effects.Refused(reason=Refusal.NOT_LEADER, leader=W0, epoch=Epoch(3))


def test_without_a_record_clients_are_told_that_no_leader_is_known() -> None:
    subject = FollowerSubject(W1)
    assert refusal(subject.step(append_event())) is Refusal.NOT_LEADER


def test_a_resign_request_of_an_earlier_epoch_is_stale_and_deleted() -> None:
    subject = reconciled_follower(epoch=2)
    happened = subject.step(events.Resign(epoch=Epoch(1), target=W2))
    assert only(happened, effects.ForgetResign).epoch == 1


# Failures.


@pytest.mark.parametrize("suspect", [True, False])
def test_a_failed_write_is_never_retried_the_replica_stops_and_says_so(suspect: bool) -> None:
    subject = reconciled_follower()
    persist = only(subject.entries(entries(0, 3)), effects.Persist)
    happened = subject.step(events.StorageFailed(why="disk on fire", suspect=suspect))
    assert only(happened, effects.Stop) == effects.Stop(why="disk on fire", renew=suspect)
    assert noted(happened) == ["stopped"]
    assert subject.step(persist.then) == []
    assert subject.replica.next_deadline() is None


def test_the_roles_people_see() -> None:
    assert reconciled_follower().replica.role_name is RoleName.FOLLOWER
    assert reconciled_follower((W0, W2)).replica.role_name is RoleName.NEAR
    assert FollowerSubject(W1).replica.role_name is RoleName.NEAR
