"""Streams that hop in a world that goes wrong: seeds hold, and without any of the rules they do not."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from stretto import cli
from stretto.sim.campaigns.worlds import catch
from stretto.sim.stream.mutants import MUTANTS
from stretto.sim.stream.simulation import run_seed
from stretto.worker.topology.machine.guards import Guards

TRIED = ("elections", "restarts", "dead executors", "failures", "parked", "sent again", "declined", "cut")
CAUGHT_SOON = ("may_follow", "may_ask", "may_send", "passes_records", "remembers_failure", "notes_run")


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        cli.main(("sim", "--stream", *args))
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def checked(first: int, count: int) -> Counter[str]:
    totals: Counter[str] = Counter()
    for seed in range(first, first + count):
        verdict = run_seed(seed)
        assert verdict.violation is None, f"stretto sim --stream --seeds 1 --seed {seed}"
        totals.update(verdict.totals)
    return totals


def test_a_few_seeds_are_run_exactly_once_and_try_everything() -> None:
    totals = checked(0, 12)
    assert [name for name in TRIED if not totals[name]] == []


@pytest.mark.soak
@pytest.mark.parametrize("first", range(12, 412, 40))
def test_many_seeds_are_run_exactly_once(first: int) -> None:
    assert checked(first, 40)["records"] > 1_000


@pytest.mark.parametrize("name", CAUGHT_SOON)
def test_a_mutant_that_is_caught_soon(name: str) -> None:
    assert catch("stream", name).by is not None


@pytest.mark.soak
@pytest.mark.parametrize("name", [each.name for each in MUTANTS if each.name not in CAUGHT_SOON])
def test_a_mutant_that_takes_its_time(name: str) -> None:
    assert catch("stream", name).by is not None, f"{name} survived; stretto sim --stream --mutants"


def test_every_guard_has_a_mutant() -> None:
    assert {field.name for field in dataclasses.fields(Guards)} == {each.guard for each in MUTANTS}


def test_the_same_seed_is_the_same_story(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    assert run("--seeds", "1", "--seed", "3", "--trace", str(first)) == 0
    assert run("--seeds", "1", "--seed", "3", "--trace", str(second)) == 0
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 10_000


@pytest.mark.parametrize("args", [("--microbatch",), ("--scenario", "kip"), ("--mutant", "nobody")])
def test_what_this_world_does_not_have_is_refused(args: tuple[str, ...]) -> None:
    assert run(*args) == 2
