"""A snapshot is read by its folder, without a cluster; one that is damaged, or of another version, is told.

What Spark's processes would do is done here by hand: plan, pickle, read.
"""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, Filter, LessThan

from pyspark_stretto import states
from pyspark_stretto.batch import BatchReader
from pyspark_stretto.source import DefaultSource
from stretto import control
from stretto.artifact.archive import digest_of
from stretto.errors import OffsetTrimmed, StrettoError, UsageError
from stretto.pstate.types import describe
from stretto.snapshot.manifest import MANIFEST, file_of, write_manifest
from stretto.specs.modules import PStateSpec
from stretto.vocabulary.types import TaskId
from tests.unit.snapshot.snapshots import made

PSTATE = "counts"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bank" / "one"
    folder.mkdir(parents=True)
    manifest = made(folder, tmp_path / "scratch")
    declared = (PStateSpec(name=PSTATE, type=describe(dict[str, int])),)
    write_manifest(folder, msgspec.structs.replace(manifest, pstates=declared))
    return folder


def read(folder: Path, *filters: Filter, **options: str) -> list[dict[str, Any]]:
    given = CaseInsensitiveDict({"path": str(folder), "filters": "pushed"})
    given.update({name.replace("_", "."): value for name, value in options.items()})
    source = DefaultSource(given)
    schema = source.schema()
    reader = pickle.loads(pickle.dumps(source)).reader(schema)
    assert isinstance(reader, BatchReader)
    with pytest.warns(UserWarning, match="every query needs a load") if filters else nullcontext():
        left = list(reader.pushFilters(list(filters)))
    assert left == []
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    reader = pickle.loads(pickle.dumps(reader))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_rows_and_records_are_read_with_their_offsets(folder: Path, tmp_path: Path) -> None:
    rows = read(folder, pstate=PSTATE)
    assert {row["key"]: row["value"] for row in rows} == {f"key-{number:05}": number for number in range(200)}
    [offset] = {row["_apply_offset"] for row in rows}
    report = tmp_path / "report.json"
    records = read(folder, depot="events", start="10", report=str(report))
    assert len(records) == 2 * 190
    assert {row["offset"] for row in records} == set(range(10, 200))
    assert {row["_apply_offset"] for row in records} == {offset}
    assert msgspec.json.decode(report.read_bytes()) == {
        "module": "bank",
        "origin": "",
        "version": 3,
        "pstate": None,
        "depot": "events",
        "snapshot": str(folder),
        "groups": [
            {
                "group": "bank/0",
                "tasks": [0, 1],
                "offset": offset,
                "epoch": 1,
                "worker": None,
                "by_leader": False,
            }
        ],
        "records": {"0": [10, 200], "1": [10, 200]},
    }


def test_filters_and_times_choose_what_is_read(folder: Path) -> None:
    assert [row["value"] for row in read(folder, LessThan(("key",), "key-00003"), pstate=PSTATE)] == [0, 2, 1]
    assert len(read(folder, LessThan(("offset",), 4), depot="events")) == 8
    # Batches of a task are 20 ms apart, and have two records each.
    assert {row["offset"] for row in read(folder, depot="events", start_time="100", end_time="200")} == {
        10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
    }  # fmt: skip


def test_a_large_task_is_read_in_several_parts(folder: Path) -> None:
    rows = read(folder, pstate=PSTATE, split_bytes="1000")
    assert sorted(row["value"] for row in rows) == list(range(200))
    records = read(folder, depot="events", split_bytes="1000")
    assert sorted((row["_task"], row["offset"]) for row in records) == [
        (task, offset) for task in (0, 1) for offset in range(200)
    ]


def test_a_range_of_a_depot_is_split_by_its_own_size(folder: Path) -> None:
    def parts(**options: str) -> int:
        given = {"path": str(folder), "depot": "events", "split.bytes": "1000"} | options
        source = DefaultSource(CaseInsensitiveDict(given))
        return len(source.reader(source.schema()).partitions())

    assert parts() > 10
    assert parts(start="198") == 2
    assert parts(start="100") == pytest.approx(parts() / 2, abs=2)


def test_a_snapshot_is_known_by_its_whole_path_wherever_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    source = DefaultSource(CaseInsensitiveDict({"path": folder.name, "pstate": PSTATE}))
    reader = source.reader(source.schema())
    monkeypatch.chdir("/")
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 200  # type: ignore[union-attr]


