from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from stretto.errors import UsageError
from stretto.pstate.changes import Changes
from stretto.pstate.ordered import encode
from stretto.pstate.pages import Page
from stretto.snapshot.checking import check
from stretto.snapshot.manifest import ARTIFACT, MANIFEST, Manifest, SnapshotDamaged, file_of, read_manifest
from stretto.snapshot.reading import Snapshot, open_snapshot
from stretto.vocabulary.records import RecordBatch
from stretto.vocabulary.types import TaskId
from tests.support.entries import Log
from tests.unit.snapshot.snapshots import a_log, made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(tmp_path / "bank" / "one", tmp_path / "state")
    return tmp_path / "bank" / "one"


@pytest.fixture
def snapshot(folder: Path) -> Iterator[Snapshot]:
    with open_snapshot(folder) as snapshot:
        yield snapshot


def keys_of(pages: Iterator[Page]) -> list[bytes]:
    keys = []
    for page in pages:
        ends = memoryview(page.key_ends).cast("I").tolist()
        keys += [page.keys[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return keys


def test_rows_are_read_with_no_cluster_and_in_parts(snapshot: Snapshot) -> None:
    assert snapshot.tasks == (0, 1)
    assert snapshot.apply_offset(0) == snapshot.manifest.groups[0].offset == a_log().end
    expected = [encode(f"key-{number:05}") for number in range(0, 200, 2)]
    assert keys_of(snapshot.rows(0, "counts")) == expected
    assert keys_of(snapshot.rows(0, "counts", expected[3], expected[5])) == expected[3:5]
    assert keys_of(snapshot.rows(0, "nothing")) == []
    cuts = [b"", *snapshot.splits(0, "counts", 3), b"\xff"]
    parts = [keys_of(snapshot.rows(0, "counts", *ends)) for ends in pairwise(cuts)]
    assert [key for part in parts for key in part] == expected
    with pytest.raises(UsageError, match="has no task 9"):
        next(snapshot.rows(9, "counts"))


def test_long_values_and_many_pages_are_read_as_they_are(tmp_path: Path) -> None:
    log = Log()
    rows = {encode(number): b"v" * (9_000 if number == 700 else 40) for number in range(40_000)}
    log.state(Changes(puts=tuple(rows.items())))
    made(tmp_path / "bank" / "long", tmp_path / "long", log)
    with open_snapshot(tmp_path / "bank" / "long") as snapshot:
        pages = list(snapshot.rows(0, "counts"))
        assert len(pages) > 1
        assert keys_of(iter(pages)) == sorted(rows)
        assert b"".join(page.values for page in pages) == b"".join(rows[key] for key in sorted(rows))
        assert len(snapshot.splits(0, "counts", 4)) == 3


def test_depots_are_read_by_offset_and_time(snapshot: Snapshot) -> None:
    assert snapshot.bounds(1, "events") == (0, 200)
    assert snapshot.bounds(1, "nothing") == (0, 0)
    batches = list(snapshot.batches(1, "events", 3, 7))
    assert [(batch.base, batch.end) for batch in batches] == [(2, 4), (4, 6), (6, 8)]
    assert RecordBatch.parse(batches[0].payload).records()[0] == b"3"
    assert len(list(snapshot.batches(1, "events"))) == 100
    assert snapshot.offset_at(1, "events", 50) == 4
    assert snapshot.offset_at(1, "events", 1 << 40) == 200
    sizes = snapshot.sizes()[1]
    assert (sizes.pstates["counts"].rows, sizes.depots["events"].rows) == (100, 100)
    assert sizes.pstates["counts"].bytes > 0


def test_two_readers_of_one_process_share_a_file(folder: Path) -> None:
    with open_snapshot(folder) as one:
        rows = keys_of(one.rows(0, "counts"))
        with open_snapshot(folder) as other:
            assert keys_of(other.rows(0, "counts")) == rows
        assert keys_of(one.rows(0, "counts")) == rows


def test_a_whole_snapshot_is_found_good(folder: Path) -> None:
    told: list[int] = []
    verdict = check(folder, told.append)
    assert verdict.is_good, verdict
    assert sum(told) == read_manifest(folder).size_bytes


def spoilt_byte(folder: Path) -> None:
    path = file_of(folder, TaskId(1))
    content = bytearray(path.read_bytes())
    content[content.index(b"x" * 50)] ^= 1
    path.write_bytes(content)


def cut_short(folder: Path) -> None:
    path = file_of(folder, TaskId(1))
    path.write_bytes(path.read_bytes()[:-1])


def gone(folder: Path) -> None:
    file_of(folder, TaskId(1)).unlink()


def swapped(folder: Path) -> None:
    one, other = file_of(folder, TaskId(0)), file_of(folder, TaskId(1))
    one.rename(folder / "aside")
    other.rename(one)
    (folder / "aside").rename(other)


def other_code(folder: Path) -> None:
    (folder / ARTIFACT).write_bytes(b"something else")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (spoilt_byte, "task 1: its hash is not that of the manifest"),
        (cut_short, "task 1: it has"),
        (gone, "task 1: its file is missing"),
        (swapped, "task 0: "),
        (other_code, "is not the code of bank any more"),
    ],
)
def test_damage_is_told(folder: Path, spoil: object, problem: str) -> None:
    assert callable(spoil)
    spoil(folder)
    verdict = check(folder)
    assert not verdict.is_good
    assert any(problem in each for each in verdict.all_problems), verdict.all_problems


def test_contents_that_the_replicas_did_not_hold_are_told(folder: Path) -> None:
    manifest = read_manifest(folder)
    first = msgspec.structs.replace(manifest.tasks[0], digest="0" * 32)
    (folder / MANIFEST).write_bytes(
        msgspec.json.encode(msgspec.structs.replace(manifest, tasks=(first, *manifest.tasks[1:])).sealed())
    )
    assert check(folder).all_problems == ("task 0: it holds something else than the replicas did",)


def test_a_folder_without_a_manifest_is_no_snapshot(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    with pytest.raises(SnapshotDamaged, match="no snapshot"):
        open_snapshot(folder)
    with pytest.raises(SnapshotDamaged, match="no snapshot"):
        open_snapshot(folder / "nowhere")


def test_a_manifest_of_another_version_or_that_was_edited_is_refused(folder: Path) -> None:
    content = (folder / MANIFEST).read_bytes()
    (folder / MANIFEST).write_bytes(content.replace(b'"format_version": 1', b'"format_version": 2'))
    with pytest.raises(SnapshotDamaged, match="format version 2, this release reads 1"):
        open_snapshot(folder)
    (folder / MANIFEST).write_bytes(content.replace(b'"bank"', b'"tank"'))
    with pytest.raises(SnapshotDamaged, match="checksum"):
        open_snapshot(folder)
    (folder / MANIFEST).write_bytes(content[:-5])
    with pytest.raises(SnapshotDamaged, match="damaged"):
        open_snapshot(folder)


def test_a_manifest_says_enough_to_launch_the_module(folder: Path) -> None:
    manifest: Manifest = read_manifest(folder)
    declared = manifest.module_manifest
    assert (declared.name, declared.entry, declared.depots) == ("bank", "module:Bank", manifest.depots)
    with open_snapshot(folder) as snapshot:
        assert (snapshot.description.tasks, snapshot.description.version) == (2, manifest.version)
        assert snapshot.description.depots == manifest.depots
