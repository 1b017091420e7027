"""Something done again and again, at an interval that may change while it waits."""

from __future__ import annotations

from collections.abc import Callable

from stretto.network.loop import Loop


class Repeating:
    """An action that the loop repeats at an interval, which may change meanwhile."""

    def __init__(self, loop: Loop, interval_ms: Callable[[], int], action: Callable[[], None]) -> None:
        self._loop = loop
        self._interval_ms = interval_ms
        self._action = action
        self._waits_ms = -1
        #: Number of the present wait; waits with another number were replaced.
        self._number = 0

    def retime(self) -> None:
        """Begin to repeat, or use the interval as it is now."""
        if self._interval_ms() != self._waits_ms:
            self._wait()

    def _wait(self) -> None:
        self._number += 1
        self._waits_ms = self._interval_ms()
        self._loop.call_after(self._waits_ms, self._due, self._number)

    def _due(self, number: int) -> None:
        if number == self._number:
            self._action()
            self._wait()
