"""The shell of the state machine: what every role shares, and the only places where roles change.

Legal changes of role::

    Follower -> Leader     the record names this worker *and this incarnation* as leader
    Leader   -> Follower   the record's epoch moved on, or our metastore session expired
    any      -> Stopped    the disk failed, or the state was set aside

All three go through :meth:`Replica.adopt`, :meth:`Replica.lose_session` and :meth:`Replica.stop`.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, assert_never

from stretto.replog.core import effects, events
from stretto.replog.core.effects import Effect
from stretto.replog.core.events import Event
from stretto.replog.core.following.follower import Follower
from stretto.replog.core.guards import GUARDS, Guards
from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.lineage import History, extended, truncated
from stretto.replog.core.producers import Producers, ProducerTable
from stretto.replog.core.record import GroupRecord, Member, Registration
from stretto.replog.core.settings import Identity, Settings
from stretto.replog.epochs import ending_above
from stretto.replog.frame import Frame, Header
from stretto.vocabulary.invariants import InvariantViolation, present
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset

STORY_LENGTH = 60


class RoleName(enum.StrEnum):
    """What a replica does in its group, for people and telemetry."""

    LEADER = "leader"
    FOLLOWER = "follower"
    """A member of the ISR that does not lead."""
    NEAR = "near"
    """A replica outside the ISR that is catching up from the leader's log."""
    FAR = "far"
    """A replica outside the ISR and out of reach of the leader's log: it waits for the leader's state."""
    CANDIDATE = "candidate"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a replica found on its disk when it started."""

    log_start: Offset = Offset(0)
    log_end: Offset = Offset(0)
    history: History = ()
    applied: Offset = Offset(0)
    producers: ProducerTable
    """The producer table as of ``applied``."""
    unapplied: tuple[Header, ...] = ()
    """Headers of the frames from ``applied`` on."""


class Replica:
    """One replica of a task group as a state machine; :meth:`step` is its only entry point."""

    def __init__(
        self,
        identity: Identity,
        recovered: Recovered,
        settings: Settings,
        guards: Guards = GUARDS,
    ) -> None:
        #: These never change, except the incarnation, which is None without a metastore session.
        self.worker = identity.worker
        self.storage = identity.storage
        self.incarnation: Incarnation | None = identity.incarnation
        self.member = Member(identity.worker, identity.storage)
        self.guards = guards
        self.settings = settings

        #: The newest assignment seen; plans never go back.
        self.replicas = identity.replicas
        self.plan = identity.plan
        #: What the assignment says of groupings, as last heard.
        self.regrouping = events.Regrouping(present=0)
        #: A grouping that may be in force by now: no reads, until it is heard to be abandoned.
        self.closed_for = 0
        #: The newest record seen and its version; versions never go back.
        self.record: GroupRecord | None = None
        self.previous_record: GroupRecord | None = None
        self.version = -1
        self._reckon()

        #: log_start <= applied <= apply_offset <= log_end, and durable_end <= log_end.
        self.log_start = recovered.log_start
        self.log_end = recovered.log_end
        self.durable_end = recovered.log_end
        self.history = recovered.history
        #: Raised whenever the end of the log goes back or is replaced: a Persisted of an earlier one is void.
        self.generation = 0

        #: Whether the driver is replacing log and state by a leader's; until then nothing else is taken.
        self.installing = False

        #: Entries below are committed and may be applied. Never goes back.
        self.apply_offset = recovered.applied
        #: Entries below are in the applied state, and visible.
        self.applied = recovered.applied
        #: Entries below survive a power loss in the applied state. Retention stays below it.
        self.durably_applied = recovered.log_start
        self.producers = Producers(recovered.producers, recovered.unapplied)

        #: When our lease ends, by our clock; in the past means no lease.
        self.lease_end = Millis(-1)
        #: The latest leader whose registration we tested and found gone, and the epoch it led.
        self.gone_leader: tuple[Registration, Epoch] | None = None
        #: The highest epoch this object has led.
        self.led_epoch = Epoch(0)

        self.now = Millis(0)
        self.story: deque[tuple[Millis, str, dict[str, Any]]] = deque(maxlen=STORY_LENGTH)
        self._effects: list[Effect] = []
        self._tokens = 0
        self.stopped = False
        self.role: Leader | Follower = Follower(self)
        #: The role, if it is that of the leader.
        self.leading: Leader | None = None

    # The door.

    def step(self, event: Event, now: Millis) -> list[Effect]:
        """Take in one event; return what to do, in order."""
        self.now = now
        out: list[Effect] = []
        self._effects = out
        if not self.stopped:
            try:
                self._dispatch(event)
            except InvariantViolation as violation:
                self.stopped = True
                raise InvariantViolation(violation.what, violation.values, self.told_story()) from None
        return out

    def next_deadline(self) -> Millis | None:
        """When to step a Tick at the latest."""
        return None if self.stopped else self.role.next_deadline()

    def _dispatch(self, event: Event) -> None:  # noqa: PLR0915 - one arm for each event
        match event:
            case events.Received(sender=sender, message=message, frames=frames):
                if self.incarnation is not None and self.role.hears(sender):
                    self.role.received(sender, message, frames)
            case events.Append():
                self.role.append(event)
            case events.Persisted(end=end, generation=generation):
                if self.guards.is_same_log(generation, self.generation) and end > self.durable_end:
                    self.durable_end = end
                    self.role.persisted()
            case events.Sent():
                self.role.sent(event)
            case events.Applied(end=end):
                if end > self.applied:
                    self.applied = end
                    self.producers.applied(end)
                    self.role.applied()
            case events.Tick():
                self.role.tick()
            case events.Read():
                self.role.read(event)
            case events.ClockRead():
                self.role.clock_read()
            case events.Sampled(request=request):
                self.role.sampled(request)
            case events.StateSynced(end=end):
                self.durably_applied = max(self.durably_applied, end)
                self.role.cut_log()
            case events.LogCut(start=start):
                if start > self.log_start:
                    self.log_start = start
                    self.history = ending_above(self.history, start)
            case events.RecordRead(record=record, version=version, token=token):
                self.adopt(record, version)
                if token is not None and not self.stopped:
                    self.role.record_read(token)
            case events.ReadFailed(token=token):
                self.role.read_failed(token)
            case events.RegistrationSeen(registration=registration, exists=exists):
                self.role.registration_seen(registration, exists)
            case events.MembersSeen(token=token, alive=alive):
                self.role.members_seen(token, alive)
            case events.CasReply():
                self.role.cas_reply(event)
            case events.LeaseRenewed(sent_at=sent_at):
                end_ms = self.guards.lease_end(sent_at, self.now, self.settings.lease_ms)
                self.lease_end = max(self.lease_end, end_ms)
            case events.Resign():
                self.role.resign(event)
            case events.WorkFinished(epoch=epoch):
                self.role.work_finished(epoch)
            case events.SessionExpired():
                self.lose_session()
            case events.SessionStarted(incarnation=incarnation):
                self._start_session(incarnation)
            case events.OptionsChanged(settings=settings):
                self.settings = settings
                self._reckon()
                self.role.options_changed()
            case events.ReplicasChanged(plan=plan, replicas=replicas):
                if plan > self.plan:
                    self.plan, self.replicas = plan, replicas
                    self._reckon()
                    self.role.replicas_changed()
            case events.Regrouping():
                self._regroup(event)
            case events.StateArrived():
                self.role.state_arrived(event)
            case events.StateInstalled():
                self._state_installed(event)
            case events.TransferProgressed():
                self.role.transfer_progressed(event)
            case events.PinMoved():
                self.role.pin_moved(event)
            case events.TransferFailed():
                self.installing = False
                self.role.state_failed()
            case events.StorageFailed(why=why, suspect=suspect):
                self._storage_failed(why, suspect=suspect)
            case _:
                assert_never(event)

    def _regroup(self, event: events.Regrouping) -> None:
        self.regrouping = event
        if self.closed_for and self.guards.may_unseal(self.closed_for, event.present, event.abandoned):
            self.closed_for = 0
        self.closed_for = max(self.closed_for, event.closing)
        self.role.regroup()

    # Roles.

    def adopt(self, record: GroupRecord, version: int) -> None:
        """Take in a record, however it was learned; older versions are ignored."""
        if version <= self.version:
            return
        first = self.record is None
        self.previous_record = self.record
        self.record = record
        self.version = version
        self._reckon()
        leads = self.incarnation is not None and self.guards.leads_as(record, self.worker, self.incarnation)
        match self.role:
            case Leader() as leader if leader.epoch == record.epoch:
                leader.record_changed()
            case Leader() as leader if not self.guards.epoch_has_moved(record.epoch, leader.epoch):
                pass
            case _ if leads and record.epoch > self.led_epoch:
                self._lead()
            case Leader():
                self.follow()
            case Follower() as follower if follower.epoch == record.epoch and not first:
                follower.record_changed()
            case Follower():
                self.follow()

    def _lead(self) -> None:
        self.role.end()
        self.led_epoch = self.known_record.epoch
        self.role = self.leading = leader = Leader(self)
        self.note("leads", epoch=leader.epoch, start=leader.epoch_start)
        leader.begin()

    def follow(self) -> None:
        """Become a follower of the record's epoch."""
        self.role.end()
        self.role = follower = Follower(self)
        self.leading = None
        if self.record is not None:
            self.note("follows", epoch=self.record.epoch, leader=self.record.leader)
        follower.begin()

    def lose_session(self) -> None:
        self.note("session_expired")
        self.incarnation = None
        self.lease_end = Millis(-1)
        self.follow()

    def _start_session(self, incarnation: Incarnation) -> None:
        """Begin a new incarnation, as a follower whatever the record says of the old one."""
        self.incarnation = incarnation
        self.lease_end = Millis(-1)
        self.follow()

    def stop(self, effect: effects.Stop | effects.SetAside) -> None:
        self.role.end()
        self.note("stopped", why=effect.why)
        self.stopped = True
        self.emit(effect)

    def _storage_failed(self, why: str, *, suspect: bool) -> None:
        if self.guards.failed_write_stops():
            self.stop(effects.Stop(why=why, renew=suspect))
        else:
            self.durable_end = self.log_end
            self.role.persisted()

    # What roles do to the log and the applied state.

    def append_to_log(self, frames: Iterable[Frame]) -> None:
        """Append frames that continue the log, in order."""
        taken = tuple(frames)
        for frame in taken:
            header = frame.header
            if header.offset != self.log_end:
                raise InvariantViolation(
                    "frame does not continue the log", {"frame": header.offset, "log_end": self.log_end}
                )
            self.history = extended(self.history, header.epoch, header.offset)
            self.log_end = header.end_offset
            self.producers.appended(header)
        then = events.Persisted(end=self.log_end, generation=self.generation)
        self.emit(effects.Persist(frames=taken, then=then))

    def truncate_log(self, end: Offset) -> None:
        if end >= self.log_end:
            return
        if end < self.apply_offset:
            raise InvariantViolation(
                "truncation below the apply offset", {"end": end, "apply_offset": self.apply_offset}
            )
        self.note("truncates", end=end, was=self.log_end)
        self.log_end = end
        self.durable_end = min(self.durable_end, end)
        self.history = truncated(self.history, end)
        self.generation += 1
        if self.guards.truncation_takes_back_sequences():
            self.producers.truncated(end)
        then = events.Persisted(end=end, generation=self.generation)
        self.emit(effects.Truncate(end=end, then=then))

    def _state_installed(self, event: events.StateInstalled) -> None:
        """Take over the installed state that we asked for. Nothing was taken since, so nothing is lost."""
        if not self.installing or (event.history and event.history[-1].start >= event.end):
            raise InvariantViolation("a state was installed that was not asked for", {"end": event.end})
        self.installing = False
        self.generation += 1
        self.log_start = self.log_end = self.durable_end = event.end
        self.apply_offset = self.applied = self.durably_applied = event.end
        self.history = event.history
        self.producers.replaced(event.producers)
        self.note("installed_state", end=event.end)
        self.role.state_replaced()

    def apply_to(self, end: Offset) -> None:
        """Move the apply offset to ``end``, and have the driver apply."""
        if not self.apply_offset < end <= self.log_end:
            raise InvariantViolation(
                "apply offset out of the log",
                {"apply_offset": self.apply_offset, "end": end, "log_end": self.log_end},
            )
        self.apply_offset = end
        self.emit(effects.Apply(end=end))

    def cut_below(self, needed_by_others: Offset) -> None:
        limit = self.guards.cut_limit(self.durably_applied, needed_by_others)
        if limit > self.log_start:
            self.emit(effects.Cut(start=limit))

    # Small things.

    def _reckon(self) -> None:
        """Work out the factor and min-ISR anew: the record, the assignment or the settings have changed.

        Each append asks for them.
        """
        recorded = self.record.factor if self.record is not None else 0
        self.factor = self.guards.factor_in_force(recorded, len(self.replicas))
        """Number of replicas that min-ISR is reckoned from."""
        self.min_isr = self.settings.min_isr_of(self.factor)
        self.is_assigned = self.worker in self.replicas

    @property
    def known_record(self) -> GroupRecord:
        return present(self.record, "record")

    @property
    def registered_as(self) -> Incarnation:
        return present(self.incarnation, "incarnation")

    @property
    def role_name(self) -> RoleName:
        if self.stopped:
            return RoleName.STOPPED
        if isinstance(self.role, Leader):
            return RoleName.LEADER
        if self.role.election.standing is not None:
            return RoleName.CANDIDATE
        if self.role.awaits_state:
            return RoleName.FAR
        listed = self.record is not None and self.member in self.record.isr
        return RoleName.FOLLOWER if listed else RoleName.NEAR

    @property
    def awaited_state(self) -> tuple[Epoch, int] | None:
        """Epoch and attempt of the FetchState that was not answered yet, if any."""
        role = self.role
        if isinstance(role, Leader) or self.stopped or not role.awaits_state:
            return None
        return role.epoch, role.attempt

    @property
    def awaits_durable(self) -> bool:
        """Whether entries that become durable here change anything, or some other event must come first."""
        return self.role.awaits_durable

    @property
    def awaits_applied(self) -> bool:
        """Whether anything waits for entries to be applied here; at a follower, only its readers do."""
        return self.role.awaits_applied

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def token(self) -> int:
        self._tokens += 1
        return self._tokens

    def read_record(self, *, sync: bool = True) -> int:
        token = self.token()
        self.emit(effects.ReadRecord(token=token, sync=sync))
        return token

    def note(self, event: str, **fields: Any) -> None:
        self.story.append((self.now, event, fields))
        self.emit(effects.Note(event=event, fields=fields))

    def told_story(self) -> tuple[str, ...]:
        """The latest transitions of this replica as lines of text."""
        return tuple(
            f"{now} {self.worker} {event} " + " ".join(f"{name}={value}" for name, value in fields.items())
            for now, event, fields in self.story
        )
