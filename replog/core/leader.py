"""The leader of an epoch: orders appends, decides what may be applied, answers reads under its lease.

It opens its epoch with an entry of its own and serves nothing before that entry, and with it everything it
inherited, is applied. An append is persisted and forwarded at the same time; it is acknowledged
when it is applied, and applied when all of the maximal ISR holds it.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, assert_never

from stretto.invariants import check
from stretto.replog import frame as frames_of
from stretto.replog.core import effects, messages
from stretto.replog.core.effects import Acked, Refusal
from stretto.replog.core.events import (
    Append,
    CasReply,
    PinMoved,
    Read,
    Resign,
    Sent,
    StateArrived,
    TransferProgressed,
)
from stretto.replog.core.handover import Handover, refusal_of
from stretto.replog.core.membership import Membership
from stretto.replog.core.messages import AnyMessage, RejectReason
from stretto.replog.core.producers import (
    NO_PRODUCER,
    DuplicateBatch,
    NewBatch,
    OtherClaim,
    SequenceGap,
    UnknownProducer,
    born_ms,
    is_named,
)
from stretto.replog.core.progress import Progress
from stretto.replog.core.record import Member, Registration
from stretto.replog.frame import Frame, Header, Kind
from stretto.types import Epoch, Millis, Offset, ProducerId, TaskId, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.replica import Replica

PAUSED_KINDS = (Kind.DEPOT, Kind.PRODUCER_OPEN, Kind.CLAIM)
"""What clients of a paused module are refused."""


class Leader:
    """One replica in one epoch it leads."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.epoch: Epoch = replica.known_record.epoch
        self.epoch_start: Offset = replica.log_end
        #: One per follower that said Hello in this epoch: its incarnation that counts.
        self.followers: dict[WorkerId, Progress] = {}
        #: All incarnations that did. A Hello may be late: the one it speaks for may be gone already.
        self._incarnations: dict[Registration, Progress] = {}
        #: The leader of the epoch before, if we know its registration to be gone: no need to wait for it.
        self.gone_predecessor: WorkerId | None = None
        if replica.gone_leader is not None and replica.gone_leader[1] == self.epoch - 1:
            self.gone_predecessor = replica.gone_leader[0].worker
        #: Who handed over to us. It may be on its way out, and never say Hello.
        self._predecessor = self._handed_over_by()
        self.membership = Membership(self)
        self.handover: Handover | None = None
        #: Not assigned any more, we hand over; not before this, if it was in vain.
        self._leave_at = replica.now
        #: The stall timer expired and min-ISR forbids to drop the laggards.
        self.stalled = False
        self._served = False
        #: Whether our epoch is over: the question under way, and since when.
        self._reading: tuple[int, Millis] | None = None

        #: (end, when it was appended) of frames not decided yet, in order: the head runs the stall timer.
        self._undecided: deque[tuple[Offset, Millis]] = deque()
        #: Requests to acknowledge when the applied offset reaches the key.
        self._waiting: dict[Offset, list[tuple[int, Offset | None]]] = {}
        self._waiting_ends: deque[Offset] = deque()
        #: A heap: the time-out may be changed while appends wait.
        self._timeouts: list[tuple[Millis, Offset, int]] = []
        #: When followers hear what is applied, unless entries tell them before.
        self._news_at: Millis | None = None
        self._sampling: set[int] = set()
        #: Followers that inquired up to where entries may be visible, since the clock was last read.
        self._inquiries: dict[WorkerId, messages.Inquire] = {}
        #: When each producer was last heard, for expiry.
        self._producers_heard: dict[ProducerId, Millis] = {}
        self._in_office_since = replica.now
        self._expiry_at = self._next_expiry_check()

    def _handed_over_by(self) -> Registration | None:
        before = self.replica.previous_record
        if before is None or before.epoch != self.epoch - 1 or before.leader_incarnation is None:
            return None
        if before.leader is None or before.leader == self.replica.worker:
            return None
        return Registration(before.leader, before.leader_incarnation)

    def begin(self) -> None:
        """Open the epoch."""
        replica = self.replica
        if self._predecessor is not None and self.gone_predecessor is None:
            replica.emit(effects.CheckRegistration(registration=self._predecessor))
        if replica.log_end > replica.apply_offset:
            self._undecided.append((replica.log_end, replica.now))
        self._append_entry(Kind.EPOCH)
        for other in self._others():
            self._reject(other, RejectReason.NEW_EPOCH)
        self._progressed()

    def end(self) -> None:
        """What was appended may or may not survive: its producers will ask again."""
        for waiting in self._waiting.values():
            for request, _ in waiting:
                self.replica.emit(effects.Reply(request=request, result=effects.Unknown()))
        self._waiting.clear()
        for request in self._sampling:
            self._refuse(request, Refusal.NOT_LEADER)
        self._sampling.clear()
        self.replica.note("steps_down", epoch=self.epoch)

    @property
    def is_serving(self) -> bool:
        return self.replica.guards.may_serve(self.replica.applied, self.epoch_start)

    @property
    def handover_sent(self) -> bool:
        return self.handover is not None and self.handover.sent is not None

    # Appends.

    def append(self, event: Append) -> None:
        replica, guards = self.replica, self.replica.guards
        refusal = self._refusal()
        if refusal is not None:
            self._refuse(event.request, refusal)
            return
        verdict = replica.producers.judge(event.kind, event.producer, event.task, event.sequence, event.count)
        if event.kind is Kind.PRODUCER_OPEN and isinstance(verdict, NewBatch):
            age_ms = event.timestamp_ms - born_ms(event.producer)
            if not guards.is_young(age_ms, replica.settings.producer_expiry_ms):
                verdict = UnknownProducer()
        if isinstance(verdict, SequenceGap) and is_named(event.producer):
            if guards.begins_round(event.sequence, verdict.expected):
                verdict = NewBatch()
        elif isinstance(verdict, OtherClaim):
            if not guards.may_claim(verdict.claimed, event.sequence):
                self._refuse(event.request, Refusal.CLAIMED)
                return
            verdict = NewBatch()
        if event.producer != NO_PRODUCER:
            self._producers_heard[event.producer] = replica.now
        match verdict:
            case DuplicateBatch(end=end, offset=offset) if guards.recognizes_duplicates():
                if end is None or not guards.duplicate_waits():
                    self._reply(event.request, Acked(offset=offset))
                else:
                    self._wait(event, end, offset)
                return
            case SequenceGap() if guards.refuses_gaps():
                self._refuse(event.request, Refusal.SEQUENCE_GAP)
                return
            case UnknownProducer() if guards.refuses_unknown_producers():
                self._refuse(event.request, Refusal.UNKNOWN_PRODUCER)
                return
            case NewBatch() if replica.settings.paused and event.kind in PAUSED_KINDS:
                # Only here: what was stored before the pause is still acknowledged.
                self._refuse(event.request, Refusal.PAUSED)
                return
            case NewBatch() if self._is_sealed():
                self._refuse(event.request, Refusal.SEALED)
                return
            case NewBatch() | DuplicateBatch() | SequenceGap() | UnknownProducer():
                pass
            case _:
                assert_never(verdict)
        offset = replica.log_end
        self._append_entry(
            event.kind,
            event.producer,
            event.payload,
            task=event.task,
            sequence=event.sequence,
            count=event.count,
            timestamp_ms=event.timestamp_ms,
        )
        self._wait(event, replica.log_end, offset)
        self._pump_all()
        # Everybody lacks this entry, and hears with it what is applied.
        self._news_at = None

    def _refusal(self) -> Refusal | None:
        replica, guards = self.replica, self.replica.guards
        if not self.is_serving:
            return Refusal.NOT_READY
        if self.handover is not None and not guards.appends_while_resigning():
            return Refusal.HANDING_OVER
        if (self.stalled or self.membership.is_short()) and guards.stalled_refuses():
            return Refusal.STALLED
        if not guards.within_bound(replica.log_end - replica.applied, replica.settings.max_unapplied):
            return Refusal.OVERLOADED
        return None

    def _is_sealed(self) -> bool:
        replica = self.replica
        return not replica.guards.takes_appends(replica.producers.sealed, replica.regrouping.next)

    def regroup(self) -> None:
        self._seal()
        self._pump_all()

    def _seal(self) -> None:
        """Seal the log for the grouping to follow, or take that back if it was abandoned."""
        replica = self.replica
        heard, sealed = replica.regrouping, replica.producers.sealed
        if not (sealed or heard.next) or self._refusal() is not None:
            return
        if sealed and replica.guards.may_unseal(sealed, heard.present, heard.abandoned):
            replica.note("unseals", grouping=sealed)
            self._append_entry(Kind.UNSEAL, sequence=sealed)
            sealed = 0
        if heard.next and not sealed:
            replica.note("seals", grouping=heard.next)
            self._append_entry(Kind.SEAL, sequence=heard.next)

    def _append_entry(
        self,
        kind: Kind,
        producer: ProducerId = NO_PRODUCER,
        payload: frames_of.Buffer = b"",
        *,
        task: TaskId = TaskId(0),
        sequence: int = 0,
        count: int = 1,
        timestamp_ms: int = 0,
    ) -> None:
        replica = self.replica
        header = Header(
            offset=replica.log_end,
            epoch=self.epoch,
            kind=kind,
            count=count,
            task=task,
            producer=producer,
            sequence=sequence,
            timestamp_ms=timestamp_ms,
        )
        replica.append_to_log((frames_of.encode(header, payload),))
        self._undecided.append((replica.log_end, replica.now))
        self._waiting_ends.append(replica.log_end)

    def _wait(self, event: Append, end: Offset, offset: Offset | None) -> None:
        replica = self.replica
        self._waiting.setdefault(end, []).append((event.request, offset))
        timeout_ms = replica.settings.append_timeout_ms if event.timeout_ms is None else event.timeout_ms
        heapq.heappush(self._timeouts, (Millis(replica.now + timeout_ms), end, event.request))

    # The apply offset.

    def end_of(self, member: Member) -> Offset:
        """End of what that member is known to hold."""
        replica = self.replica
        if member == replica.member:
            return replica.guards.own_end(replica.durable_end, replica.log_end)
        progress = self.followers.get(member.worker)
        if progress is None or progress.confirmed is None:
            return Offset(0)
        if not replica.guards.counts_as_member(progress.storage, member):
            return Offset(0)
        return progress.confirmed

    @property
    def awaits_applied(self) -> bool:
        """Who appended does."""
        return True

    @property
    def awaits_durable(self) -> bool:
        """Not while another member holds less than we do: then its confirmation decides."""
        replica, membership = self.replica, self.membership
        members = replica.guards.must_hold(membership.committed, membership.proposed)
        durable_end = replica.durable_end
        return all(self.end_of(each) > durable_end for each in members if each != replica.member)

    def _advance_apply_offset(self) -> bool:
        """True if it has moved."""
        replica, guards = self.replica, self.replica.guards
        membership = self.membership
        if replica.apply_offset == replica.log_end or membership.is_short():
            return False
        members = guards.must_hold(membership.committed, membership.proposed)
        limit = guards.held_by_all([self.end_of(member) for member in members], replica.min_isr)
        if limit <= replica.apply_offset:
            return False
        replica.apply_to(limit)
        while self._undecided and self._undecided[0][0] <= limit:
            self._undecided.popleft()
        return True

    def _progressed(self) -> None:
        """Something that decisions depend on has changed, whatever it is.

        What happens with each append is dealt with by itself instead, since it changes less.
        """
        if self.replica.role is not self:
            return
        self._note_service()
        self._advance_apply_offset()
        self.membership.consider()
        self._advance_handover()
        self.regroup()

    def _advance_handover(self) -> None:
        if not self.replica.is_assigned and self.handover is None:
            self._leave()
        if self.handover is not None:
            self.handover.advance()

    def _note_service(self) -> None:
        if not self._served and self.is_serving:
            self._served = True
            self.replica.note("serves", epoch=self.epoch, applied=self.replica.applied)

    def _pump_all(self) -> None:
        for progress in self.followers.values():
            progress.pump(self)

    @property
    def news_are_due(self) -> bool:
        return self._news_at is not None and self._news_at <= self.replica.now

    def _tell_news(self) -> None:
        """Now, without waiting for entries; once more if some are with the driver that do not tell it."""
        self._news_at = self.replica.now
        self._pump_all()
        is_again = any(progress.sending for progress in self.followers.values())
        self._news_at = Millis(self.replica.now + self.replica.settings.news_ms) if is_again else None

    def overdue_end(self) -> Offset:
        """End of the entry next to be applied, if it has waited too long; else 0, which everybody holds."""
        return self._undecided[0][0] if self.head_expired() else Offset(0)

    def head_expired(self) -> bool:
        """The entry next to be applied has waited too long."""
        replica = self.replica
        if not self._undecided:
            return False
        waited = replica.now - self._undecided[0][1]
        return replica.guards.lag_expired(waited, replica.settings.max_time_lag_ms)

    def persisted(self) -> None:
        if self._advance_apply_offset():
            # Another entry is next to be applied, and may have waited for too long by now.
            self.membership.consider()

    def applied(self) -> None:
        applied = self.replica.applied
        while self._waiting_ends and self._waiting_ends[0] <= applied:
            for request, offset in self._waiting.pop(self._waiting_ends.popleft(), ()):
                self._reply(request, Acked(offset=offset))
        while self._timeouts and self._timeouts[0][1] <= applied:
            heapq.heappop(self._timeouts)
        if self._news_at is None:
            self._news_at = Millis(self.replica.now + self.replica.settings.news_ms)
        self._note_service()
        self._advance_handover()
        self.regroup()

    # Reads.

    def read(self, read: Read) -> None:
        replica, request = self.replica, read.request
        if not self.is_serving:
            self._refuse(request, Refusal.NOT_READY)
        elif self._reads_stopped():
            self._refuse(request, Refusal.HANDING_OVER)
        elif not replica.guards.lease_checked_after_sampling() and not self._has_lease():
            self._refuse(request, Refusal.NO_LEASE)
        else:
            self._sampling.add(request)
            replica.emit(effects.Sample(request=request))

    def sampled(self, request: int) -> None:
        if request not in self._sampling:
            self._refuse(request, Refusal.NOT_LEADER)
            return
        self._sampling.discard(request)
        if self._reads_stopped():
            self._refuse(request, Refusal.HANDING_OVER)
        elif self.replica.guards.lease_checked_after_sampling() and not self._has_lease():
            self._refuse(request, Refusal.NO_LEASE)
        else:
            self._reply(request, effects.ReadServed(epoch=self.epoch))

    def _on_inquire(self, sender: WorkerId, inquire: messages.Inquire) -> None:
        """Answered like a read: when a clock that is read from now on finds our lease."""
        if not self._inquiries:
            self.replica.emit(effects.ReadClock())
        self._inquiries[sender] = inquire
        if not self.replica.guards.assurance_awaits_clock():
            self.clock_read()

    def clock_read(self) -> None:
        inquiries, self._inquiries = self._inquiries, {}
        if not self.is_serving or self._reads_stopped():
            return
        if not self.replica.guards.may_assure(self._has_lease()):
            return
        for sender, inquire in inquiries.items():
            assure = messages.Assure(
                self.epoch,
                self.replica.registered_as,
                to=inquire.incarnation,
                stamp=inquire.stamp,
                apply_offset=self.replica.apply_offset,
            )
            self.replica.emit(effects.Send(to=sender, message=assure))
        if inquiries and self._news_at is not None:
            self._tell_news()

    def _has_lease(self) -> bool:
        return self.replica.guards.lease_holds(self.replica.now, self.replica.lease_end)

    def _reads_stopped(self) -> bool:
        guards = self.replica.guards
        if self.replica.closed_for and not guards.reads_while_closing():
            return True
        return self.handover_sent and not guards.reads_while_handing_over()

    # Followers.

    def received(self, sender: WorkerId, message: AnyMessage, _frames: tuple[Frame, ...]) -> None:
        if message.epoch > self.epoch:
            self._read_record()
            return
        match message:
            case messages.Reject():
                return
            case messages.Confirm():
                self._on_confirm(sender, message)
            case _ if message.epoch < self.epoch:
                self._reject(sender, RejectReason.STALE_EPOCH)
            case messages.Hello():
                self._on_hello(sender, message)
            case messages.FetchState():
                self._on_fetch_state(sender, message)
            case messages.Inquire():
                self._on_inquire(sender, message)
            case messages.Reach():
                """It has not heard of us; our registration will tell."""
            case messages.Entries() | messages.Lineage() | messages.Assure():
                check(False, "another leader in our epoch", epoch=self.epoch, sender=sender)
            case _:
                assert_never(message)

    def _read_record(self) -> None:
        """A newer epoch exists: ask, one question at a time."""
        replica = self.replica
        if self._reading is None or replica.now - self._reading[1] >= replica.settings.retry_ms:
            self._reading = (replica.read_record(), replica.now)

    def _others(self) -> list[WorkerId]:
        """Assigned, and those that the ISR still lists or may; in the same order in every process."""
        return sorted(worker for worker in self.membership.concerned if worker != self.replica.worker)

    def hears(self, sender: WorkerId) -> bool:
        return sender in self.membership.concerned

    def replicas_changed(self) -> None:
        self.replica.note("replicas", plan=self.replica.plan, replicas=list(self.replica.replicas))
        self.membership.replicas_changed()
        self._progressed()

    def forget_strangers(self) -> None:
        """Who is neither assigned nor a member: it receives nothing more, and nothing is kept for it."""
        for worker in sorted(self.followers.keys() - self.membership.concerned):
            del self.followers[worker]
            self.replica.emit(effects.StopServing(to=worker))
        for registration in [each for each in self._incarnations if each.worker not in self.followers]:
            del self._incarnations[registration]

    def _on_hello(self, sender: WorkerId, hello: messages.Hello) -> None:
        replica = self.replica
        registration = Registration(sender, hello.incarnation)
        known = self._incarnations.get(registration)
        progress = known
        if progress is None or hello.attempt > progress.attempt:
            progress = Progress(sender, hello.incarnation, hello.storage, hello.attempt, replica.now)
            progress.confirmed = replica.guards.confirmed_by_hello(hello.end)
            progress.pinned = known.pinned if known is not None else None
            self.followers[sender] = self._incarnations[registration] = progress
            replica.emit(effects.CheckRegistration(registration=registration))
        lineage = messages.Lineage(
            self.epoch,
            replica.registered_as,
            to=hello.incarnation,
            attempt=hello.attempt,
            history=replica.history,
            start=replica.log_start,
            end=replica.log_end,
            apply_offset=replica.apply_offset,
            near_lag=self._reach(progress),
            listed=self.membership.may_list(Member(sender, hello.storage)),
        )
        replica.emit(effects.Send(to=sender, message=lineage))
        self._progressed()

    def _reach(self, progress: Progress) -> int:
        """How far behind a follower may be: further if our log is kept for it, as after it took our state."""
        near_lag = self.replica.settings.max_near_lag
        if progress.pinned is None:
            return near_lag
        return max(near_lag, self.replica.apply_offset - progress.pinned)

    def _on_confirm(self, sender: WorkerId, confirm: messages.Confirm) -> None:
        replica, guards = self.replica, self.replica.guards
        if not guards.confirm_epoch_is_mine(confirm.epoch, self.epoch):
            self._reject(sender, RejectReason.STALE_EPOCH)
            return
        progress = self.followers.get(sender)
        if progress is None or not guards.incarnation_is_known(confirm.incarnation, progress.incarnation):
            self._reject(sender, RejectReason.STALE_INCARNATION)
            return
        same = confirm.incarnation == progress.incarnation
        if same and confirm.attempt != progress.attempt:
            return
        check(
            confirm.end <= replica.log_end or confirm.epoch != self.epoch,
            "follower confirms more than the leader has",
            follower=sender,
            confirmed=confirm.end,
            log_end=replica.log_end,
        )
        progress.on_confirm(confirm, replica.now)
        if progress.pinned is not None:
            in_range = replica.apply_offset - confirm.end <= replica.settings.max_near_lag
            progress.pinned = None if in_range else max(progress.pinned, confirm.end)
        self._advance_apply_offset()
        self.membership.consider()
        self._advance_handover()
        progress.pump(self)

    def _on_fetch_state(self, sender: WorkerId, message: messages.FetchState) -> None:
        progress = self.followers.get(sender)
        if progress is None or progress.attempt != message.attempt:
            return
        if progress.incarnation == message.incarnation:
            pinned = progress.pinned = self.replica.applied
            self.replica.note("serves_state", to=sender, at=pinned)
            self.replica.emit(
                effects.ServeState(
                    to=sender,
                    epoch=self.epoch,
                    incarnation=message.incarnation,
                    attempt=message.attempt,
                    pinned=pinned,
                )
            )

    def pin_moved(self, event: PinMoved) -> None:
        progress = self.followers.get(event.to)
        if event.epoch != self.epoch or progress is None or progress.incarnation != event.incarnation:
            return
        if progress.pinned is not None and (event.start is None or event.start > progress.pinned):
            progress.pinned = event.start

    def _release_pins(self) -> None:
        """What is kept for others is bounded; who needs more begins again."""
        replica = self.replica
        for progress in self.followers.values():
            if progress.pinned is None or progress.gone:
                continue
            kept = replica.apply_offset - progress.pinned
            if kept > replica.settings.max_pinned:
                progress.pinned = None
                replica.note(
                    "pin_released",
                    follower=progress.worker,
                    entries=kept,
                    advice="it takes our state too slowly for the log to be kept; raise "
                    "replication.far.horizon.max.pinned.entries, or "
                    "replication.catchup.max.bytes.per.second",
                )
                replica.emit(effects.StopServing(to=progress.worker))

    def _reject(self, sender: WorkerId, reason: RejectReason) -> None:
        reject = messages.Reject(self.epoch, self.replica.registered_as, reason=reason)
        self.replica.emit(effects.Send(to=sender, message=reject))

    def sent(self, event: Sent) -> None:
        progress = self.followers.get(event.to)
        if progress is None or progress.incarnation != event.incarnation:
            return
        if progress.attempt == event.attempt:
            progress.sending = False
            progress.next = event.end
            progress.in_flight.append(event.end)
            progress.pump(self)

    def needed_by_others(self) -> Offset:
        """Lowest offset that a replica within range of our log may still ask for."""
        replica = self.replica
        within_range = replica.apply_offset - replica.settings.max_near_lag
        needed = replica.apply_offset
        for worker in self._others():
            progress = self.followers.get(worker)
            confirmed = progress.confirmed if progress is not None else None
            needed = min(needed, Offset(max(confirmed or 0, within_range)))
            if progress is not None and progress.pinned is not None and not progress.gone:
                needed = min(needed, progress.pinned)
        return Offset(max(needed, 0))

    def cut_log(self) -> None:
        self._release_pins()
        self.replica.cut_below(self.needed_by_others())

    # Metastore.

    def record_changed(self) -> None:
        self.membership.record_changed()
        self._progressed()

    def record_read(self, token: int) -> None:
        self._answered(token)
        self.membership.record_read(token)
        if self.handover is not None:
            self.handover.record_read(token)
        self._progressed()

    def read_failed(self, token: int) -> None:
        """The retry timer asks again."""
        self._answered(token)

    def _answered(self, token: int) -> None:
        if self._reading is not None and self._reading[0] == token:
            self._reading = None

    def cas_reply(self, event: CasReply) -> None:
        self.membership.cas_reply(event)
        if self.handover is not None and self.replica.role is self:
            self.handover.cas_reply(event)
        self._progressed()

    def registration_seen(self, registration: Registration, exists: bool) -> None:
        if registration == self._predecessor and not exists:
            self.gone_predecessor = registration.worker
            self._progressed()
        progress = self._incarnations.get(registration)
        if progress is None:
            return
        progress.in_doubt = False
        if exists:
            self._progressed()
            return
        progress.gone = True
        alive = [
            each
            for each in self._incarnations.values()
            if each.worker == registration.worker and not each.gone
        ]
        if alive and self.followers[registration.worker].gone:
            self.followers[registration.worker] = alive[-1]
        if self.followers[registration.worker] is not progress:
            del self._incarnations[registration]
        self._progressed()

    def doubt(self, registration: Registration) -> None:
        """The metastore refused a change because of it: test it before it is named again."""
        progress = self._incarnations.get(registration)
        if progress is not None:
            progress.in_doubt = True
            self.replica.emit(effects.CheckRegistration(registration=registration))

    def members_seen(self, token: int, alive: frozenset[Member]) -> None:
        """An answer to a question asked as a follower."""

    def state_arrived(self, event: StateArrived) -> None:
        """For a follower that we are no longer."""

    def transfer_progressed(self, event: TransferProgressed) -> None:
        """Likewise."""

    def state_replaced(self) -> None:
        check(False, "a leader's state was replaced by another's", epoch=self.epoch)

    def state_failed(self) -> None:
        """A transfer of an earlier epoch, when we followed."""

    # Resigning.

    def resign(self, event: Resign) -> None:
        why = refusal_of(self, event)
        if why is not None:
            self.replica.note("refuses_to_resign", why=why)
            self.replica.emit(effects.ForgetResign(epoch=event.epoch))
            return
        self.replica.note("resigning", epoch=self.epoch, to=event.target)
        self.handover = Handover(self, event.target)
        self._progressed()

    def _leave(self) -> None:
        """We are to go, and all who are to stay are in the ISR: one of them takes over."""
        replica, membership = self.replica, self.membership
        if not self.is_serving or replica.now < self._leave_at or not membership.may_leave():
            return
        for worker in replica.replicas:
            progress = self.followers.get(worker)
            if progress is not None and not progress.gone and progress.member in membership.committed:
                replica.note("leaves", epoch=self.epoch, to=worker)
                self.handover = Handover(self, worker)
                return

    def resume(self, why: str) -> None:
        self._leave_at = Millis(self.replica.now + self.replica.settings.resign_timeout_ms)
        self.replica.note("resumes", epoch=self.epoch, why=why)
        self.replica.emit(effects.ForgetResign(epoch=self.epoch))
        self.handover = None

    # Time.

    def tick(self) -> None:
        self._time_out_appends()
        self._expire_producers()
        self.membership.tick()
        if self.handover is not None:
            self.handover.tick()
        for progress in self.followers.values():
            progress.probe_if_silent(self)
        self._progressed()
        if self.news_are_due:
            self._tell_news()

    def _time_out_appends(self) -> None:
        timeouts = self._timeouts
        while timeouts and timeouts[0][0] <= self.replica.now:
            _, end, request = heapq.heappop(timeouts)
            waiting = self._waiting.get(end, [])
            for each in waiting:
                if each[0] == request:
                    waiting.remove(each)
                    self._reply(request, effects.Unknown())
                    break

    def _expire_producers(self) -> None:
        """Decided here, by an entry; every replica forgets the producer at the same offset."""
        replica = self.replica
        if replica.now < self._expiry_at:
            return
        self._expiry_at = self._next_expiry_check()
        for producer in replica.producers.open_producers():
            heard = self._producers_heard.get(producer, self._in_office_since)
            is_silent = replica.now - heard >= replica.settings.producer_expiry_ms
            if is_silent and replica.guards.may_forget(producer):
                if self._refusal() is not None or self._is_sealed():
                    return
                self._producers_heard.pop(producer, None)
                replica.note("expires_producer", producer=producer)
                self._append_entry(Kind.PRODUCER_EXPIRE, producer)

    def _next_expiry_check(self) -> Millis:
        return Millis(self.replica.now + max(1, self.replica.settings.producer_expiry_ms // 4))

    def next_deadline(self) -> Millis | None:
        first = self._expiry_at
        for progress in self.followers.values():
            probe_at = progress.probe_at(self)
            if probe_at is not None and probe_at < first:
                first = probe_at
        if self._undecided:
            expires_at = Millis(self._undecided[0][1] + self.replica.settings.max_time_lag_ms)
            if self.membership.considered_at < expires_at < first:
                first = expires_at
        if self._timeouts and self._timeouts[0][0] < first:
            first = self._timeouts[0][0]
        for rare in (self._news_at, self.membership.retry_at, self._handover_deadline()):
            if rare is not None and rare < first:
                first = rare
        return first

    def _handover_deadline(self) -> Millis | None:
        if self.handover is not None:
            return self.handover.next_deadline()
        if not self.replica.is_assigned and self._leave_at > self.replica.now:
            return self._leave_at
        return None

    def options_changed(self) -> None:
        self._expiry_at = min(self._expiry_at, self._next_expiry_check())
        self.membership.options_changed()
        self._progressed()

    # Replies.

    def _reply(self, request: int, result: effects.Result) -> None:
        self.replica.emit(effects.Reply(request=request, result=result))

    def _refuse(self, request: int, reason: Refusal) -> None:
        leader = self.replica.known_record.leader
        self._reply(request, effects.Refused(reason=reason, leader=leader, epoch=self.epoch))
