"""How far a stream is with one depot of its task: what is applied of it, what runs next, what is processed.

Records are processed in their order: a batch whose hops are answered waits for those before it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from stretto.worker.topology.machine.batches import Batch, start_of


class Blocked(NamedTuple):
    """A record that failed, and that those behind it wait for."""

    offset: int
    attempts: int
    """How often it failed."""
    until: int
    """When it is tried again."""


class Cursor:
    def __init__(self, end: int, progress: int) -> None:
        #: Where the depot ends, as it is applied.
        self.end = end
        #: Where the next run begins, as of the last entry.
        self.position = progress
        #: What the log says of it.
        self.logged = progress
        #: What is told of it.
        self.processed = progress
        #: Batches that are appended, and not processed.
        self.in_order: deque[Batch] = deque()
        self.blocked: Blocked | None = None
        #: Records below this run one by one, to find out which of them fails elsewhere.
        self.careful_below = 0

    @property
    def lag(self) -> int:
        return self.end - self.processed

    @property
    def reached(self) -> int:
        """Below this, all that records led to is done."""
        return start_of(self.in_order[0]) if self.in_order else self.position

    def grown(self, end: int) -> None:
        self.end = max(self.end, end)

    def is_blocked(self, now: int) -> bool:
        return self.blocked is not None and now < self.blocked.until

    def failures_of(self, offset: int) -> int:
        """How often a record failed that others wait for; 0 if it is another, or none."""
        return self.blocked.attempts if self.blocked is not None and self.blocked.offset == offset else 0

    def accepted(self, batch: Batch, end: int) -> None:
        """The entry of records up to ``end`` is in the log."""
        self.position = end
        self.in_order.append(batch)

    def next_done(self) -> Batch | None:
        """The first batch, if it is applied and its hops are answered; it is taken off."""
        if self.in_order and self.in_order[0].is_applied and not self.in_order[0].hops:
            return self.in_order.popleft()
        return None

    def behind(self, batch: Batch) -> list[Batch]:
        """The batches behind this one, the last first; they are taken off."""
        taken = []
        while self.in_order and self.in_order[-1] is not batch:
            taken.append(self.in_order.pop())
        return taken
