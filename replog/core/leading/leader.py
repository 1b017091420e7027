"""The leader of an epoch: orders appends, decides what may be applied, answers reads under its lease.

It opens its epoch with an entry of its own and serves nothing before that entry, and with it everything it
inherited, is applied. An append is persisted and forwarded at the same time; when all of the maximal ISR
holds it, it is decided: it may be applied, and is acknowledged (:mod:`stretto.replog.core.leading.acks`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, assert_never

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
from stretto.replog.core.leading.acks import Acks, Backlog
from stretto.replog.core.leading.followers import Followers
from stretto.replog.core.leading.handover import Handover, candidates, refusal_of, successor_of
from stretto.replog.core.leading.membership import Membership
from stretto.replog.core.leading.serving import Serving
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
from stretto.replog.core.record import Member, Registration
from stretto.replog.frame import Frame, Header, Kind
from stretto.vocabulary.invariants import check
from stretto.vocabulary.types import Buffer, Epoch, Incarnation, Millis, Offset, ProducerId, TaskId, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.replica import Replica

PAUSED_KINDS = (Kind.DEPOT, Kind.PRODUCER_OPEN, Kind.CLAIM)
"""Kinds of entries that a paused module takes from no client."""


class Leader:
    """One replica in one epoch it leads."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.epoch: Epoch = replica.known_record.epoch
        #: The incarnation under which it leads: another session ends the epoch here.
        self.incarnation: Incarnation = replica.registered_as
        self.epoch_start: Offset = replica.log_end
        self.followers = Followers(self)
        self.serving = Serving(self)
        #: The leader of the epoch before, if we know its registration to be gone: no need to wait for it.
        self.gone_predecessor: WorkerId | None = None
        if replica.gone_leader is not None and replica.gone_leader[1] == self.epoch - 1:
            self.gone_predecessor = replica.gone_leader[0].worker
        #: The leader that handed over to us. It may be on its way out, and never say Hello.
        self._predecessor = self._handed_over_by()
        self.membership = Membership(self)
        self.handover: Handover | None = None
        #: When we may hand over because we are not assigned any more; put off if that was in vain.
        self._leave_at = replica.now
        #: Whether the stall timer expired and min-ISR forbids dropping the laggards.
        self.stalled = False
        self._served = False
        #: Token and time of the read under way that tells whether our epoch is over.
        self._reading: tuple[int, Millis] | None = None

        #: (end, when it was appended) of frames not committed yet, in order: the head runs the stall timer.
        self._undecided: deque[tuple[Offset, Millis]] = deque()
        self._acks = Acks()
        self._backlog = Backlog()
        #: End of what was acknowledged before it was applied: no read may miss it.
        self.acknowledged_end = Offset(0)
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
        """Open the epoch with an entry, and let the other replicas know."""
        replica = self.replica
        if self._predecessor is not None and self.gone_predecessor is None:
            replica.emit(effects.CheckRegistration(registration=self._predecessor))
        if replica.log_end > replica.apply_offset:
            self._undecided.append((replica.log_end, replica.now))
        self._append_entry(Kind.EPOCH)
        for other in self.others():
            self.reject(other, RejectReason.NEW_EPOCH)
        self._progressed()

    def end(self) -> None:
        """Step down. What was appended may or may not survive: its producers will ask again."""
        for request in self._acks.end():
            self._reply(request, effects.Unknown())
        self.serving.end()
        self.replica.note("steps_down", epoch=self.epoch)

    @property
    def is_serving(self) -> bool:
        """Whether everything inherited is applied, so that appends and reads are taken."""
        return self.replica.guards.may_serve(self.replica.applied, self.epoch_start)

    @property
    def advertised_end(self) -> Offset:
        """End of what followers may apply: what is applied here, or was acknowledged."""
        replica = self.replica
        return replica.guards.advertised_end(
            max(replica.applied, self.acknowledged_end), replica.apply_offset
        )

    @property
    def handover_sent(self) -> bool:
        """Whether the compare-and-set of a hand-over was sent."""
        return self.handover is not None and self.handover.sent is not None

    # Appends.

    def append(self, event: Append) -> None:
        replica, guards = self.replica, self.replica.guards
        refusal = self._refusal()
        if refusal is not None:
            self.refuse(event.request, refusal)
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
                self.refuse(event.request, Refusal.CLAIMED)
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
                    self._acknowledge()
                return
            case SequenceGap() if guards.refuses_gaps():
                self.refuse(event.request, Refusal.SEQUENCE_GAP)
                return
            case UnknownProducer() if guards.refuses_unknown_producers():
                self.refuse(event.request, Refusal.UNKNOWN_PRODUCER)
                return
            case NewBatch() if replica.settings.paused and event.kind in PAUSED_KINDS:
                # Only here: what was stored before the pause is still acknowledged.
                self.refuse(event.request, Refusal.PAUSED)
                return
            case NewBatch() if self._is_sealed():
                self.refuse(event.request, Refusal.SEALED)
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
        self.followers.pump()
        # Everybody lacks this entry, and hears with it what is shown.
        self.followers.news_at = None

    def _refusal(self) -> Refusal | None:
        replica, guards = self.replica, self.replica.guards
        if not self.is_serving:
            return Refusal.NOT_READY
        handover = self.handover
        if handover is not None and not guards.appends_while_resigning(handover.is_finishing):
            return Refusal.HANDING_OVER
        if (self.stalled or self.membership.is_short()) and guards.stalled_refuses():
            return Refusal.STALLED
        if not guards.within_bound(replica.log_end - replica.applied, replica.settings.max_unapplied):
            return Refusal.OVERLOADED
        return None

    def _is_pressed(self) -> bool:
        """Whether so much is unapplied that producers have to wait until their appends are applied."""
        replica, settings = self.replica, self.replica.settings
        if 2 * (replica.log_end - replica.applied) >= settings.max_unapplied:
            return True
        return not replica.guards.may_acknowledge_early(self._backlog.bytes, settings.early_bytes)

    def _is_sealed(self) -> bool:
        replica = self.replica
        return not replica.guards.takes_appends(replica.producers.sealed, replica.regrouping.next)

    def regroup(self) -> None:
        self._seal()
        self.followers.pump()

    def _seal(self) -> None:
        """Seal the log for the grouping to follow, or take that back if it was abandoned."""
        replica = self.replica
        heard, sealed = replica.regrouping, replica.producers.sealed
        if not (sealed or heard.next) or self.handover is not None or self._refusal() is not None:
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
        payload: Buffer = b"",
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
        frame = frames_of.encode(header, payload)
        self._backlog.appended(frame.end_offset, frame.size_bytes)
        replica.append_to_log((frame,))
        self._undecided.append((replica.log_end, replica.now))

    def _wait(self, event: Append, end: Offset, offset: Offset | None) -> None:
        replica = self.replica
        timeout_ms = replica.settings.append_timeout_ms if event.timeout_ms is None else event.timeout_ms
        self._acks.wait(event, end, offset, Millis(replica.now + timeout_ms))

    def _acknowledge(self) -> None:
        replica = self.replica
        end = replica.applied
        if not self._is_pressed():
            end = replica.guards.acknowledged_end(replica.apply_offset, replica.log_end)
        for request, offset in self._acks.decided(end):
            self._reply(request, Acked(offset=offset))
            self.acknowledged_end = max(self.acknowledged_end, end)

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
        """Whether anything waits for entries to be applied here.

        An append does not, unless it asked for that; but a read does, here or at a follower, that has to see
        it. Before we serve, and to hand over, all has to be applied.
        """
        return (
            self.serving.awaits_applied
            or self.followers.awaited_end is not None
            or self._acks.await_applied
            or self.handover is not None
            or not self._served
            or self._is_pressed()
        )

    @property
    def awaits_durable(self) -> bool:
        """Whether our own write may be what entries wait for to be committed.

        Not while another member holds less than we do: then its confirmation decides.
        """
        replica, membership = self.replica, self.membership
        members = replica.guards.must_hold(membership.committed, membership.proposed)
        durable_end = replica.durable_end
        return all(self.end_of(each) > durable_end for each in members if each != replica.member)

    def _advance_apply_offset(self) -> bool:
        """Move the apply offset as far as the ISR allows; True if it has moved."""
        replica, guards = self.replica, self.replica.guards
        membership = self.membership
        if replica.apply_offset == replica.log_end:
            return False
        members = guards.must_hold(membership.committed, membership.proposed)
        limit = guards.held_by_all([self.end_of(member) for member in members], replica.min_isr)
        if limit <= replica.apply_offset or membership.is_short():
            return False
        replica.apply_to(limit)
        while self._undecided and self._undecided[0][0] <= limit:
            self._undecided.popleft()
        self._acknowledge()
        self.followers.have_news()
        return True

    def _progressed(self) -> None:
        """Reconsider everything, after a change that decisions depend on.

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

    def overdue_end(self) -> Offset:
        """End of the entry next to be applied, if it has waited too long; else 0, which everybody holds."""
        return self._undecided[0][0] if self.head_expired() else Offset(0)

    def head_expired(self) -> bool:
        """Whether the entry next to be applied has waited too long."""
        replica = self.replica
        if not self._undecided:
            return False
        waited = replica.now - self._undecided[0][1]
        return replica.guards.lag_expired(waited, replica.settings.max_time_lag_ms)

    def _decides_more(self) -> bool:
        """Advance the apply offset; True if the ISR is to be reconsidered.

        That is so if another entry is next to be applied, which may have waited for too long by now, or none
        is that we were stalled by.
        """
        return self._advance_apply_offset() and (self.stalled or bool(self._undecided))

    def persisted(self) -> None:
        if self._decides_more():
            self.membership.consider()

    def applied(self) -> None:
        replica = self.replica
        self._backlog.applied(replica.applied)
        self._acknowledge()
        own_end = replica.guards.acknowledged_own_end(replica.applied, replica.apply_offset)
        for request, offset in self._acks.applied(own_end):
            self._reply(request, Acked(offset=offset))
        self.serving.applied()
        self.followers.have_news()
        self._note_service()
        self._advance_handover()
        self.regroup()

    # Reads.

    def read(self, read: Read) -> None:
        self.serving.read(read)

    def sampled(self, request: int) -> None:
        self.serving.sampled(request)

    def clock_read(self) -> None:
        self.serving.clock_read()

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
                self.reject(sender, RejectReason.STALE_EPOCH)
            case messages.Hello():
                self.followers.hello(sender, message)
                self._progressed()
            case messages.FetchState():
                self.followers.fetch_state(sender, message)
            case messages.Inquire():
                self.serving.inquired(sender, message)
            case messages.Reach():
                """It has not heard of us; our registration will tell."""
            case messages.Entries() | messages.Lineage() | messages.Assure():
                check(False, "another leader in our epoch", epoch=self.epoch, sender=sender)
            case _:
                assert_never(message)

    def _on_confirm(self, sender: WorkerId, confirm: messages.Confirm) -> None:
        progress = self.followers.confirmed(sender, confirm)
        if progress is not None:
            if self._decides_more() or self.membership.depends_on(progress):
                self.membership.consider()
            self._advance_handover()
            progress.pump(self)

    def sent(self, event: Sent) -> None:
        self.followers.sent(event)

    def pin_moved(self, event: PinMoved) -> None:
        self.followers.pin_moved(event)

    def cut_log(self) -> None:
        self.followers.release_pins()
        self.replica.cut_below(self.followers.needed())

    def _read_record(self) -> None:
        """Read the record because a newer epoch may exist, one read at a time."""
        replica = self.replica
        if self._reading is None or replica.now - self._reading[1] >= replica.settings.retry_ms:
            self._reading = (replica.read_record(), replica.now)

    def others(self) -> list[WorkerId]:
        """Other replicas that are assigned, or that the ISR lists or may list; sorted the same everywhere."""
        return sorted(worker for worker in self.membership.concerned if worker != self.replica.worker)

    def hears(self, sender: WorkerId) -> bool:
        """Whether messages of that worker concern this group."""
        return sender in self.membership.concerned

    def replicas_changed(self) -> None:
        self.replica.note("replicas", plan=self.replica.plan, replicas=list(self.replica.replicas))
        self.membership.replicas_changed()
        self._progressed()

    def reject(self, sender: WorkerId, reason: RejectReason) -> None:
        reject = messages.Reject(self.epoch, self.incarnation, reason=reason)
        self.replica.emit(effects.Send(to=sender, message=reject))

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
        """Ignore a failed read: the retry timer asks again."""
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
        if self.followers.registration_seen(registration, exists):
            self._progressed()

    def members_seen(self, token: int, alive: frozenset[Member]) -> None:
        """Ignore an answer to a question that was asked as a follower."""

    def state_arrived(self, event: StateArrived) -> None:
        """Ignore a state that was fetched as a follower."""

    def transfer_progressed(self, event: TransferProgressed) -> None:
        """Ignore the progress of a transfer that was begun as a follower."""

    def state_replaced(self) -> None:
        check(False, "a leader's state was replaced by another's", epoch=self.epoch)

    def state_failed(self) -> None:
        """Ignore the failure of a transfer of an earlier epoch, when this replica followed."""

    # Resigning.

    def resign(self, event: Resign) -> None:
        why = refusal_of(self, event)
        if why is None:
            target = successor_of(self) if event.target is None else event.target
            self.replica.note("resigning", epoch=self.epoch, to=target)
            self.handover = Handover(self, target)
            self._progressed()
        elif event.target is not None:
            # A worker that stops asks again and again, and there is no request to forget.
            self.replica.note("refuses_to_resign", why=why)
            self.replica.emit(effects.ForgetResign(epoch=event.epoch))

    def work_finished(self, epoch: Epoch) -> None:
        if self.handover is not None and epoch == self.epoch:
            self.handover.work_finished()
            self._progressed()

    def _leave(self) -> None:
        """Hand over if we are not assigned any more and all assigned replicas are in the ISR."""
        replica, membership = self.replica, self.membership
        if not self.is_serving or replica.now < self._leave_at or not membership.may_leave():
            return
        staying = candidates(self)
        if staying:
            replica.note("leaves", epoch=self.epoch, to=staying[0].worker)
            self.handover = Handover(self, staying[0].worker)

    def resume(self, why: str) -> None:
        """Give up a hand-over and lead on."""
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
        self.followers.probe_silent()
        self._progressed()
        if self.followers.news_are_due:
            self.followers.tell_news()

    def _time_out_appends(self) -> None:
        for request in self._acks.timed_out(self.replica.now):
            self._reply(request, effects.Unknown())

    def _expire_producers(self) -> None:
        """Append an entry that forgets producers silent for too long.

        The leader decides; every replica forgets the producer at the same offset.
        """
        replica = self.replica
        if replica.now < self._expiry_at:
            return
        self._expiry_at = self._next_expiry_check()
        for producer in replica.producers.open_producers():
            heard = self._producers_heard.get(producer, self._in_office_since)
            silent_ms = replica.now - heard
            if replica.guards.may_forget(producer, silent_ms, replica.settings.producer_expiry_ms):
                if self._refusal() is not None or self._is_sealed():
                    return
                self._producers_heard.pop(producer, None)
                replica.note("expires_producer", producer=producer)
                self._append_entry(Kind.PRODUCER_EXPIRE, producer)

    def _next_expiry_check(self) -> Millis:
        return Millis(self.replica.now + max(1, self.replica.settings.producer_expiry_ms // 4))

    def next_deadline(self) -> Millis | None:
        first = self.followers.next_deadline(self._expiry_at)
        if self._undecided:
            expires_at = Millis(self._undecided[0][1] + self.replica.settings.max_time_lag_ms)
            if self.membership.considered_at < expires_at < first:
                first = expires_at
        for other in (self._acks.next_timeout(), self.membership.retry_at, self._handover_deadline()):
            if other is not None and other < first:
                first = other
        return first

    def _handover_deadline(self) -> Millis | None:
        if self.handover is not None:
            return self.handover.next_deadline()
        if not self.replica.is_assigned and self._leave_at > self.replica.now:
            return self._leave_at
        return None

    def options_changed(self) -> None:
        self._expiry_at = min(self._expiry_at, self._next_expiry_check())
        self._acknowledge()
        self.membership.options_changed()
        self._progressed()

    # Replies.

    def _reply(self, request: int, result: effects.Result) -> None:
        self.replica.emit(effects.Reply(request=request, result=result))

    def refuse(self, request: int, reason: Refusal) -> None:
        leader = self.replica.known_record.leader
        self._reply(request, effects.Refused(reason=reason, leader=leader, epoch=self.epoch))
