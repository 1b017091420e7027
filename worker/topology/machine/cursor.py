"""How far a stream is with one depot of its task: what is applied of it, what runs next, what is processed.

Records are processed in their order: a batch whose hops are answered waits for those before it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from stretto.worker.topology.machine.batches import Batch, start_of


class Blocked(NamedTuple):
    """A record that failed, and that the records behind it wait for."""

    offset: int
    attempts: int
    """How often the record failed."""
    until: int
    """When the record is tried again."""


class Cursor:
    """How far a stream is with one depot."""

    def __init__(self, end: int, progress: int) -> None:
        #: The end of the depot, as far as it is applied.
        self.end = end
        #: The offset where the next run begins, as of the last entry.
        self.position = progress
        #: The progress that the log has.
        self.logged = progress
        #: The offset below which records are reported as processed.
        self.processed = progress
        #: Batches that are appended and not processed, in order.
        self.in_order: deque[Batch] = deque()
        self.blocked: Blocked | None = None
        #: The offset below which records run one by one, to find out which of them fails elsewhere.
        self.careful_below = 0

    @property
    def lag(self) -> int:
        """How many records are applied and not processed."""
        return self.end - self.processed

    @property
    def reached(self) -> int:
        """The offset below which all that records led to is done."""
        return start_of(self.in_order[0]) if self.in_order else self.position

    def grown(self, end: int) -> None:
        """Take the new end of the depot."""
        self.end = max(self.end, end)

    def is_blocked(self, now: int) -> bool:
        """Whether a record that failed still has to wait before it is tried again."""
        return self.blocked is not None and now < self.blocked.until

    def failures_of(self, offset: int) -> int:
        """How often this record failed, if it is the one that others wait for; else 0."""
        return self.blocked.attempts if self.blocked is not None and self.blocked.offset == offset else 0

    def accepted(self, batch: Batch, end: int) -> None:
        """Add a batch whose entry, with records up to ``end``, is in the log."""
        self.position = end
        self.in_order.append(batch)

    def next_done(self) -> Batch | None:
        """Take off the first batch if it is applied and its hops are answered; else None."""
        if self.in_order and self.in_order[0].is_applied and not self.in_order[0].hops:
            return self.in_order.popleft()
        return None

    def behind(self, batch: Batch) -> list[Batch]:
        """Take off the batches behind this one, and return them, the last first."""
        taken = []
        while self.in_order and self.in_order[-1] is not batch:
            taken.append(self.in_order.pop())
        return taken
