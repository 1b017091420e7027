"""The thread that fetches the windows of all workers, whenever there are new ones, and keeps them.

Workers are asked all at once: one that is frozen costs the others nothing. Nothing that goes wrong ends the
thread; it is logged, and tried again with the next windows.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import structlog

from stretto import admin
from stretto.client.cluster import Cluster
from stretto.errors import StrettoError
from stretto.telemetry.windows import WINDOW_MS, Window
from stretto.types import WorkerId
from stretto.ui.history import CHARTED_MINUTES, History, Scope
from stretto.ui.metrics import Metrics
from stretto.ui.store import Store

log = structlog.get_logger()

RETRY_SECONDS = 2.0
EXPIRE_SECONDS = 600.0
ASKED_AT_ONCE = 16
SETTLE_SECONDS = 0.5
"""Workers look at the clock once a second: so long after a window's end they have cut it."""


class Collector:
    def __init__(self, cluster: Cluster, store: Store, metrics: Metrics, history: History) -> None:
        self._cluster = cluster
        self._store = store
        self._metrics = metrics
        self._history = history
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._silent: set[str] = set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def collect(self) -> None:
        """What is new, of every worker that answers."""
        metadata = self._cluster.metadata()
        told = set()
        with ThreadPoolExecutor(ASKED_AT_ONCE, "windows") as pool:
            answers = pool.map(lambda each: self._windows(*each), sorted(metadata.addresses.items()))
            for worker, windows in zip(sorted(metadata.addresses), answers, strict=True):
                if windows is not None:
                    told.add(worker)
                    self._store.add(windows)
                    self._metrics.add(windows)
        self._metrics.saw(metadata.groups, metadata.addresses, told)
        # A module's charts are made as they grow, and not all at once when somebody comes to look.
        for module in sorted({view.key.module for view in metadata.groups}):
            self._history.charts(Scope(module), CHARTED_MINUTES)

    def _windows(self, worker: WorkerId, address: str) -> tuple[Window, ...] | None:
        latest = self._store.latest(worker)
        since_ms = 0 if latest is None else latest + 1
        try:
            windows = self._cluster.ask_worker(address, admin.Windows(since_ms=since_ms))
        except StrettoError as error:
            if worker not in self._silent:
                log.info("worker_silent", worker=worker, why=str(error))
            self._silent.add(worker)
            return None
        self._silent.discard(worker)
        return windows

    def _run(self) -> None:
        expired_at = float("-inf")
        while not self._stopping.is_set():
            try:
                self.collect()
                if time.monotonic() - expired_at > EXPIRE_SECONDS:
                    expired_at = time.monotonic()
                    self._store.expire(time.time_ns() // 1_000_000)
            except (StrettoError, sqlite3.Error) as error:
                event = "cluster_silent" if isinstance(error, StrettoError) else "measures_not_kept"
                log.warning(event, why=str(error))
                self._stopping.wait(RETRY_SECONDS)
                continue
            self._stopping.wait(_until_next_window() + SETTLE_SECONDS)


def _until_next_window() -> float:
    now_ms = time.time_ns() // 1_000_000
    return (WINDOW_MS - now_ms % WINDOW_MS) / 1_000 + 1
