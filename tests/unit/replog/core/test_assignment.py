"""The replicas of a group change while it runs: the leader follows the assignment."""

from __future__ import annotations

import msgspec
import pytest

from stretto.replog.core import effects, events
from stretto.replog.core.effects import Effect
from stretto.replog.core.events import CasOutcome
from stretto.replog.core.guards import GUARDS
from stretto.replog.core.record import GroupRecord
from stretto.vocabulary.types import WorkerId
from tests.support.core_group import (
    ALL,
    SETTINGS,
    W0,
    W1,
    W2,
    LeaderSubject,
    every,
    member,
    new_leader,
    noted,
    only,
    record,
    sent,
    serving_leader,
    settings,
)

W3, W4 = WorkerId("w3"), WorkerId("w4")


def assign(subject: LeaderSubject, *replicas: WorkerId, plan: int = 1) -> list[Effect]:
    return subject.step(events.ReplicasChanged(plan=plan, replicas=replicas))


def listed(found: GroupRecord) -> list[WorkerId]:
    return [each.worker for each in found.isr]


def test_the_record_tells_which_assignment_the_leader_follows() -> None:
    subject = serving_leader()
    cas = only(assign(subject, *ALL, W3), effects.CompareAndSet)
    assert (cas.record.plan, listed(cas.record), cas.record.osr) == (1, [W0, W1, W2], (W3,))


def test_an_earlier_assignment_is_not_taken() -> None:
    subject = serving_leader()
    assign(subject, *ALL, W3, plan=5)
    assert assign(subject, W0, plan=4) == []
    assert subject.replica.replicas == (*ALL, W3)


def test_a_newcomer_is_heard_once_it_is_assigned() -> None:
    subject = serving_leader()
    assert subject.hello(W3) == []
    subject.cas(only(assign(subject, *ALL, W3), effects.CompareAndSet))
    assert len(sent(subject.hello(W3), object, to=W3)) == 1


def test_a_raised_factor_raises_min_isr_when_the_isr_has_as_many() -> None:
    subject = serving_leader((W0, W1), replicas=(W0, W1))
    assert subject.replica.min_isr == 1
    subject.cas(only(assign(subject, W0, W1), effects.CompareAndSet))
    subject.cas(only(assign(subject, W0, W1, W2, W3, W4, plan=2), effects.CompareAndSet))
    assert (subject.replica.known_record.factor, subject.replica.min_isr) == (2, 1)
    subject.cas(only(subject.join(W2), effects.CompareAndSet))
    assert subject.replica.min_isr == 1
    cas = only(subject.join(W3), effects.CompareAndSet)
    assert cas.record.factor == 5
    subject.cas(cas)
    assert subject.replica.min_isr == 4


def test_a_raise_that_is_under_way_counts() -> None:
    """Its outcome is not known: the ISR that would be too small for it applies nothing."""
    subject = serving_leader((W0, W1), replicas=(W0, W1), options=settings(min_isr=3))
    assert subject.replica.min_isr == 2
    subject.cas(only(assign(subject, W0, W1, W2), effects.CompareAndSet))
    cas = only(subject.join(W2), effects.CompareAndSet)
    assert cas.record.factor == 3
    subject.cas(cas, CasOutcome.UNKNOWN)
    subject.append(1)
    subject.persisted()
    assert every(subject.confirm(W1), effects.Apply) == []


def test_members_that_are_not_assigned_stay_until_all_who_are_have_come() -> None:
    subject = serving_leader()
    subject.cas(only(assign(subject, W0, W3, W4), effects.CompareAndSet))
    assert listed(subject.replica.known_record) == [W0, W1, W2]
    subject.cas(only(subject.join(W3), effects.CompareAndSet))
    assert listed(subject.replica.known_record) == [W0, W1, W2, W3]
    cas = only(subject.join(W4), effects.CompareAndSet)
    assert listed(cas.record) == [W0, W3, W4]
    subject.cas(cas)
    assert sorted(subject.role.followers) == [W3, W4]
    assert subject.hello(W1, attempt=2) == []


