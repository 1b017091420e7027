"""What a worker measures about its replicas."""

from __future__ import annotations

import pytest

from stretto.module.work import Timed
from stretto.replog.core import effects
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Frame, Header, Kind, encode
from stretto.telemetry.windows import FOLLOWED, LED, NO_LOOKS, GroupWindow
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId
from stretto.worker.replica.meter import STORY_LINES, Meter


def frame(offset: int, kind: Kind = Kind.DEPOT, count: int = 10) -> Frame:
    header = Header(Offset(offset), Epoch(1), kind, count, TaskId(0), ProducerId(1), 0, 0)
    return encode(header, b"payload")


def taken(meter: Meter) -> GroupWindow:
    return meter.take(group=GroupKey("M", 0, 0), role="leader")


def test_entries_count_when_they_are_decided_and_by_kind() -> None:
    meter = Meter()
    meter.created([frame(0), frame(10, Kind.STATE, 1), frame(11)])
    meter.decided(Offset(11))
    first = taken(meter)
    assert {kind: each.entries for kind, each in first.kinds.items()} == {"depot": 10, "state": 1}
    assert first.kinds["depot"].bytes == frame(0).size_bytes
    assert first.kinds["depot"].replicate is not None
    assert first.kinds["depot"].replicate.count == 1
    meter.decided(Offset(21))
    assert taken(meter).kinds["depot"].entries == 10
    assert taken(meter).kinds == {}


def test_what_a_deposed_leader_created_is_no_longer_waited_for() -> None:
    meter = Meter()
    meter.created([frame(0)])
    meter.noted("steps_down", {"epoch": 1})
    meter.decided(Offset(10))
    assert taken(meter).kinds == {}


def test_a_run_counts_once_for_each_kind_in_it() -> None:
    meter = Meter()
    meter.applied_run([frame(0), frame(10), frame(20, Kind.STATE)], 0.25)
    kinds = taken(meter).kinds
    assert {kind: each.apply and each.apply.count for kind, each in kinds.items()} == {"depot": 1, "state": 1}


def test_failures_have_reasons() -> None:
    meter = Meter()
    refused = effects.Refused(reason=Refusal.STALLED, leader=None, epoch=Epoch(1))
    for result in (refused, effects.Acked(offset=Offset(0)), refused, effects.Unknown()):
        meter.answered(Kind.DEPOT, result)
    assert taken(meter).kinds["depot"].failures == {"stalled": 2, "unknown": 1}


def test_changes_of_the_isr_shrink_or_expand_it() -> None:
    meter = Meter()
    meter.noted("leads", {"epoch": 1})
    for isr in (["a", "b", "c"], ["a", "b"], ["a"], ["a", "b", "c"], ["a", "b", "d"]):
        meter.noted("isr", {"isr": isr})
    meter.noted("stalled", {})
    assert taken(meter).events == {"elections": 1, "shrinks": 3, "expands": 2, "stalls": 1}


def test_the_member_that_a_new_leader_drops_is_a_shrink() -> None:
    meter = Meter()
    meter.noted("leads", {"epoch": 2, "start": 7})
    meter.noted("proposes_isr", {"epoch": 2, "isr": ["b", "c"], "was": ["a", "b", "c"]})
    meter.noted("isr", {"epoch": 2, "isr": ["b", "c"]})
    assert taken(meter).events == {"elections": 1, "shrinks": 1}


def test_looks_keep_average_and_extremes() -> None:
    meter = Meter()
    for value in (3, 1, 8):
        meter.look(isr=value)
    looks = taken(meter).isr
    assert (looks.average, looks.max, looks.min, looks.count) == (4, 8, 1, 3)
    assert taken(meter).isr == NO_LOOKS
    assert looks.merged(NO_LOOKS) == NO_LOOKS.merged(looks) == looks
    assert looks.merged(looks).count == 6


def test_looks_at_a_replog_are_kept_by_what_the_replica_was() -> None:
    meter = Meter()
    meter.look_at_replog(LED, size=10, unapplied=1)
    meter.leads(Epoch(3))
    meter.look_at_replog(FOLLOWED, size=30, unapplied=0)
    told = taken(meter)
    assert told.led_epoch == 3
    assert {name: each.size.max for name, each in told.replogs.items()} == {LED: 10, FOLLOWED: 30}
    assert told.replog.size.count == 2
    assert (taken(meter).led_epoch, taken(meter).replogs) == (0, {})


def test_the_story_is_bounded_and_newest_last() -> None:
    meter = Meter()
    for epoch in range(STORY_LINES + 5):
        meter.noted("leads", {"epoch": epoch})
    assert len(meter.story) == STORY_LINES
    assert meter.story[-1].fields == {"epoch": STORY_LINES + 4}
    assert taken(meter).story == tuple(meter.story)
    assert taken(meter).story == (), "each line is told with one window"


def test_batches_and_looks_of_a_topology_are_told_together() -> None:
    meter = Meter()
    meter.ran("split", 10)
    meter.ran("split", 5)
    for lag in (4, 8):
        meter.look_at_topology("split", lag=lag, retrying=1, parked=None)
    told = taken(meter).topologies["split"]
    assert (told.batches, told.records) == (2, 15)
    assert (told.lag.average, told.lag.max, told.retrying.max) == (6, 8, 1)
    assert told.parked == NO_LOOKS
    assert taken(meter).topologies == {}


def test_a_slow_call_among_many_quick_ones_is_seen() -> None:
    meter = Meter()
    meter.called([Timed("split", 999, 999 * 2_000, (3_000_000_000,)), Timed("count", 1, 5_000)])
    meter.called([Timed("split", 1, 2_000)])
    functions = taken(meter).functions
    assert set(functions) == {"split", "count"}
    split = functions["split"]
    assert split.count == 1_001
    assert split.max == pytest.approx(3.0)
    assert split.quantile(0.5) == pytest.approx(2e-6, rel=0.05)


def test_windows_of_topologies_and_functions_are_merged() -> None:
    meter = Meter()
    windows = []
    for _ in range(2):
        meter.ran("split", 10)
        meter.look_at_topology("split", lag=3, retrying=0, parked=2)
        meter.called([Timed("split", 10, 10_000)])
        windows.append(taken(meter))
    merged = windows[0].merged(windows[1])
    assert (merged.topologies["split"].records, merged.topologies["split"].parked.max) == (20, 2)
    assert merged.functions["split"].count == 20
