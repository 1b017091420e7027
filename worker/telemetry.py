"""What a worker measures about its replicas while it works: counters for each batch, a look each second.

A :class:`Meter` belongs to one replica and is written to by the loop, except for :meth:`Meter.applied_run`,
which the applying thread calls. Every ten seconds of the clock the meters are read and begin again; the
latest windows are kept for whoever asks, as are the latest transitions of each group, its story.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stretto.replog.core.record import Member
from stretto.telemetry.windows import (
    BEHIND,
    FOLLOWED,
    LED,
    LOOK_MS,
    WINDOW_MS,
    StoryLine,
    Window,
)
from stretto.vocabulary.types import Epoch, Millis, Offset, WorkerId
from stretto.worker.replica.meter import Meter
from stretto.worker.replica.views import is_stalled

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.replog.core.leading.leader import Leader
    from stretto.vocabulary.groups import GroupKey
    from stretto.worker.microbatch.microbatches import Microbatches
    from stretto.worker.replica.group import Group
    from stretto.worker.topology.streams import Streams

WINDOWS_KEPT = 30
"""How many windows are kept. They cover five minutes: for so long a reader may not have asked without missing
any."""

_clock = time.perf_counter


class Telemetry:
    """Measures a worker. The loop owns it."""

    def __init__(
        self,
        loop: Loop,
        worker: WorkerId,
        groups: Mapping[GroupKey, Group],
        *,
        streams: Streams,
        microbatches: Microbatches,
    ) -> None:
        self._loop = loop
        self._worker = worker
        self._groups = groups
        self._streams = streams
        self._microbatches = microbatches
        self._meters: dict[GroupKey, Meter] = {}
        self._windows: deque[Window] = deque(maxlen=WINDOWS_KEPT)
        self._start_ms = _window_of(time.time_ns() // 1_000_000)
        self._began = _clock()

    def start(self) -> None:
        """Begin to look each second, and to end a window every ten."""
        self._look()

    def meter(self, group: GroupKey) -> Meter:
        """Return the meter of a group, which outlives a replica that is closed and opened again."""
        return self._meters.setdefault(group, Meter())

    def since(self, start_ms: int) -> tuple[Window, ...]:
        """Return the windows that have ended, from this one on."""
        return tuple(window for window in self._windows if window.start_ms >= start_ms)

    def story(self, group: GroupKey) -> tuple[StoryLine, ...]:
        """Return the latest transitions of a group, oldest first."""
        meter = self._meters.get(group)
        return () if meter is None else tuple(meter.story)

    def _look(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        window = _window_of(now_ms)
        if window != self._start_ms:
            self._end_window()
            self._start_ms = window
        for group in self._groups.values():
            _look_at(group, self._loop.now)
            self._streams.look_at(group)
            self._microbatches.look_at(group)
        self._loop.call_after(LOOK_MS - now_ms % LOOK_MS, self._look)

    def _end_window(self) -> None:
        groups = tuple(group.meter.take(**_standing(group)) for group in self._groups.values())
        began, self._began = self._began, _clock()
        covered_ms = max(1, round((self._began - began) * 1_000))
        self._windows.append(
            Window(start_ms=self._start_ms, worker=self._worker, groups=groups, covered_ms=covered_ms)
        )
        for group in self._groups.values():
            self._microbatches.count_parked(group)


def _look_at(group: Group, now: Millis) -> None:
    replica, meter = group.replica, group.meter
    leader = group.leader
    is_member = replica.record is not None and replica.member in replica.record.isr
    meter.look_at_replog(
        LED if leader is not None else FOLLOWED if is_member else BEHIND,
        size=replica.log_end - replica.log_start,
        unapplied=replica.log_end - replica.applied,
    )
    if leader is not None:
        meter.leads(leader.epoch)
        meter.look(
            isr=len(leader.membership.committed),
            lease_left_ms=max(0, replica.lease_end - now),
            stalled=int(is_stalled(leader)),
            catchup_lag=_lacked(leader, replica.log_end),
        )


def _lacked(leader: Leader, end: Offset) -> int:
    committed = leader.membership.committed
    return sum(
        end - progress.confirmed
        for worker, progress in leader.followers.items()
        if progress.confirmed is not None and Member(worker, progress.storage) not in committed
    )


def _standing(group: Group) -> dict[str, Any]:
    """Return what a window reports as of its end."""
    replica = group.replica
    record = replica.record
    catchup = group.host.catchup.receiving.view(group.key)
    return {
        "group": group.key,
        "role": str(replica.role_name),
        "in_isr": record is not None and replica.member in record.isr,
        "epoch": record.epoch if record is not None else Epoch(0),
        "min_isr": replica.min_isr,
        "catchup_left_bytes": sum(task.left_bytes for task in catchup.tasks) if catchup is not None else 0,
    }


def _window_of(now_ms: int) -> int:
    return now_ms - now_ms % WINDOW_MS
