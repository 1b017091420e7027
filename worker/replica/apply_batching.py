"""Entries that are decided and wait to be applied.

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
"""So many entries wait no longer."""


class Gathering:
    """Of one replica. ``hand_on`` hears up to where entries go to be applied now."""

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
        #: The applied state is being replaced, or is closed.
        self.rests = False

    def put(self, end: Offset) -> None:
        """Entries below ``end`` are decided."""
        self._decided = end

    def end_turn(self, *, awaited: bool) -> None:
        waiting = self._decided - self._handed
        if waiting and (awaited or waiting >= GATHERED_MAX):
            self.hand_on()
        elif waiting and not self._is_timed:
            self._is_timed = True
            self._call_after(GATHERED_MS, self._time_is_over)

    def hand_on(self) -> None:
        """Whatever waits: somebody waits for it."""
        if self._handed < self._decided and not self.rests:
            self._handed = self._decided
            self._hand_on(self._handed)

    def go_on(self) -> None:
        """After a rest, in which the time of what waits may have been over."""
        self.rests = False
        self.hand_on()

    def begin_at(self, applied: Offset) -> None:
        """Another state has taken the place of the one before."""
        self._decided = self._handed = applied

    def _time_is_over(self) -> None:
        self._is_timed = False
        self.hand_on()
