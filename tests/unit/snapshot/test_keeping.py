"""What a deletion of a snapshot leaves behind when it is interrupted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stretto.control import SnapshotView
from stretto.snapshot import keeping
from stretto.snapshot.keeping import delete_files
from stretto.snapshot.manifest import MANIFEST, SnapshotDamaged, read_manifest
from tests.unit.snapshot.snapshots import made


def test_what_is_half_deleted_is_no_snapshot_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bank" / "one"
    made(folder, tmp_path / "state")
    view = SnapshotView(
        module="bank", name="one", folder=str(folder), state="complete", at_ms=1, tasks=2, size_bytes=1
    )
    synced: list[list[str]] = []
    monkeypatch.setattr(
        keeping, "sync_folder", lambda folder: synced.append(sorted(path.name for path in folder.iterdir()))
    )

    def interrupted(_: Path) -> None:
        raise OSError("the machine stops")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(OSError, match="the machine stops"):
            delete_files(view)
    assert len(synced) == 1, "the removal of the manifest lasts before anything else is removed"
    assert MANIFEST not in synced[0]
    left = {path.name for path in folder.iterdir()}
    assert set() < left <= set(synced[0])
    with pytest.raises(SnapshotDamaged):
        read_manifest(folder)
    delete_files(view)
    assert not folder.exists()
