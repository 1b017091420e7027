from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto.vocabulary.types import Offset
from stretto.worker.replica.apply_batching import GATHERED_MAX, GATHERED_MS, Gathering


class Timed:
    """A gathering, what it handed on, and the timers that it has set."""

    def __init__(self) -> None:
        self.handed_on: list[int] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.gathering = Gathering(
            Offset(10), self.handed_on.append, lambda ms, f: self.timers.append((ms, f))
        )

    def decide(self, end: int, *, awaited: bool) -> None:
        """In a turn of its own."""
        self.gathering.put(Offset(end))
        self.gathering.end_turn(awaited=awaited)

    def time_passes(self) -> None:
        timers, self.timers = self.timers, []
        for _, function in timers:
            function()


@pytest.fixture
def timed() -> Timed:
    return Timed()


def test_what_somebody_waits_for_is_applied_at_once(timed: Timed) -> None:
    timed.decide(11, awaited=True)
    timed.decide(12, awaited=True)
    assert (timed.handed_on, timed.timers) == ([11, 12], [])


def test_what_a_turn_decides_is_applied_together(timed: Timed) -> None:
    timed.gathering.put(Offset(11))
    timed.gathering.put(Offset(12))
    assert timed.handed_on == []
    timed.gathering.end_turn(awaited=True)
    timed.gathering.end_turn(awaited=True)
    assert timed.handed_on == [12]


def test_what_nobody_waits_for_is_applied_together_after_a_while(timed: Timed) -> None:
    for end in (11, 12, 13):
        timed.decide(end, awaited=False)
    assert timed.handed_on == []
    assert [ms for ms, _ in timed.timers] == [GATHERED_MS]
    timed.time_passes()
    assert timed.handed_on == [13]
    timed.decide(14, awaited=False)
    timed.time_passes()
    assert timed.handed_on == [13, 14]


def test_who_begins_to_wait_gets_what_was_gathered(timed: Timed) -> None:
    timed.decide(11, awaited=False)
    timed.gathering.end_turn(awaited=True)
    timed.gathering.end_turn(awaited=True)
    timed.time_passes()
    assert timed.handed_on == [11]


def test_many_entries_are_not_gathered(timed: Timed) -> None:
    timed.decide(10 + GATHERED_MAX - 1, awaited=False)
    assert timed.handed_on == []
    timed.decide(10 + GATHERED_MAX, awaited=False)
    assert timed.handed_on == [10 + GATHERED_MAX]


def test_nothing_is_applied_while_the_state_is_replaced(timed: Timed) -> None:
    timed.decide(11, awaited=False)
    timed.gathering.rests = True
    timed.time_passes()
    timed.gathering.hand_on()
    assert timed.handed_on == []
    timed.gathering.go_on()
    assert timed.handed_on == [11], "the old state stands"


def test_a_state_that_took_anothers_place_is_not_given_what_it_has(timed: Timed) -> None:
    timed.decide(11, awaited=False)
    timed.gathering.rests = True
    timed.gathering.begin_at(Offset(50))
    timed.gathering.go_on()
    timed.time_passes()
    assert timed.handed_on == []
    timed.decide(51, awaited=True)
    assert timed.handed_on == [51]
