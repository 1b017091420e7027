"""Which snapshots of a module go, and how their files do: the manifest first, so that what is half deleted is
no snapshot any more. Under another name it stays until the end, and says what the rest belongs to."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from stretto.control import SnapshotView
from stretto.errors import StrettoError
from stretto.snapshot.manifest import MANIFEST, SnapshotDamaged, read_manifest, sync_folder
from stretto.snapshot.unfinished import CREATING, note_suffix

DELETED = f"{MANIFEST}.deleted"


def too_many(snapshots: Sequence[SnapshotView], keep: int) -> list[SnapshotView]:
    """The oldest complete snapshots beyond the ``keep`` newest; none with 0, which keeps all."""
    complete = sorted(
        (each for each in snapshots if each.state == "complete"), key=lambda each: (each.at_ms, each.name)
    )
    return complete[: max(0, len(complete) - keep)] if keep else []


def delete_files(snapshot: SnapshotView) -> None:
    """Delete the files of a snapshot.

    Raises StrettoError if its folder is not there, or does not say that it is this snapshot.
    """
    folder = Path(snapshot.folder)
    forget = f"'stretto snapshot delete {snapshot.module} {snapshot.name} --forget' strikes it off the list"
    if not folder.is_dir():
        raise StrettoError(
            f"{folder} is not there, as seen from here; delete it where it is visible, or {forget}"
        )
    if not _is_of(folder, snapshot):
        raise StrettoError(
            f"no manifest in {folder} says that it is snapshot {snapshot.name} of {snapshot.module}, so it "
            f"stays; look at it, delete it yourself if it is to go, and {forget}"
        )
    if (folder / MANIFEST).exists():
        # No snapshot any more, and still known for what it was if this is interrupted.
        (folder / MANIFEST).rename(folder / DELETED)
        sync_folder(folder)
    says = {folder / DELETED, folder / CREATING}
    for path in set(folder.iterdir()) - says:
        _remove(path)
    for path in says:
        path.unlink(missing_ok=True)
    folder.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _is_of(folder: Path, snapshot: SnapshotView) -> bool:
    """Whether a folder says itself that it is this snapshot.

    By a manifest, also that of a deletion that was interrupted, or by the note of a creation that was never
    finished. What a folder looks like says nothing: the loss would be somebody else's.
    """
    for name in (MANIFEST, DELETED):
        try:
            manifest = read_manifest(folder, name)
        except SnapshotDamaged:
            continue
        return (manifest.module, manifest.name) == (snapshot.module, snapshot.name)
    if not any(folder.iterdir()):
        return True
    try:
        note = (folder / CREATING).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return note.endswith(note_suffix(snapshot.module, snapshot.name))
