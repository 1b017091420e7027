"""A group of three seen from one of its replicas: the others, the metastore and the disk are the test.

:class:`Subject` holds the replica and the time. Every method that steps it returns the effects of that step;
:func:`only`, :func:`every` and :func:`sent` pick from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from stretto.replog.core import effects, events, messages
from stretto.replog.core.effects import Effect
from stretto.replog.core.events import CasOutcome, Event
from stretto.replog.core.following.follower import Follower
from stretto.replog.core.guards import GUARDS, Guards
from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.messages import AnyMessage
from stretto.replog.core.producers import ProducerTable
from stretto.replog.core.record import GroupRecord, Member, Registration
from stretto.replog.core.replica import Recovered, Replica
from stretto.replog.core.settings import Identity, Settings
from stretto.replog.frame import Frame, Header, Kind, encode
from stretto.replog.storage import EpochStart
from stretto.vocabulary.types import (
    Epoch,
    Incarnation,
    Millis,
    Offset,
    ProducerId,
    StorageId,
    TaskId,
    WorkerId,
)

T = TypeVar("T")

W0, W1, W2 = WorkerId("w0"), WorkerId("w1"), WorkerId("w2")
ALL = (W0, W1, W2)
PRODUCER = ProducerId(7)
TASK = TaskId(0)

SETTINGS = Settings(
    max_time_lag_ms=Millis(400),
    max_near_lag=20,
    append_timeout_ms=Millis(1_500),
    max_unapplied=16,
    producer_expiry_ms=Millis(60_000),
    lease_ms=Millis(2_500),
    retry_ms=Millis(80),
    news_ms=Millis(20),
    resign_timeout_ms=Millis(700),
    state_timeout_ms=Millis(900),
    max_batch_bytes=300,
    max_in_flight_messages=3,
)


# Values.


def settings(**changes: Any) -> Settings:
    return replace(SETTINGS, **changes)


def incarnation_of(worker: WorkerId, life: int = 1) -> Incarnation:
    return Incarnation(f"{worker}.{life}")


def member(worker: WorkerId, disk: int = 1) -> Member:
    return Member(worker, StorageId(f"{worker}-disk-{disk}"))


def registration(worker: WorkerId, life: int = 1) -> Registration:
    return Registration(worker, incarnation_of(worker, life))


def record(
    epoch: int,
    leader: WorkerId | None,
    isr: Iterable[WorkerId | Member] = ALL,
    *,
    life: int = 1,
    unclean_epoch: int = 0,
) -> GroupRecord:
    members = (each if isinstance(each, Member) else member(each) for each in isr)
    return GroupRecord(
        epoch=Epoch(epoch),
        leader=leader,
        leader_incarnation=incarnation_of(leader, life) if leader is not None else None,
        isr=tuple(sorted(members)),
        unclean_epoch=Epoch(unclean_epoch),
    )


def entry(
    offset: int,
    *,
    epoch: int = 1,
    kind: Kind = Kind.DEPOT,
    count: int = 1,
    producer: int = 0,
    task: int = 0,
    sequence: int = 0,
    payload: bytes = b"x",
) -> Frame:
    described = header(
        offset, epoch=epoch, kind=kind, count=count, producer=producer, task=task, sequence=sequence
    )
    return encode(described, payload)


def header(
    offset: int,
    *,
    epoch: int = 1,
    kind: Kind = Kind.DEPOT,
    count: int = 1,
    producer: int = 0,
    task: int = 0,
    sequence: int = 0,
) -> Header:
    return Header(
        offset=Offset(offset),
        epoch=Epoch(epoch),
        kind=kind,
        count=count,
        task=TaskId(task),
        producer=ProducerId(producer),
        sequence=sequence,
        timestamp_ms=0,
    )


def entries(start: int, end: int, *, epoch: int = 1) -> tuple[Frame, ...]:
    return tuple(entry(offset, epoch=epoch) for offset in range(start, end))


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


def history(*starts: tuple[int, int]) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(Epoch(epoch), Offset(start)) for epoch, start in starts)


def append_event(
    request: int = 1,
    *,
    sequence: int = 0,
    count: int = 1,
    kind: Kind = Kind.DEPOT,
    producer: int = 0,
    payload: bytes = b"payload",
    timeout_ms: int | None = None,
    until_applied: bool = False,
) -> events.Append:
    return events.Append(
        request=request,
        kind=kind,
        task=TASK,
        producer=ProducerId(producer),
        sequence=sequence,
        count=count,
        payload=payload,
        timestamp_ms=0,
        timeout_ms=None if timeout_ms is None else Millis(timeout_ms),
        until_applied=until_applied,
    )


# Picking effects.


def every(happened: Sequence[Effect], kind: type[T]) -> list[T]:
    """Return all effects of a kind."""
    return [effect for effect in happened if isinstance(effect, kind)]


def only(happened: Sequence[Effect], kind: type[T]) -> T:
    """Return the only effect of a kind."""
    found = every(happened, kind)
    assert len(found) == 1, happened
    return found[0]


def sent(happened: Sequence[Effect], kind: type[T], *, to: WorkerId | None = None) -> list[T]:
    """Return the messages of a kind, whether or not entries travel beside them."""
    return [
        effect.message
        for effect in happened
        if isinstance(effect, effects.Send | effects.SendEntries)
        and isinstance(effect.message, kind)
        and (to is None or effect.to == to)
    ]


def noted(happened: Sequence[Effect]) -> list[str]:
    return [note.event for note in every(happened, effects.Note)]


def replies(happened: Sequence[Effect]) -> dict[int, effects.Result]:
    return {reply.request: reply.result for reply in every(happened, effects.Reply)}


def refusal(happened: Sequence[Effect]) -> effects.Refusal:
    result = only(happened, effects.Reply).result
    assert isinstance(result, effects.Refused)
    return result.reason


# The replica.


class Subject:
    """One replica, stepped by hand."""

    def __init__(
        self,
        worker: WorkerId = W0,
        *,
        log: Sequence[Frame] = (),
        log_start: int = 0,
        applied: int = 0,
        history: tuple[EpochStart, ...] | None = None,
        producers: ProducerTable | None = None,
        options: Settings = SETTINGS,
        replicas: tuple[WorkerId, ...] = ALL,
        guards: Guards = GUARDS,
    ) -> None:
        starts: dict[Epoch, Offset] = {}
        for frame in log:
            starts.setdefault(frame.header.epoch, frame.header.offset)
        recovered = Recovered(
            log_start=Offset(log_start),
            log_end=log[-1].end_offset if log else Offset(log_start),
            history=tuple(EpochStart(*each) for each in starts.items()) if history is None else history,
            applied=Offset(applied),
            producers=producers or ProducerTable({}),
            unapplied=tuple(frame.header for frame in log if frame.header.offset >= applied),
        )
        identity = Identity(
            worker=worker,
            storage=member(worker).storage,
            incarnation=incarnation_of(worker),
            replicas=replicas,
        )
        self.replica = Replica(identity, recovered, options, guards)
        self.now = Millis(10_000)
        self.version = 0

    def step(self, event: Event, *, after: int = 0) -> list[Effect]:
        self.now = Millis(self.now + after)
        return self.replica.step(event, self.now)

    def tick(self, *, after: int = 0) -> list[Effect]:
        return self.step(events.Tick(), after=after)

    def tick_at_deadline(self) -> list[Effect]:
        deadline = self.replica.next_deadline()
        assert deadline is not None
        assert deadline >= self.now
        return self.tick(after=deadline - self.now)

    # The disk.

    def persisted(self, end: int | None = None) -> list[Effect]:
        """Report as durable everything appended, or everything below ``end``."""
        durable = self.replica.log_end if end is None else Offset(end)
        return self.step(events.Persisted(end=durable, generation=self.replica.generation))

    def applied(self, end: int | None = None) -> list[Effect]:
        """Report as applied everything committed, or everything below ``end``."""
        return self.step(events.Applied(end=self.replica.apply_offset if end is None else Offset(end)))

    # The metastore.

    def see(self, seen: GroupRecord, *, token: int | None = None) -> list[Effect]:
        """Let the replica read a newer version of the record."""
        self.version += 1
        return self.step(events.RecordRead(record=seen, version=self.version, token=token))

    def see_again(self, *, token: int) -> list[Effect]:
        """Let the replica read the record once more, unchanged."""
        return self.step(
            events.RecordRead(record=self.replica.known_record, version=self.version, token=token)
        )

    def cas(self, effect: effects.CompareAndSet, outcome: CasOutcome = CasOutcome.OK) -> list[Effect]:
        """Answer a compare-and-set."""
        if outcome is CasOutcome.OK:
            assert effect.version == self.version
            self.version += 1
            return self.step(events.CasReply(token=effect.token, outcome=outcome, version=self.version))
        return self.step(events.CasReply(token=effect.token, outcome=outcome))

    def gone(self, whose: Registration) -> list[Effect]:
        """Report that a registration is gone."""
        return self.step(events.RegistrationSeen(registration=whose, exists=False))

    # The others.

    def receive(self, message: AnyMessage, sender: WorkerId, frames: Sequence[Frame] = ()) -> list[Effect]:
        return self.step(events.Received(sender=sender, message=message, frames=tuple(frames)))


class LeaderSubject(Subject):
    """The replica W0, which leads the epoch that its first record names."""

    @property
    def role(self) -> Leader:
        assert isinstance(self.replica.role, Leader)
        return self.replica.role

    def hello(
        self, worker: WorkerId, *, life: int = 1, disk: int = 1, attempt: int = 1, end: int = 0
    ) -> list[Effect]:
        message = messages.Hello(
            self.role.epoch,
            incarnation_of(worker, life),
            storage=member(worker, disk).storage,
            attempt=attempt,
            end=Offset(end),
        )
        return self.receive(message, worker)

    def confirm(
        self,
        worker: WorkerId,
        end: int | None = None,
        *,
        log_end: int | None = None,
        epoch: int | None = None,
        life: int = 1,
        attempt: int = 1,
        resume: bool = False,
    ) -> list[Effect]:
        """Confirm for a follower everything, or everything below ``end``, as durable."""
        durable = self.replica.log_end if end is None else Offset(end)
        message = messages.Confirm(
            self.role.epoch if epoch is None else Epoch(epoch),
            incarnation_of(worker, life),
            attempt=attempt,
            end=durable,
            log_end=durable if log_end is None else Offset(log_end),
            known_apply_offset=self.replica.apply_offset,
            resume=resume,
        )
        return self.receive(message, worker)

    def join(self, worker: WorkerId, end: int | None = None, *, life: int = 1, disk: int = 1) -> list[Effect]:
        """Send a follower's hello and first confirmation."""
        self.hello(worker, life=life, disk=disk)
        return self.confirm(worker, end, life=life)

    def append(self, request: int = 1, **details: Any) -> list[Effect]:
        return self.step(append_event(request, **details))

    def sent(self, happened: Sequence[Effect], end: int | None = None) -> list[Effect]:
        """Report the entries of that step as sent, up to ``end``."""
        out: list[Effect] = []
        for effect in every(happened, effects.SendEntries):
            upto = self.replica.log_end if end is None else Offset(end)
            out += self.step(
                events.Sent(to=effect.to, incarnation=effect.message.to, attempt=effect.attempt, end=upto)
            )
        return out

    def open_producer(self, producer: ProducerId = PRODUCER) -> None:
        """Admit a producer, and apply everything so far everywhere."""
        self.append(900, kind=Kind.PRODUCER_OPEN, producer=producer)
        self.settle()

    def settle(self) -> None:
        """Make everything appended durable at all that joined, and apply it here."""
        self.persisted()
        for worker in list(self.role.followers):
            self.confirm(worker, life=int(self.role.followers[worker].incarnation[-1]))
        self.applied()


