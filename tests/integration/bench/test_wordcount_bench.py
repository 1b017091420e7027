from __future__ import annotations

from pathlib import Path

import pytest

from stretto.bench import MEASURES, replication, run, wordcount


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_word_count_is_measured_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(replication, "ROUNDS", 1)
    monkeypatch.setattr(wordcount, "BATCHES", 5)
    ((_, result),) = run(tuple(measure for measure in MEASURES if measure.name == "wordcount"), tmp_path)
    assert result.ratio
    for told in ("three replicas", "us of CPU a record", "visible after", "record by record", "bytewax"):
        assert told in result.detail
    assert list(tmp_path.iterdir()) == []
