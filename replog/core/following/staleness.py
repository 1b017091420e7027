"""Reads that a follower answers, for callers who accept a bounded staleness.

A follower knows by itself what is applied here, but not whether more is visible elsewhere. So it inquires:
the leader answers, under its lease, up to where entries may be visible. Once that much is applied here, this
replica shows everything that was visible anywhere when the inquiry was sent, by our clock; later reads may be
answered for as long as their bound allows, less a margin for clocks that drift. Who asks while that is too
long ago waits for the next answer, for a short time, and is refused then: the leader serves it. A read that
asks first waits likewise although the last answer would do, and is served by that one if no other comes.

An inquiry is made when a read needs one, and when one that was served will soon be too old for the next: a
group that nobody reads so costs nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.replog.core import effects, messages
from stretto.replog.core.effects import Refusal
from stretto.replog.core.events import Read
from stretto.vocabulary.types import Epoch, Millis, Offset

if TYPE_CHECKING:
    from stretto.replog.core.following.follower import Follower

UNCOVERED_MAX = 4
"""Assurances of the leader that may wait here for entries to be applied; more would not come sooner."""


@dataclass(slots=True)
class _Waiting:
    read: Read
    since: Millis
    """When the read came; an older assurance would not tell what became visible meanwhile."""
    deadline: Millis


class StaleReads:
    """Reads that one follower answers in one epoch, within a bounded staleness."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.replica = follower.replica
        #: Everything visible at this time, by our clock, is applied here; None before the first assurance.
        self.covered_at: Millis | None = None
        #: (since when, apply offset) of assurances whose entries are not all applied here yet.
        self._uncovered: deque[tuple[Millis, Offset]] = deque()
        self._inquired_at: Millis | None = None
        self._waiting: deque[_Waiting] = deque()
        #: By request: the time covered when its state was about to be sampled, and its staleness bound.
        self._sampling: dict[int, tuple[Millis, Millis]] = {}

    # Reads.

    def read(self, read: Read) -> None:
        if not self._may_answer():
            self._refuse(read.request, Refusal.NOT_LEADER)
        elif read.asks_first or not self._begins(read):
            now = self.replica.now
            deadline = Millis(now + self.replica.settings.follower_read_wait_ms)
            self._waiting.append(_Waiting(read, now, deadline))
            self._inquire()

    def _may_answer(self) -> bool:
        """Whether this follower may answer reads: only a member of the ISR, which lags little."""
        replica = self.replica
        is_member = replica.record is not None and replica.member in replica.record.isr
        return is_member and self.follower.reconciled and not replica.installing

    def _heard(self, waiting: _Waiting) -> bool:
        return self.covered_at is not None and self.covered_at >= waiting.since

    def _begins(self, read: Read) -> bool:
        replica, guards = self.replica, self.replica.guards
        bound_ms = read.max_staleness_ms
        if self.covered_at is None or bound_ms is None:
            return False
        if not guards.is_recent(replica.now - self.covered_at, bound_ms):
            return False
        if not guards.reached_token(replica.applied, read.after) and not self._is_void(read.after_epoch):
            return False
        if not guards.is_recent(2 * (replica.now - self.covered_at), bound_ms):
            self._inquire()
        self._sampling[read.request] = (self.covered_at, bound_ms)
        replica.emit(effects.Sample(request=read.request))
        return True

    def _is_void(self, epoch: Epoch) -> bool:
        """Whether an unclean election has given up what was seen in that epoch."""
        record = self.replica.record
        return record is not None and record.unclean_epoch > epoch

    def sampled(self, request: int) -> None:
        covered_at, bound_ms = self._sampling.pop(request, (None, Millis(0)))
        if covered_at is None:
            self._refuse(request, Refusal.NOT_LEADER)
        elif self.replica.guards.staleness_checked_after_sampling() and not self.replica.guards.is_recent(
            self.replica.now - covered_at, bound_ms
        ):
            self._refuse(request, Refusal.TOO_STALE)
        else:
            served = effects.ReadServed(epoch=self.follower.epoch)
            self.replica.emit(effects.Reply(request=request, result=served))

    # The leader's word.

    def _inquire(self) -> None:
        """Ask the leader what is visible, one inquiry at a time; one not answered soon was lost."""
        replica = self.replica
        asked_at = self._inquired_at
        if asked_at is not None and replica.now - asked_at < replica.settings.follower_read_wait_ms:
            return
        if replica.incarnation is None or len(self._uncovered) >= UNCOVERED_MAX:
            return
        self._inquired_at = replica.now
        self.follower.send(messages.Inquire(self.follower.epoch, replica.incarnation, stamp=replica.now))

    def assured(self, message: messages.Assure) -> None:
        """Take in the leader's assurance."""
        replica = self.replica
        if message.stamp == self._inquired_at:
            self._inquired_at = None
        since = replica.guards.assured_since(message.stamp, replica.now)
        self._uncovered.append((since, message.apply_offset))
        self.progressed()

    @property
    def awaits_applied(self) -> bool:
        return bool(self._uncovered or self._waiting)

    def progressed(self) -> None:
        """Begin the reads that can be answered now that something was assured or applied."""
        replica = self.replica
        if not self.awaits_applied:
            return
        while self._uncovered and replica.guards.covers(replica.applied, self._uncovered[0][1]):
            since = self._uncovered.popleft()[0]
            self.covered_at = since if self.covered_at is None else max(self.covered_at, since)
        self._waiting = deque(
            each
            for each in self._waiting
            if (each.read.asks_first and not self._heard(each)) or not self._begins(each.read)
        )
        if self._waiting:
            self._inquire()

    # Time, and the end.

    def tick(self) -> None:
        while self._waiting and self._waiting[0].deadline <= self.replica.now:
            read = self._waiting.popleft().read
            if not (read.asks_first and self._begins(read)):
                self._refuse(read.request, Refusal.TOO_STALE)

    def next_deadline(self) -> Millis | None:
        return self._waiting[0].deadline if self._waiting else None

    def end(self) -> None:
        for waiting in self._waiting:
            self._refuse(waiting.read.request, Refusal.NOT_LEADER)
        for request in self._sampling:
            self._refuse(request, Refusal.NOT_LEADER)
        self._waiting.clear()
        self._sampling.clear()

    def _refuse(self, request: int, reason: Refusal) -> None:
        refused = effects.Refused(reason=reason, leader=self.follower.leader, epoch=self.follower.epoch)
        self.replica.emit(effects.Reply(request=request, result=refused))
