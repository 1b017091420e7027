"""Charts out of the store: made once, and anew where something was added."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from stretto.telemetry.windows import WINDOW_MS, Window
from stretto.ui.telemetry import history
from stretto.ui.telemetry.charts import Point, point_of
from stretto.ui.telemetry.history import History, Scope
from stretto.ui.telemetry.store import Store
from tests.unit.ui.windows import group, kind, window


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "telemetry.sqlite")


@pytest.fixture
def now_ms() -> int:
    now = time.time_ns() // 1_000_000
    return now - now % WINDOW_MS


def test_only_what_is_wanted_is_drawn(store: Store, now_ms: int) -> None:
    store.add(
        [
            window(now_ms, group(0, busy_ms=5_000), group(1, busy_ms=1_000), worker="a"),
            window(now_ms, group(1, busy_ms=3_000), worker="b"),
            window(now_ms, group(1, busy_ms=4_000, module="Other"), worker="c"),
        ]
    )
    charts = History(store).charts
    assert charts(Scope(worker="a", group=1), 10).busy == (0.1,)
    assert charts(Scope(module="M", group=1), 10).busy == (0.3,)
    assert charts(Scope(module="Other"), 10).busy == (0.4,)
    assert charts(Scope(), 10).busy == (0.6,)


def test_a_steady_rate_is_the_same_in_every_tier_however_little_of_its_step_is_over(
    store: Store, now_ms: int
) -> None:
    steady = group(kinds={"depot": kind(1_000)})
    store.add([window(now_ms, steady), window(now_ms + WINDOW_MS, steady)])
    for minutes in (10, 24 * 60, 7 * 24 * 60):
        rates = History(store).charts(Scope("M"), minutes).replicate_throughput["depot"]
        assert set(rates) == {100}


def test_a_worker_that_tells_late_is_drawn(store: Store, now_ms: int) -> None:
    drawn = History(store)
    store.add([window(now_ms, group(busy_ms=1_000), worker="a")])
    assert drawn.charts(Scope(), 10).busy == (0.1,)
    store.add([window(now_ms, group(busy_ms=2_000), worker="b")])
    assert drawn.charts(Scope(), 10).busy == (0.2,)


def test_a_chart_that_is_refreshed_makes_its_newest_points_only(
    store: Store, now_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    def counting(windows: Sequence[Window]) -> Point | None:
        nonlocal made
        made += 1
        return point_of(windows)

    monkeypatch.setattr(history, "point_of", counting)
    drawn = History(store)
    store.add([window(now_ms - each * WINDOW_MS) for each in range(50, 0, -1)])
    assert len(drawn.charts(Scope("M"), 10).start_ms) == made == 50
    store.add([window(now_ms)])
    assert len(drawn.charts(Scope("M"), 10).start_ms) == made == 51


def test_points_that_are_kept_are_bounded(store: Store, now_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "POINTS_MAX", 20)
    drawn = History(store)
    store.add([window(now_ms - each * WINDOW_MS) for each in range(30)])
    assert len(drawn.charts(Scope("M"), 10).start_ms) == 30
    assert len(drawn.charts(Scope("M"), 10).start_ms) == 30
    assert len(drawn._points) <= 20
