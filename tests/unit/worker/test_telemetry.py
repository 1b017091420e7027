"""What a worker measures about its replicas."""

from __future__ import annotations

from stretto.replog.frame import Frame, Header, Kind, encode
from stretto.telemetry.windows import NO_LOOKS, GroupWindow
from stretto.types import Epoch, Offset, ProducerId, TaskId
from stretto.worker.telemetry import STORY_LINES, Meter
from stretto.zk.paths import GroupKey


def frame(offset: int, kind: Kind = Kind.DEPOT, count: int = 10) -> Frame:
    header = Header(Offset(offset), Epoch(1), kind, count, TaskId(0), ProducerId(1), 0, 0)
    return encode(header, b"payload")


def taken(meter: Meter) -> GroupWindow:
    return meter.take(group=GroupKey("M", 0, 0), role="leader")


def test_entries_count_when_they_are_applied_and_by_kind() -> None:
    meter = Meter()
    meter.created([frame(0), frame(10, Kind.STATE, 1), frame(11)])
    meter.applied(Offset(11))
    first = taken(meter)
    assert {kind: each.entries for kind, each in first.kinds.items()} == {"depot": 10, "state": 1}
    assert first.kinds["depot"].bytes == frame(0).size_bytes
    assert first.kinds["depot"].replicate is not None
    assert first.kinds["depot"].replicate.count == 1
    meter.applied(Offset(21))
    assert taken(meter).kinds["depot"].entries == 10
    assert taken(meter).kinds == {}


def test_what_a_deposed_leader_created_is_no_longer_waited_for() -> None:
    meter = Meter()
    meter.created([frame(0)])
    meter.noted("steps_down", {"epoch": 1})
    meter.applied(Offset(10))
    assert taken(meter).kinds == {}


def test_a_run_counts_once_for_each_kind_in_it() -> None:
    meter = Meter()
    meter.applied_run([frame(0), frame(10), frame(20, Kind.STATE)], 0.25)
    kinds = taken(meter).kinds
    assert {kind: each.apply and each.apply.count for kind, each in kinds.items()} == {"depot": 1, "state": 1}


def test_failures_have_reasons() -> None:
    meter = Meter()
    meter.failed(Kind.DEPOT, "stalled")
    meter.failed(Kind.DEPOT, "stalled")
    meter.failed(Kind.DEPOT, "unknown")
    assert taken(meter).kinds["depot"].failures == {"stalled": 2, "unknown": 1}


def test_changes_of_the_isr_shrink_or_expand_it() -> None:
    meter = Meter()
    meter.noted("leads", {"epoch": 1})
    for isr in (["a", "b", "c"], ["a", "b"], ["a"], ["a", "b", "c"], ["a", "b", "d"]):
        meter.noted("isr", {"isr": isr})
    meter.noted("stalled", {})
    assert taken(meter).events == {"elections": 1, "shrinks": 3, "expands": 2, "stalls": 1}


def test_looks_keep_average_and_extremes() -> None:
    meter = Meter()
    for value in (3, 1, 8):
        meter.look(unapplied=value)
    looks = taken(meter).unapplied
    assert (looks.average, looks.max, looks.min, looks.count) == (4, 8, 1, 3)
    assert taken(meter).unapplied == NO_LOOKS
    assert looks.merged(NO_LOOKS) == NO_LOOKS.merged(looks) == looks
    assert looks.merged(looks).count == 6


def test_the_story_is_bounded_and_newest_last() -> None:
    meter = Meter()
    for epoch in range(STORY_LINES + 5):
        meter.noted("leads", {"epoch": epoch})
    assert len(meter.story) == STORY_LINES
    assert meter.story[-1].fields == {"epoch": STORY_LINES + 4}
