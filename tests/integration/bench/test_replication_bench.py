from __future__ import annotations

from pathlib import Path

import pytest

from stretto.bench import MEASURES, replication, run


@pytest.mark.parametrize("name", [pytest.param("one-by-one", marks=pytest.mark.soak), "latency"])
def test_the_measures_of_replication_run_and_leave_nothing_behind(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = {"BATCHES": 12, "SINGLE_RECORDS": 2_500, "LATENCY_APPENDS": 3, "ROUNDS": 1}
    for constant, value in small.items():
        monkeypatch.setattr(replication, constant, value)
    ((_, result),) = run(tuple(measure for measure in MEASURES if measure.name == name), tmp_path)
    assert result.value > 0
    assert result.ratio
    assert list(tmp_path.iterdir()) == []
