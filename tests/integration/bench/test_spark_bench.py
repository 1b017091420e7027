from __future__ import annotations

from pathlib import Path

import pytest

from stretto.bench import MEASURES, replication, run, spark


@pytest.mark.soak
def test_appends_are_measured_beside_a_spark_that_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spark, "SERVING_ROWS", 5_000)
    monkeypatch.setattr(spark, "SERVING_SECONDS", 1)
    monkeypatch.setattr(replication, "ROUNDS", 1)
    ((_, result),) = run(tuple(measure for measure in MEASURES if measure.name == "spark-serving"), tmp_path)
    assert result.value > 0
    assert result.ratio
    assert "of ready-made" in result.detail
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_rows_are_read_next_to_ready_made_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spark, "ROWS", 5_000)
    monkeypatch.setattr(replication, "ROUNDS", 1)
    ((_, result),) = run(tuple(measure for measure in MEASURES if measure.name == "spark-rows"), tmp_path)
    assert result.value > 0
    assert result.ratio
    assert list(tmp_path.iterdir()) == []
