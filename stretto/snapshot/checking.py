"""Whether a snapshot is what its manifest says: every file's size and hash, the digest of what it holds, and
that all tasks are between the same two microbatches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from stretto.artifact.archive import digest_of
from stretto.errors import StrettoError
from stretto.snapshot.cuts import microbatch_at, why_torn
from stretto.snapshot.manifest import ARTIFACT, Manifest, StoredTask, file_of, read_manifest
from stretto.snapshot.taskfile import TaskFile
from stretto.state.microbatch_entries import DATABASE
from stretto.vocabulary.types import TaskId


class TaskVerdict(msgspec.Struct, frozen=True, kw_only=True):
    task: TaskId
    offset: int
    size_bytes: int
    digest: str
    why: str
    """What is wrong with the task; empty if nothing is."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    module: str
    name: str
    tasks: tuple[TaskVerdict, ...]
    problems: tuple[str, ...]
    """What is wrong with the snapshot as a whole; one sentence each."""

    @property
    def is_good(self) -> bool:
        return not self.problems and not any(task.why for task in self.tasks)

    @property
    def all_problems(self) -> tuple[str, ...]:
        """What is wrong with the whole and with each task; one sentence each."""
        return (*self.problems, *(f"task {task.task}: {task.why}" for task in self.tasks if task.why))


def check(folder: Path, progress: Callable[[int], None] = lambda _: None) -> Verdict:
    """Check a snapshot; raises SnapshotDamaged if it has no manifest that can be read.

    ``progress`` is called with the bytes of each task that was checked.
    """
    manifest = read_manifest(folder)
    tasks = []
    for stored in manifest.tasks:
        tasks.append(check_task(folder, stored))
        progress(stored.size_bytes)
    problems = [_wrong_code(folder, manifest)]
    if not any(task.why for task in tasks):
        problems += [_torn(folder, manifest, topology) for topology in manifest.microbatches]
    return Verdict(
        folder=str(folder),
        module=manifest.module,
        name=manifest.name,
        tasks=tuple(tasks),
        problems=tuple(problem for problem in problems if problem),
    )


def check_task(folder: Path, stored: StoredTask) -> TaskVerdict:
    """Check the file of a task, by its size first, which costs nothing."""
    return TaskVerdict(
        task=stored.task,
        offset=stored.offset,
        size_bytes=stored.size_bytes,
        digest=stored.digest,
        why=_why_wrong(file_of(folder, stored.task), stored),
    )


def _why_wrong(path: Path, stored: StoredTask) -> str:
    try:
        size = path.stat().st_size
        if size != stored.size_bytes:
            return f"it has {size:,} bytes, not {stored.size_bytes:,}"
        if digest_of(path) != stored.sha256:
            return "its hash is not that of the manifest"
        file = TaskFile(path, stored.task)
        try:
            if file.applied > stored.offset:
                return f"it is the state of entry {file.applied}, beyond {stored.offset}"
            if file.digest() != stored.digest:
                return "it holds something else than the replicas did"
        finally:
            file.close()
    except FileNotFoundError:
        return "its file is missing"
    except OSError as error:
        return f"its file cannot be read ({error.strerror})"
    except StrettoError as error:
        return str(error)
    return ""


def _wrong_code(folder: Path, manifest: Manifest) -> str:
    path = folder / ARTIFACT
    try:
        if digest_of(path) == manifest.artifact:
            return ""
    except OSError as error:
        return f"the module's code cannot be read from {path} ({error.strerror})"
    return f"{path} is not the code of {manifest.module} any more"


def _torn(folder: Path, manifest: Manifest, topology: str) -> str:
    cuts = {}
    for stored in manifest.tasks:
        file = TaskFile(file_of(folder, stored.task), stored.task)
        try:
            cuts[stored.task] = microbatch_at(topology, partial(file.row, DATABASE))
        finally:
            file.close()
    return why_torn(topology, cuts)
