"""The charts of replication: windows of many replicas become a few lines over time.

Each chart is for a module or for one worker, over all task groups concerned, as points of equal steps. A
point at which nobody was heard has no value, so that a gap is seen as one. Each point is made for itself
(:func:`point_of`), so that who shows the same hour again and again makes only the newest anew. What is told
per second is per second that was measured: a step that is not over has fewer than its length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce

import msgspec

from stretto.telemetry.histogram import Distribution, merged
from stretto.telemetry.windows import (
    FOLLOWED,
    LED,
    NO_REPLOG,
    NOBODY,
    GroupWindow,
    KindWindow,
    Looks,
    ReplogLooks,
    TopologyWindow,
    Window,
)

Line = tuple[float | None, ...]


class Duration(msgspec.Struct, frozen=True, kw_only=True):
    """In milliseconds."""

    p50: Line
    p99: Line
    max: Line


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Of replogs, in entries, over all task threads concerned."""

    average: Line
    max: Line


class ReplogEntries(msgspec.Struct, frozen=True, kw_only=True):
    size: Size
    unapplied: Size


class Charts(msgspec.Struct, frozen=True, kw_only=True):
    at_ms: int
    """When the store was read, by the server's clock: where the time that is shown ends."""
    step_ms: int
    start_ms: tuple[int, ...]
    """When each point begins; the other lines have one value for each."""
    replog_entries: dict[str, ReplogEntries]
    """Entries in the replogs of leaders and of ISR followers."""
    replicate_duration: dict[str, Duration]
    """How long replication took, by kind of entry, and of all."""
    replicate_throughput: dict[str, Line]
    """Entries replicated per second, by kind."""
    replicate_bytes: dict[str, Line]
    """Bytes replicated per second, by kind."""
    replicate_failures: dict[str, dict[str, Line]]
    """Appends in the window that did not succeed: by kind of entry, and of all, by reason."""
    apply_duration: dict[str, Duration]
    isr: Line
    """Members in the ISR of the worst group."""
    min_isr: Line
    """The min-ISR of the worst group."""
    busy: Line
    """The share of its time that the busiest worker's loop spent on groups."""
    events: dict[str, Line]
    """Elections, shrinks, expands and stalls in the window."""
    lease_left: Line
    """Milliseconds that the lease of the leader with the least had left."""
    catchup_left: Line
    """Bytes that replicas have not received yet of the rounds under way."""
    catchup_lag: Line
    """Entries that replicas outside the ISR lack, by their leaders."""
    topology_lag: dict[str, Line]
    """Records that are visible and not processed, by topology."""
    topology_records: dict[str, Line]
    """Records per second that batches had, by topology."""
    topology_batches: dict[str, Line]
    """Batches per second, by topology."""
    topology_failures: dict[str, Line]
    """Records that wait to be tried again or are parked, by topology."""
    function_duration: dict[str, Duration]
    """How long calls took, by function, and of all."""


EVENTS = ("elections", "shrinks", "expands", "stalls")
ALL = "all"
"""Name of the line over every kind of entry, or every function."""
USUAL = "depot"

