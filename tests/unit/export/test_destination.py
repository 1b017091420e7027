"""The folder of an export is always one whole export, whenever whoever writes the next one dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from pathlib import Path
from unittest import mock

import pytest

from stretto.errors import StrettoError, UsageError
from stretto.export import destination as subject
from stretto.export.destination import Destination
from stretto.export.manifest import INSIDE, SUFFIX, Manifest, Part, TaskRead, decode, encode
from tests.support.syncs import RecordedSyncs


def write(tree: Path, **files: str) -> tuple[str, ...]:
    for name, text in files.items():
        path = tree / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tuple(f"{name}.csv" for name in files)


def manifest(*files: str, end: int = 0) -> Manifest:
    part = Part(
        id="p",
        time="t",
        rows=1,
        bytes=1,
        files=files,
        tasks=(TaskRead(task=0, apply_offset=9, start=0, end=end),),
    )
    return Manifest(module="M", object="events", kind="depot", format="csv", schema={}, rows=1, parts=(part,))


def export(folder: Path, **files: str) -> None:
    to = Destination(folder)
    with to.locked():
        to.publish(manifest(*write(to.tree, **files)))


def seen(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_an_export_takes_the_place_of_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "out"
    export(folder, one="1")
    assert seen(folder) == {"one.csv": "1"}
    export(folder, two="2")
    assert seen(folder) == {"two.csv": "2"}
    assert sorted(os.listdir(folder.parent)) == ["out", f"out{SUFFIX}"]


def test_the_manifest_is_beside_the_folder_and_one_of_before_is_understood_and_goes(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write(folder, one="1")
    (folder / INSIDE).write_bytes(encode(manifest("one.csv", end=7)))
    to = Destination(folder)
    with to.locked():
        kept = to.present()
        assert kept is not None
        assert kept.ends == {0: 7}
        to.publish(kept.continued(manifest(*write(to.tree, two="2"), end=9)), kept)
    assert seen(folder) == {"one.csv": "1", "two.csv": "2"}
    told = decode((tmp_path / f"out{SUFFIX}").read_bytes(), "")
    assert (told.files, told.ends) == ({"one.csv", "two.csv"}, {0: 9})
    write(folder, three="3")
    (folder / INSIDE).write_bytes(encode(manifest("one.csv", "two.csv", "three.csv", end=11)))
    again = Destination(folder).present()
    assert again is not None
    assert again.ends == {0: 11}, "an earlier release has written here since"


def test_an_export_whose_files_were_deleted_begins_anew_and_one_that_never_had_any_goes_on(
    tmp_path: Path,
) -> None:
    export(tmp_path / "gone", one="1")
    (tmp_path / "gone" / "one.csv").unlink()
    assert Destination(tmp_path / "gone").present() is None
    empty = Destination(tmp_path / "empty")
    with empty.locked():
        empty.publish(manifest(end=5))
        found = empty.present()
    assert found is not None
    assert found.ends == {0: 5}


def test_what_is_kept_stays_the_same_file(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export(folder, **{"_task=0/one": "1"})
    before = (folder / "_task=0/one.csv").stat().st_ino
    to = Destination(folder)
    with to.locked():
        kept = to.present()
        assert kept is not None
        to.publish(kept.continued(manifest(*write(to.tree, **{"_task=1/two": "2"}))), kept)
        whole = to.present()
    assert whole is not None
    assert whole.files == {"_task=0/one.csv", "_task=1/two.csv"}
    assert (folder / "_task=0/one.csv").stat().st_ino == before


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("can_exchange", [True, False])
def test_all_of_an_export_is_on_disk_before_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool, is_first: bool
) -> None:
    """Else a power loss leaves the name of an export whose files are empty, and the one before is gone."""
    folder = tmp_path / "out"
    if not is_first:
        export(folder, **{"_task=0/one": "1"})
    exchange, rename = subject._exchange, os.rename
    seen_at: list[list[str]] = []

    def publishing(tree: Path) -> None:
        seen_at.append([path.name for path in syncs.lacks(tree)])

    def recorded_exchange(one: Path, other: Path) -> bool:
        publishing(one)
        return can_exchange and exchange(one, other)

    def recorded_rename(old: Path, new: Path) -> None:
        if Path(new) == folder:
            publishing(old)
        rename(old, new)

    monkeypatch.setattr(subject, "_exchange", recorded_exchange)
    monkeypatch.setattr(os, "rename", recorded_rename)
    syncs = RecordedSyncs(monkeypatch)
    export(folder, **{"_task=0/two": "2", "_task=1/three": "3"})
    assert seen_at
    assert not any(seen_at)
    assert syncs.count(tmp_path) == 1, "the name of the export"


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("dies_at", range(11))
def test_who_is_killed_while_it_publishes_leaves_a_whole_export(
    tmp_path: Path, dies_at: int, can_exchange: bool
) -> None:
    folder = tmp_path / "out"
    export(folder, one="1")
    export_and_die(folder, dies_at, can_exchange)
    to = Destination(folder)
    with to.locked():
        found = to.present()
        assert found is not None
        assert seen(folder) in ({"one.csv": "1"}, {"two.csv": "2"})
        assert found.files == set(seen(folder))
    assert sorted(os.listdir(tmp_path)) == ["out", f"out{SUFFIX}"]
    export(folder, three="3")
    assert seen(folder) == {"three.csv": "3"}


def export_and_die(folder: Path, at: int, can_exchange: bool) -> None:
    """Before its ``at``-th rename or sync, of the folder or the manifest."""

    def body() -> None:
        steps = iter(range(100))

        def dying(function: object) -> object:
            def step(*args: object) -> object:
                if next(steps) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args)  # type: ignore[operator]

            return step

        exchange = subject._exchange if can_exchange else lambda *_: False
        with (
            mock.patch.object(subject, "_sync", dying(subject._sync)),
            mock.patch.object(subject, "_exchange", dying(exchange)),
            mock.patch.object(Path, "rename", dying(Path.rename)),
            mock.patch.object(os, "replace", dying(os.replace)),
        ):
            export(folder, two="2")

    process = multiprocessing.get_context("fork").Process(target=body)
    with warnings.catch_warnings():
        # From Python 3.12 on, a process that has threads is warned of forking; this child takes no locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    process.join()


def test_two_exports_to_one_folder_do_not_meet(tmp_path: Path) -> None:
    with (
        Destination(tmp_path / "out").locked(),
        pytest.raises(StrettoError, match="another export writes"),
        Destination(tmp_path / "out").locked(),
    ):
        pass


def test_what_no_export_wrote_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is no export"):
        Destination(tmp_path / "mine").present()
    with pytest.raises(UsageError, match="is a file"):
        Destination(tmp_path / "file").present()
    export(tmp_path / "out", one="1")
    (tmp_path / "out" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match=r"letter\.txt was not written by an export"):
        Destination(tmp_path / "out").present()


def test_an_export_that_lacks_a_file_or_is_damaged_is_not_built_upon(tmp_path: Path) -> None:
    export(tmp_path / "out", one="1", two="2")
    (tmp_path / "out" / "one.csv").unlink()
    with pytest.raises(StrettoError, match=r"one\.csv is missing"):
        Destination(tmp_path / "out").present()
    for text, why in (("{", "is damaged"), ('{"version": 99}', "is of format 99")):
        (tmp_path / f"out{SUFFIX}").write_text(text)
        with pytest.raises(StrettoError, match=why):
            Destination(tmp_path / "out").present()
