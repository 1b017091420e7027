"""The model of regrouping: seeds in which everything crashes and lags, and each rule of it missed."""

from __future__ import annotations

import pytest

from tests.sim.regrouping import MUTANTS, Lost, Rules, World

SEEDS = 150
STEPS = 1_500


def run(seed: int, rules: Rules | None = None) -> World:
    world = World(seed, rules or Rules())
    world.run(STEPS)
    return world


def test_nothing_acknowledged_is_lost_by_regrouping_or_not_shown() -> None:
    worlds = [run(seed) for seed in range(SEEDS)]
    assert sum(world.switches for world in worlds) > SEEDS
    assert sum(world.abandonments for world in worlds) > SEEDS
    assert sum(world.reads for world in worlds) > 100 * SEEDS


@pytest.mark.parametrize("without", MUTANTS)
def test_each_rule_is_missed(without: str) -> None:
    for seed in range(SEEDS * 4):
        try:
            run(seed, MUTANTS[without])
        except Lost:
            return
    pytest.fail(f"nobody missed that {without}")