Numbers = Mapping[str, float]
Percentiles = tuple[float, float, float]
"""Median, 99th and maximum, in milliseconds."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """All charts at one time, over the replicas that were heard then."""

    covered_ms: int
    """How much of the step was measured; 0 if no worker answered, and groups were without a leader."""
    leaders: ReplogLooks
    followers: ReplogLooks
    replicate: Mapping[str, Percentiles]
    apply: Mapping[str, Percentiles]
    entries: Numbers
    bytes: Numbers
    failures: Mapping[str, Numbers]
    isr: float | None
    min_isr: float | None
    busy: float | None
    events: Numbers
    lease_left: float | None
    catchup_left: float | None
    catchup_lag: float | None
    topology_lag: Numbers
    topology_records: Numbers
    topology_batches: Numbers
    topology_failures: Numbers
    functions: Mapping[str, Percentiles]


def point_of(windows: Sequence[Window]) -> Point | None:
    """Make a point of the windows of one time; None if no worker reported and no group lacked a leader."""
    unled = [each for window in windows if window.worker == NOBODY for each in window.groups]
    windows = [each for each in windows if each.groups and each.worker != NOBODY]
    if not windows and not unled:
        return None
    groups = [each for window in windows for each in window.groups]
    kinds = [(name, kind) for each in groups for name, kind in each.kinds.items()]
    topologies = [(name, topology) for each in groups for name, topology in each.topologies.items()]
    standing = [told for each in _latest_leaders(groups, _has_looked) for told in each.topologies.items()]
    worst = min(
        (each for each in (*unled, *groups) if each.isr.count),
        key=lambda each: each.isr.min - each.min_isr,
        default=None,
    )
    events = _sums((name, each.events.get(name, 0)) for each in groups for name in EVENTS)
    return Point(
        # Of a worker that went away in between, others have the rest of the time.
        covered_ms=max((each.covered_ms for each in windows), default=0),
        leaders=_replogs(groups, LED),
        followers=_replogs(groups, FOLLOWED),
        replicate=_percentiles((name, kind.replicate) for name, kind in kinds),
        apply=_percentiles((name, kind.apply) for name, kind in kinds),
        entries=_sums((name, kind.entries) for name, kind in kinds),
        bytes=_sums((name, kind.bytes) for name, kind in kinds),
        failures=_failures(kinds),
        isr=worst.isr.min if worst is not None else None,
        min_isr=worst.min_isr if worst is not None else None,
        busy=max(map(_busy, windows), default=None),
        events=events,
        lease_left=min((each.lease_left_ms.min for each in groups if each.lease_left_ms.count), default=None),
        catchup_left=sum(each.catchup_left_bytes for each in groups) if groups else None,
        catchup_lag=_lag(groups),
        topology_lag=_sums((name, each.lag.average) for name, each in standing if each.lag.count),
        topology_records=_sums((name, each.records) for name, each in topologies),
        topology_batches=_sums((name, each.batches) for name, each in topologies),
        topology_failures=_sums(
            (name, failing) for name, each in standing if (failing := _failing(each)) is not None
        ),
        functions=_percentiles(told for each in groups for told in each.functions.items()),
    )


def _busy(window: Window) -> float:
    """The share of its time that the one loop of a worker spent on groups."""
    return sum(each.busy_ms for each in window.groups) / window.covered_ms


def _latest_leaders(
    groups: Iterable[GroupWindow], is_told: Callable[[GroupWindow], bool]
) -> Iterable[GroupWindow]:
    """The last leader of each group that reports something: if it changed, two have looked at the same."""
    latest: dict[tuple[str, int], GroupWindow] = {}
    for each in filter(is_told, groups):
        where = (each.group.module, each.group.group)
        before = latest.get(where)
        if before is None or (before.group, before.led_epoch) < (each.group, each.led_epoch):
            latest[where] = each
    return latest.values()


def _has_looked(each: GroupWindow) -> bool:
    return any(told.lag.count or told.parked.count for told in each.topologies.values())


def _lag(groups: Iterable[GroupWindow]) -> float | None:
    told = list(_latest_leaders(groups, lambda each: each.catchup_lag.count > 0))
    return sum(each.catchup_lag.average for each in told) if told else None


def _replogs(groups: Iterable[GroupWindow], standing: str) -> ReplogLooks:
    return reduce(ReplogLooks.merged, (each.replogs.get(standing, NO_REPLOG) for each in groups), NO_REPLOG)


def _failures(kinds: Iterable[tuple[str, KindWindow]]) -> Mapping[str, Numbers]:
    found: dict[str, Counter[str]] = {}
    for name, kind in kinds:
        if kind.failures:
            found.setdefault(name, Counter()).update(kind.failures)
            found.setdefault(ALL, Counter()).update(kind.failures)
    return {name: dict(each) for name, each in found.items()}


def _sums(numbers: Iterable[tuple[str, float]]) -> Numbers:
    found: Counter[str] = Counter()
    for name, number in numbers:
        found[name] += number  # type: ignore[assignment]
    return dict(found)


def _failing(each: TopologyWindow) -> float | None:
    known = [looks.max for looks in (each.retrying, each.parked) if looks.count]
    return sum(known) if known else None


def _percentiles(told: Iterable[tuple[str, Distribution | None]]) -> Mapping[str, Percentiles]:
    by_name: dict[str, list[Distribution]] = {}
    for name, each in told:
        if each is not None and each.bins:
            by_name.setdefault(name, []).append(each)
    found = {name: merged(parts) for name, parts in by_name.items()}
    if found:
        found[ALL] = merged(list(found.values()))
    return {
        name: ((each.quantile(0.5) or 0) * 1_000, (each.quantile(0.99) or 0) * 1_000, each.max * 1_000)
        for name, each in found.items()
    }


def charts_of(points: Mapping[int, Point | None], step_ms: int, at_ms: int) -> Charts:
    """Make charts of ``points``, given by the time at which each begins.

    A time that is missing is one at which no worker reported.
    """
    first, last = min(points, default=0), max(points, default=-step_ms)
    starts = tuple(range(first, last + step_ms, step_ms))
    line = [points.get(start) for start in starts]

    def rates(of: Callable[[Point], Numbers]) -> dict[str, Line]:
        found = _rates(line, of, absent=0.0)
        moved = {name: each for name, each in found.items() if any(each)}
        # Where nothing moved, that is what was measured: none of what most entries are.
        return moved or _rates(line, lambda _: {USUAL: 0.0})

    def failures(kind: str) -> dict[str, Line]:
        return _lines(line, lambda point: point.failures.get(kind, {}), absent=0.0)

    return Charts(
        at_ms=at_ms,
        step_ms=step_ms,
        start_ms=starts,
        replog_entries={
            "leaders": _replog_lines(line, lambda point: point.leaders),
            "isr_followers": _replog_lines(line, lambda point: point.followers),
        },
        replicate_duration=_durations(line, lambda point: point.replicate),
        replicate_throughput=rates(lambda point: point.entries),
        replicate_bytes=rates(lambda point: point.bytes),
        replicate_failures={kind: failures(kind) for kind in _names(line, lambda point: point.failures)},
        apply_duration=_durations(line, lambda point: point.apply),
        isr=_line(line, lambda point: point.isr),
        min_isr=_line(line, lambda point: point.min_isr),
        busy=_line(line, lambda point: point.busy),
        events=_lines(line, lambda point: point.events, absent=0.0, names=EVENTS),
        lease_left=_line(line, lambda point: point.lease_left),
        catchup_left=_line(line, lambda point: point.catchup_left),
        catchup_lag=_line(line, lambda point: point.catchup_lag),
        topology_lag=_lines(line, lambda point: point.topology_lag),
        topology_records=_rates(line, lambda point: point.topology_records),
        topology_batches=_rates(line, lambda point: point.topology_batches),
        topology_failures=_lines(line, lambda point: point.topology_failures),
        function_duration=_durations(line, lambda point: point.functions),
    )


Points = Sequence[Point | None]


def _line(points: Points, of: Callable[[Point], float | None]) -> Line:
    return tuple(None if point is None else of(point) for point in points)


def _names(points: Points, of: Callable[[Point], Iterable[str]]) -> list[str]:
    return sorted({name for point in points if point is not None for name in of(point)})


def _lines(
    points: Points,
    of: Callable[[Point], Numbers],
    *,
    absent: float | None = None,
    names: Sequence[str] = (),
) -> dict[str, Line]:
    """One line for each name; ``absent`` is the value of a name where there are others but not this one."""
    return {
        name: tuple(
            of(point).get(name, absent) if point is not None and point.covered_ms else None
            for point in points
        )
        for name in names or _names(points, of)
    }


def _rates(points: Points, of: Callable[[Point], Numbers], *, absent: float | None = None) -> dict[str, Line]:
    """One line for each name, per second of the time that was measured."""

    def per_second(point: Point) -> Numbers:
        numbers = of(point).items() if point.covered_ms else ()
        return {name: number * 1_000 / point.covered_ms for name, number in numbers}

    return _lines(points, per_second, absent=absent)


def _replog_lines(points: Points, of: Callable[[Point], ReplogLooks]) -> ReplogEntries:
    def size(looks: Callable[[ReplogLooks], Looks]) -> Size:
        found = [looks(NO_REPLOG if point is None else of(point)) for point in points]
        return Size(
            average=tuple(each.average if each.count else None for each in found),
            max=tuple(each.max if each.count else None for each in found),
        )

    return ReplogEntries(size=size(lambda each: each.size), unapplied=size(lambda each: each.unapplied))


def _durations(points: Points, of: Callable[[Point], Mapping[str, Percentiles]]) -> dict[str, Duration]:
    def duration(name: str) -> Duration:
        told = [None if point is None else of(point).get(name) for point in points]
        p50, p99, most = (tuple(None if each is None else each[i] for each in told) for i in range(3))
        return Duration(p50=p50, p99=p99, max=most)

    return {name: duration(name) for name in _names(points, of)}
