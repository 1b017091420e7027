"""Distributions that can be merged: durations of many windows, groups and workers make one, and its
percentiles are as true as those of each.

A DDSketch: a value falls into a bin whose bounds are a few percent apart, whatever its size, so a percentile
is off by at most :data:`ACCURACY` of itself. Mapping and store are the library's; sum and maximum are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate

import msgspec
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import CollapsingLowestDenseStore

ACCURACY = 0.02
BINS_MAX = 768
"""From a tenth of a microsecond to a day: about 700. Where they do not suffice, the smallest merge."""

_MAPPING = LogarithmicMapping(ACCURACY)
_LEAST = 1e-7
"""Seconds. What is shorter counts as this."""


class Distribution(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A histogram as data: counts of neighbouring bins, from bin ``first`` on."""

    first: int
    bins: tuple[int, ...]
    sum: float
    max: float

    @property
    def count(self) -> int:
        return sum(self.bins)


class Histogram:
    """Of durations, in seconds."""

    __slots__ = ("_store", "max", "sum")

    def __init__(self, parts: Iterable[Distribution] = ()) -> None:
        self._store = CollapsingLowestDenseStore(BINS_MAX)
        self.sum = 0.0
        self.max = 0.0
        for part in parts:
            self.merge(part)

    @property
    def count(self) -> int:
        return int(self._store.count)

    def add(self, seconds: float) -> None:
        self._store.add(_MAPPING.key(max(_LEAST, seconds)))
        self.sum += seconds
        self.max = max(self.max, seconds)

    def add_many(self, seconds: float, count: int) -> None:
        """So many values of which only the sum is known, which is this: as if all were the same."""
        self._store.add(_MAPPING.key(max(_LEAST, seconds / count)), count)
        self.sum += seconds
        self.max = max(self.max, seconds / count)

    def merge(self, part: Distribution) -> None:
        for key, count in enumerate(part.bins, start=part.first):
            if count:
                self._store.add(key, count)
        self.sum += part.sum
        self.max = max(self.max, part.max)

    def told(self) -> Distribution:
        store = self._store
        if not store.count:
            return Distribution(0, (), 0.0, 0.0)
        low, high = store.min_key - store.offset, store.max_key - store.offset
        bins = tuple(int(count) for count in store.bins[low : high + 1])
        return Distribution(store.min_key, bins, self.sum, self.max)

    def quantile(self, fraction: float) -> float | None:
        """The value that so large a part of all is not above; None if there is none."""
        if not self._store.count:
            return None
        if fraction >= 1:
            return self.max
        key = self._store.key_at_rank(fraction * (self._store.count - 1))
        return min(float(_MAPPING.value(key)), self.max)


def counts_up_to(part: Distribution, bounds: tuple[float, ...]) -> tuple[int, ...]:
    """How many values are not above each of these bounds, as far as bins tell."""
    running = [0, *accumulate(part.bins)]
    return tuple(running[max(0, min(len(part.bins), _key(bound) - part.first + 1))] for bound in bounds)


@lru_cache(maxsize=256)
def _key(bound: float) -> int:
    """The last bin whose middle is not above the bound."""
    key = int(_MAPPING.key(bound))
    return key if _MAPPING.value(key) <= bound else key - 1
