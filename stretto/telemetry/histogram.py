"""Distributions that can be merged: durations of many windows, groups and workers make one, and its
percentiles are as true as those of each.

A DDSketch: a value falls into a bin whose bounds are a few percent apart, whatever its size, so a percentile
is off by at most :data:`ACCURACY` of itself. Mapping and store are the library's; sum and maximum are exact.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import add

import msgspec
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import CollapsingLowestDenseStore

ACCURACY = 0.02
BINS_MAX = 768
"""Most bins of a histogram; where they do not suffice, the smallest merge.

From a tenth of a microsecond to a day there are about 700.
"""

_MAPPING = LogarithmicMapping(ACCURACY)
ADDED_MAX = 256
_LEAST = 1e-7
"""Shortest duration in seconds; what is shorter counts as this."""


class Distribution(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A histogram as data: counts of neighbouring bins, from bin ``first`` on."""

    first: int
    bins: tuple[int, ...]
    sum: float
    max: float

    @property
    def count(self) -> int:
        return sum(self.bins)

    def quantile(self, fraction: float) -> float | None:
        """The value that so large a part of all is not above; None if there are no values."""
        if not self.bins:
            return None
        if fraction >= 1:
            return self.max
        running = list(accumulate(self.bins))
        key = self.first + bisect_right(running, fraction * (running[-1] - 1))
        return min(float(_MAPPING.value(key)), self.max)


NOTHING = Distribution(0, (), 0.0, 0.0)


def merged(parts: Sequence[Distribution]) -> Distribution:
    """One distribution of all values. Charts merge hundreds for each point, so bins are added run by run."""
    parts = [part for part in parts if part.bins]
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    first = min(part.first for part in parts)
    bins = [0] * (max(part.first + len(part.bins) for part in parts) - first)
    for part in parts:
        low = part.first - first
        high = low + len(part.bins)
        bins[low:high] = map(add, bins[low:high], part.bins)
    if len(bins) > BINS_MAX:
        surplus = len(bins) - BINS_MAX
        first += surplus
        bins[: surplus + 1] = [sum(bins[: surplus + 1])]
    return Distribution(first, tuple(bins), sum(part.sum for part in parts), max(part.max for part in parts))


class Histogram:
    """A histogram of durations in seconds: filled value by value, and read as a :class:`Distribution`."""

    __slots__ = ("_added", "_sorting", "_store", "max", "sum")

    def __init__(self) -> None:
        self._store = CollapsingLowestDenseStore(BINS_MAX)
        #: Values not in a bin yet: that takes longer than all that is measured, so it is done for many.
        self._added: list[float] = []
        #: Held while values are put into bins: one thread may add while another reads.
        self._sorting = threading.Lock()
        self.sum = 0.0
        self.max = 0.0

    @property
    def count(self) -> int:
        return int(self._store.count) + len(self._added)

    def add(self, seconds: float) -> None:
        self._added.append(seconds)
        if len(self._added) >= ADDED_MAX:
            self._sort()

    def _sort(self) -> None:
        with self._sorting:
            added, self._added = self._added, []
            for seconds in added:
                self._store.add(_MAPPING.key(max(_LEAST, seconds)))
            self.sum += sum(added)
            self.max = max((self.max, *added))

    def add_many(self, seconds: float, count: int) -> None:
        """Add ``count`` values whose sum is ``seconds``, as if all were the same."""
        self._store.add(_MAPPING.key(max(_LEAST, seconds / count)), count)
        self.sum += seconds
        self.max = max(self.max, seconds / count)

    def told(self) -> Distribution:
        """The values so far, as data."""
        if self._added:
            self._sort()
        store = self._store
        if not store.count:
            return NOTHING
        low, high = store.min_key - store.offset, store.max_key - store.offset
        bins = tuple(int(count) for count in store.bins[low : high + 1])
        return Distribution(store.min_key, bins, self.sum, self.max)


def counts_up_to(part: Distribution, bounds: tuple[float, ...]) -> tuple[int, ...]:
    """How many values are not above each of these bounds, as far as bins show."""
    running = [0, *accumulate(part.bins)]
    return tuple(running[max(0, min(len(part.bins), _key(bound) - part.first + 1))] for bound in bounds)


@lru_cache(maxsize=256)
def _key(bound: float) -> int:
    """The last bin whose middle is not above the bound."""
    key = int(_MAPPING.key(bound))
    return key if _MAPPING.value(key) <= bound else key - 1
