"""Charts out of the store, with the points that were made before kept.

A point of a module with many groups is made of hundreds of windows, each with histograms. They change while
workers still tell of their time, and never afterwards; so a page that is refreshed costs its newest points.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import NamedTuple

from msgspec.structs import replace

from stretto.telemetry.windows import GroupWindow, Window
from stretto.ui.telemetry.charts import Charts, Point, charts_of, point_of
from stretto.ui.telemetry.store import Store, tier_for

POINTS_MAX = 20_000
"""Most points that are kept: those of some dozens of charts."""
READ_AT_ONCE = 30
CHARTED_MINUTES = 60
"""Minutes that pages show unless asked for more."""


class Scope(NamedTuple):
    """What charts are about; None stands for all."""

    module: str | None = None
    worker: str | None = None
    group: int | None = None

    def has(self, window: Window, each: GroupWindow) -> bool:
        """Whether the scope includes a group's window in a worker's."""
        return (
            self.worker in (None, window.worker)
            and self.module in (None, each.group.module)
            and self.group in (None, each.group.group)
        )


class History:
    """Charts made from the store, with their points kept; may be used from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._points: OrderedDict[tuple[Scope, int, int], tuple[int, Point | None]] = OrderedDict()
        #: Held by one caller at a time: the second one finds the points of the first.
        self._lock = threading.Lock()

    def charts(self, scope: Scope, minutes: int) -> Charts:
        """Make the charts of a scope over the last ``minutes``."""
        span_ms = minutes * 60_000
        step_ms = tier_for(span_ms).step_ms
        now_ms = time.time_ns() // 1_000_000
        versions = self._store.starts(now_ms - span_ms, now_ms + step_ms, step_ms)
        with self._lock:
            missing = [
                start
                for start, version in versions.items()
                if (found := self._points.get((scope, step_ms, start))) is None or found[0] != version
            ]
            for first in range(0, len(missing), READ_AT_ONCE):
                self._make(scope, step_ms, missing[first : first + READ_AT_ONCE], versions)
            points = {start: self._points[scope, step_ms, start][1] for start in versions}
            while len(self._points) > POINTS_MAX:
                self._points.popitem(last=False)
        return charts_of(points, step_ms, now_ms)

    def _make(self, scope: Scope, step_ms: int, starts: list[int], versions: dict[int, int]) -> None:
        heard: dict[int, list[Window]] = {start: [] for start in starts}
        for window in self._store.between(starts[0], starts[-1] + step_ms, step_ms, worker=scope.worker):
            if window.start_ms in heard:
                groups = tuple(each for each in window.groups if scope.has(window, each))
                heard[window.start_ms].append(replace(window, groups=groups))
        for start, windows in heard.items():
            self._points[scope, step_ms, start] = (versions[start], point_of(windows))
