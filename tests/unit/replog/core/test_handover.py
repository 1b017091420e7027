from __future__ import annotations

import pytest

from stretto.replog.core import effects, events, messages
from stretto.replog.core.effects import Refusal
from stretto.replog.core.events import CasOutcome
from stretto.replog.core.following.follower import Follower
from stretto.replog.core.leading.handover import Handover
from stretto.vocabulary.types import Epoch, WorkerId
from tests.support.core_group import (
    SETTINGS,
    W0,
    W1,
    W2,
    LeaderSubject,
    every,
    incarnation_of,
    noted,
    only,
    record,
    refusal,
    registration,
    sent,
    serving_leader,
)


def resign(subject: LeaderSubject, target: WorkerId | None = W1, *, epoch: int = 1) -> list[effects.Effect]:
    """Whose driver has nothing to finish."""
    happened = subject.step(events.Resign(epoch=Epoch(epoch), target=target))
    return happened + subject.step(events.WorkFinished(epoch=Epoch(epoch)))


def draining() -> LeaderSubject:
    """An append is not applied yet, so nothing is sent."""
    subject = serving_leader()
    subject.append(1)
    assert every(resign(subject), effects.CompareAndSet) == []
    return subject


def handing_over() -> tuple[LeaderSubject, effects.CompareAndSet]:
    subject = serving_leader()
    return subject, only(resign(subject), effects.CompareAndSet)


def only_handover(subject: LeaderSubject) -> Handover:
    assert subject.role.handover is not None
    return subject.role.handover


def test_an_idle_leader_hands_over_at_once() -> None:
    subject, cas = handing_over()
    assert (cas.record.leader, cas.record.leader_incarnation) == (W1, incarnation_of(W1))
    assert cas.record.epoch == 2
    assert cas.record.isr == record(1, W0).isr
    assert cas.version == subject.version
    assert cas.must_exist == (registration(W1),)


@pytest.mark.parametrize(("epoch", "target"), [(0, W1), (2, W1), (1, W0), (1, WorkerId("elsewhere"))])
def test_a_request_that_is_not_meant_or_not_possible_is_deleted(epoch: int, target: WorkerId) -> None:
    subject = serving_leader()
    happened = resign(subject, target, epoch=epoch)
    assert noted(happened) == ["refuses_to_resign"]
    assert only(happened, effects.ForgetResign).epoch == epoch
    assert subject.role.handover is None


def test_a_target_outside_the_isr_is_refused() -> None:
    assert noted(resign(serving_leader((W0, W1)), W2)) == ["refuses_to_resign"]


def test_without_a_target_the_member_that_confirmed_most_takes_over() -> None:
    subject = serving_leader()
    subject.append(1)
    subject.confirm(W2, subject.replica.log_end)
    resign(subject, None)
    assert only_handover(subject).target == W2


def test_without_a_target_the_one_assigned_first_takes_over_of_those_that_confirmed_as_much() -> None:
    subject = serving_leader()
    assert only(resign(subject, None), effects.CompareAndSet).record.leader == W1


def test_without_a_target_nobody_takes_over_who_is_gone_or_not_in_the_isr() -> None:
    subject = serving_leader()
    subject.gone(registration(W1))
    subject.step(events.Resign(epoch=Epoch(1)))
    assert only_handover(subject).target == W2
    subject = serving_leader((W0, W2))
    subject.step(events.Resign(epoch=Epoch(1)))
    assert only_handover(subject).target == W2


@pytest.mark.parametrize(("epoch", "gone"), [(1, (W1,)), (0, ())])
def test_a_worker_that_stops_may_ask_in_vain_again_and_again(epoch: int, gone: tuple[WorkerId, ...]) -> None:
    subject = serving_leader((W0, W1))
    for worker in gone:
        subject.gone(registration(worker))
    assert subject.step(events.Resign(epoch=Epoch(epoch))) == []
    assert subject.role.handover is None


def test_a_worker_that_stops_does_not_disturb_a_hand_over_under_way() -> None:
    subject = draining()
    before = only_handover(subject)
    assert subject.step(events.Resign(epoch=Epoch(1))) == []
    assert subject.role.handover is before


def test_a_second_request_is_refused_while_one_is_under_way() -> None:
    subject = draining()
    assert "refuses_to_resign" in noted(resign(subject, W2))


def test_a_resigning_leader_takes_no_appends_but_serves_reads() -> None:
    subject = draining()
    subject.step(events.LeaseRenewed(sent_at=subject.now))
    assert refusal(subject.append(2)) is Refusal.HANDING_OVER
    subject.step(events.Read(request=3))
    assert only(subject.step(events.Sampled(request=3)), effects.Reply).result == effects.ReadServed(
        epoch=Epoch(1)
    )


def test_it_hands_over_only_when_the_target_has_everything_and_everything_is_applied() -> None:
    subject = draining()
    subject.persisted()
    assert every(subject.confirm(W1), effects.CompareAndSet) == []
    assert every(subject.confirm(W2), effects.CompareAndSet) == []
    happened = subject.applied()
    assert only(happened, effects.CompareAndSet).record.leader == W1


