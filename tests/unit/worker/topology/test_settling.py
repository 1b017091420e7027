"""How many records were settled is one answer of many parts."""

from __future__ import annotations

from stretto.errors import RetriableError
from stretto.worker.topology.settling import Tally


def test_the_sum_is_told_when_all_parts_are() -> None:
    told: list[int | RetriableError] = []
    tally = Tally(2, told.append)
    tally.add(3)
    assert told == []
    tally.add(0)
    assert told == [3]


def test_without_parts_there_is_nothing_to_wait_for() -> None:
    told: list[int | RetriableError] = []
    Tally(0, told.append)
    assert told == [0]


def test_a_part_that_is_not_known_makes_the_sum_unknown() -> None:
    told: list[int | RetriableError] = []
    tally, error = Tally(3, told.append), RetriableError("ask again")
    for part in (1, error, RetriableError("another")):
        tally.add(part)
    assert told == [error]
