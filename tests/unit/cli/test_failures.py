"""``stretto failures``: which records are meant."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from stretto.cli.data import failures as verb
from stretto.errors import StrettoError
from tests.unit.client.operating.test_failures import parked


def test_a_record_is_named_by_all_that_tells_it_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [parked(task, offset, topology) for task in (3, 4) for offset in (5, 6) for topology in ("a", "b")]
    meant: list[Any] = []

    def settle(_: Any, __: str, is_wanted: Any, *, again: bool) -> int:
        assert not again
        meant[:] = filter(is_wanted, rows)
        return len(meant)

    monkeypatch.setattr(verb, "reach", lambda *_: nullcontext())
    monkeypatch.setattr(verb, "settle_failures", settle)
    verb.failures("M", offset=5, forget=True)
    assert len(meant) == 4
    verb.failures("M", topology="a", depot="events", task=3, offset=5, forget=True)
    assert [(each.topology, each.task, each.offset) for each in meant] == [("a", 3, 5)]
    verb.failures("M", depot="others", forget=True)
    assert meant == []


def test_that_nothing_was_parked_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "reach", lambda *_: nullcontext())
    monkeypatch.setattr(verb, "settle_failures", lambda *_, **__: 0)
    verb.failures("M", topology="a", retry=True)
    assert capsys.readouterr().out == "M: no such record is parked, so nothing was done\n"
    with pytest.raises(
        StrettoError, match="no such record is parked, so nothing was done; 'stretto failures M'"
    ):
        verb.failures("M", offset=5, forget=True)
