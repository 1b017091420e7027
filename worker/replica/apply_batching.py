"""Committed entries that wait to be applied, and how many of them are applied at once.

A transaction costs a sync of the disk, whether it holds one entry or many. Where somebody waits for what it
shows (a reader, a topology, a successor), entries are handed on at the end of the loop's turn. Where nobody
does, a few are gathered for a moment, so that their transactions do not compete with the next append, which
waits for the log.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.vocabulary.types import Offset

GATHERED_MS = 100
GATHERED_MAX = 100
"""How many entries are handed on at once, without waiting for others."""


class Gathering:
    """Batches the committed entries of one replica. ``hand_on`` is called with the end up to where entries
    are to be applied now."""

    def __init__(
        self,
        applied: Offset,
        hand_on: Callable[[Offset], None],
        call_after: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._hand_on = hand_on
        self._call_after = call_after
        self._decided = self._handed = applied
        self._is_timed = False
        #: Whether nothing is handed on, because the applied state is being replaced or is closed.
        self.rests = False

    def put(self, end: Offset) -> None:
        """Note that entries below ``end`` are committed."""
        self._decided = end

    def end_turn(self, *, awaited: bool) -> None:
        """Hand entries on at the end of the loop's turn if somebody waits for them, or else after a
        moment."""
        waiting = self._decided - self._handed
        if waiting and (awaited or waiting >= GATHERED_MAX):
            self.hand_on()
        elif waiting and not self._is_timed:
            self._is_timed = True
            self._call_after(GATHERED_MS, self._time_is_over)

    def hand_on(self) -> None:
        """Hand on all that waits, at once."""
        if self._handed < self._decided and not self.rests:
            self._handed = self._decided
            self._hand_on(self._handed)

    def go_on(self) -> None:
        """Go on after a rest, in which the time of what waits may have been over."""
        self.rests = False
        self.hand_on()

    def begin_at(self, applied: Offset) -> None:
        """Begin at the end of another state, which has taken the place of the one before."""
        self._decided = self._handed = applied

    def _time_is_over(self) -> None:
        self._is_timed = False
        self.hand_on()
