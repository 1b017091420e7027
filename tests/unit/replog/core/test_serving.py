"""Reads that a leader answers under its lease."""

from __future__ import annotations

import pytest

from stretto.replog.core import effects, events
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.types import Epoch, Millis
from tests.support.core_group import SETTINGS, W0, Subject, record, refusal, replies, serving_leader


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


def test_a_read_that_was_sampled_before_is_served_by_the_same_rules() -> None:
    subject = serving_leader()
    assert refusal(subject.step(events.Read(request=1, is_sampled=True))) is Refusal.NO_LEASE
    renew(subject)
    served = {2: effects.ReadServed(epoch=Epoch(1))}
    assert replies(subject.step(events.Read(request=2, is_sampled=True))) == served
    late = subject.step(events.Read(request=3, is_sampled=True), after=SETTINGS.lease_ms)
    assert refusal(late) is Refusal.NO_LEASE


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
