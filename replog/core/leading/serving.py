"""Reads that a leader answers under its lease, and what it assures followers of, which answer reads too.

The lease is looked at after the state was sampled, by a clock that was read after that. And the state is
sampled when it has all that was acknowledged before the read came.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stretto.replog.core import effects, messages
from stretto.replog.core.effects import Refusal
from stretto.replog.core.events import Read
from stretto.vocabulary.types import Offset, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.leading.leader import Leader


class Serving:
    """Reads and inquiries that one leader answers under its lease."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.replica = leader.replica
        self._sampling: set[int] = set()
        #: Reads that came before everything acknowledged was applied, each with the end that it waits for.
        self._waiting: deque[tuple[Offset, int]] = deque()
        #: Inquiries of followers since the clock was last read.
        self._inquiries: dict[WorkerId, messages.Inquire] = {}

    def read(self, read: Read) -> None:
        replica, request = self.replica, read.request
        acknowledged = self.leader.acknowledged_end
        shows_all = replica.guards.shows_acknowledged(replica.applied, acknowledged)
        if not self.leader.is_serving:
            self.leader.refuse(request, Refusal.NOT_READY)
        elif read.is_sampled and shows_all:
            self._answer(request)
        elif self._reads_stopped():
            self.leader.refuse(request, Refusal.HANDING_OVER)
        elif not replica.guards.lease_checked_after_sampling() and not self._has_lease():
            self.leader.refuse(request, Refusal.NO_LEASE)
        elif shows_all:
            self._sample(request)
        else:
            self._waiting.append((acknowledged, request))

    def _sample(self, request: int) -> None:
        self._sampling.add(request)
        self.replica.emit(effects.Sample(request=request))

    @property
    def awaits_applied(self) -> bool:
        return bool(self._waiting)

    def applied(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.replica.applied:
            self._sample(self._waiting.popleft()[1])

    def sampled(self, request: int) -> None:
        if request not in self._sampling:
            self.leader.refuse(request, Refusal.NOT_LEADER)
            return
        self._sampling.discard(request)
        self._answer(request)

    def _answer(self, request: int) -> None:
        if self._reads_stopped():
            self.leader.refuse(request, Refusal.HANDING_OVER)
        elif self.replica.guards.lease_checked_after_sampling() and not self._has_lease():
            self.leader.refuse(request, Refusal.NO_LEASE)
        else:
            served = effects.ReadServed(epoch=self.leader.epoch)
            self.replica.emit(effects.Reply(request=request, result=served))

    def inquired(self, sender: WorkerId, inquire: messages.Inquire) -> None:
        """Note a follower's inquiry; it is answered once a clock read from now on finds our lease."""
        if not self._inquiries:
            self.replica.emit(effects.ReadClock())
        self._inquiries[sender] = inquire
        if not self.replica.guards.assurance_awaits_clock():
            self.clock_read()

    def clock_read(self) -> None:
        inquiries, self._inquiries = self._inquiries, {}
        if not self.leader.is_serving or self._reads_stopped():
            return
        if not self.replica.guards.may_assure(self._has_lease()):
            return
        for sender, inquire in inquiries.items():
            assure = messages.Assure(
                self.leader.epoch,
                self.leader.incarnation,
                to=inquire.incarnation,
                stamp=inquire.stamp,
                # Reads here may have shown all that is decided, though nobody told us that it is applied.
                apply_offset=self.replica.apply_offset,
            )
            self.replica.emit(effects.Send(to=sender, message=assure))
        if inquiries:
            self.leader.followers.await_news()

    def end(self) -> None:
        for request in (*self._sampling, *(request for _, request in self._waiting)):
            self.leader.refuse(request, Refusal.NOT_LEADER)
        self._sampling.clear()
        self._waiting.clear()

    def _has_lease(self) -> bool:
        return self.replica.guards.lease_holds(self.replica.now, self.replica.lease_end)

    def _reads_stopped(self) -> bool:
        guards = self.replica.guards
        if self.replica.closed_for and not guards.reads_while_closing():
            return True
        return self.leader.handover_sent and not guards.reads_while_handing_over()
