"""The epochs of a log, and the point where two logs part.

Entries of one epoch come from one leader, whose log only grows while it leads. So two logs that both
hold entries of an epoch agree on everything up to the smaller of their two ends of that epoch, and the
latest epoch they share decides. Comparing apply offsets instead loses visible data (KIP-101), and
looking only at the last epoch does too (KIP-279).
"""

from __future__ import annotations

from stretto.replog.storage import EpochStart
from stretto.vocabulary.invariants import check
from stretto.vocabulary.types import Epoch, Offset

History = tuple[EpochStart, ...]


def extended(history: History, epoch: Epoch, start: Offset) -> History:
    """The history after an entry of ``epoch`` at ``start``."""
    if history and history[-1].epoch == epoch:
        return history
    check(not history or history[-1].epoch < epoch, "epochs of a log go back", history=history, epoch=epoch)
    return (*history, EpochStart(epoch, start))


def truncated(history: History, end: Offset) -> History:
    """The history of the log cut at ``end``. An epoch that keeps no entry disappears."""
    return tuple(each for each in history if each.start < end)


def epoch_end(history: History, log_end: Offset, epoch: Epoch) -> Offset | None:
    """End of that epoch's entries, or None if the log has no entry of it."""
    for index in range(len(history) - 1, -1, -1):
        if history[index].epoch == epoch:
            return history[index + 1].start if index + 1 < len(history) else log_end
        if history[index].epoch < epoch:
            return None
    return None


def divergence(mine: History, my_end: Offset, theirs: History, their_end: Offset) -> Offset | None:
    """End of what two logs have in common, or None if theirs no longer remembers that far back."""
    if not mine:
        return Offset(0)
    for index in range(len(mine) - 1, -1, -1):
        shared_end = epoch_end(theirs, their_end, mine[index].epoch)
        if shared_end is not None:
            my_epoch_end = mine[index + 1].start if index + 1 < len(mine) else my_end
            return min(my_epoch_end, shared_end)
        if theirs and mine[index].epoch < theirs[0].epoch and theirs[0].start > 0:
            return None
    # Nothing in common, and theirs is whole: it parts where mine begins, or where theirs has ended before.
    return min(mine[0].start, their_end)
