"""The charts of replication: windows of many replicas become a few lines over time.

Each chart is for a module or for one worker, over all task groups concerned, as points of equal steps. A
point at which nobody was heard has no value, so that a gap is seen as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from stretto.telemetry.histogram import Distribution, Histogram
from stretto.telemetry.windows import NO_LOOKS, GroupWindow, KindWindow, Looks, TopologyWindow, Window

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
    step_ms: int
    start_ms: tuple[int, ...]
    """Of each point; the other lines have one value for each."""
    replog_entries: dict[str, ReplogEntries]
    """Of leaders and of ISR followers."""
    replicate_duration: dict[str, Duration]
    """By kind of entry, and of all."""
    replicate_throughput: dict[str, Line]
    """Entries per second, by kind."""
    replicate_bytes: dict[str, Line]
    """Bytes per second, by kind."""
    replicate_failures: dict[str, Line]
    """Appends in the window that did not succeed, by reason."""
    apply_duration: dict[str, Duration]
    isr: Line
    """Members that the worst group had."""
    min_isr: Line
    """What that group needs."""
    busy: Line
    """The busiest task thread's share of its time."""
    events: dict[str, Line]
    """Elections, shrinks, expands and stalls in the window."""
    lease_left: Line
    """Milliseconds that the lease of the leader with the least had left."""
    catchup_left: Line
    """Bytes of rounds under way that replicas have not received."""
    topology_lag: dict[str, Line]
    """Records that are visible and not processed, by topology."""
    topology_records: dict[str, Line]
    """Records per second that batches had, by topology."""
    topology_batches: dict[str, Line]
    """Batches per second, by topology."""
    topology_failures: dict[str, Line]
    """Records that wait to be tried again or are parked, by topology."""
    function_duration: dict[str, Duration]
    """Of calls, by function, and of all."""


def charts_of(
    windows: Iterable[Window], wanted: Callable[[Window, GroupWindow], bool], step_ms: int
) -> Charts:
    by_start: dict[int, list[GroupWindow]] = {}
    for window in windows:
        found = by_start.setdefault(window.start_ms, [])
        found += [each for each in window.groups if wanted(window, each)]
    first, last = min(by_start, default=0), max(by_start, default=-step_ms)
    starts = tuple(range(first, last + step_ms, step_ms))
    points = [by_start.get(start, []) for start in starts]
    kinds = sorted({kind for point in points for each in point for kind in each.kinds})
    worst = [_worst(point) for point in points]
    return Charts(
        step_ms=step_ms,
        start_ms=starts,
        replog_entries={
            "leaders": _replogs(points, lambda each: each.role == "leader"),
            "isr_followers": _replogs(points, lambda each: each.role != "leader" and each.in_isr),
        },
        replicate_duration=_durations(points, kinds, lambda kind: kind.replicate),
        replicate_throughput=_rates(points, kinds, lambda kind: kind.entries, step_ms),
        replicate_bytes=_rates(points, kinds, lambda kind: kind.bytes, step_ms),
        replicate_failures=_failures(points),
        apply_duration=_durations(points, kinds, lambda kind: kind.apply),
        isr=tuple(each.isr.min if each else None for each in worst),
        min_isr=tuple(each.min_isr if each else None for each in worst),
        busy=tuple(max((each.busy_ms / step_ms for each in point), default=None) for point in points),
        events=_events(points),
        lease_left=tuple(
            min((each.lease_left_ms.min for each in point if each.lease_left_ms.count), default=None)
            for point in points
        ),
        catchup_left=tuple(sum(e.catchup_left_bytes for e in point) if point else None for point in points),
        **_topologies(points, step_ms),
        function_duration=_functions(points),
    )


Points = Sequence[Sequence[GroupWindow]]


def _worst(point: Sequence[GroupWindow]) -> GroupWindow | None:
    led = [each for each in point if each.isr.count]
    return min(led, key=lambda each: each.isr.min - each.min_isr, default=None)


