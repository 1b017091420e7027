"""A follower: finds where its log parts from the leader's, takes entries, confirms what is durable, applies.

In each epoch it says Hello until the leader answers with its lineage, cuts its log where the two part, and
from then on takes entries that continue its log. If the leader's log no longer reaches back that far, it asks
for the leader's state and waits (far horizon). All it takes for granted of its leader is the epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from stretto.replog.core import effects, messages
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
from stretto.replog.core.following.election import Election
from stretto.replog.core.following.staleness import StaleReads
from stretto.replog.core.messages import AnyMessage, RejectReason
from stretto.replog.core.record import Member, Registration
from stretto.replog.frame import Frame
from stretto.vocabulary.invariants import InvariantViolation, present
from stretto.vocabulary.types import Epoch, Millis, Offset, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.replica import Replica


class Follower:
    """One replica in an epoch that it does not lead."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        record = replica.record
        self.epoch = record.epoch if record else Epoch(0)
        self.leader: WorkerId | None = record.leader if record else None
        self.election = Election(replica)
        self.stale_reads = StaleReads(self)

        #: Number of Hellos sent: a lineage answers one of them, and only the latest is obeyed.
        self.attempt = 0
        #: Whether our log is a prefix of the leader's, by a lineage of this epoch.
        self.reconciled = False
        #: Whether the leader has answered our first confirmation; until then we repeat it.
        self.heard = False
        self.awaits_state = False

        self.leader_apply_offset = Offset(0)
        self.retain_offset = Offset(0)
        #: When to repeat a Hello, a first confirmation or a read that was not answered.
        self.retry_at: Millis | None = None
        #: Token of the read of the record that is on its way, if any.
        self.reading: int | None = None

    # Life.

    def begin(self) -> None:
        if self.replica.incarnation is None:
            return
        if self.replica.record is None:
            self._read_record()
        else:
            self._hello()
        self.election.begin()

    def end(self) -> None:
        """Refuse the reads that wait: another role takes over."""
        self.stale_reads.end()

    def record_changed(self) -> None:
        """Take in a record of the same epoch with another ISR."""
        self.election.record_changed()

    def tick(self) -> None:
        replica = self.replica
        if self.retry_at is not None and replica.now >= self.retry_at:
            self._retry()
        elif replica.record is None:
            self._read_record()
        self.election.tick()
        self.stale_reads.tick()

    def _retry(self) -> None:
        self.retry_at = None
        if self.reading is not None or self.replica.record is None:
            self.reading = None
            self._read_record()
        elif not self.reconciled:
            self._hello()
        elif not self.heard:
            self._confirm(resume=True)

    def next_deadline(self) -> Millis | None:
        first = self.retry_at
        for other in (self.election.next_deadline(), self.stale_reads.next_deadline()):
            if other is not None and (first is None or other < first):
                first = other
        return first

    def options_changed(self) -> None:
        self.election.options_changed()

    def replicas_changed(self) -> None:
        """Do nothing: the leader follows an assignment, and a member stays one until the record drops it."""

    def regroup(self) -> None:
        """Do nothing: the leader seals the log."""

    def hears(self, sender: WorkerId) -> bool:
        """Whether messages of that worker concern this group."""
        replica = self.replica
        return sender in replica.replicas or (replica.record is not None and sender in replica.record.workers)

    # Reconciliation.

    def _hello(self) -> None:
        replica = self.replica
        if self.leader is None or self.leader == replica.worker or replica.incarnation is None:
            return
        if replica.installing:
            return
        self.attempt += 1
        self.reconciled = self.heard = self.awaits_state = False
        self.retry_at = Millis(replica.now + replica.settings.retry_ms)
        self.send(
            messages.Hello(
                self.epoch,
                replica.incarnation,
                storage=replica.storage,
                attempt=self.attempt,
                end=replica.log_end,
            )
        )

    def _on_lineage(self, lineage: messages.Lineage) -> None:
        replica = self.replica
        if not replica.guards.lineage_is_current(lineage.attempt, self.attempt, self.reconciled):
            return
        parting = replica.guards.find_divergence(
            replica.history, replica.log_end, lineage.history, lineage.end
        )
        if parting is None or parting < lineage.start:
            too_far = True
        else:
            too_far = lineage.apply_offset - parting > lineage.near_lag
        if parting is not None:
            parting = replica.guards.truncation_point(parting, replica.apply_offset)
            if parting < replica.apply_offset:
                self._diverged_below_apply_offset(parting)
                return
        if too_far:
            if lineage.listed:
                raise InvariantViolation(
                    "the leader's log does not reach a member of its ISR",
                    {"leader_start": lineage.start, "parting": parting},
                )
            self._go_far()
            return
        replica.truncate_log(present(parting, "common end of two logs"))
        self.reconciled = True
        replica.note("reconciled", epoch=self.epoch, at=parting)
        self._confirm(resume=True)

    def _diverged_below_apply_offset(self, parting: Offset) -> None:
        """Set the log aside if an unclean election chose one without what was applied here.

        Otherwise this never happens.
        """
        replica = self.replica
        last_epoch = replica.history[-1].epoch if replica.history else Epoch(0)
        if replica.known_record.unclean_epoch > last_epoch:
            replica.stop(effects.SetAside(why=f"an unclean election gave up entries from {parting} on"))
            return
        raise InvariantViolation(
            "logs part below the apply offset", {"parting": parting, "apply_offset": replica.apply_offset}
        )

    def _go_far(self) -> None:
        """Drop the unapplied entries, and ask the leader for its state.

        Nothing unapplied is needed of a replica that the ISR does not list.
        """
        replica = self.replica
        replica.truncate_log(replica.apply_offset)
        self.awaits_state = True
        self.retry_at = Millis(replica.now + replica.settings.state_timeout_ms)
        replica.note("asks_for_state", epoch=self.epoch, end=replica.log_end)
        self.send(messages.FetchState(self.epoch, replica.registered_as, attempt=self.attempt))
        leader = present(self.leader, "leader")
        replica.emit(effects.FetchState(leader=leader, epoch=self.epoch, attempt=self.attempt))

    def transfer_progressed(self, event: TransferProgressed) -> None:
        if self.awaits_state and (event.epoch, event.attempt) == (self.epoch, self.attempt):
            self.retry_at = Millis(self.replica.now + self.replica.settings.state_timeout_ms)

    def state_arrived(self, event: StateArrived) -> None:
        replica = self.replica
        asked_for = self.awaits_state and (event.epoch, event.attempt) == (self.epoch, self.attempt)
        if replica.installing or not asked_for:
            return
        if replica.guards.may_install(event.end, replica.log_end):
            replica.installing = True
            replica.emit(effects.InstallState(end=event.end))

    def pin_moved(self, event: PinMoved) -> None:
        """Ignore a pin for a follower of an epoch that we no longer lead."""

    def state_replaced(self) -> None:
        self._hello()

    def state_failed(self) -> None:
        if self.awaits_state or not self.reconciled:
            self._hello()

    # Messages.

    def received(self, sender: WorkerId, message: AnyMessage, frames: tuple[Frame, ...]) -> None:
        replica = self.replica
        if isinstance(message, messages.Reject):
            self._on_reject(message)
            return
        if message.epoch > self.epoch:
            self._read_record()
            return
        match message:
            case messages.Entries():
                if replica.guards.entries_epoch_is_mine(message.epoch, self.epoch):
                    self._on_entries(message, frames)
                else:
                    self._reject(sender)
            case messages.Lineage():
                if message.epoch == self.epoch and message.to == replica.incarnation:
                    self._on_lineage(message)
            case messages.Assure():
                if message.epoch == self.epoch and message.to == replica.incarnation:
                    self.stale_reads.assured(message)
            case messages.Reach() if message.epoch == self.epoch:
                self.election.heard_of(sender, message)
            case (
                messages.Hello()
                | messages.Confirm()
                | messages.FetchState()
                | messages.Inquire()
                | messages.Reach()
            ):
                self._reject(sender)
            case _:
                assert_never(message)

    def _on_entries(self, message: messages.Entries, frames: tuple[Frame, ...]) -> None:
        replica = self.replica
        guards = replica.guards
        if not self.reconciled or message.to != replica.incarnation:
            return
        if frames and frames[-1].header.epoch > message.epoch:
            # No leader holds entries of a later epoch: its log changed under the message it sent.
            replica.note("refuses_newer_entries", epoch=self.epoch, theirs=frames[-1].header.epoch)
            return
        self.heard = True
        self.leader_apply_offset = max(self.leader_apply_offset, message.apply_offset)
        self.election.leader_log_end = max(self.election.leader_log_end, message.log_end)
        self.retain_offset = max(self.retain_offset, message.retain_offset)
        new = [frame for frame in frames if not guards.already_held(frame.end_offset, replica.log_end)]
        if new and not guards.continues_log(new[0].header.offset, replica.log_end):
            self._confirm(resume=True)
            return
        if new:
            replica.append_to_log(new)
        elif frames or message.probe:
            self._confirm(resume=message.probe)
        self._apply()

    def _on_reject(self, message: messages.Reject) -> None:
        if message.epoch > self.epoch:
            self._read_record()
        elif message.epoch == self.epoch and message.reason is not RejectReason.STALE_EPOCH:
            self._hello()

    @property
    def awaits_durable(self) -> bool:
        """Whether entries that become durable here matter: always, since the leader waits for them."""
        return True

    @property
    def awaits_applied(self) -> bool:
        return self.stale_reads.awaits_applied

    def persisted(self) -> None:
        if self.reconciled:
            self._confirm(resume=False)
            self._apply()

    def _apply(self) -> None:
        replica = self.replica
        limit = replica.guards.follower_apply_limit(
            self.leader_apply_offset, replica.durable_end, replica.log_end
        )
        if limit > replica.apply_offset:
            replica.apply_to(limit)

    def applied(self) -> None:
        self.stale_reads.progressed()

    def cut_log(self) -> None:
        self.replica.cut_below(self.retain_offset)

    def _confirm(self, *, resume: bool) -> None:
        replica = self.replica
        if replica.incarnation is None or not self.reconciled:
            return
        if not self.heard:
            self.retry_at = Millis(replica.now + replica.settings.retry_ms)
        self.send(
            messages.Confirm(
                self.epoch,
                replica.incarnation,
                attempt=self.attempt,
                end=replica.guards.confirmable_end(replica.durable_end, replica.log_end),
                log_end=replica.log_end,
                known_apply_offset=self.leader_apply_offset,
                resume=resume,
            )
        )

    def send(self, message: AnyMessage) -> None:
        self.replica.emit(effects.Send(to=present(self.leader, "leader"), message=message))

    def _reject(self, sender: WorkerId) -> None:
        if self.replica.incarnation is not None:
            reject = messages.Reject(self.epoch, self.replica.incarnation, reason=RejectReason.STALE_EPOCH)
            self.replica.emit(effects.Send(to=sender, message=reject))

    # Metastore.

    def _read_record(self) -> None:
        """Read the record, again until answered: a newer epoch exists, or none is known."""
        if self.replica.incarnation is None or self.reading is not None:
            return
        self.reading = self.replica.read_record()
        self.retry_at = Millis(self.replica.now + self.replica.settings.retry_ms)

    def record_read(self, token: int) -> None:
        if token == self.reading:
            self.reading = None
            if not (self.reconciled and self.heard):
                self.retry_at = Millis(self.replica.now + self.replica.settings.retry_ms)
        self.election.record_read(token)

    def read_failed(self, token: int) -> None:
        self.election.read_failed(token)

    def registration_seen(self, registration: Registration, exists: bool) -> None:
        self.election.registration_seen(registration, exists)

    def members_seen(self, token: int, alive: frozenset[Member]) -> None:
        self.election.members_seen(token, alive)

    def cas_reply(self, event: CasReply) -> None:
        self.election.cas_reply(event)

    # Clients are sent to the leader, unless they accept what may be a little old.

    def append(self, event: Append) -> None:
        self._refuse(event.request)

    def read(self, read: Read) -> None:
        if read.max_staleness_ms is None:
            self._refuse(read.request)
        else:
            self.stale_reads.read(read)

    def clock_read(self) -> None:
        """Ignore a clock that was asked for as a leader."""

    def sampled(self, request: int) -> None:
        self.stale_reads.sampled(request)

    def _refuse(self, request: int) -> None:
        refused = effects.Refused(reason=effects.Refusal.NOT_LEADER, leader=self.leader, epoch=self.epoch)
        self.replica.emit(effects.Reply(request=request, result=refused))

    def resign(self, event: Resign) -> None:
        """Forget a request to resign whose epoch is over; any other is for the leader to carry out."""
        if event.epoch < self.epoch:
            self.replica.emit(effects.ForgetResign(epoch=event.epoch))

    def work_finished(self, epoch: Epoch) -> None:
        """Ignore the end of work that was asked for as a leader."""

    def sent(self, event: Sent) -> None:
        pass
