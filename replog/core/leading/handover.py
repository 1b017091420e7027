"""Resigning in favour of another member, without leaving any accepted append in doubt.

Finishing: the driver ends what it has under way for whoever waits, such as topologies that return something;
appends are taken meanwhile, since that takes some. It is bounded in time.
Draining: no new appends; wait until the target holds our whole log and all of it is applied.
Sent: no reads either; one compare-and-set {leader: target, epoch + 1}. Until its outcome is known the leader
neither serves nor resumes, because the target may be leading already.

If nobody is named, the leader chooses who has least to wait for. That is a preference: a hand-over to any
other is as safe, since each waits until its target has everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.replog.core import effects
from stretto.replog.core.events import CasOutcome, CasReply, Resign
from stretto.replog.core.record import GroupRecord
from stretto.vocabulary.invariants import present
from stretto.vocabulary.types import Millis, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.leading.leader import Leader
    from stretto.replog.core.leading.progress import Progress


@dataclass(slots=True)
class Sent:
    """The compare-and-set of a hand-over that is on its way, or whose reply was lost."""

    token: int
    record: GroupRecord
    settling: int | None = None


class Handover:
    """One resignation of a leader that is under way."""

    def __init__(self, leader: Leader, target: WorkerId) -> None:
        self.leader = leader
        self.replica = leader.replica
        self.target = target
        self.deadline = Millis(self.replica.now + self.replica.settings.resign_timeout_ms)
        #: Until when the driver may finish its work; None once it has finished, or its time is over.
        self.finishes_by: Millis | None = Millis(
            self.replica.now + self.replica.settings.resign_timeout_ms // 2
        )
        self.sent: Sent | None = None
        self.retry_at: Millis | None = None
        self.replica.emit(effects.FinishWork(epoch=leader.epoch))

    @property
    def is_finishing(self) -> bool:
        return self.finishes_by is not None

    def work_finished(self) -> None:
        self.finishes_by = None

    def advance(self) -> None:
        """Send the hand-over's compare-and-set as soon as nothing is left to do first."""
        leader, replica = self.leader, self.replica
        if self.is_finishing or self.sent is not None or leader.membership.change is not None:
            return
        progress = leader.followers.get(self.target)
        record = replica.record
        if progress is None or progress.confirmed is None or record is None:
            return
        if progress.member not in leader.membership.committed:
            return
        if not replica.guards.may_hand_over(progress.confirmed, replica.applied, replica.log_end):
            return
        epoch = replica.guards.next_epoch(record.epoch)
        self.sent = Sent(replica.token(), record.with_leader(self.target, progress.incarnation, epoch))
        replica.note("hands_over", epoch=epoch, to=self.target)
        replica.emit(
            effects.CompareAndSet(
                token=self.sent.token,
                version=replica.guards.hand_over_version(replica.version),
                record=self.sent.record,
                must_exist=(progress.registration,),
            )
        )

    def cas_reply(self, event: CasReply) -> None:
        sent = self.sent
        if sent is None or event.token != sent.token:
            return
        match event.outcome:
            case CasOutcome.OK:
                self.replica.emit(effects.ForgetResign(epoch=self.leader.epoch))
                self.replica.adopt(sent.record, present(event.version, "version of a committed change"))
            case CasOutcome.NO_REGISTRATION:
                self.leader.resume("its registration is gone")
            case CasOutcome.BAD_VERSION | CasOutcome.UNKNOWN:
                self._settle(sent)

    def _settle(self, sent: Sent) -> None:
        replica = self.replica
        sent.settling = replica.read_record(sync=replica.guards.settles_with_sync())
        self.retry_at = Millis(replica.now + replica.settings.retry_ms)

    def record_read(self, token: int) -> None:
        """Resume if this read settles the hand-over: it failed, for we still lead the same epoch."""
        if self.sent is not None and token == self.sent.settling:
            self.leader.resume("the compare-and-set failed")

    def tick(self) -> None:
        now = self.replica.now
        if self.finishes_by is not None and now >= self.finishes_by:
            self.replica.note("hands_over_unfinished", epoch=self.leader.epoch)
            self.finishes_by = None
        if self.retry_at is not None and now >= self.retry_at:
            self.retry_at = None
            if self.sent is not None and self.sent.settling is not None:
                self._settle(self.sent)
        unsent = self.sent is None or self.replica.guards.resumes_unsettled()
        if unsent and self.replica.guards.resign_gave_up(now, self.deadline):
            self.leader.resume("it took too long")

    def next_deadline(self) -> Millis | None:
        if self.finishes_by is not None:
            return min(self.finishes_by, self.deadline)
        if self.sent is None:
            return self.deadline
        return self.retry_at


def candidates(leader: Leader) -> list[Progress]:
    """Return the followers that may take over: assigned, present, and in the ISR; preferred leader first."""
    known = [leader.followers.get(worker) for worker in leader.replica.replicas]
    committed = leader.membership.committed
    return [each for each in known if each is not None and not each.gone and each.member in committed]


def successor_of(leader: Leader) -> WorkerId:
    """Choose the candidate that has confirmed most, of several the one that is assigned first."""
    return max(candidates(leader), key=lambda each: each.confirmed or 0).worker


def refusal_of(leader: Leader, event: Resign) -> str | None:
    """Why a request to resign is not carried out, or None."""
    if not leader.replica.guards.resign_is_meant(event.epoch, leader.epoch):
        return "it is meant for another epoch"
    if leader.handover is not None:
        return "a hand-over is under way"
    if event.target is None:
        return None if candidates(leader) else "nobody could take over"
    if event.target == leader.replica.worker:
        return "the target leads already"
    if event.target not in leader.replica.replicas:
        return "the target is no longer assigned"
    if not any(member.worker == event.target for member in leader.membership.committed):
        return "the target is not in the ISR"
    return None
