"""``stretto sim`` as a person or a script runs it."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from stretto import cli
from stretto.sim.campaigns.replication import ALL_TOTALS_FROM_SEEDS, Summary
from stretto.sim.replication.mutants import MUTANTS
from stretto.sim.replication.scenario import scripts
from stretto.sim.replication.simulation import TOTALS, Verdict

CAUGHT_AT_ONCE = "held_by_all"
"""A mutant that every seed catches within its first epoch."""


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        cli.main(("sim", *args))
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def only_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


# Seeds.


def test_seeds_without_violation_exit_0_and_say_so_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "4", "--seed", "20") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "4 seeds, 0 violations"
    assert lines[0].startswith("seeds 20 to 23 on ")
    printed = {line.strip().rpartition(" ")[0].strip() for line in lines}
    assert set(TOTALS) <= printed


def test_one_seed_prints_its_plan_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "1", "--seed", "9") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 9: factor ")
    assert [line.split()[0] for line in lines[1:6]] == ["faults", "network", "metastore", "nodes", "load"]
    assert lines[-1] == "1 seeds, 0 violations"


def test_json_is_one_object_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "3", "--json") == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["seeds"], out["violations"], out["untried"]) == (3, [], [])
    assert out["steps"] >= 6_000
    assert out["totals"]["elections"] > 0


def test_a_long_campaign_that_never_tried_something_says_what() -> None:
    summary = Summary()
    for seed in range(ALL_TOTALS_FROM_SEEDS):
        assert summary.untried == []
        summary.add(Verdict(seed, 2_000, Counter({"elections": 1})))
    assert "wipes" in summary.untried
    assert "elections" not in summary.untried


# Failures.


def failure_of(mutant: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Output of a campaign against a mutant, and the command that its first failure ends with."""
    assert run("--seeds", "4", "--mutant", mutant) == 1
    out = capsys.readouterr().out
    found = re.search(r"^reproduce with: (.*)$", out, re.MULTILINE)
    assert found is not None
    return out, found[1]


def first_violation(out: str) -> str:
    found = re.search(r"^violation at step .*$", out, re.MULTILINE)
    assert found is not None
    return found[0]


def test_a_failure_shows_the_plan_the_story_and_the_command_that_reproduces_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, command = failure_of(CAUGHT_AT_ONCE, capsys)
    found = re.fullmatch(rf"stretto sim --seeds 1 --seed (\d+) --mutant {CAUGHT_AT_ONCE}", command)
    assert found is not None
    failure = out[: out.index("reproduce with: ")]
    assert f"seed {found[1]}: factor " in failure
    assert "  faults    " in failure
    assert re.search(r"^ +\d+ w\d +leads epoch=1", failure, re.MULTILINE)
    assert re.search(r"^\d+ seeds, [1-9]\d* violations$", out.splitlines()[-1])


def test_the_command_of_a_failure_reproduces_the_same_violation(capsys: pytest.CaptureFixture[str]) -> None:
    out, command = failure_of(CAUGHT_AT_ONCE, capsys)
    program, verb, *args = shlex.split(command)
    assert (program, verb) == ("stretto", "sim")
    assert run(*args) == 1
    again = capsys.readouterr().out
    assert first_violation(again) == first_violation(out)
    assert again.splitlines()[-1] == "1 seeds, 1 violations"


def test_the_command_of_a_failure_keeps_the_number_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "1", "--steps", "1500", "--mutant", CAUGHT_AT_ONCE, "--json") == 1
    (failure,) = json.loads(capsys.readouterr().out)["violations"]
    expected = f"stretto sim --seeds 1 --seed 0 --steps 1500 --mutant {CAUGHT_AT_ONCE}"
    assert failure["reproduce"] == expected
    assert failure["violation"]
    assert failure["story"]


# Traces.


def test_a_trace_is_written_to_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.txt"
    assert run("--seeds", "1", "--seed", "2", "--trace", str(path)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 seeds, 0 violations"
    lines = path.read_text().splitlines()
    assert len(lines) > 2_000
    assert any(" event Tick()" in line for line in lines)


def test_a_trace_of_a_failure_exits_1_and_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.txt"
    assert run("--seeds", "1", "--seed", "0", "--mutant", CAUGHT_AT_ONCE, "--trace", str(path)) == 1
    assert "reproduce with: stretto sim --seeds 1 --seed 0" in capsys.readouterr().out


def test_a_trace_of_many_seeds_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "2", "--trace", str(tmp_path / "trace.txt")) == 2
    assert only_sentence(capsys) == "stretto: --trace writes the story of one seed; add --seeds 1\n"


def test_a_trace_that_cannot_be_written_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "1", "--trace", "/no/such/folder/trace.txt") == 1
    assert (
        capsys.readouterr().err
        == "stretto: cannot use /no/such/folder/trace.txt: No such file or directory\n"
    )


# Scenarios.


def test_scenarios_are_chosen_by_a_part_of_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scenario", "kip-") == 0
    lines = capsys.readouterr().out.splitlines()
    chosen = [script.name for script in scripts() if "kip-" in script.name]
    assert lines == [*(f"ok   {name}" for name in chosen), f"{len(chosen)} scenarios, 0 failed"]


def test_a_scenario_that_fails_says_why_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scenario", "kip-101", "--mutant", "truncation_point") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAIL kip-101-truncation-by-high-watermark: ")
    assert lines[-1] == "1 scenarios, 1 failed"


def test_scenarios_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scenario", "kip-101", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["scenario"] == "kip-101-truncation-by-high-watermark"
    assert row["wrong"] is None
    assert "KIP-101" in row["story"]


def test_a_scenario_can_be_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.txt"
    assert run("--scenario", "kip-101", "--trace", str(path)) == 0
    assert " script " in path.read_text()
    assert capsys.readouterr().err == ""


# Bad usage.


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--mutant", "nobody"), "there is no mutant 'nobody'"),
        (("--scenario", "nothing-like-it"), "no scenario is called 'nothing-like-it'"),
        (("--seeds", "0"), "--seeds has to be 1 or more, not 0"),
        (("--seeds", "many"), "--seeds has to be a whole number, not many"),
        (("--seed", "-1"), "--seed has to be 0 or more, not -1"),
        (("--steps", "0"), "--steps has to be 1 or more, not 0"),
        (("--sed", "1"), "'stretto sim' has no option --sed; did you mean"),
        (("extra",), "'stretto sim' does not know what to do with extra"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == 2
    assert sentence in only_sentence(capsys)


def test_a_mutant_of_every_name_in_the_list_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    for mutant in MUTANTS:
        assert run("--mutant", mutant.name, "--seeds", "2", "--trace", "unused") == 2
        assert "--trace" in only_sentence(capsys)