def new_leader(isr: Iterable[WorkerId | Member] = ALL, *, epoch: int = 1, **details: Any) -> LeaderSubject:
    """Return a leader that has just learned that it leads."""
    subject = LeaderSubject(W0, **details)
    subject.see(record(epoch, W0, isr))
    return subject


def serving_leader(
    isr: Iterable[WorkerId | Member] = ALL, *, epoch: int = 1, **details: Any
) -> LeaderSubject:
    """Return a leader whose ISR has joined and holds everything, and whose epoch entry is applied."""
    subject = new_leader(isr, epoch=epoch, **details)
    subject.persisted()
    for each in subject.replica.known_record.isr:
        if each.worker != W0:
            subject.join(each.worker)
    subject.applied()
    assert subject.role.is_serving
    return subject


class FollowerSubject(Subject):
    """The replica W1, which follows W0."""

    @property
    def role(self) -> Follower:
        assert isinstance(self.replica.role, Follower)
        return self.replica.role

    def lineage(
        self,
        *starts: tuple[int, int],
        end: int,
        start: int = 0,
        apply_offset: int = 0,
        attempt: int | None = None,
        listed: bool = True,
        epoch: int | None = None,
        life: int = 1,
    ) -> list[Effect]:
        message = messages.Lineage(
            self.role.epoch if epoch is None else Epoch(epoch),
            incarnation_of(W0),
            to=incarnation_of(W1, life),
            attempt=self.role.attempt if attempt is None else attempt,
            history=history(*starts),
            start=Offset(start),
            end=Offset(end),
            apply_offset=Offset(apply_offset),
            near_lag=20,
            listed=listed,
        )
        return self.receive(message, W0)

    def entries(
        self,
        frames: Sequence[Frame] = (),
        *,
        apply_offset: int = 0,
        log_end: int | None = None,
        retain_offset: int = 0,
        epoch: int | None = None,
        probe: bool = False,
        life: int = 1,
    ) -> list[Effect]:
        end = frames[-1].end_offset if frames else self.replica.log_end
        message = messages.Entries(
            self.role.epoch if epoch is None else Epoch(epoch),
            incarnation_of(W0),
            to=incarnation_of(W1, life),
            apply_offset=Offset(apply_offset),
            log_end=end if log_end is None else Offset(log_end),
            retain_offset=Offset(retain_offset),
            probe=probe,
        )
        return self.receive(message, W0, frames)


def new_follower(
    isr: Iterable[WorkerId | Member] = ALL, *, epoch: int = 1, unclean_epoch: int = 0, **details: Any
) -> FollowerSubject:
    """Return a follower that has just learned of its leader, W0."""
    subject = FollowerSubject(W1, **details)
    subject.see(record(epoch, W0, isr, unclean_epoch=unclean_epoch))
    return subject


def reconciled_follower(
    isr: Iterable[WorkerId | Member] = ALL, *, epoch: int = 1, **details: Any
) -> FollowerSubject:
    """Return a follower whose log equals the leader's, which has appended nothing in its epoch yet."""
    subject = new_follower(isr, epoch=epoch, **details)
    starts = [(each.epoch, each.start) for each in subject.replica.history]
    subject.lineage(*starts, end=subject.replica.log_end)
    assert subject.role.reconciled
    return subject


def last_confirm(happened: Sequence[Effect]) -> messages.Confirm:
    found = sent(happened, messages.Confirm)
    assert found, happened
    return found[-1]
