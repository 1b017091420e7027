"""Seeds without a violation, which between them try everything a campaign must have tried."""

from __future__ import annotations

from collections import Counter

import pytest

from stretto.sim.replication.simulation import STEPS, TOTALS, Verdict, run_seed

SEEDS = 120
CHUNK = 10


def checked(seed: int) -> Verdict:
    verdict = run_seed(seed)
    assert verdict.violation is None, (
        f"reproduce with: stretto sim --seeds 1 --seed {seed}\n{verdict.violation}\n"
        + "\n".join(verdict.story)
    )
    assert verdict.steps >= STEPS
    return verdict


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_hold_every_rule_and_recover(first: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        totals.update(checked(seed).totals)
    assert totals["elections"] >= CHUNK
    assert totals["expansions"] > 0


def test_a_few_seeds_try_everything() -> None:
    totals: Counter[str] = Counter()
    for seed in range(SEEDS, SEEDS + 4 * CHUNK):
        totals.update(checked(seed).totals)
        if all(totals[name] for name in TOTALS):
            break
    assert [name for name in TOTALS if not totals[name]] == []


@pytest.mark.parametrize("steps", [1, 300])
def test_a_short_run_also_heals(steps: int) -> None:
    for seed in range(5):
        assert run_seed(seed, steps=steps).violation is None
