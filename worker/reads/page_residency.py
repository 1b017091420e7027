"""Whether the rows that point reads look for are in memory, as far as one can know.

A look-up in a mapped file takes microseconds if its pages are in memory, and as long as the disk needs if
not; which of the two is only known afterwards, by the page faults that the kernel counts for each thread. So
look-ups begin on a thread that may wait. Once enough of them in a row have found everything in memory, the
loop may make the next ones, until one has to wait: then they go back to the thread, to prove themselves anew.
Where one look-up in a few hundred waits for the disk, the loop so makes hardly any; and when memory gets
scarce all at once, it waits once. To ask the kernel takes as long as a look-up; so the loop asks only if one
took long.
"""

from __future__ import annotations

import resource

ENOUGH_KEYS = 1_000
LONG_SECONDS = 0.000_1
"""The duration of a look-up in seconds below which it does not matter whether it had to wait."""


class Residence:
    """Keeps count of look-ups that found everything in memory; the loop and the reading thread report
    each."""

    def __init__(self) -> None:
        #: How many keys were looked up since one had to wait.
        self._found = 0
        #: How often the loop's thread had waited when the kernel was last asked; None before the first time.
        self._loop_waits: int | None = None

    @property
    def is_likely(self) -> bool:
        """Whether the next look-up probably finds its rows in memory, so that the loop may make it."""
        return self._found >= ENOUGH_KEYS

    def looking_up(self, keys: int) -> _LookUp:
        """Return a context manager that reports a look-up, for a thread that may wait."""
        return _LookUp(self, keys)

    def glanced(self, keys: int, seconds: float) -> None:
        """Report a look-up on the loop. If it took long, whatever the loop has waited for since the kernel
        was last asked counts for it; the first time only yields what to compare with."""
        if seconds > LONG_SECONDS:
            waits, before = _waits(), self._loop_waits
            self._loop_waits = waits
            if before is not None:
                self.looked_up(keys, waits - before)

    def looked_up(self, keys: int, waits: int) -> None:
        """Count a look-up that had to wait so many times."""
        self._found = 0 if waits else min(self._found + keys, ENOUGH_KEYS)
        if waits:
            self._loop_waits = None


class _LookUp:
    __slots__ = ("_keys", "_residence", "_waits")

    def __init__(self, residence: Residence, keys: int) -> None:
        self._residence = residence
        self._keys = keys

    def __enter__(self) -> None:
        self._waits = _waits()

    def __exit__(self, *_: object) -> None:
        self._residence.looked_up(self._keys, _waits() - self._waits)


def _waits() -> int:
    """How often this thread had to wait for a page from the disk."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
