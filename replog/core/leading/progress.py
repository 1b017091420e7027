"""What a leader knows of one follower, and what it sends it next.

Several messages may be under way, each with as many whole frames as fit; one confirmation may answer many.
A follower that goes silent is probed, and its answer says where to resume.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stretto.replog.core import effects, messages
from stretto.replog.core.record import Member, Registration
from stretto.vocabulary.types import Incarnation, Millis, Offset, StorageId, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.leading.leader import Leader


class Progress:
    """One incarnation of one follower in the leader's epoch, from its Hello on."""

    def __init__(
        self, worker: WorkerId, incarnation: Incarnation, storage: StorageId, attempt: int, now: Millis
    ) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.storage = storage
        self.member = Member(worker, storage)
        #: The attempt of the Hello that this progress answers; messages of earlier ones are void.
        self.attempt = attempt
        #: End of what is durable there and equal to our log, as confirmed in this epoch; None before that.
        self.confirmed: Offset | None = None
        #: Where the next entries to send begin.
        self.next = Offset(0)
        #: Ends of the messages not yet confirmed.
        self.in_flight: deque[Offset] = deque()
        #: Whether a SendEntries for it is with the driver.
        self.sending = False
        self.told_apply_offset = Offset(-1)
        self.known_apply_offset = Offset(-1)
        self.heard_at = now
        #: Offset from which our log is kept while the follower receives our state.
        self.pinned: Offset | None = None
        #: Whether the follower was told to begin again, and has not yet.
        self.out_of_range = False
        #: Whether its registration was tested and is gone.
        self.gone = False
        #: Whether its registration is being tested again, because a change that named it was refused.
        self.in_doubt = False

    @property
    def registration(self) -> Registration:
        return Registration(self.worker, self.incarnation)

    def on_confirm(self, message: messages.Confirm, now: Millis) -> None:
        first = self.confirmed is None
        self.confirmed = message.end if self.confirmed is None else max(self.confirmed, message.end)
        self.known_apply_offset = max(self.known_apply_offset, message.known_apply_offset)
        self.heard_at = now
        if first or message.resume:
            self.next = max(message.log_end, self.confirmed)
            self.in_flight.clear()
            self.told_apply_offset = min(self.told_apply_offset, self.known_apply_offset)
        while self.in_flight and self.in_flight[0] <= message.end:
            self.in_flight.popleft()

    def is_settled(self, leader: Leader) -> bool:
        """Whether the follower has confirmed everything and knows the advertised end: nothing to repeat."""
        replica = leader.replica
        return self.confirmed == replica.log_end and self.known_apply_offset >= leader.advertised_end

    def pump(self, leader: Leader) -> None:
        """Send the follower what it lacks, as far as the window allows."""
        replica = leader.replica
        if self.confirmed is None or self.sending:
            return
        if self.next < replica.log_start:
            self._out_of_range(leader)
            return
        lacks_entries = self.next < replica.log_end
        if lacks_entries:
            may_send = len(self.in_flight) < replica.settings.max_in_flight_messages
        else:
            may_send = self._has_news(leader)
        if not may_send:
            return
        message = self._entries(leader, probe=False)
        self.told_apply_offset = message.apply_offset
        if lacks_entries:
            self.sending = True
            replica.emit(
                effects.SendEntries(
                    to=self.worker,
                    message=message,
                    attempt=self.attempt,
                    start=self.next,
                    max_bytes=replica.settings.max_batch_bytes,
                )
            )
        else:
            replica.emit(effects.Send(to=self.worker, message=message))

    def _out_of_range(self, leader: Leader) -> None:
        """Reject a follower so far behind that retention passed it by: it says Hello and takes our state."""
        self.confirmed = None
        self.out_of_range = True
        self.heard_at = leader.replica.now
        reject = messages.Reject(leader.epoch, leader.incarnation, reason=messages.RejectReason.OUT_OF_RANGE)
        leader.replica.emit(effects.Send(to=self.worker, message=reject))

    def _has_news(self, leader: Leader) -> bool:
        """Whether to send the advertised end by itself: when it is due, or has moved by much.

        Otherwise entries may come that carry it.
        """
        replica = leader.replica
        is_much = replica.applied - self._advertised_end >= replica.settings.news_entries
        return (is_much or leader.followers.news_are_due) and self.lacks_news(leader)

    def lacks_news(self, leader: Leader) -> bool:
        """Whether the follower was not sent the whole advertised end."""
        return self._advertised_end < leader.advertised_end

    @property
    def _advertised_end(self) -> Offset:
        return max(self.told_apply_offset, self.known_apply_offset)

    def _entries(self, leader: Leader, *, probe: bool) -> messages.Entries:
        replica = leader.replica
        return messages.Entries(
            leader.epoch,
            leader.incarnation,
            to=self.incarnation,
            apply_offset=leader.advertised_end,
            log_end=replica.log_end,
            retain_offset=leader.followers.needed(),
            probe=probe,
        )

    def probe_if_silent(self, leader: Leader) -> None:
        """Probe a follower that is unsettled and silent for a while: a message or its answer was lost."""
        replica = leader.replica
        probe_at = self.probe_at(leader)
        if probe_at is None or replica.now < probe_at:
            return
        if self.out_of_range:
            self._out_of_range(leader)
        else:
            self.heard_at = replica.now
            self.sending = False
            replica.emit(effects.Send(to=self.worker, message=self._entries(leader, probe=True)))

    def probe_at(self, leader: Leader) -> Millis | None:
        """When to probe the follower; None while it has nothing to answer."""
        if not self.out_of_range and (self.confirmed is None or self.is_settled(leader)):
            return None
        return Millis(self.heard_at + leader.replica.settings.retry_ms)
