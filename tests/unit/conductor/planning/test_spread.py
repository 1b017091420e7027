"""The spread against all distributions there are; and, where these are too many, against a certificate."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.conductor.planning.spread import spread

Homes = Sequence[int | None]
Choices = Sequence[Sequence[int]]


def moves(homes: Homes, places: Sequence[int]) -> list[int]:
    return [item for item, place in enumerate(places) if place != homes[item]]


def cost(homes: Homes, choices: Choices, places: Sequence[int]) -> tuple[int, int, int]:
    """Unevenness, moves, moves to another place than the first choice."""
    moved = moves(homes, places)
    return (
        sum(held**2 for held in Counter(places).values()),
        len(moved),
        sum(places[item] != choices[item][0] for item in moved),
    )


def price(homes: Homes, choices: Choices, item: int, begin: int, end: int) -> tuple[int, int]:
    """How an item's going from one place to another changes the moves, and those to no first choice."""

    def of(place: int) -> tuple[int, int]:
        moved = place != homes[item]
        return int(moved), int(moved and place != choices[item][0])

    return of(end)[0] - of(begin)[0], of(end)[1] - of(begin)[1]


def improvement(homes: Homes, choices: Choices, places: Sequence[int]) -> tuple[int, int] | None:
    """An arc of a cycle along which items could go with profit, by Bellman and Ford.

    Where a path ends, an arc leads back to any place that holds more, for the change of unevenness.
    """
    held = Counter(places)
    here = sorted({place for options in choices for place in options})
    arcs: dict[tuple[int, int], tuple[int, int, int]] = {}
    for low, high in itertools.permutations(here, 2):
        if held[high] > held[low]:
            arcs[low + 1000, high] = (2 * (held[low] - held[high] + 1), 0, 0)
    for item, place in enumerate(places):
        for end in choices[item]:
            if end != place:
                found = (0, *price(homes, choices, item, place, end))
                for there in (end, end + 1000):
                    arcs[place, there] = min(found, arcs.get((place, there), found))
    best = dict.fromkeys([*here, *(place + 1000 for place in here)], (0, 0, 0))
    changed: tuple[int, int] | None = None
    for _ in range(len(best) + 1):
        changed = None
        for (begin, end), (uneven, moved, strange) in arcs.items():
            reached = (best[begin][0] + uneven, best[begin][1] + moved, best[begin][2] + strange)
            if reached < best[end]:
                best[end] = reached
                changed = begin, end
        if changed is None:
            break
    return changed


@st.composite
def problems(draw: st.DrawFn) -> tuple[Homes, Choices]:
    size = draw(st.integers(1, 5))
    options = st.lists(st.integers(0, size - 1), min_size=1, max_size=3, unique=True)
    choices = draw(st.lists(options, max_size=6))
    homes = [draw(st.sampled_from([None, *each, *each])) for each in choices]
    return homes, choices


@given(problems())
@settings(max_examples=500, deadline=None)
def test_no_distribution_is_more_even_or_takes_fewer_moves(problem: tuple[Homes, Choices]) -> None:
    homes, choices = problem
    places = spread(homes, choices)
    assert all(place in options for place, options in zip(places, choices, strict=True))
    best = min(cost(homes, choices, each) for each in itertools.product(*choices))
    assert cost(homes, choices, places) == best


def drawn(seed: int) -> tuple[Homes, Choices]:
    """Hundreds of items over places that are popular to different degrees, so that they fall into parts."""
    chance = random.Random(seed)
    size = chance.randint(5, 16)
    skew = chance.choice([1, 2, 3])
    homes: list[int | None] = []
    choices = []
    for _ in range(chance.randint(50, 300)):
        first = int(size * chance.random() ** skew)
        near = [min(size - 1, first + step) for step in range(3)]
        options = list(dict.fromkeys(near if chance.random() < 0.7 else chance.choices(range(size), k=3)))
        homes.append(options[0] if chance.random() < 0.9 else None)
        chance.shuffle(options)
        choices.append(options)
    return homes, choices


# The later ones are those where forgetting to raise potentials while settling shows.
@pytest.mark.parametrize("seed", [*range(20), 53, 64, 122, 123])
def test_nothing_can_be_carried_with_profit_in_the_end(seed: int) -> None:
    homes, choices = drawn(seed)
    assert improvement(homes, choices, spread(homes, choices)) is None


def test_an_even_distribution_stays() -> None:
    homes = [0, 1, 2, 0, 1, 2]
    assert spread(homes, [[2, 1, 0]] * 6) == homes


def test_a_chain_of_moves_reaches_a_place_that_the_crowded_one_does_not() -> None:
    assert spread([0, 0, 1], [[0], [0, 1], [1, 2]]) == [0, 1, 2]


def test_an_item_leaves_a_home_that_is_not_among_its_choices() -> None:
    assert spread([7, 0], [[0, 1], [0, 1]]) == [1, 0]


def test_nothing_is_spread_over_nothing() -> None:
    assert spread([], []) == []
