"""The thread that fetches windows."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from stretto import admin, wire
from stretto.client.cluster import Cluster
from stretto.errors import RetriableError
from stretto.telemetry.windows import Window
from stretto.types import WorkerId
from stretto.ui import collector as collectors
from stretto.ui.collector import Collector
from stretto.ui.history import History
from stretto.ui.metrics import Metrics
from stretto.ui.store import Store
from tests.unit.ui.test_metrics import exposed, record
from tests.unit.ui.windows import window

DEADLINE_SECONDS = 30


class FakeCluster:
    def __init__(self) -> None:
        self.asked = threading.Barrier(2)

    def metadata(self) -> wire.Metadata:
        return wire.Metadata(1, {WorkerId("w0"): "a:0", WorkerId("w1"): "a:1"}, (record(),))

    def ask_worker(self, address: str, call: admin.Windows) -> tuple[Window, ...]:
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