def _replogs(points: Points, wanted: Callable[[GroupWindow], bool]) -> ReplogEntries:
    chosen = [[each for each in point if wanted(each)] for point in points]
    return ReplogEntries(
        size=_size([[each.replog_entries for each in point] for point in chosen]),
        unapplied=_size([[each.unapplied for each in point] for point in chosen]),
    )


def _size(points: Sequence[Sequence[Looks]]) -> Size:
    merged = []
    for point in points:
        all_ = NO_LOOKS
        for each in point:
            all_ = all_.merged(each)
        merged.append(all_)
    return Size(
        average=tuple(each.average if each.count else None for each in merged),
        max=tuple(each.max if each.count else None for each in merged),
    )


def _durations(
    points: Points, kinds: Sequence[str], of: Callable[[KindWindow], Distribution | None]
) -> dict[str, Duration]:
    found = {}
    for name in ("all", *kinds):
        histograms = [
            Histogram(
                told
                for each in point
                for kind, window in each.kinds.items()
                if name in ("all", kind) and (told := of(window)) is not None
            )
            for point in points
        ]
        if any(each.count for each in histograms):
            found[name] = _duration(histograms)
    return found


def _duration(histograms: Sequence[Histogram]) -> Duration:
    return Duration(
        p50=tuple(_ms(each.quantile(0.5)) for each in histograms),
        p99=tuple(_ms(each.quantile(0.99)) for each in histograms),
        max=tuple(_ms(each.max) if each.count else None for each in histograms),
    )


def _functions(points: Points) -> dict[str, Duration]:
    names = sorted({name for point in points for each in point for name in each.functions})
    return {
        name: _duration(
            [
                Histogram(
                    told
                    for each in point
                    for function, told in each.functions.items()
                    if name in ("all", function)
                )
                for point in points
            ]
        )
        for name in (["all", *names] if names else ())
    }


def _topologies(points: Points, step_ms: int) -> dict[str, dict[str, Line]]:
    names = sorted({name for point in points for each in point for name in each.topologies})

    def lines(of: Callable[[TopologyWindow], float | None]) -> dict[str, Line]:
        def at(point: Sequence[GroupWindow], name: str) -> float | None:
            told = [of(each.topologies[name]) for each in point if name in each.topologies]
            known = [each for each in told if each is not None]
            return sum(known) if known else None

        return {name: tuple(at(point, name) for point in points) for name in names}

    def failing(each: TopologyWindow) -> float | None:
        known = [looks.max for looks in (each.retrying, each.parked) if looks.count]
        return sum(known) if known else None

    return {
        "topology_lag": lines(lambda each: each.lag.average if each.lag.count else None),
        "topology_records": lines(lambda each: each.records * 1_000 / step_ms),
        "topology_batches": lines(lambda each: each.batches * 1_000 / step_ms),
        "topology_failures": lines(failing),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1_000


def _rates(
    points: Points, kinds: Sequence[str], of: Callable[[KindWindow], int], step_ms: int
) -> dict[str, Line]:
    def rate(point: Sequence[GroupWindow], name: str) -> float | None:
        if not point:
            return None
        return sum(of(each.kinds[name]) for each in point if name in each.kinds) * 1_000 / step_ms

    lines = {name: tuple(rate(point, name) for point in points) for name in kinds}
    return {name: line for name, line in lines.items() if any(line)}


def _failures(points: Points) -> dict[str, Line]:
    def counts(point: Sequence[GroupWindow], reason: str) -> float | None:
        if not point:
            return None
        return sum(kind.failures.get(reason, 0) for each in point for kind in each.kinds.values())

    reasons = sorted(
        {
            reason
            for point in points
            for each in point
            for kind in each.kinds.values()
            for reason in kind.failures
        }
    )
    return {reason: tuple(counts(point, reason) for point in points) for reason in reasons}


def _events(points: Points) -> dict[str, Line]:
    return {
        name: tuple(sum(each.events.get(name, 0) for each in point) if point else None for point in points)
        for name in ("elections", "shrinks", "expands", "stalls")
    }
