"""Who is in the ISR, and the compare-and-set that changes it.

A change is proposed, and until its outcome is *known* both the committed and the proposed set count
(the maximal ISR): an entry is applied only when all of both hold it. One change at a time.

The leader follows the assignment. Who is newly assigned enters like any other; who is no longer assigned goes
when all who are assigned are in; a leader that is to go hands over first. The record tells the *plan* it
follows, by number: a leader that knows only an earlier one takes nobody in, so whoever a recorded plan leaves
out, and the ISR does not list, never comes back, and may delete its data. min-ISR is reckoned from the
record's *factor*, which falls with the assignment and rises when the ISR has as many as it then takes.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.replog.core import effects
from stretto.replog.core.events import CasOutcome, CasReply
from stretto.replog.core.record import GroupRecord, Member, Registration
from stretto.vocabulary.invariants import present
from stretto.vocabulary.types import Millis, Offset, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.leading.leader import Leader
    from stretto.replog.core.leading.progress import Progress


@dataclass(slots=True)
class Change:
    """A proposed ISR whose outcome is not known yet."""

    token: int
    record: GroupRecord
    proposed: frozenset[Member]
    newcomers: tuple[Registration, ...]
    settling: int | None = None
    """Token of the read that will settle it, once the reply is lost or was a refusal."""


class Membership:
    """A leader's ISR: committed, and perhaps one change under way."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.replica = leader.replica
        self.committed: frozenset[Member] = frozenset(self.replica.known_record.isr)
        self.change: Change | None = None
        self.retry_at: Millis | None = None
        #: Workers worth hearing: assigned, or listed in the ISR, or perhaps listed.
        self.concerned: frozenset[WorkerId] = frozenset()
        #: Whether the record is what the assignment asks for, as far as that depends on no other replica.
        self._is_settled = False
        #: When :meth:`consider` last ran; a stall timer that expired before then has been heeded.
        self.considered_at = Millis(-1)
        self._look()

    @property
    def proposed(self) -> frozenset[Member]:
        """The ISR as it would be after the change under way."""
        return self.change.proposed if self.change else self.committed

    def may_list(self, member: Member) -> bool:
        """Whether the member is in the ISR, or may be once the change under way is known."""
        return member in self.committed or member in self.proposed

    def is_short(self) -> bool:
        """Whether the ISR has fewer than min-ISR members, or may have once the change under way is known."""
        replica = self.replica
        if not replica.guards.enough_members(len(self.committed), replica.min_isr):
            return True
        if self.change is None:
            return False
        factor = replica.guards.factor_in_force(self.change.record.factor, len(replica.replicas))
        min_isr = replica.settings.min_isr_of(factor)
        return not replica.guards.enough_members(len(self.change.proposed), min_isr)

    # The assignment.

    @property
    def _is_current(self) -> bool:
        """Whether we know the assignment that the record follows, or a newer one."""
        return self.replica.guards.plan_is_current(self.replica.known_record.plan, self.replica.plan)

    def may_leave(self) -> bool:
        """Whether a leader that is not assigned may go: all assigned replicas are in, no change is open."""
        return self.change is None and self._is_current and self._all_are_in(self.committed)

    def _all_are_in(self, members: AbstractSet[Member]) -> bool:
        """Whether every assigned replica is a member and has been heard in this epoch."""
        replica, here = self.replica, 0
        for worker in replica.replicas:
            progress = self.leader.followers.get(worker)
            if progress is None or progress.gone:
                here += worker == replica.worker
            else:
                here += progress.confirmed is not None and progress.member in members
        return replica.guards.may_let_go(here, len(replica.replicas))

    def replicas_changed(self) -> None:
        self._look()
        self.leader.followers.forget_strangers()

    def options_changed(self) -> None:
        self._look()

    def _look(self) -> None:
        replica, record = self.replica, self.replica.known_record
        workers = {member.worker for member in (*self.committed, *self.proposed)}
        self.concerned = frozenset({*replica.replicas, *workers})
        assigned = len(replica.replicas)
        followed = (replica.plan, assigned) == (record.plan, record.factor or assigned)
        self._is_settled = not self._is_current or (followed and workers <= {*replica.replicas})

    def _factor(self) -> int:
        """The factor to record: the assigned one at once if it asks for no more members than before."""
        replica = self.replica
        if not self._is_current:
            return replica.factor
        wanted, min_isr_of = len(replica.replicas), replica.settings.min_isr_of
        return wanted if min_isr_of(wanted) <= replica.min_isr else replica.factor

    def _going(self, target: AbstractSet[Member]) -> frozenset[Member]:
        """Members that are not assigned any more, once all assigned replicas are in the ISR."""
        replica = self.replica
        if not self._is_current or not self._all_are_in(target):
            return frozenset()
        return frozenset(
            member
            for member in target
            if member.worker not in replica.replicas
            and replica.guards.may_leave_isr(member.worker, replica.worker)
        )

    # Proposing.

    def depends_on(self, progress: Progress) -> bool:
        """Whether a confirmation of this follower can change the ISR; for a member that lags, time tells."""
        return not self._is_settled or self.leader.stalled or progress.member not in self.committed

    def consider(self) -> None:
        """Propose an ISR with the followers that are ready and without the lost members, if min-ISR allows.

        Both happen in one compare-and-set.
        """
        self.considered_at = self.replica.now
        if self.change is not None or self.leader.handover_sent:
            return
        guards = self.replica.guards
        overdue_end = self.leader.overdue_end()
        ready = self._ready(overdue_end)
        lost = self._lost(overdue_end)
        if not ready and not lost and self._is_settled:
            self._set_stalled(False)
            return
        replica = self.replica
        factor = self._factor()
        if lost and not guards.may_replace():
            ready = {}
        target = (self.committed - lost) | frozenset(ready)
        if lost and not guards.may_shrink_to(len(target), replica.settings.min_isr_of(factor)):
            returned = {member.worker for member in ready}
            superseded = {member for member in lost if member.worker in returned}
            target = (self.committed - superseded) | frozenset(ready)
        self._set_stalled(bool(lost & target) and self.leader.head_expired())
        going = self._going(target)
        if going:
            replica.note("lets_go", epoch=self.leader.epoch, workers=sorted(each.worker for each in going))
            target = target - going
        wanted = len(replica.replicas)
        if self._is_current and len(target) >= replica.settings.min_isr_of(wanted):
            factor = wanted
        plan = max(replica.plan, replica.known_record.plan)
        recorded = replica.known_record
        if target != self.committed or (plan, factor) != (recorded.plan, recorded.factor or factor):
            newcomers = tuple(ready[member] for member in sorted(target) if member in ready)
            self._propose(target, newcomers, plan, factor)

    def _set_stalled(self, stalled: bool) -> None:
        if stalled != self.leader.stalled:
            self.leader.stalled = stalled
            event = "stalled" if stalled else "recovered_from_stall"
            self.replica.note(event, epoch=self.leader.epoch, apply_offset=self.replica.apply_offset)

    def _ready(self, overdue_end: Offset) -> dict[Member, Registration]:
        """Followers outside the ISR that may enter it, by a confirmation of this epoch."""
        guards = self.replica.guards
        ready = {}
        for progress in self.leader.followers.values():
            member = progress.member
            confirmed = progress.confirmed
            if confirmed is None or progress.gone or progress.in_doubt or member in self.committed:
                continue
            if not self._is_current or member.worker not in self.replica.replicas:
                continue
            if not guards.reached_apply_offset(confirmed, self.replica.apply_offset):
                continue
            if not guards.holds_overdue(confirmed, overdue_end):
                continue
            if guards.reached_epoch_start(confirmed, self.leader.epoch_start):
                ready[member] = progress.registration
        return ready

    def _lost(self, overdue_end: Offset) -> frozenset[Member]:
        """Members that are gone, that came back with another disk, or that kept an entry waiting too long."""
        leader = self.leader
        lost = set()
        for member in self.committed:
            if member == self.replica.member:
                continue
            progress = leader.followers.get(member.worker)
            if progress is None:
                left = member.worker == leader.gone_predecessor
            else:
                left = progress.gone or progress.storage != member.storage
            if left or (overdue_end and leader.end_of(member) < overdue_end):
                lost.add(member)
        return frozenset(lost)

    def _propose(
        self, target: frozenset[Member], newcomers: tuple[Registration, ...], plan: int, factor: int
    ) -> None:
        replica = self.replica
        known = replica.known_record
        replicas = replica.replicas if self._is_current else known.workers
        record = known.with_isr(target, replicas).following(plan, factor)
        self.change = Change(replica.token(), record, target, newcomers)
        replica.note(
            "proposes_isr",
            epoch=record.epoch,
            isr=[member.worker for member in record.isr],
            was=sorted(member.worker for member in self.committed),
        )
        replica.emit(
            effects.CompareAndSet(
                token=self.change.token,
                version=replica.guards.isr_change_version(replica.version),
                record=record,
                must_exist=replica.guards.registrations_to_check(newcomers),
            )
        )

    # Answers.

    def cas_reply(self, event: CasReply) -> None:
        change = self.change
        if change is None or event.token != change.token:
            return
        match event.outcome:
            case CasOutcome.OK:
                self.replica.adopt(change.record, present(event.version, "version of a committed change"))
            case CasOutcome.NO_REGISTRATION:
                self.change = None
                for registration in change.newcomers:
                    self.leader.followers.doubt(registration)
            case CasOutcome.BAD_VERSION:
                self._settle(change)
            case CasOutcome.UNKNOWN:
                if self.replica.guards.unknown_is_settled():
                    self.change = None
                else:
                    self.replica.note("isr_change_unknown", epoch=change.record.epoch)
                    self._settle(change)

    def _settle(self, change: Change) -> None:
        replica = self.replica
        change.settling = replica.read_record(sync=replica.guards.settles_with_sync())
        self.retry_at = Millis(replica.now + replica.settings.retry_ms)

    def record_changed(self) -> None:
        """Take in a newer version of our epoch's record: whatever was under way is in it, or failed."""
        record = self.replica.known_record
        before, self.committed = self.committed, frozenset(record.isr)
        self.change = None
        self.retry_at = None
        self._look()
        self.leader.followers.forget_strangers()
        if before != self.committed:
            self.replica.note("isr", epoch=record.epoch, isr=[member.worker for member in record.isr])

    def record_read(self, token: int) -> None:
        """Drop the change that this read settles.

        The version did not move, else :meth:`record_changed` had cleared the change: it failed.
        """
        if self.change is not None and token == self.change.settling:
            self.change = None
            self.retry_at = None

    def tick(self) -> None:
        if self.retry_at is not None and self.replica.now >= self.retry_at:
            self.retry_at = None
            if self.change is not None and self.change.settling is not None:
                self._settle(self.change)
