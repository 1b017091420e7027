"""When a follower may stand for leader, and what the metastore's answer means.

No conductor is needed: each member of the ISR that *tested* that the leader's registration is gone races with
one compare-and-set {leader, epoch + 1}. A short wait lets the longest log go first; that is a courtesy, not
safety.

If no member is left and the operator allows it, others stand. They know nothing of one another's logs, and
what the winner lacks is lost; so each tells the others how far its log reaches, and who hears of a longer one
waits for that one to stand, for a while: it may be gone by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from stretto.replog.core import effects, messages
from stretto.replog.core.events import CasOutcome, CasReply
from stretto.replog.core.record import GroupRecord, Member, Registration
from stretto.vocabulary.invariants import present
from stretto.vocabulary.types import Epoch, Millis, Offset, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.replica import Replica


COURTESY = 8
"""Members stand one after the other, the retry time divided by this apart."""
CANDIDACY = 4
"""How many retry times an unclean candidate waits for word of a longer log, and then for its owner."""
EMPTY_PATIENCE = 16
"""How many retry times an empty log, or a shorter one, lets others stand uncleanly at most."""


@dataclass(slots=True)
class Standing:
    """A compare-and-set that would make us leader and is on its way, or whose reply was lost."""

    token: int
    record: GroupRecord
    settling: int | None = None
    """Token of the read that will settle it, once the reply is lost or was a refusal."""


class Election:
    """A follower's part in the election of its epoch's successor."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        #: Whether the leader of the record is registered; None until that was tested in this epoch.
        self.leader_exists: bool | None = None
        self.stand_at: Millis | None = None
        self.standing: Standing | None = None
        #: End of the leader's log, as it last reported it.
        self.leader_log_end = Offset(0)
        self.looking: int | None = None
        #: When to stand uncleanly, if nothing else is left, and until when that may be put off.
        self._unclean_at: Millis | None = None
        self.unclean_by = Millis(0)
        #: When the other replicas were last sent the reach of our log.
        self._told_at = Millis(-1)
        self.retry_at: Millis | None = None

    def begin(self) -> None:
        record = self.replica.record
        if record is None:
            return
        if record.leader is None or record.leader_incarnation is None:
            self.leader_exists = False
        else:
            self._test_leader(record)
        self._consider()

    def record_changed(self) -> None:
        """Test the leader's registration after every change of the record, instead of trusting an event."""
        record = self.replica.record
        if record is not None and self.leader_exists is not False:
            self._test_leader(record)
        self._consider()

    def _test_leader(self, record: GroupRecord) -> None:
        if record.leader is not None and record.leader_incarnation is not None:
            registration = Registration(record.leader, record.leader_incarnation)
            self.replica.emit(effects.CheckRegistration(registration=registration))

    def registration_seen(self, registration: Registration, exists: bool) -> None:
        record = self.replica.record
        if record is None or self.leader_exists is False:
            return
        if (registration.worker, registration.incarnation) == (record.leader, record.leader_incarnation):
            self.leader_exists = exists
            if not exists:
                self.replica.gone_leader = (registration, record.epoch)
                self.replica.note("leader_gone", epoch=record.epoch, leader=record.leader)
            self._consider()

    def options_changed(self) -> None:
        if not self.replica.guards.unclean_is_allowed(self.replica.settings.unclean_election):
            self._unclean_at = None
        self._consider()

    def tick(self) -> None:
        replica = self.replica
        if self.stand_at is not None and replica.now >= self.stand_at:
            self.stand_at = None
            self._stand()
        if self.retry_at is not None and replica.now >= self.retry_at:
            self.retry_at = None
            if self.standing is not None and self.standing.settling is not None:
                self._settle(self.standing)
            else:
                self.looking = None
                self._consider()

    def next_deadline(self) -> Millis | None:
        if self.stand_at is None or self.retry_at is None:
            return self.stand_at if self.retry_at is None else self.retry_at
        return min(self.stand_at, self.retry_at)

    # Standing.

    def _consider(self) -> None:
        replica = self.replica
        record = replica.record
        if record is None or replica.incarnation is None or replica.installing:
            return
        if self.standing is not None or self.stand_at is not None:
            return
        if not replica.guards.leader_is_gone(self.leader_exists):
            return
        if replica.guards.may_stand(record, replica.member):
            self.stand_at = Millis(replica.now + self._courtesy_ms(record))
        elif replica.guards.unclean_is_allowed(replica.settings.unclean_election) and self.looking is None:
            if self._has_to_wait():
                return
            self.looking = replica.token()
            self.retry_at = Millis(replica.now + replica.settings.retry_ms)
            replica.emit(effects.LookForMembers(token=self.looking))

    # Unclean candidates.

    def _has_to_wait(self) -> bool:
        """Whether an unclean candidacy has to wait until others have heard of our log, and we of theirs."""
        replica, retry_ms = self.replica, self.replica.settings.retry_ms
        if self._unclean_at is None:
            times = CANDIDACY if replica.log_end else EMPTY_PATIENCE
            self._unclean_at = Millis(replica.now + times * retry_ms)
            self.unclean_by = Millis(replica.now + EMPTY_PATIENCE * retry_ms)
            self._told_at = Millis(-1)
        if replica.now >= self._unclean_at:
            return False
        if self._told_at < 0 or replica.now - self._told_at >= retry_ms:
            self._told_at = replica.now
            for worker in self._others():
                self._tell_reach(worker)
        self.retry_at = Millis(min(self._unclean_at, self._told_at + retry_ms))
        return True

    def _others(self) -> list[WorkerId]:
        replica = self.replica
        recorded = replica.record.workers if replica.record is not None else ()
        return sorted({*replica.replicas, *recorded} - {replica.worker})

    @property
    def _reach(self) -> tuple[Epoch, Offset]:
        """Epoch of the last entry, and end, of our log: how unclean candidates compare.

        Later epochs count for more: what was appended in them was meant to stay.
        """
        replica = self.replica
        return (replica.history[-1].epoch if replica.history else Epoch(0)), replica.log_end

    def _tell_reach(self, to: WorkerId) -> None:
        replica = self.replica
        record, incarnation = replica.record, replica.incarnation
        if record is not None and incarnation is not None:
            last_epoch, end = self._reach
            reach = messages.Reach(record.epoch, incarnation, last_epoch=last_epoch, end=end)
            replica.emit(effects.Send(to=to, message=reach))

    def heard_of(self, sender: WorkerId, reach: messages.Reach) -> None:
        """Take in the reach of another replica that would stand uncleanly."""
        replica, guards = self.replica, self.replica.guards
        if self._unclean_at is None:
            return
        theirs = (reach.last_epoch, reach.end)
        if guards.yields_to(theirs, self._reach):
            put_off = replica.now + CANDIDACY * replica.settings.retry_ms
            self._unclean_at = max(self._unclean_at, Millis(min(put_off, self.unclean_by)))
        elif guards.yields_to(self._reach, theirs):
            self._tell_reach(sender)

    # The race.

    def _courtesy_ms(self, record: GroupRecord) -> int:
        """How long to wait before standing, so that members stand one after the other.

        No member waits for the leader that is gone, and one that lacks what the leader had sent stands last.
        """
        replica = self.replica
        workers = [member.worker for member in record.isr]
        rank = workers.index(replica.worker) if replica.worker in workers else len(workers)
        if record.leader in workers[:rank]:
            rank -= 1
        behind = self.leader_log_end > replica.log_end
        return (rank + len(workers) * behind) * replica.settings.retry_ms // COURTESY

    def _stand(self) -> None:
        replica = self.replica
        record = replica.record
        if record is None or replica.incarnation is None or self.standing is not None:
            return
        if not replica.guards.may_stand(record, replica.member):
            return
        epoch = replica.guards.next_epoch(record.epoch)
        self._race(record.with_leader(replica.worker, replica.incarnation, epoch))

    def members_seen(self, token: int, alive: frozenset[Member]) -> None:
        """Stand uncleanly, the operator's way out, if no member of the ISR is alive."""
        replica = self.replica
        record = replica.record
        if token != self.looking:
            return
        self.looking = None
        if record is None or replica.incarnation is None or self.standing is not None:
            return
        if not replica.guards.unclean_is_allowed(replica.settings.unclean_election):
            return
        if self._has_to_wait():
            return
        member_alive = any(member in alive for member in record.isr)
        if not replica.guards.may_stand_unclean(member_alive):
            self.retry_at = Millis(replica.now + replica.settings.retry_ms)
            return
        epoch = replica.guards.next_epoch(record.epoch)
        replica.note("stands_uncleanly", epoch=epoch, end=replica.log_end)
        leading = record.with_leader(replica.worker, replica.incarnation, epoch)
        alone = leading.with_isr((replica.member,), replica.replicas)
        self._race(msgspec.structs.replace(alone, unclean_epoch=epoch))

    def _race(self, record: GroupRecord) -> None:
        replica = self.replica
        self.standing = Standing(replica.token(), record)
        replica.note("stands", epoch=record.epoch, end=replica.log_end)
        version = replica.guards.election_version(replica.version)
        replica.emit(effects.CompareAndSet(token=self.standing.token, version=version, record=record))

    # Answers.

    def cas_reply(self, event: CasReply) -> None:
        standing = self.standing
        if standing is None or event.token != standing.token:
            return
        if event.outcome is CasOutcome.OK:
            self.standing = None
            self.replica.adopt(standing.record, present(event.version, "version of a committed change"))
        else:
            self._settle(standing)

    def _settle(self, standing: Standing) -> None:
        """Read the record after ``sync``: another candidate was faster, or the reply was lost."""
        replica = self.replica
        standing.settling = replica.read_record(sync=replica.guards.settles_with_sync())
        self.retry_at = Millis(replica.now + replica.settings.retry_ms)

    def record_read(self, token: int) -> None:
        """Give up the candidacy that this read settles.

        If the record had named us, :meth:`Replica.adopt` would have replaced this object's role.
        """
        if self.standing is not None and token == self.standing.settling:
            self.standing = None
            self.retry_at = None
            self._consider()

    def read_failed(self, token: int) -> None:
        if self.standing is not None and token == self.standing.settling:
            self.retry_at = Millis(self.replica.now + self.replica.settings.retry_ms)
