"""The thread that fetches the windows of all workers, whenever there are new ones, and keeps them.

Workers are asked all at once: one that is frozen costs the others nothing. Nothing that goes wrong ends the
thread; it is logged once, and tried again until it goes well.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import structlog

from stretto import control
from stretto.client.operating.cluster import Cluster
from stretto.errors import StrettoError
from stretto.telemetry.windows import NO_LOOKS, NOBODY, WINDOW_MS, GroupWindow, Window
from stretto.ui.telemetry.history import CHARTED_MINUTES, History, Scope
from stretto.ui.telemetry.metrics import Metrics
from stretto.ui.telemetry.store import Store
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import WorkerId
from stretto.wire import messages as wire

log = structlog.get_logger()

RETRY_SECONDS = 2.0
EXPIRE_SECONDS = 600.0
ASKED_AT_ONCE = 16
SETTLE_SECONDS = 0.5
"""Extra wait until workers have cut a window that is over: they look at the clock once a second."""
LOOKED_BACK_MS = 300_000
"""How far back workers remember their windows."""
NONE_LEFT = NO_LOOKS.with_look(0)


class Collector:
    """Fetches the windows of all workers, and keeps them in the store, the metrics and the charts."""

    def __init__(self, cluster: Cluster, store: Store, metrics: Metrics, history: History) -> None:
        self._cluster = cluster
        self._store = store
        self._metrics = metrics
        self._history = history
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._silent: set[str] = set()
        #: What has kept the collector from collecting since it last did.
        self._trouble: tuple[str, type[Exception]] | None = None
        self._min_isr: dict[GroupKey, int] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def collect(self) -> None:
        """Fetch and keep the new windows of every worker that answers."""
        metadata = self._cluster.metadata()
        told = set()
        with ThreadPoolExecutor(ASKED_AT_ONCE, "windows") as pool:
            answers = pool.map(lambda each: self._windows(*each), sorted(metadata.addresses.items()))
            for worker, windows in zip(sorted(metadata.addresses), answers, strict=True):
                if windows is not None:
                    told.add(worker)
                    self._store.add(windows)
                    self._metrics.add(windows)
                    self._min_isr |= {each.group: each.min_isr for one in windows for each in one.groups}
        self._metrics.saw(metadata.groups, metadata.addresses, told)
        self._note_unled(metadata)
        # A module's charts are made as they grow, and not all at once when somebody comes to look.
        for module in sorted({view.key.module for view in metadata.groups}):
            self._history.charts(Scope(module), CHARTED_MINUTES)

    def _note_unled(self, metadata: wire.Metadata) -> None:
        """Keep a window for the groups that nobody leads: they have no ISR, and nobody to report that."""
        newest = {
            (each.key.module, each.key.group): each for each in sorted(metadata.groups, key=lambda g: g.key)
        }
        keys = {each.key for each in newest.values()}
        self._min_isr = {key: least for key, least in self._min_isr.items() if key in keys}
        unled = tuple(
            GroupWindow(group=each.key, role="unled", isr=NONE_LEFT, min_isr=self._min_isr.get(each.key, 1))
            for each in newest.values()
            if each.leader not in metadata.addresses
        )
        if unled:
            now_ms = _now_ms()
            start_ms = now_ms - now_ms % WINDOW_MS - WINDOW_MS
            self._store.add([Window(start_ms=start_ms, worker=NOBODY, groups=unled)])

    def _windows(self, worker: WorkerId, address: str) -> tuple[Window, ...] | None:
        latest = self._store.latest(worker)
        now_ms = _now_ms()
        since_ms = 0 if latest is None else latest + 1
        if since_ms > now_ms:
            # A clock was ahead and is not any more: what it tells now comes before what it told then.
            since_ms = now_ms - LOOKED_BACK_MS
        try:
            windows = self._cluster.ask_worker(address, control.Windows(since_ms=since_ms))
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
                    self._store.expire(_now_ms())
            except StrettoError as error:
                self._note_trouble("cluster_silent", error)
            except sqlite3.Error as error:
                self._note_trouble("measures_not_kept", error)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told
                self._note_trouble("measures_not_collected", error, exc_info=error)
            else:
                if self._trouble is not None:
                    log.info("measures_collected_again")
                    self._trouble = None
                self._stopping.wait(_until_next_window() + SETTLE_SECONDS)
                continue
            self._stopping.wait(RETRY_SECONDS)

    def _note_trouble(self, event: str, error: Exception, **more: object) -> None:
        """Log what went wrong, unless it is the same as the last time it was tried."""
        trouble = (event, type(error))
        if trouble != self._trouble:
            log.warning(event, why=str(error), **more)
        self._trouble = trouble


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _until_next_window() -> float:
    return (WINDOW_MS - _now_ms() % WINDOW_MS) / 1_000 + 1
