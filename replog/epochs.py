"""The history of epochs, as a value.

A history is a tuple of :class:`EpochStart`, ascending in epoch and in start. The log keeps only what
it can still be asked about: the epochs of its entries, and the one that was running just below
``start_offset``, because a replica whose log ends exactly there asks by that epoch.

There is no file of epochs. The frames tell every epoch that began inside the log, and a segment's
header holds the one that was running just below it; hence the two can never disagree after a crash,
and there is nothing to lose.
"""

from __future__ import annotations

from typing import TypeAlias

from stretto.replog.storage import EpochStart
from stretto.vocabulary.types import Offset

History: TypeAlias = tuple[EpochStart, ...]


def starting_below(history: History, offset: Offset) -> History:
    """What is left of a history when its entries from ``offset`` on are dropped."""
    kept = len(history)
    while kept and history[kept - 1].start >= offset:
        kept -= 1
    return history[:kept]


def ending_above(history: History, offset: Offset) -> History:
    """What is left when the log begins at ``offset``: the epoch running just below it, and all later."""
    first = 0
    while first + 1 < len(history) and history[first + 1].start < offset:
        first += 1
    return history[first:]
