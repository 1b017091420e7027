"""What is measured of one replica while it works: counters for each batch, and looks each second.

A :class:`Meter` is written to by the loop, except for :meth:`Meter.applied_run`, which the applying thread
calls.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

from stretto.module.work import Timed
from stretto.replog.core import effects
from stretto.replog.frame import Frame, Kind
from stretto.telemetry.histogram import Histogram
from stretto.telemetry.windows import (
    NO_LOOKS,
    NO_REPLOG,
    GroupWindow,
    KindWindow,
    Looks,
    ReplogLooks,
    StoryLine,
    TopologyWindow,
)
from stretto.vocabulary.types import Epoch, Offset, WorkerId

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
        """Return the window of what was counted."""
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
        """Return the window of what was counted."""
        return TopologyWindow(
            batches=self.batches,
            records=self.records,
            lag=self.lag,
            retrying=self.retrying,
            parked=self.parked,
        )


class Meter:
    """Measures one replica."""

    def __init__(self) -> None:
        #: Entries that were created here as a leader and are not committed: end, kind, entries, bytes, when.
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
        """Begin to time entries that this leader has created."""
        now = _clock()
        for frame in frames:
            header = frame.header
            self._underway.append((header.end_offset, header.kind, header.count, frame.size_bytes, now))

    def decided(self, end: Offset) -> None:
        """Count and time the entries below ``end``, which are committed."""
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
        """Count an append that was refused or whose outcome is unknown, whatever asked for it."""
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
        """Record a transition of the replica in the group's story."""
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
        """Add one look at each of these numbers, which are sampled once a second."""
        for name, value in numbers.items():
            self._looks[name] = self._looks.get(name, NO_LOOKS).with_look(value)

    def look_at_replog(self, standing: str, *, size: int, unapplied: int) -> None:
        """Add one look at the size of the replog, and at its part that is not applied."""
        before = self._replogs.get(standing, NO_REPLOG)
        self._replogs[standing] = ReplogLooks(
            before.size.with_look(size), before.unapplied.with_look(unapplied)
        )

    def leads(self, epoch: Epoch) -> None:
        self._led_epoch = epoch

    def ran(self, topology: str, records: int) -> None:
        """Count a batch of records, or the part of a microbatch, that a topology ran."""
        meter = self._of_topology(topology)
        meter.batches += 1
        meter.records += records

    def called(self, times: Iterable[Timed]) -> None:
        """Add the times that calls of the module's functions took."""
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
        """Add one look at a topology; None for a number that is not known here."""
        meter = self._of_topology(topology)
        if lag is not None:
            meter.lag = meter.lag.with_look(lag)
        if retrying is not None:
            meter.retrying = meter.retrying.with_look(retrying)
        if parked is not None:
            meter.parked = meter.parked.with_look(parked)

    # From the applying thread.

    def applied_run(self, frames: Iterable[Frame], seconds: float) -> None:
        """Add the time that it took to apply a run of entries. Called by the applying thread."""
        for kind in {frame.header.kind for frame in frames}:
            self._of(kind).apply.add(seconds)

    # From the loop again.

    def take(self, **standing: Any) -> GroupWindow:
        """Return the window that ends now, and begin another. A run that is applied meanwhile may count for
        either."""
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
