"""The thread that fetches windows."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from stretto import control
from stretto.client.operating.cluster import Cluster
from stretto.errors import RetriableError
from stretto.telemetry.windows import Window
from stretto.ui.telemetry import collector as collectors
from stretto.ui.telemetry.collector import Collector
from stretto.ui.telemetry.history import History, Scope
from stretto.ui.telemetry.metrics import Metrics
from stretto.ui.telemetry.store import HOUR_MS, Store
from stretto.vocabulary.types import WorkerId
from stretto.wire import messages as wire
from tests.unit.ui.test_metrics import exposed, record
from tests.unit.ui.windows import group, kind, window

DEADLINE_SECONDS = 30


class FakeCluster:
    leader = "w0"

    def __init__(self) -> None:
        self.asked = threading.Barrier(2)

    def metadata(self) -> wire.Metadata:
        return wire.Metadata(1, {WorkerId("w0"): "a:0", WorkerId("w1"): "a:1"}, (record(self.leader),))

    def ask_worker(self, address: str, call: control.Windows) -> tuple[Window, ...]:
        self.asked.wait(DEADLINE_SECONDS)
        if address == "a:1":
            raise RetriableError("it is frozen")
        return (window(10_000),)


def collector(tmp_path: Path, store: Any = None) -> tuple[Collector, Store, Metrics]:
    kept = Store(tmp_path / "telemetry.sqlite")
    metrics = Metrics()
    cluster = cast(Cluster, FakeCluster())
    return Collector(cluster, store or kept, metrics, History(kept)), kept, metrics


def test_workers_are_asked_all_at_once_and_a_silent_one_is_told_as_down(tmp_path: Path) -> None:
    each, store, metrics = collector(tmp_path)
    each.collect()
    assert store.latest("w0") == 10_000
    found = exposed(metrics)
    assert found['stretto_worker_up{module="M",worker="w0"}'] == 1
    assert found['stretto_worker_up{module="M",worker="w1"}'] == 0


def test_a_group_that_nobody_leads_is_kept_as_one_without_isr(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.leader = "gone"
    store = Store(tmp_path / "telemetry.sqlite")
    Collector(cast(Cluster, cluster), store, Metrics(), History(store)).collect()
    [kept] = History(store).charts(Scope("M"), 10).isr
    assert kept == 0


def test_after_a_clock_that_was_ahead_workers_are_heard_again(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000

    class Jumped:
        told: tuple[Window, ...] = (window(now_ms + HOUR_MS, group(kinds={"depot": kind(1)})),)

        def metadata(self) -> wire.Metadata:
            return wire.Metadata(1, {WorkerId("w0"): "a:0"}, (record(),))

        def ask_worker(self, _: str, call: control.Windows) -> tuple[Window, ...]:
            return tuple(each for each in self.told if each.start_ms >= call.since_ms)

    cluster, store, metrics = Jumped(), Store(tmp_path / "telemetry.sqlite"), Metrics()
    each = Collector(cast(Cluster, cluster), store, metrics, History(store))
    each.collect()
    cluster.told += (window(now_ms - 10_000, group(kinds={"depot": kind(5)})),)
    for _ in range(2):
        each.collect()
    assert len(store.between(now_ms - HOUR_MS, now_ms, 10_000)) == 1
    found = exposed(metrics)
    assert found['stretto_replicated_entries_total{module="M",group="0",worker="w0",kind="depot"}'] == 6


def test_a_window_that_cannot_be_made_out_does_not_end_the_collecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(Store):
        fails = 2
        kept = threading.Event()

        def add(self, windows: Any) -> None:
            if self.fails:
                self.fails -= 1
                raise ValueError("whatever nobody thought of")
            super().add(windows)
            self.kept.set()

    monkeypatch.setattr(collectors, "RETRY_SECONDS", 0)
    store = Odd(tmp_path / "odd.sqlite")
    each, _, _ = collector(tmp_path, store)
    each.start()
    assert store.kept.wait(DEADLINE_SECONDS)
    each.stop()


def test_a_disk_that_is_full_does_not_end_the_collecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Store):
        fails = 2
        kept = threading.Event()

        def add(self, windows: Any) -> None:
            if self.fails:
                self.fails -= 1
                raise sqlite3.OperationalError("database or disk is full")
            super().add(windows)
            self.kept.set()

    monkeypatch.setattr(collectors, "RETRY_SECONDS", 0)
    store = Full(tmp_path / "full.sqlite")
    each, _, _ = collector(tmp_path, store)
    each.start()
    assert store.kept.wait(DEADLINE_SECONDS)
    each.stop()


def test_a_cluster_that_is_silent_is_told_once_and_again_when_it_falls_silent_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    class Silent:
        answers = iter([False, False, False, True, False, False])

        def metadata(self) -> wire.Metadata:
            answer = next(self.answers, None)
            if answer is None:
                over.set()
            if not answer:
                raise RetriableError("nothing answers")
            return wire.Metadata(1, {}, ())

    monkeypatch.setattr(collectors, "RETRY_SECONDS", 0)
    monkeypatch.setattr(collectors, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(collectors, "_until_next_window", lambda: 0)
    store = Store(tmp_path / "telemetry.sqlite")
    each = Collector(cast(Cluster, Silent()), store, Metrics(), History(store))
    with capture_logs() as lines:
        each.start()
        assert over.wait(DEADLINE_SECONDS)
        each.stop()
    assert [line["event"] for line in lines] == [
        "cluster_silent",
        "measures_collected_again",
        "cluster_silent",
    ]
