"""The thread that fetches the windows of all workers, whenever there are new ones, and keeps them."""

from __future__ import annotations

import threading
import time

import structlog

from stretto import admin
from stretto.client.cluster import Cluster
from stretto.errors import StrettoError
from stretto.telemetry.windows import WINDOW_MS
from stretto.ui.metrics import Metrics
from stretto.ui.store import Store

log = structlog.get_logger()

RETRY_SECONDS = 2.0
EXPIRE_SECONDS = 600.0
SETTLE_SECONDS = 0.5
"""Workers look at the clock once a second: so long after a window's end they have cut it."""


class Collector:
    def __init__(self, cluster: Cluster, store: Store, metrics: Metrics) -> None:
        self._cluster = cluster
        self._store = store
        self._metrics = metrics
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
        for worker, address in sorted(self._cluster.metadata().addresses.items()):
            latest = self._store.latest(worker)
            since_ms = 0 if latest is None else latest + 1
            try:
                windows = self._cluster.ask_worker(address, admin.Windows(since_ms=since_ms))
            except StrettoError as error:
                if worker not in self._silent:
                    log.info("worker_silent", worker=worker, why=str(error))
                self._silent.add(worker)
            else:
                self._silent.discard(worker)
                self._store.add(windows)
                self._metrics.add(windows)

    def _run(self) -> None:
        expired_at = 0.0
        while not self._stopping.is_set():
            try:
                self.collect()
                if time.monotonic() - expired_at > EXPIRE_SECONDS:
                    expired_at = time.monotonic()
                    self._store.expire(time.time_ns() // 1_000_000)
            except StrettoError as error:
                log.info("cluster_silent", why=str(error))
                self._stopping.wait(RETRY_SECONDS)
                continue
            self._stopping.wait(_until_next_window() + SETTLE_SECONDS)


def _until_next_window() -> float:
    now_ms = time.time_ns() // 1_000_000
    return (WINDOW_MS - now_ms % WINDOW_MS) / 1_000 + 1
