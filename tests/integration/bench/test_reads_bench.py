from __future__ import annotations

from pathlib import Path

import pytest

from stretto.bench import MEASURES, reads, replication, run


@pytest.mark.parametrize(
    "name",
    ["reads", *(pytest.param(name, marks=pytest.mark.soak) for name in ("reads-at-once", "reads-batch"))],
)
def test_the_measures_of_reads_run_and_leave_nothing_behind(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for constant in ("READS", "READS_AT_ONCE", "BATCHES"):
        monkeypatch.setattr(reads, constant, 100)
    monkeypatch.setattr(replication, "ROUNDS", 1)
    ((_, result),) = run(tuple(measure for measure in MEASURES if measure.name == name), tmp_path)
    assert result.value > 0
    assert result.ratio
    assert list(tmp_path.iterdir()) == []
