from __future__ import annotations

import pytest

from stretto.replog.core.settings import Settings


@pytest.mark.parametrize(("factor", "expected"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_min_isr_unset_is_one_less_than_the_factor_and_at_least_one(factor: int, expected: int) -> None:
    assert Settings().min_isr_of(factor) == expected


@pytest.mark.parametrize("wanted", [-3, 0, 1])
def test_min_isr_below_one_reads_as_one(wanted: int) -> None:
    assert Settings(min_isr=wanted).min_isr_of(3) == 1


@pytest.mark.parametrize("wanted", [3, 4, 99])
def test_min_isr_above_the_factor_reads_as_the_factor(wanted: int) -> None:
    assert Settings(min_isr=wanted).min_isr_of(3) == 3


def test_min_isr_within_bounds_is_taken_as_it_is() -> None:
    assert Settings(min_isr=2).min_isr_of(5) == 2
