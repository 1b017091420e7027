from __future__ import annotations

from stretto.replog.core import effects, events
from stretto.replog.core.effects import Refusal
from stretto.replog.core.producers import Producers, ProducerTable
from stretto.replog.frame import Kind
from stretto.vocabulary.types import Millis, Offset
from tests.support.core_group import (
    PRODUCER,
    LeaderSubject,
    entry,
    every,
    header,
    only,
    refusal,
    replies,
    serving_leader,
)


def said(subject: LeaderSubject, *, present: int = 1, **words: int) -> list[effects.Effect]:
    return subject.step(events.Regrouping(present=present, **words))


def kinds(happened: list[effects.Effect]) -> list[Kind]:
    return [frame.header.kind for persist in every(happened, effects.Persist) for frame in persist.frames]


def sealed(number: int = 2) -> LeaderSubject:
    subject = serving_leader()
    subject.open_producer()
    assert kinds(said(subject, next=number)) == [Kind.SEAL]
    subject.settle()
    return subject


def read(subject: LeaderSubject) -> effects.Result:
    subject.step(events.LeaseRenewed(sent_at=subject.now))
    happened = subject.step(events.Read(request=7))
    if every(happened, effects.Sample):
        happened = subject.step(events.Sampled(request=7))
    return replies(happened)[7]


def test_a_leader_that_hears_of_the_next_grouping_seals_its_log_once() -> None:
    subject = serving_leader()
    [frame] = only(said(subject, next=5), effects.Persist).frames
    assert (frame.header.kind, frame.header.sequence) == (Kind.SEAL, 5)
    assert kinds(said(subject, next=5, closing=5)) == []
    assert kinds(subject.tick()) == []


def test_a_sealed_log_takes_nothing_new_whoever_asks() -> None:
    subject = sealed()
    asked = [
        subject.append(1, producer=PRODUCER),
        subject.append(2, kind=Kind.PRODUCER_OPEN, producer=8),
        subject.append(3, kind=Kind.STATE),
        subject.append(4, kind=Kind.MICROBATCH),
        subject.append(5, kind=Kind.TRIM),
    ]
    assert [refusal(happened) for happened in asked] == [Refusal.SEALED] * 5


def test_what_was_stored_before_the_seal_is_still_acknowledged() -> None:
    subject = serving_leader()
    subject.open_producer()
    subject.append(1, producer=PRODUCER)
    said(subject, next=2)
    assert every(subject.append(2, producer=PRODUCER), effects.Reply) == []
    subject.persisted()
    subject.settle()
    assert isinstance(replies(subject.append(3, producer=PRODUCER))[3], effects.Acked)


def test_no_producer_expires_in_a_sealed_log() -> None:
    subject = sealed()
    happened = subject.tick(after=subject.replica.settings.producer_expiry_ms * 2)
    assert Kind.PRODUCER_EXPIRE not in kinds(happened)


def test_a_log_that_holds_a_seal_is_sealed_for_a_leader_that_has_heard_nothing() -> None:
    log = (entry(0, kind=Kind.EPOCH), entry(1, kind=Kind.SEAL, sequence=2))
    subject = serving_leader(epoch=2, log=log, applied=1)
    assert refusal(subject.append(1)) is Refusal.SEALED
    installed = serving_leader(epoch=2, producers=ProducerTable({}, 2))
    assert refusal(installed.append(1)) is Refusal.SEALED


def test_a_grouping_that_was_abandoned_is_unsealed_and_the_log_goes_on() -> None:
    subject = sealed()
    assert kinds(said(subject, abandoned=2)) == [Kind.UNSEAL]
    assert Kind.DEPOT in kinds(subject.append(1))


def test_nothing_but_its_abandonment_unseals_a_log() -> None:
    subject = sealed(3)
    assert kinds(said(subject)) == []
    assert kinds(said(subject, abandoned=2)) == []
    assert kinds(said(subject, present=3, abandoned=4)) == []
    assert refusal(subject.append(1)) is Refusal.SEALED


def test_a_log_is_sealed_for_the_grouping_after_one_that_was_abandoned() -> None:
    subject = sealed(2)
    assert kinds(said(subject, next=3, abandoned=2)) == [Kind.UNSEAL, Kind.SEAL]
    assert subject.replica.producers.sealed == 3


def test_a_leader_that_hands_over_leaves_the_seal_to_the_next_one() -> None:
    subject = serving_leader()
    subject.append(1)
    subject.step(events.Resign(epoch=subject.role.epoch, target=next(iter(subject.role.followers))))
    assert kinds(said(subject, next=2)) == []


def test_readers_are_served_until_the_next_grouping_closes_in() -> None:
    subject = sealed()
    assert isinstance(read(subject), effects.ReadServed)
    said(subject, next=2, closing=2)
    closed = read(subject)
    assert isinstance(closed, effects.Refused)
    assert closed.reason is Refusal.HANDING_OVER
    said(subject, present=2)
    assert isinstance(read(subject), effects.Refused)


def test_what_was_sampled_before_it_closes_in_is_not_shown_after_it() -> None:
    subject = sealed()
    subject.step(events.LeaseRenewed(sent_at=Millis(subject.now)))
    subject.step(events.Read(request=7))
    said(subject, next=2, closing=2)
    assert isinstance(replies(subject.step(events.Sampled(request=7)))[7], effects.Refused)


def test_readers_are_served_again_when_it_is_abandoned() -> None:
    subject = sealed()
    said(subject, next=2, closing=2)
    said(subject, abandoned=2)
    assert isinstance(read(subject), effects.ReadServed)


def test_a_seal_that_is_truncated_was_none() -> None:
    producers = Producers(ProducerTable({}), [header(4, kind=Kind.SEAL, sequence=2)])
    assert producers.sealed == 2
    producers.truncated(Offset(4))
    assert producers.sealed == 0
    producers.appended(header(4, kind=Kind.SEAL, sequence=2))
    producers.appended(header(5, kind=Kind.UNSEAL, sequence=2))
    assert producers.sealed == 0
    producers.applied(Offset(5))
    assert (producers.sealed, producers.table.sealed) == (0, 2)
    producers.truncated(Offset(5))
    assert producers.sealed == 2