def test_what_is_not_there_is_told_with_the_nearest_name(folder: Path) -> None:
    for options, sentence in (
        ({"pstate": "count"}, "module bank has no PState count; did you mean counts"),
        ({"depot": "event"}, "module bank has no depot event; did you mean events"),
        ({"pstate": PSTATE, "module": "books"}, "is a snapshot of module bank, not of books"),
        ({"pstate": PSTATE, "bootstrap": "127.0.0.1:1"}, "is read without a cluster"),
        ({"pstate": PSTATE, "start": "3"}, "choose records of a depot"),
        ({"depot": "events", "start": '{"7": 5}'}, "start names task 7, and bank has tasks 0 to 1"),
        ({"depot": "events", "nested": "map"}, "option nested has no effect on a depot; take it away"),
        ({"pstate": PSTATE, "write_id": "x"}, "option write.id has no effect on a PState"),
        ({"pstate": PSTATE, "from": "leader"}, "option from has no effect on a snapshot"),
        ({"depot": "events", "end": '{"2": 5}'}, "end names task 2, and bank has tasks 0 to 1"),
    ):
        with pytest.raises(UsageError, match=sentence):
            read(folder, **options)


def test_a_damaged_snapshot_is_refused_before_anything_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(folder, TaskId(1))
    stored = bytearray(path.read_bytes())
    stored[-100] ^= 1
    path.write_bytes(stored)
    with pytest.raises(
        StrettoError, match=r"data\.mdb is damaged: it is not the file that the manifest tells of"
    ):
        read(folder, pstate=PSTATE)
    monkeypatch.setattr(states, "HASHED_BYTES_MAX", 0)
    for _ in range(2):
        with pytest.raises(StrettoError, match=r"task-1/data\.mdb is damaged"):
            read(folder, pstate=PSTATE)
    path.write_bytes(stored[:-4096])
    with pytest.raises(StrettoError, match=r"data\.mdb is damaged"):
        read(folder, pstate=PSTATE)
    path.unlink()
    with pytest.raises(StrettoError, match="cannot be read"):
        read(folder, pstate=PSTATE)
    manifest = folder / MANIFEST
    manifest.write_text('{"format_version": 9}')
    with pytest.raises(StrettoError, match="has format version 9"):
        read(folder, pstate=PSTATE)
    manifest.unlink()
    with pytest.raises(StrettoError, match="is no snapshot"):
        read(folder, pstate=PSTATE)


def test_a_large_snapshot_is_hashed_by_who_reads_it_each_file_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def digest(path: Path) -> str:
        hashed.append(path.parent.name)
        return digest_of(path)

    monkeypatch.setattr(states, "digest_of", digest)
    monkeypatch.setattr(states, "HASHED_BYTES_MAX", 0)
    for _ in range(2):
        assert len(read(folder, pstate=PSTATE, split_bytes="1000")) == 200
    assert sorted(hashed) == ["task-0", "task-1"]
    # What has changed since is looked at again.
    path = file_of(folder, TaskId(0))
    stored = bytearray(path.read_bytes())
    stored[-100] ^= 1
    path.unlink()
    path.write_bytes(stored)
    with pytest.raises(StrettoError, match=r"task-0/data\.mdb is damaged"):
        read(folder, depot="events")


def test_records_that_are_trimmed_away_are_not_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.snapshot.reading.Snapshot.bounds", lambda *_: (50, 200))
    with pytest.raises(OffsetTrimmed, match="begins at offset 50"):
        read(folder, depot="events", start="10")


def test_a_start_beyond_the_end_of_a_task_is_told_so_that_nobody_goes_on_from_there(folder: Path) -> None:
    assert len(read(folder, depot="events", start='{"0": 200}')) == 200
    with pytest.raises(UsageError, match="start is 201 on task 0, where depot events has 0 to 200; was bank"):
        read(folder, depot="events", start='{"0": 201}')
    assert read(folder, depot="events", start="201") == []


class Knowing:
    """A cluster that knows of snapshots, and nothing else."""

    def __init__(self, *known: control.SnapshotView) -> None:
        self._known = known

    def ask(self, call: control.Snapshots) -> tuple[control.SnapshotView, ...]:
        return tuple(each for each in self._known if each.module == call.module)


def test_a_snapshot_is_found_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views = [
        control.SnapshotView(
            module="bank", name=name, folder=str(folder), state=state, at_ms=1, tasks=2, size_bytes=1
        )
        for name, state in (("one", "complete"), ("two", "creating"))
    ]
    monkeypatch.setattr(states, "reached", lambda _: nullcontext(Knowing(*views)))

    def named(name: str) -> DefaultSource:
        given = {"bootstrap": "127.0.0.1:1", "module": "bank", "pstate": PSTATE, "at": name}
        return DefaultSource(CaseInsensitiveDict(given))

    source = named("one")
    reader = source.reader(source.schema())
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 200  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="module bank has no snapshot ones; did you mean one"):
        named("ones").schema()
    with pytest.raises(UsageError, match="snapshot two of bank is creating; wait for it"):
        named("two").schema()
    views.clear()
    with pytest.raises(UsageError, match="module bank has no snapshot one, nor any other"):
        named("one").schema()
