"""Sessions and incarnations: a new one begins as a follower whatever the record says of the old one."""

from __future__ import annotations

from stretto.replog.core import effects, events, messages
from stretto.replog.core.effects import Refusal
from stretto.replog.core.following.follower import Follower
from stretto.replog.core.leading.leader import Leader
from stretto.vocabulary.types import Incarnation
from tests.support.core_group import (
    W0,
    W1,
    Subject,
    append_event,
    every,
    incarnation_of,
    new_follower,
    new_leader,
    noted,
    only,
    record,
    refusal,
    registration,
    replies,
    sent,
    serving_leader,
)


def restart_session(subject: Subject, life: int = 2) -> list[effects.Effect]:
    worker = subject.replica.worker
    return subject.step(events.SessionStarted(incarnation=incarnation_of(worker, life)))


def test_leader_whose_session_expired_follows_and_leaves_its_appends_in_doubt() -> None:
    subject = serving_leader()
    subject.append(1)
    happened = subject.step(events.SessionExpired())
    assert replies(happened) == {1: effects.Unknown()}
    assert "steps_down" in noted(happened)
    assert isinstance(subject.replica.role, Follower)
    assert subject.replica.incarnation is None
    assert refusal(subject.step(append_event(2))) is Refusal.NOT_LEADER


def test_without_a_session_nothing_is_sent_or_asked() -> None:
    subject = new_follower()
    subject.step(events.SessionExpired())
    assert subject.replica.next_deadline() is None
    assert subject.tick(after=60_000) == []
    assert subject.lineage(end=0) == []
    assert every(subject.see(record(2, W0)), effects.Send) == []


def test_a_read_under_way_is_refused_when_the_session_expires() -> None:
    subject = serving_leader()
    subject.step(events.LeaseRenewed(sent_at=subject.now))
    subject.step(events.Read(request=4))
    assert refusal(subject.step(events.SessionExpired())) is Refusal.NOT_LEADER


def test_session_loss_ends_the_lease() -> None:
    subject = serving_leader()
    subject.step(events.LeaseRenewed(sent_at=subject.now))
    subject.step(events.SessionExpired())
    assert subject.replica.lease_end < subject.now


def test_a_new_incarnation_never_continues_its_epoch() -> None:
    subject = serving_leader()
    happened = restart_session(subject)
    assert isinstance(subject.replica.role, Follower)
    assert sent(happened, messages.Hello) == []
    assert only(happened, effects.CheckRegistration).registration == registration(W0)

    subject.see(record(1, W0, (W0, W1)))
    assert isinstance(subject.replica.role, Follower)


def test_a_new_incarnation_stands_once_its_old_registration_is_gone() -> None:
    subject = serving_leader()
    restart_session(subject)
    subject.gone(registration(W0))
    cas = only(subject.tick_at_deadline(), effects.CompareAndSet)
    assert (cas.record.epoch, cas.record.leader_incarnation) == (2, incarnation_of(W0, 2))
    subject.cas(cas)
    assert isinstance(subject.replica.role, Leader)


def test_a_record_that_names_another_incarnation_of_this_worker_is_not_followed_into_leading() -> None:
    subject = Subject(W0)
    subject.see(record(1, W0, life=2))
    assert isinstance(subject.replica.role, Follower)


def test_a_new_incarnation_of_a_follower_says_hello_with_it() -> None:
    subject = new_follower()
    subject.step(events.SessionExpired())
    (hello,) = sent(restart_session(subject), messages.Hello)
    assert hello.incarnation == Incarnation("w1.2")
    assert hello.attempt == 1


def test_leader_steps_down_when_the_epoch_moved() -> None:
    subject = serving_leader()
    subject.append(1)
    happened = subject.see(record(2, W1))
    assert replies(happened) == {1: effects.Unknown()}
    assert isinstance(subject.replica.role, Follower)
    assert len(sent(happened, messages.Hello, to=W1)) == 1


def test_a_message_of_a_newer_epoch_makes_a_leader_read_the_record() -> None:
    subject = serving_leader()
    hello = messages.Hello(
        record(2, W1).epoch,
        incarnation_of(W1),
        storage=subject.replica.storage,
        attempt=1,
        end=subject.replica.log_end,
    )
    assert only(subject.receive(hello, W1), effects.ReadRecord).sync


def test_leader_may_lead_a_later_epoch_without_a_break() -> None:
    """It lost leadership and won it again, and saw only the last record."""
    subject = serving_leader()
    subject.append(1)
    happened = subject.see(record(3, W0))
    assert replies(happened) == {1: effects.Unknown()}
    assert subject.role.epoch == 3
    assert only(happened, effects.Persist).frames[0].header.epoch == 3


def test_a_disk_failure_leaves_appends_in_doubt_and_ends_leadership() -> None:
    subject = serving_leader()
    subject.append(1)
    happened = subject.step(events.StorageFailed(why="no", suspect=True))
    assert replies(happened) == {1: effects.Unknown()}
    assert only(happened, effects.Stop).renew


def test_an_epoch_is_led_once_by_one_object() -> None:
    subject = new_leader()
    assert subject.replica.led_epoch == 1
    restart_session(subject, life=1)
    subject.see(record(1, W0, (W0, W1)))
    assert isinstance(subject.replica.role, Follower)
