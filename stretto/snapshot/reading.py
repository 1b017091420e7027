"""Reading a snapshot, with no cluster at hand: the same calls as a pinned group answers.

``open_snapshot(path)`` reads the manifest alone; the files of tasks are opened when they are first read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Self

from stretto.control import ModuleDescription
from stretto.errors import UsageError
from stretto.pstate.btree import Tree
from stretto.pstate.ordered import EVERYTHING, KEY_BYTES_MAX
from stretto.pstate.pages import Page, read_page
from stretto.snapshot.manifest import Manifest, StoredTask, file_of, read_manifest
from stretto.snapshot.taskfile import TaskFile
from stretto.state import depot as depots
from stretto.state import pstate as pstates
from stretto.state.depot import DepotBatch
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import TaskId
from stretto.wire.scans import OFFSET_END, Size, TaskSizes

BATCHES_BYTES = 4 << 20


def open_snapshot(path: str | PathLike[str]) -> Snapshot:
    """Open the snapshot in a folder, to be closed; raises SnapshotDamaged if none can be read there."""
    folder = Path(path)
    return Snapshot(folder, read_manifest(folder))


class Snapshot:
    """A snapshot opened for reading, safe from any thread.

    It is a :class:`stretto.client.reading.scan.Scan` of all tasks of a module.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._stored = {int(stored.task): stored for stored in manifest.tasks}
        self._files: dict[int, TaskFile] = {}
        self._opening = threading.Lock()

    @property
    def module(self) -> str:
        return self.manifest.module

    @property
    def description(self) -> ModuleDescription:
        """What the module declared when the snapshot was made."""
        manifest = self.manifest
        return ModuleDescription(
            tasks=len(manifest.tasks),
            depots=manifest.depots,
            pstates=manifest.pstates,
            topologies=manifest.topologies,
            queries=manifest.queries,
            version=manifest.version,
            origin=manifest.origin or "",
        )

    @property
    def tasks(self) -> tuple[int, ...]:
        return tuple(sorted(self._stored))

    def apply_offset(self, task: int) -> int:
        """Apply offset of which the task is the state."""
        return int(self.stored(task).offset)

    def rows(
        self, task: int, pstate: str, start: bytes = EVERYTHING[0], end: bytes = EVERYTHING[1]
    ) -> Iterator[Page]:
        """Rows of a PState with keys in ``[start, end)``, ascending; none if it has none on the task."""
        file = self._file(task)
        database = file.database(pstates.PREFIX + pstate)
        if database is None:
            return
        with file.reading_bytes() as txn:
            tree = Tree(txn, pstates.PREFIX + pstate, file.pages)
            cursor = txn.cursor(database)
            start, after, more = start[:KEY_BYTES_MAX], False, True
            while more:
                page, more = tree.read_page(start, end, after=after) or read_page(
                    cursor, start, end, after=after
                )
                if page.count:
                    yield page
                    start, after = page.last_key, True

    def splits(
        self,
        task: int,
        pstate: str,
        parts: int,
        start: bytes = EVERYTHING[0],
        end: bytes = EVERYTHING[1],
    ) -> list[bytes]:
        """At most ``parts - 1`` keys that cut the rows into about equal parts, without reading them."""
        file = self._file(task)
        with file.reading_bytes() as txn:
            return Tree(txn, pstates.PREFIX + pstate, file.pages).splits(parts, start, end)

    def sizes(self) -> dict[int, TaskSizes]:
        """Rows and bytes of each PState and depot, by task."""
        return {task: _sizes(self._file(task)) for task in self.tasks}

    def batches(self, task: int, depot: str, start: int = 0, end: int = OFFSET_END) -> Iterator[DepotBatch]:
        """The stored batches that hold the records ``[start, end)``; the first and the last may hold more."""
        file = self._file(task)
        database = file.database(depots.PREFIX + depot)
        if database is None:
            return
        with file.reading() as txn:
            at = DepotOffset(start)
            while at < end:
                found = depots.read(txn, database, at, max_bytes=BATCHES_BYTES, max_records=end - at)
                if not found.batches:
                    return
                yield from found.batches
                at = found.end

    def bounds(self, task: int, depot: str) -> tuple[int, int]:
        """First offset of a depot on a task, and one beyond the last."""
        file = self._file(task)
        database = file.database(depots.PREFIX + depot)
        if database is None:
            return 0, 0
        with file.reading() as txn:
            return depots.bounds(txn, database)

    def offset_at(self, task: int, depot: str, timestamp_ms: int) -> int:
        """The first offset at or after a time; the end of the depot if there is none."""
        file = self._file(task)
        database = file.database(depots.PREFIX + depot)
        if database is None:
            return 0
        with file.reading() as txn:
            return depots.offset_at(txn, database, timestamp_ms)

    def close(self) -> None:
        with self._opening:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stored(self, task: int) -> StoredTask:
        """What the manifest has of a task. Raises UsageError if it has no such task."""
        found = self._stored.get(task)
        if found is None:
            raise UsageError(f"snapshot {self.manifest.name} of {self.module} has no task {task}")
        return found

    def _file(self, task: int) -> TaskFile:
        stored = self.stored(task)
        with self._opening:
            found = self._files.get(task)
            if found is None:
                found = self._files[task] = TaskFile(file_of(self.folder, TaskId(task)), stored.task)
            return found


def _sizes(file: TaskFile) -> TaskSizes:
    found = TaskSizes(pstates={}, depots={})
    databases = {name: file.database(name) for name in file.names()}
    with file.reading() as txn:
        for name, database in databases.items():
            if database is None:
                continue
            stat = txn.stat(database)
            pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
            size = Size(stat["entries"], pages * stat["psize"])
            for prefix, sizes in ((pstates.PREFIX, found.pstates), (depots.PREFIX, found.depots)):
                if name.startswith(prefix) and size.rows:
                    sizes[name[len(prefix) :]] = size
    return found
