"""The first state of a replica, made of a snapshot: every replica of a group begins with the same files.

The log of such a group begins at an offset above 0, that of the furthest of its tasks, and what is below it
is epoch 0, which no leader ever had. So a replica that comes later with nothing is below that log, and takes
the leader's state; and one that begins with the snapshot is where the others began.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from stretto.errors import StrettoError
from stretto.snapshot.manifest import (
    Manifest,
    SnapshotDamaged,
    StoredTask,
    file_of,
    read_manifest,
    sync_folder,
)
from stretto.specs.modules import RestoredFrom
from stretto.state.task_seed import make_seed
from stretto.vocabulary.types import Offset, TaskId

_PIECE_BYTES = 1 << 20


def why_unseen(folder: Path, checksum: str) -> str:
    """Why the files of a snapshot cannot be taken from here; empty if they can."""
    try:
        manifest = read_manifest(folder)
        if manifest.checksum != checksum:
            return f"there is another snapshot in {folder}"
        for stored in manifest.tasks:
            size = file_of(folder, stored.task).stat().st_size
            if size != stored.size_bytes:
                return f"{file_of(folder, stored.task)} has {size:,} bytes, not {stored.size_bytes:,}"
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    except StrettoError as error:
        return str(error)
    return ""


def stage(restored: RestoredFrom, tasks: Sequence[TaskId], state: Path) -> Offset:
    """Write the files of a group into a folder, durably; returns the offset at which its log begins.

    Raises SnapshotDamaged, or OSError.
    """
    folder = Path(restored.folder)
    manifest = read_manifest(folder)
    if manifest.checksum != restored.checksum:
        raise SnapshotDamaged(f"{folder} is not the snapshot that was to be restored; put that one there")
    stored = _chosen(manifest, tasks)
    shutil.rmtree(state, ignore_errors=True)
    for each in stored:
        own = state / f"task-{each.task}"
        own.mkdir(parents=True)
        _copy(file_of(folder, each.task), own / "data.mdb", each)
        sync_folder(own)
    end = Offset(max(each.offset for each in stored))
    make_seed({each.task: state / f"task-{each.task}" for each in stored}, end)
    sync_folder(state)
    return end


def _chosen(manifest: Manifest, tasks: Sequence[TaskId]) -> list[StoredTask]:
    by_task = {each.task: each for each in manifest.tasks}
    missing = [task for task in tasks if task not in by_task]
    if missing:
        raise SnapshotDamaged(f"the snapshot {manifest.name} of {manifest.module} has no task {missing[0]}")
    return [by_task[task] for task in tasks]


def _copy(source: Path, target: Path, stored: StoredTask) -> None:
    digest = hashlib.sha256()
    with source.open("rb", buffering=0) as reading, target.open("xb", buffering=0) as writing:
        while piece := reading.read(_PIECE_BYTES):
            digest.update(piece)
            writing.write(piece)
        os.fsync(writing.fileno())
    if digest.hexdigest() != stored.sha256:
        raise SnapshotDamaged(
            f"{source} is damaged: its hash is not that of the manifest; use another snapshot"
        )
