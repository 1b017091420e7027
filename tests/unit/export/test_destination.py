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
from stretto.export.manifest import MANIFEST, Manifest, Part, TaskRead


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
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != MANIFEST}


def test_an_export_takes_the_place_of_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "out"
    export(folder, one="1")
    assert seen(folder) == {"one.csv": "1"}
    export(folder, two="2")
    assert seen(folder) == {"two.csv": "2"}
    assert os.listdir(folder.parent) == ["out"]


def test_what_is_kept_stays_the_same_file(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export(folder, **{"_task=0/one": "1"})
    before = (folder / "_task=0/one.csv").stat().st_ino
    to = Destination(folder)
    with to.locked():
        kept = to.present()
        assert kept is not None
        to.publish(kept.continued(manifest(*write(to.tree, **{"_task=0/two": "2"}))), kept)
        whole = to.present()
    assert whole is not None
    assert whole.files == {"_task=0/one.csv", "_task=0/two.csv"}
    assert (folder / "_task=0/one.csv").stat().st_ino == before


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("dies_at", range(7))
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
    assert os.listdir(tmp_path) == ["out"]
    export(folder, three="3")
    assert seen(folder) == {"three.csv": "3"}


def export_and_die(folder: Path, at: int, can_exchange: bool) -> None:
    """Before its ``at``-th rename or sync."""

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
        (tmp_path / "out" / MANIFEST).write_text(text)
        with pytest.raises(StrettoError, match=why):
            Destination(tmp_path / "out").present()
