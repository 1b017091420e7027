"""Distributions that can be merged."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.telemetry.histogram import (
    ACCURACY,
    ADDED_MAX,
    BINS_MAX,
    NOTHING,
    Distribution,
    Histogram,
    counts_up_to,
    merged,
)

durations = st.floats(min_value=1e-6, max_value=3_600)


def of(values: list[float]) -> Distribution:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram.told()


def sent(told: Distribution) -> Distribution:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Distribution)


@given(st.lists(durations, min_size=1, max_size=200), st.floats(min_value=0, max_value=1))
def test_a_percentile_is_off_by_the_accuracy_at_most(values: list[float], fraction: float) -> None:
    exact = sorted(values)[int(fraction * (len(values) - 1))]
    assert of(values).quantile(fraction) == pytest.approx(exact, rel=ACCURACY * 1.01)


@given(st.lists(st.lists(durations, max_size=30), max_size=8))
def test_merged_parts_are_the_whole(parts: list[list[float]]) -> None:
    whole = of([value for part in parts for value in part])
    together = merged([sent(of(part)) for part in parts])
    assert together.count == whole.count
    assert together.bins == whole.bins
    assert together.sum == pytest.approx(whole.sum)
    assert together.max == whole.max


def test_an_empty_one_has_no_percentiles() -> None:
    assert Histogram().told().quantile(0.5) is None
    assert merged([NOTHING]).count == 0


def test_merged_parts_have_no_more_bins_than_one_and_lose_no_value() -> None:
    far = [Distribution(first, (1,), 1.0, 1.0) for first in (-5_000, 0, 700)]
    together = merged(far)
    assert (len(together.bins), together.count, together.bins[-1]) == (BINS_MAX, 3, 1)
    assert together.first + len(together.bins) == 701


@given(st.lists(durations, min_size=1, max_size=5), st.floats(min_value=0, max_value=1))
def test_no_percentile_is_above_the_maximum(values: list[float], fraction: float) -> None:
    histogram = of(values)
    assert (histogram.quantile(fraction) or 0) <= max(values)
    assert histogram.quantile(1) == max(values)


def test_what_took_no_time_counts() -> None:
    histogram = of([0.0, 1.0])
    assert histogram.count == 2
    assert (histogram.quantile(0) or 1) < 1e-6


@given(st.lists(durations, max_size=100), st.lists(durations, min_size=1, max_size=10))
def test_counts_up_to_bounds_rise_to_the_whole(values: list[float], bounds: list[float]) -> None:
    told = of(values)
    ascending = tuple(sorted(bounds))
    counts = counts_up_to(told, ascending)
    assert list(counts) == sorted(counts)
    for bound, count in zip(ascending, counts, strict=True):
        assert sum(value <= bound * (1 - 2 * ACCURACY) for value in values) <= count
        assert count <= sum(value <= bound * (1 + 2 * ACCURACY) for value in values)
    assert counts_up_to(told, (1e6,)) == (len(values),)


def test_values_that_wait_for_their_bin_are_told_and_counted_by_whoever_asks() -> None:
    histogram = Histogram()
    for number in range(ADDED_MAX + 3):
        histogram.add(0.001)
        assert histogram.count == number + 1
    assert histogram.told().count == ADDED_MAX + 3
    # Two threads may both find enough of them: the second finds none.
    histogram._sort()
    assert histogram.told().sum == pytest.approx(0.001 * (ADDED_MAX + 3))


def test_one_thread_adds_while_another_is_told() -> None:
    histogram = Histogram()

    def add_many() -> None:
        for _ in range(20 * ADDED_MAX):
            histogram.add(0.001)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            adding = pool.submit(add_many)
            while not adding.done():
                histogram.told()
            adding.result()
    finally:
        sys.setswitchinterval(before)
    # One that is added at the very moment the list is taken away may be missed.
    assert histogram.told().count == pytest.approx(20 * ADDED_MAX, abs=ADDED_MAX)