def test_a_lowered_factor_drops_who_is_left_out_at_once() -> None:
    subject = serving_leader()
    cas = only(assign(subject, W0), effects.CompareAndSet)
    assert (listed(cas.record), cas.record.factor, cas.record.plan) == ([W0], 1, 1)
    subject.append(1)
    subject.persisted()
    assert every(subject.confirm(W1), effects.Apply) == []  # w2 may still be a member
    subject.cas(cas)
    assert subject.replica.min_isr == 1
    assert subject.replica.apply_offset == subject.replica.log_end


def finished(subject: LeaderSubject) -> list[effects.Effect]:
    return subject.step(events.WorkFinished(epoch=subject.role.epoch))


def test_a_leader_that_is_left_out_hands_over_before_it_goes() -> None:
    subject = serving_leader()
    happened = assign(subject, W1, W2)
    assert listed(only(happened, effects.CompareAndSet).record) == [W0, W1, W2]
    assert only(subject.cas(only(happened, effects.CompareAndSet)), effects.FinishWork).epoch == 1
    handing_over = only(finished(subject), effects.CompareAndSet)
    assert (handing_over.record.leader, handing_over.record.epoch) == (W1, 2)
    assert W0 in listed(handing_over.record)


def test_a_leader_that_could_not_hand_over_tries_again_in_time() -> None:
    subject = serving_leader()
    plan = only(assign(subject, W1, W2), effects.CompareAndSet)
    subject.cas(plan)
    handing_over = only(finished(subject), effects.CompareAndSet)
    happened = subject.cas(handing_over, CasOutcome.NO_REGISTRATION)
    assert noted(happened) == ["resumes"]
    assert every(subject.tick(after=SETTINGS.resign_timeout_ms - 1), effects.FinishWork) == []
    assert only(subject.tick(after=1), effects.FinishWork).epoch == 1
    assert only(finished(subject), effects.CompareAndSet).record.epoch == 2


def test_nothing_is_handed_over_to_who_is_no_longer_assigned() -> None:
    subject = serving_leader()
    assign(subject, W0, W1, W3)
    happened = subject.step(events.Resign(epoch=subject.role.epoch, target=W2))
    assert noted(happened) == ["refuses_to_resign"]


def test_a_leader_behind_the_records_assignment_takes_nobody_in() -> None:
    subject = new_leader((W0, W1))
    followed = msgspec.structs.replace(record(1, W0, (W0, W1)), plan=3, factor=2, osr=())
    subject.see(followed)
    subject.persisted()
    subject.join(W1)
    subject.applied()
    assert every(subject.join(W2), effects.CompareAndSet) == []
    assert subject.replica.min_isr == 1
    happened = assign(subject, W0, W1, W2, plan=4)
    assert listed(only(happened, effects.CompareAndSet).record) == [W0, W1, W2]


def test_a_leader_behind_the_records_assignment_leaves_it_as_it_is() -> None:
    subject = serving_leader()
    followed = msgspec.structs.replace(subject.replica.known_record, plan=3, factor=3, osr=(W4,))
    subject.see(followed)
    subject.append(1)
    subject.persisted()
    subject.confirm(W1)
    cas = only(subject.tick(after=SETTINGS.max_time_lag_ms), effects.CompareAndSet)
    assert (listed(cas.record), cas.record.plan, cas.record.factor) == ([W0, W1], 3, 3)
    assert set(cas.record.osr) == {W2, W4}


def test_the_log_is_not_kept_for_who_left() -> None:
    subject = serving_leader()
    subject.cas(only(assign(subject, W0, W1), effects.CompareAndSet))
    for request in range(5):
        subject.append(request)
    subject.settle()
    assert subject.role.followers.needed() == subject.replica.apply_offset


@pytest.mark.parametrize(
    ("plan", "isr", "may"), [(2, (W0, W1), True), (1, (W0, W1), False), (2, (W0, W2), False)]
)
def test_data_is_deleted_when_the_record_follows_and_does_not_list_it(
    plan: int, isr: tuple[WorkerId, ...], may: bool
) -> None:
    found = msgspec.structs.replace(record(1, W0, isr), plan=plan)
    assert GUARDS.may_delete(found, member(W2).worker, 2) is may
