"""Which snapshots of a module go, and how their files do: the manifest first, so that what is half deleted is
no snapshot any more."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from stretto.admin import SnapshotView
from stretto.errors import StrettoError
from stretto.snapshot.manifest import MANIFEST, SnapshotDamaged, read_manifest, sync_folder
from stretto.worker.snapshots import CREATING


def too_many(snapshots: Sequence[SnapshotView], keep: int) -> list[SnapshotView]:
    """The oldest of the complete ones beyond so many; none with 0, which keeps all."""
    complete = sorted(
        (each for each in snapshots if each.state == "complete"), key=lambda each: (each.at_ms, each.name)
    )
    return complete[: max(0, len(complete) - keep)] if keep else []


def delete_files(snapshot: SnapshotView) -> None:
    """Raises StrettoError if its folder is not there, or holds something else."""
    folder = Path(snapshot.folder)
    forget = f"'stretto snapshot delete {snapshot.module} {snapshot.name} --forget' strikes it off the list"
    if not folder.is_dir():
        raise StrettoError(
            f"{folder} is not there, as seen from here; delete it where it is visible, or {forget}"
        )
    if not _is_of(folder, snapshot):
        raise StrettoError(f"{folder} holds something else than snapshot {snapshot.name}; {forget}")
    (folder / MANIFEST).unlink(missing_ok=True)
    sync_folder(folder)
    shutil.rmtree(folder)


def _is_of(folder: Path, snapshot: SnapshotView) -> bool:
    """Whole, damaged, or never finished; but nobody else's."""
    try:
        manifest = read_manifest(folder)
    except SnapshotDamaged:
        names = {path.name for path in folder.iterdir()}
        known = {MANIFEST, f"{MANIFEST}.tmp", "artifact.zip", CREATING}
        return all(name in known or name.startswith("task-") for name in names)
    return (manifest.module, manifest.name) == (snapshot.module, snapshot.name)
