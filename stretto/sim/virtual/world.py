"""Virtual time, and the queue of what happens next.

Time is in milliseconds and stands still while something happens. Nothing here, or in anything that runs
here, may depend on the order of a set of strings or on the machine's clock: the seed decides.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

Trace = Callable[[str], None]


class Violation(Exception):
    """Raised by a checker that found the protocol wrong."""


class World:
    """Virtual time, against which all other clocks are measured, and the queue of future events."""

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.random = Random(seed)
        self.now = 0
        self._trace = trace
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0

    def at(self, time: int, action: Callable[..., None], *args: Any) -> None:
        """Schedule an action for a time, or for now if that is over."""
        self._scheduled += 1
        heapq.heappush(self._queue, (max(time, self.now), self._scheduled, action, args))

    def after(self, delay: int, action: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, action, *args)

    def advance(self) -> bool:
        """Carry out the next action; False if none is left."""
        if not self._queue:
            return False
        self.now, _, action, args = heapq.heappop(self._queue)
        action(*args)
        return True

    @property
    def next_time(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    @property
    def is_traced(self) -> bool:
        return self._trace is not None

    def trace(self, who: str, what: str, *details: Any) -> None:
        if self._trace is not None:
            self._trace(f"{self.now:>8} {who:<8} {what} " + " ".join(str(each) for each in details))

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability
