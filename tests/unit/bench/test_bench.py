from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stretto import cli
from stretto.bench import MEASURES, Measure, Result, leadership, replog, run
from stretto.cli.proving import bench as verb


def run_cli(*args: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", *map(str, args)])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def good(_: Path) -> Result:
    return Result(value=90, floor=100, unit="MB/s", target=0.8)


def bad(_: Path) -> Result:
    return Result(value=70, unit="s", target=60, at_most=True)


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with these two measures instead of the real ones."""
    module = ModuleType("stretto_bench_test_measures")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    chosen = []
    for function in (good, bad):
        name = function.__name__
        setattr(module, name, function)
        target = f"{module.__name__}:{name}"
        chosen.append(Measure(name=name, summary=f"what {name} measures", function=target))
    monkeypatch.setattr(verb, "MEASURES", tuple(chosen))


def test_with_a_floor_the_ratio_must_reach_the_target() -> None:
    assert good(Path()).ratio == pytest.approx(0.9)
    assert good(Path()).met
    assert not Result(value=79, floor=100, unit="MB/s", target=0.8).met


def test_without_a_floor_the_value_must_reach_the_target() -> None:
    assert not bad(Path()).met
    assert Result(value=50, unit="s", target=60, at_most=True).met


@pytest.mark.usefixtures("measures")
def test_the_table_has_each_measure_with_its_floor_ratio_and_target(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_cli() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["measure", "value", "floor", "ratio", "target", "result"]
    assert lines[1].split() == ["good", "90", "MB/s", "100", "MB/s", "0.90", ">=", "0.8", "met"]
    assert lines[2].strip() == "what good measures"
    assert lines[3].split() == ["bad", "70", "s", "-", "-", "<=", "60", "MISSED"]


@pytest.mark.usefixtures("measures")
def test_only_runs_one_measure_and_json_is_machine_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("--only", "good", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["value"], row["floor"], row["met"]) == ("good", 90, 100, True)


def test_an_unknown_measure_or_folder_is_bad_usage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_cli("--only", "nonsense") == 2
    assert "choose one of append, recovery" in capsys.readouterr().err
    assert run_cli("--dir", tmp_path / "absent") == 2


def test_the_measures_of_the_replog_run_and_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "APPEND_BATCHES": 70,
        "APPEND_ROUNDS": 1,
        "RECOVERY_BATCHES": 20,
        "RECOVERY_ROUNDS": 1,
    }.items():
        monkeypatch.setattr(replog, name, value)
    chosen = tuple(measure for measure in MEASURES if measure.name in ("append", "recovery"))
    results = dict(run(chosen, tmp_path))
    assert [measure.name for measure in results] == ["append", "recovery"]
    assert all(result.ratio for result in results.values())
    assert list(tmp_path.iterdir()) == []


def test_the_measure_of_leadership_plans_times_its_slowest_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(leadership, "GROUPS", 200)
    (measure,) = (measure for measure in MEASURES if measure.name == "balance")
    ((_, result),) = run((measure,), tmp_path)
    assert result.value > 0
    assert result.floor is None
    assert result.at_most
    assert re.fullmatch(r"slowest: .*, (0|10) nodes drained, [1-9]\d* switches", result.detail)
