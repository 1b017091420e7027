"""The core with one clause of one rule missing: a checker catches each."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from stretto.replog.core.guards import GUARDS, Guards
from stretto.sim.campaigns.replication import catch
from stretto.sim.replication.mutants import MUTANTS

SLOW = {"appends_while_resigning", "isr_change_version", "resign_is_meant"}
"""Caught after more seeds than the others."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(mutant.name, marks=[pytest.mark.soak] if mutant.name in SLOW else [])
        for mutant in MUTANTS
    ],
)
def test_the_mutant_is_caught(name: str) -> None:
    caught = catch(name)
    assert caught.by is not None, f"{name} survived; stretto sim --mutants"
    assert caught.violation


def test_every_guard_has_a_mutant() -> None:
    mutated = {guard for mutant in MUTANTS for guard in mutant.changes}
    assert {field.name for field in dataclasses.fields(Guards)} == mutated


def test_mutants_have_names_of_their_own_and_change_one_guard() -> None:
    assert {mutant.name for mutant in MUTANTS} >= SLOW
    assert Counter(mutant.name for mutant in MUTANTS).most_common(1)[0][1] == 1
    for mutant in MUTANTS:
        (guard,) = mutant.changes
        assert getattr(mutant.guards, guard) is not getattr(GUARDS, guard)


def test_there_are_mutants_of_every_rule() -> None:
    rules = {rule.strip() for mutant in MUTANTS for rule in mutant.rule.split(",")}
    assert {str(rule) for rule in range(1, 13)} <= rules