def test_it_waits_for_a_change_of_the_isr_that_is_under_way() -> None:
    subject = serving_leader((W0, W1))
    change = only(subject.join(W2), effects.CompareAndSet)
    assert every(resign(subject), effects.CompareAndSet) == []
    happened = subject.cas(change)
    assert only(happened, effects.CompareAndSet).record.leader == W1


def test_reads_stop_before_the_compare_and_set_is_sent() -> None:
    subject = draining()
    subject.step(events.LeaseRenewed(sent_at=subject.now))
    subject.step(events.Read(request=3))
    subject.settle()
    assert refusal(subject.step(events.Read(request=4))) is Refusal.HANDING_OVER
    assert refusal(subject.step(events.Sampled(request=3))) is Refusal.HANDING_OVER


def test_no_change_of_the_isr_is_proposed_once_the_hand_over_is_sent() -> None:
    subject, _ = handing_over()
    assert every(subject.gone(registration(W2)), effects.CompareAndSet) == []


def test_having_handed_over_it_follows_the_target() -> None:
    subject, cas = handing_over()
    happened = subject.cas(cas)
    assert only(happened, effects.ForgetResign).epoch == 1
    assert isinstance(subject.replica.role, Follower)
    assert len(sent(happened, messages.Hello, to=W1)) == 1


def finishing() -> LeaderSubject:
    subject = serving_leader()
    happened = subject.step(events.Resign(epoch=Epoch(1), target=W1))
    assert only(happened, effects.FinishWork).epoch == 1
    assert every(happened, effects.CompareAndSet) == []
    return subject


def test_a_leader_takes_appends_until_its_driver_has_finished() -> None:
    subject = finishing()
    assert every(subject.append(1), effects.Reply) == [], "it is taken, and not refused"
    happened = subject.step(events.WorkFinished(epoch=Epoch(1)))
    assert every(happened, effects.CompareAndSet) == [], "that append is not applied"
    assert refusal(subject.append(2)) is Refusal.HANDING_OVER


def test_what_was_finished_in_another_epoch_does_not_count() -> None:
    subject = finishing()
    assert subject.step(events.WorkFinished(epoch=Epoch(0))) == []
    assert subject.role.handover is not None
    assert subject.role.handover.is_finishing


def test_a_driver_that_does_not_finish_in_time_is_not_waited_for() -> None:
    subject = finishing()
    half = SETTINGS.resign_timeout_ms // 2
    assert every(subject.tick(after=half - 1), effects.CompareAndSet) == []
    happened = subject.tick(after=1)
    assert "hands_over_unfinished" in noted(happened)
    assert only(happened, effects.CompareAndSet).record.leader == W1


def test_if_nothing_was_sent_in_time_it_resumes() -> None:
    subject = draining()
    assert "resumes" not in noted(subject.tick(after=SETTINGS.resign_timeout_ms - 1))
    happened = subject.tick(after=1)
    assert "resumes" in noted(happened)
    assert only(happened, effects.ForgetResign).epoch == 1
    subject.settle()
    assert every(subject.append(2), effects.Persist) != []


def test_once_sent_time_alone_does_not_let_it_resume() -> None:
    subject, _ = handing_over()
    assert "resumes" not in noted(subject.tick(after=10 * SETTINGS.resign_timeout_ms))
    assert refusal(subject.append(2)) is Refusal.HANDING_OVER


@pytest.mark.parametrize("outcome", [CasOutcome.UNKNOWN, CasOutcome.BAD_VERSION])
def test_a_hand_over_whose_outcome_is_unknown_is_settled_by_a_synced_read(outcome: CasOutcome) -> None:
    subject, cas = handing_over()
    read = only(subject.cas(cas, outcome), effects.ReadRecord)
    assert read.sync
    assert refusal(subject.append(2)) is Refusal.HANDING_OVER
    happened = subject.see_again(token=read.token)
    assert "resumes" in noted(happened)
    assert every(subject.append(3), effects.Persist) != []


def test_a_hand_over_that_was_made_although_its_reply_was_lost_ends_leadership() -> None:
    subject, cas = handing_over()
    read = only(subject.cas(cas, CasOutcome.UNKNOWN), effects.ReadRecord)
    subject.see(cas.record, token=read.token)
    assert isinstance(subject.replica.role, Follower)


def test_a_settling_read_that_is_lost_is_repeated() -> None:
    subject, cas = handing_over()
    read = only(subject.cas(cas, CasOutcome.UNKNOWN), effects.ReadRecord)
    subject.step(events.ReadFailed(token=read.token))
    assert only(subject.tick(after=SETTINGS.retry_ms), effects.ReadRecord).token > read.token


def test_a_target_that_is_gone_lets_it_resume() -> None:
    subject, cas = handing_over()
    assert "resumes" in noted(subject.cas(cas, CasOutcome.NO_REGISTRATION))
    assert every(subject.append(2), effects.Persist) != []


def test_the_target_leads_the_epoch_it_was_given() -> None:
    _, cas = handing_over()
    target = LeaderSubject(W1)
    target.see(record(1, W0))
    happened = target.see(cas.record)
    assert "leads" in noted(happened)
    assert only(happened, effects.Persist).frames[0].header.epoch == 2
