"""What a worker measures about its replicas while it works: counters for each batch, a look each second.

A :class:`Meter` belongs to one replica and is written to by the loop, except for :meth:`Meter.applied_run`,
which the applying thread calls. Every ten seconds of the clock the meters are read and begin again; the
latest windows are kept for whoever asks, as are the latest transitions of each group, its story.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stretto.module.work import Timed
from stretto.replog.core import effects
from stretto.replog.core.record import Member
from stretto.replog.frame import Frame, Kind
from stretto.telemetry.histogram import Histogram
from stretto.telemetry.windows import (
    BEHIND,
    FOLLOWED,
    LED,
    LOOK_MS,
    NO_LOOKS,
    NO_REPLOG,
    WINDOW_MS,
    GroupWindow,
    KindWindow,
    Looks,
    ReplogLooks,
    StoryLine,
    TopologyWindow,
    Window,
)
from stretto.vocabulary.types import Epoch, Millis, Offset, WorkerId
from stretto.worker.replica.views import is_stalled

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.replog.core.leading.leader import Leader
    from stretto.vocabulary.groups import GroupKey
    from stretto.worker.microbatch.desk import MicrobatchDesk
    from stretto.worker.replica.group import Group
    from stretto.worker.topology.desk import StreamDesk

WINDOWS_KEPT = 30
"""Five minutes: so long may nobody have asked without missing any."""
STORY_LINES = 200

_clock = time.perf_counter


class _KindMeter:
    __slots__ = ("apply", "bytes", "entries", "failures", "replicate")

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        self.replicate = Histogram()
        self.apply = Histogram()
        self.failures: Counter[str] = Counter()

    def told(self) -> KindWindow:
        return KindWindow(
            entries=self.entries,
            bytes=self.bytes,
            replicate=self.replicate.told() if self.replicate.count else None,
            apply=self.apply.told() if self.apply.count else None,
            failures=dict(self.failures),
        )


class _TopologyMeter:
    __slots__ = ("batches", "lag", "parked", "records", "retrying")

    def __init__(self) -> None:
        self.batches = 0
        self.records = 0
        self.lag = self.retrying = self.parked = NO_LOOKS

    def told(self) -> TopologyWindow:
        return TopologyWindow(
            batches=self.batches,
            records=self.records,
            lag=self.lag,
            retrying=self.retrying,
            parked=self.parked,
        )


class Meter:
    """Of one replica."""

    def __init__(self) -> None:
        #: Created here as a leader and not decided: end, kind, entries, bytes, when.
        self._underway: deque[tuple[Offset, Kind, int, int, float]] = deque()
        self._isr: frozenset[WorkerId] = frozenset()
        self.story: deque[StoryLine] = deque(maxlen=STORY_LINES)
        self._begin()

    def _begin(self) -> None:
        self._kinds: dict[Kind, _KindMeter] = {}
        self._events: Counter[str] = Counter()
        self._looks: dict[str, Looks] = {}
        self._replogs: dict[str, ReplogLooks] = {}
        self._led_epoch = Epoch(0)
        self._lines: deque[StoryLine] = deque(maxlen=STORY_LINES)
        self._topologies: dict[str, _TopologyMeter] = {}
        self._functions: dict[str, Histogram] = {}
        self.busy_seconds = 0.0

    # From the loop.

    def created(self, frames: Sequence[Frame]) -> None:
        now = _clock()
        for frame in frames:
            header = frame.header
            self._underway.append((header.end_offset, header.kind, header.count, frame.size_bytes, now))

    def decided(self, end: Offset) -> None:
        if not self._underway or self._underway[0][0] > end:
            return
        now = _clock()
        while self._underway and self._underway[0][0] <= end:
            _, kind, entries, size, created = self._underway.popleft()
            meter = self._of(kind)
            meter.entries += entries
            meter.bytes += size
            meter.replicate.add(now - created)

    def answered(self, kind: Kind, result: effects.Result) -> None:
        """What became of an append, whoever asked for it."""
        match result:
            case effects.Refused(reason=reason):
                self._of(kind).failures[reason.value] += 1
            case effects.Unknown():
                self._of(kind).failures["unknown"] += 1
            case _:
                pass

    def counted(self, event: str, times: int = 1) -> None:
        self._events[event] += times

    def noted(self, event: str, fields: dict[str, Any]) -> None:
        """A transition of the replica."""
        line = StoryLine(at_ms=time.time_ns() // 1_000_000, event=event, fields=fields)
        self.story.append(line)
        self._lines.append(line)
        match event:
            case "leads":
                self._events["elections"] += 1
                self._isr = frozenset()
            case "stalled":
                self._events["stalls"] += 1
            case "steps_down":
                self._underway.clear()
            case "proposes_isr":
                # The first change of a new leader is one of what it inherited.
                self._isr = frozenset(fields["was"])
            case "isr":
                now = frozenset(fields["isr"])
                if self._isr - now:
                    self._events["shrinks"] += 1
                if now - self._isr and self._isr:
                    self._events["expands"] += 1
                self._isr = now
            case _:
                pass

    def look(self, **numbers: float) -> None:
        for name, value in numbers.items():
            self._looks[name] = self._looks.get(name, NO_LOOKS).with_look(value)

    def look_at_replog(self, standing: str, *, size: int, unapplied: int) -> None:
        before = self._replogs.get(standing, NO_REPLOG)
        self._replogs[standing] = ReplogLooks(
            before.size.with_look(size), before.unapplied.with_look(unapplied)
        )

    def leads(self, epoch: Epoch) -> None:
        self._led_epoch = epoch

    def ran(self, topology: str, records: int) -> None:
        """A batch of records, or the part of a microbatch."""
        meter = self._of_topology(topology)
        meter.batches += 1
        meter.records += records

    def called(self, times: Iterable[Timed]) -> None:
        """Functions of the module."""
        for each in times:
            histogram = self._functions.get(each.function)
            if histogram is None:
                histogram = self._functions[each.function] = Histogram()
            if each.quick:
                histogram.add_many(each.quick_ns / 1e9, each.quick)
            for slow_ns in each.slow_ns:
                histogram.add(slow_ns / 1e9)

    def look_at_topology(
        self, topology: str, *, lag: int | None, retrying: int | None, parked: int | None
    ) -> None:
        """None: not known here."""
        meter = self._of_topology(topology)
        if lag is not None:
            meter.lag = meter.lag.with_look(lag)
        if retrying is not None:
            meter.retrying = meter.retrying.with_look(retrying)
        if parked is not None:
            meter.parked = meter.parked.with_look(parked)

    # From the applying thread.

    def applied_run(self, frames: Iterable[Frame], seconds: float) -> None:
        for kind in {frame.header.kind for frame in frames}:
            self._of(kind).apply.add(seconds)

    # From the loop again.

    def take(self, **standing: Any) -> GroupWindow:
        """The window that ends now. A run that is applied meanwhile may count for it or for the next."""
        kinds, events, looks, busy = self._kinds, self._events, self._looks, self.busy_seconds
        topologies, functions = self._topologies, self._functions
        replogs, led_epoch, lines = self._replogs, self._led_epoch, self._lines
        self._begin()
        standing |= looks
        return GroupWindow(
            busy_ms=busy * 1_000,
            led_epoch=led_epoch,
            replogs=replogs,
            story=tuple(lines),
            kinds={kind.name.lower(): meter.told() for kind, meter in list(kinds.items())},
            events=dict(events),
            topologies={name: meter.told() for name, meter in topologies.items()},
            functions={name: histogram.told() for name, histogram in functions.items()},
            **standing,
        )

    def _of_topology(self, topology: str) -> _TopologyMeter:
        return self._topologies.get(topology) or self._topologies.setdefault(topology, _TopologyMeter())

    def _of(self, kind: Kind) -> _KindMeter:
        return self._kinds.get(kind) or self._kinds.setdefault(kind, _KindMeter())


class Telemetry:
    """Of a worker; owned by its loop."""

    def __init__(
        self,
        loop: Loop,
        worker: WorkerId,
        groups: Mapping[GroupKey, Group],
        *,
        streams: StreamDesk,
        microbatches: MicrobatchDesk,
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
        self._look()

    def meter(self, group: GroupKey) -> Meter:
        """Outlives a replica that is closed and opened again."""
        return self._meters.setdefault(group, Meter())

    def since(self, start_ms: int) -> tuple[Window, ...]:
        """The windows that ended, from this one on."""
        return tuple(window for window in self._windows if window.start_ms >= start_ms)

    def story(self, group: GroupKey) -> tuple[StoryLine, ...]:
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
    """What a window tells as of its end."""
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
