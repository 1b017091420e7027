"""Records that are trimmed and objects that are dropped: the same on every replica, and only what may go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from stretto.control import ModuleDescription
from stretto.options import Level, OptionSet
from stretto.pstate import ordered
from stretto.pstate.changes import Changes, joined
from stretto.replog.frame import Kind
from stretto.specs.modules import DepotSpec, TopologySpec
from stretto.state import microbatch_entries as microbatches
from stretto.state.applied import AppliedState
from stretto.state.microbatch_entries import Batch, Prime, Span, Stage, Version
from stretto.state.removal import Drop, Trim
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import TaskId
from stretto.worker.hosting.retention import Retention, Trimming, due_drop
from stretto.worker.topology import rows
from stretto.worker.topology.machine.effects import Entry
from stretto.worker.topology.machine.stored import OfCalls, OfRecords, OfRetry, Outgoing
from tests.support.entries import MAP_BYTES, Log

TASK = TaskId(0)


def opened(folder: Path, log: Log) -> AppliedState:
    state = AppliedState.open(folder, [TASK], map_bytes=MAP_BYTES)
    catch_up(state, log)
    return state


def catch_up(state: AppliedState, log: Log) -> None:
    new = [frame for frame in log.frames if frame.header.offset >= state.applied]
    if new:
        state.apply(new)


def filled(batches: int = 10, size: int = 3, *, depot: str = "events") -> Log:
    """Batches of so many records; the n-th is n seconds old at the epoch."""
    log = Log()
    for number in range(batches):
        log.depot([b"%d" % number] * size, depot=depot, timestamp_ms=number * 1_000)
    return log


def offsets(state: AppliedState, offset: int = 0) -> tuple[int, list[int]]:
    """Where a read begins, and the batches it gets."""
    found = state.read_depot(TASK, "events", DepotOffset(offset), max_bytes=1 << 20, max_records=1_000)
    return found.start, [batch.base for batch in found.batches]


@pytest.mark.parametrize(
    ("below", "start"),
    [(0, 0), (2, 0), (3, 3), (4, 3), (5, 3), (6, 6), (27, 27), (28, 27), (99, 27)],
)
def test_a_trim_takes_whole_batches_below_an_offset_and_never_the_last(
    tmp_path: Path, below: int, start: int
) -> None:
    log = filled()
    log.remove(Trim("events", below))
    state = opened(tmp_path, log)
    assert state.depot_bounds(TASK, "events") == (start, 30)
    assert offsets(state) == (start, list(range(start, 30, 3)))
    assert offsets(state, 28) == (28, [27])
    assert state.offset_at(TASK, "events", 0) == start
    assert state.offset_at(TASK, "events", 9_000) == 27
    log.depot([b"more"])
    catch_up(state, log)
    assert state.depot_bounds(TASK, "events") == (start, 31)


def test_a_trim_of_what_is_not_there_does_nothing(tmp_path: Path) -> None:
    log = Log()
    log.remove(Trim("events", 5))
    state = opened(tmp_path, log)
    assert state.depot_bounds(TASK, "events") == (0, 0)
    assert state.trim_point(TASK, "events", DepotOffset(9), 5) is None


def test_one_entry_takes_a_bounded_number_of_batches(tmp_path: Path) -> None:
    state = opened(tmp_path, filled())
    assert state.trim_point(TASK, "events", DepotOffset(29), 4) == 12
    assert state.trim_point(TASK, "events", DepotOffset(29), 100) == 27
    assert state.trim_point(TASK, "events", DepotOffset(2), 100) is None


def test_what_is_dropped_begins_anew_and_is_dropped_once_for_each_version(tmp_path: Path) -> None:
    log = filled()
    log.state(Changes(puts=((b"k", b"v"),)), pstate="counts")
    log.remove(Drop(2, ("counts", "events", "unknown")))
    log.depot([b"new"])
    log.remove(Drop(2, ("events",)))
    log.remove(Drop(1, ("events",)))
    state = opened(tmp_path / "a", log)
    assert (state.dropped(TASK), offsets(state)) == (2, (0, [0]))
    with state.reading_pstate(TASK, "counts") as rows:
        assert rows.get(b"k") is None
    log.remove(Drop(3, ("events",)))
    catch_up(state, log)
    assert (state.dropped(TASK), state.depot_bounds(TASK, "events")) == (3, (0, 0))


def test_what_was_dropped_leaves_no_difference_to_a_state_that_was_opened_anew(tmp_path: Path) -> None:
    log = filled()
    log.state(Changes(puts=((b"k", b"v"),)), pstate="counts")
    log.remove(Drop(2, ("counts", "events")))
    running = opened(tmp_path / "a", log)
    reopened = opened(tmp_path / "b", log)
    reopened.close()
    reopened = AppliedState.open(tmp_path / "b", [TASK], map_bytes=MAP_BYTES)
    reopened.recover(log.stored(tmp_path / "log"))
    assert list(reopened.depot_names(TASK)) == []
    assert reopened.dropped(TASK) == 2
    assert running.digest(TASK) == reopened.digest(TASK)
    log.depot([b"again"])
    log.state(Changes(puts=((b"k", b"w"),)), pstate="counts")
    for state in (running, reopened):
        catch_up(state, log)
        assert offsets(state) == (0, [0])
        with state.reading_pstate(TASK, "counts") as rows:
            assert rows.get(b"k") == b"w"
    assert running.digest(TASK) == reopened.digest(TASK)


def path(*keys: str | int) -> bytes:
    return b"".join(map(ordered.encode, keys))


def number(value: int) -> bytes:
    return msgspec.msgpack.encode(value)


def test_what_topologies_know_of_a_dropped_depot_goes_with_it(tmp_path: Path) -> None:
    log = filled()
    log.state(
        Changes(puts=((path("t", "clicks"), number(1)), (path("t", "events"), number(9)))), pstate="$progress"
    )
    log.state(Changes(puts=((path("t", "events", 4), number(1)),)), pstate="$retries")
    batch = Batch(Version(1, 0), {"events": {TASK: 9}, "clicks": {TASK: 1}}, (Span("events", TASK, 9, 12),))
    log.add(Kind.MICROBATCH, payload=microbatches.encode(Prime("m", batch)))
    log.remove(Drop(2, ("events",)))
    state = opened(tmp_path, log)
    with state.reading_pstate(TASK, "$progress") as rows:
        assert list(rows.keys(b"", b"\xff")) == [path("t", "clicks")]
    with state.reading_pstate(TASK, "$retries") as rows:
        assert list(rows.keys(b"", b"\xff")) == []
    with state.reading_pstate(TASK, microbatches.DATABASE) as rows:
        left = microbatches.batch_of("m", rows.get)
    assert left is not None
    assert (left.progress, left.spans) == ({"clicks": {TASK: 1}}, ())


def test_a_topology_that_is_dropped_leaves_nothing_and_begins_anew(tmp_path: Path) -> None:
    log = filled()
    for pstate in ("$progress", "$retries", "$failures"):
        rows = ((path("other", "events", 1), number(1)), (path("t", "events", 4), number(1)))
        log.state(Changes(puts=rows), pstate=pstate)
    hops = [path("other", "out", 7), path("other", "in", 1), path("t", "latest"), path("t", "out", 8)]
    log.state(Changes(puts=tuple((key, number(1)) for key in sorted(hops))), pstate="$hops")
    for topology in ("other", "t"):
        batch = Batch(Version(7, 0), {"events": {TASK: 9}}, (Span("events", TASK, 9, 12),))
        log.add(Kind.MICROBATCH, payload=microbatches.encode(Prime(topology, batch)))
        log.add(Kind.MICROBATCH, payload=microbatches.encode(Stage(topology, Version(7, 0), b"")))
    log.remove(Drop(2, ("t",)))
    state = opened(tmp_path, log)
    for pstate in ("$progress", "$retries", "$failures"):
        with state.reading_pstate(TASK, pstate) as found:
            assert list(found.keys(b"", b"\xff")) == [path("other", "events", 1)]
    with state.reading_pstate(TASK, "$hops") as found:
        assert list(found.keys(b"", b"\xff")) == sorted(hops[:2])
    with state.reading_pstate(TASK, microbatches.DATABASE) as found:
        assert microbatches.batch_of("t", found.get) is None
        assert microbatches.staged_of("t", found.get) is None
        assert microbatches.batch_of("other", found.get) is not None
        assert microbatches.staged_of("other", found.get) == Version(7, 0)
    assert offsets(state) == (0, list(range(0, 30, 3)))


def trims(
    state: AppliedState,
    *,
    records: int = 0,
    millis: int = 0,
    now_ms: int = 10_000,
    topologies: Sequence[TopologySpec] = (),
) -> list[Trim]:
    values = {"depot.retention.records": records, "depot.retention.millis": millis}
    options = OptionSet({Level.of("m", depot="events"): values})
    described = ModuleDescription(tasks=1, depots=(DepotSpec(name="events"),), topologies=tuple(topologies))
    trimming = Trimming(Retention.of(options, "m"), described, now_ms)
    assert trimming.is_wanted == bool(records or millis)
    return trimming.due(state, TASK)


def test_retention_by_count_and_by_age_keeps_whole_batches(tmp_path: Path) -> None:
    state = opened(tmp_path, filled())
    assert trims(state) == []
    assert trims(state, records=30) == trims(state, records=100) == trims(state, records=28) == []
    assert trims(state, records=7) == [Trim("events", 21)]
    assert trims(state, records=1) == [Trim("events", 27)]
    assert trims(state, millis=4_000) == [Trim("events", 18)]
    assert trims(state, millis=1) == [Trim("events", 27)]
    assert trims(state, millis=4_000, records=7) == [Trim("events", 21)]
    assert trims(state, millis=60_000) == []


def test_what_a_topology_has_not_processed_is_kept(tmp_path: Path) -> None:
    log = filled()
    state = opened(tmp_path, log)
    topologies = [
        TopologySpec(name=name, kind="stream", depots=(depot,))
        for name, depot in (("a", "events"), ("b", "events"), ("c", "clicks"))
    ]
    assert trims(state, records=1, topologies=topologies) == []
    log.state(Changes(puts=((path("a", "events"), number(20)),)), pstate="$progress")
    catch_up(state, log)
    assert trims(state, records=1, topologies=topologies) == []
    log.state(Changes(puts=((path("b", "events"), number(14)),)), pstate="$progress")
    catch_up(state, log)
    assert trims(state, records=1, topologies=topologies) == [Trim("events", 12)]
    log.state(Changes(puts=((path("a", "events", 7), number(1)),)), pstate="$retries")
    catch_up(state, log)
    assert trims(state, records=1, topologies=topologies) == [Trim("events", 6)]


def test_records_whose_hops_are_not_answered_are_kept(tmp_path: Path) -> None:
    """One of them may fail there, and then its record is run again."""
    log = filled()
    state = opened(tmp_path, log)
    topologies = [TopologySpec(name="a", kind="stream", depots=("events", "clicks"))]
    log.state(Changes(puts=((path("a", "events"), number(25)),)), pstate="$progress")
    made = {
        5: Outgoing(TaskId(1), OfRecords("clicks", 0, 3), b""),
        6: Outgoing(TaskId(1), OfRecords("events", 20, 25), b""),
        7: Outgoing(TaskId(2), OfCalls(TaskId(3), 1, 0), b""),
    }
    entry = Entry(made=made)
    log.add(Kind.STATE, payload=joined(rows.packed("a", entry, 0)))
    catch_up(state, log)
    assert trims(state, records=1, topologies=topologies) == [Trim("events", 18)]
    entry = Entry(made={8: Outgoing(TaskId(2), OfRetry("events", 4, 1), b"")})
    log.add(Kind.STATE, payload=joined(rows.packed("a", entry, 0)))
    catch_up(state, log)
    assert trims(state, records=1, topologies=topologies) == [Trim("events", 3)]
    log.add(Kind.STATE, payload=joined(rows.packed("a", Entry(cleared=[6, 8]), 0)))
    catch_up(state, log)
    assert trims(state, records=1, topologies=topologies) == [Trim("events", 24)]


def test_a_drop_is_due_until_the_task_has_carried_it_out(tmp_path: Path) -> None:
    log = Log()
    state = opened(tmp_path, log)
    assert due_drop(state, TASK, {}) is None
    assert due_drop(state, TASK, {"b": 3, "a": 2}) == Drop(3, ("a", "b"))
    log.remove(Drop(2, ("a",)))
    catch_up(state, log)
    assert due_drop(state, TASK, {"a": 2}) is None
    assert due_drop(state, TASK, {"b": 3, "a": 2}) == Drop(3, ("b",))
