"""Entries that wait for the end of the loop's turn, and which of them go then.

A follower that catches up lacks megabytes, and each message that goes asks for the next one. If they all went
at once, live entries, and the leader's own commit of them, would wait behind what is old. So each follower
gets one message in a turn, who lacks least before the others; who lacks more goes on in the next turn, after
what has come in meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from stretto.replog.core.effects import SendEntries
from stretto.replog.core.events import Sent

_start = attrgetter("start")


class Outbox:
    """The outbox of one group's leader: entries for followers. ``send`` returns what was sent, if anything
    was; ``on_sent`` is called with that once no other message waits to go, and may put the next one for the
    same follower."""

    def __init__(
        self,
        send: Callable[[SendEntries], Sent | None],
        on_sent: Callable[[Sent], None],
        in_next_turn: Callable[[], None],
    ) -> None:
        self._send = send
        self._on_sent = on_sent
        self._in_next_turn = in_next_turn
        self._waiting: list[SendEntries] = []
        self._rests = False

    def put(self, effect: SendEntries) -> None:
        self._waiting.append(effect)

    def send_turn(self) -> None:
        """Send one message to each follower. May be called again in the same turn; ``in_next_turn`` is called
        if something is left."""
        if self._waiting and not self._rests:
            self._send_waiting()
            if self._waiting:
                self._rests = True
                self._in_next_turn()

    def begin_turn(self) -> None:
        """Allow messages again that were left for this turn."""
        self._rests = False

    def send_all(self) -> None:
        """Send everything that waits, before the log is cut."""
        while self._waiting:
            self._send_waiting()

    def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if len(waiting) > 1:
            waiting.sort(key=_start, reverse=True)
        for event in [self._send(effect) for effect in waiting]:
            if event is not None:
                self._on_sent(event)
