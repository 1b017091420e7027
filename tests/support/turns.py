"""A loop whose turns and whose time go on when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class StillLoop:
    """A loop whose calls wait until :meth:`run`, and whose timers wait until :meth:`pass_ms`."""

    def __init__(self) -> None:
        self.now = 1_000
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._timers: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []

    @property
    def timers(self) -> int:
        return len(self._timers)

    def run(self) -> None:
        """Run everything that was called, also what these calls add."""
        while self._calls:
            function, args = self._calls.pop(0)
            function(*args)

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass, and run the timers that become due."""
        until = self.now + duration_ms
        self.run()
        while due := [each for each in self._timers if each[0] <= until]:
            timer = min(due, key=lambda each: each[0])
            self._timers.remove(timer)
            self.now = timer[0]
            timer[1](*timer[2])
            self.run()
        self.now = until

    # As a loop has them.

    def call_soon(self, function: Callable[..., None], *args: Any) -> None:
        self._calls.append((function, args))

    def call_after(self, delay_ms: int, function: Callable[..., None], *args: Any) -> None:
        self._timers.append((self.now + delay_ms, function, args))

    def at_turn_end(self, function: Callable[[], None]) -> None:
        self._calls.append((function, ()))
