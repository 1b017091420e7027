"""The history of epochs, as a value.

A history is a tuple of :class:`EpochStart`, ascending in epoch and in start. The log keeps only what
its entries can still be asked about: an epoch that ended at or below ``start_offset`` is forgotten,
except that an empty log keeps the last one, which says whose entries came before.

There is no file of epochs. The frames tell every epoch that began inside the log, and a segment's
header holds the one that its first entry continues; hence the two can never disagree after a crash,
and there is nothing to lose.
"""

from __future__ import annotations

from typing import TypeAlias

from stretto.replog.storage import EpochStart
from stretto.types import Offset

History: TypeAlias = tuple[EpochStart, ...]


def last_before(history: History, offset: Offset) -> EpochStart | None:
    """The epoch that was running just below ``offset``."""
    for entry in reversed(history):
        if entry.start < offset:
            return entry
    return None


def starting_below(history: History, offset: Offset) -> History:
    """What is left of a history when its entries from ``offset`` on are dropped."""
    kept = len(history)
    while kept and history[kept - 1].start >= offset:
        kept -= 1
    return history[:kept]


def ending_above(history: History, offset: Offset) -> History:
    """What is left when the log begins at ``offset``: the last epoch, and each whose end is beyond."""
    first = 0
    while first + 1 < len(history) and history[first + 1].start <= offset:
        first += 1
    return history[first:]
