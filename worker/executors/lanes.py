"""What a batch sees in an executor: the task's LMDB file, and the batches of its lane that are not in it yet.

Changes are puts and deletes that were resolved when they were made, so laying one over a file that has it
already is harmless: it is enough to know of a batch *some time* after it was applied, and to begin the
transaction after that.

A lane alone writes its PStates. So what it wrote last under a key is what is there, applied or not, and is
kept (:attr:`_Written.rows`) as long as there is room: hot keys are not looked up in LMDB again.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lmdb

from stretto.module.work import RowsFailed
from stretto.pstate.changes import Changes
from stretto.pstate.overlay import NoRows, Overlay, Rows
from stretto.pstate.tree import Row
from stretto.state.environment import MAP_BYTES, MAX_DBS, map_size_for
from stretto.state.pstate import PREFIX, StoredRows
from stretto.worker.executors.protocol import Lane

if TYPE_CHECKING:
    from stretto.state.environment import Database
    from stretto.vocabulary.types import Epoch, TaskId

KEPT_ROWS_MAX = 200_000
"""How many rows of one PState a lane keeps; beyond it, only what is not applied is kept."""

_MISSING = object()


class TaskFile:
    """The LMDB file of a task, which its worker writes, opened for reading."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        used = os.stat(f"{folder}/data.mdb").st_size
        self._env = lmdb.open(folder, readonly=True, map_size=map_size_for(used, MAP_BYTES), max_dbs=MAX_DBS)
        self._databases: dict[str, Database] = {}

    @contextmanager
    def reading(self, names: Iterable[str]) -> Iterator[lmdb.Transaction[bytes]]:
        """Begin a transaction as of now, in which the databases of these names can be used, if they exist."""
        self._open(names)
        txn = self._begin()
        try:
            yield txn
        finally:
            txn.abort()

    def _open(self, names: Iterable[str]) -> None:
        """Make handles for databases that have none. Only transactions that begin later know a handle; and it
        is made in a transaction of its own, for what a transaction opens goes with it."""
        missing = [name for name in names if name not in self._databases]
        if missing:
            txn = self._begin()
            there = [name for name in missing if txn.get(name.encode()) is not None]
            txn.abort()
            for name in there:
                self._databases[name] = self._env.open_db(name.encode(), create=False)

    def _begin(self) -> lmdb.Transaction[bytes]:
        while True:
            try:
                return self._env.begin()
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)

    def database(self, name: str) -> Database | None:
        """Return the handle of a database that was opened, or None."""
        return self._databases.get(name)

    def close(self) -> None:
        self._env.close()


class _FileRows(StoredRows):
    """Rows of a task's file. A read that LMDB fails raises RowsFailed, so that it is not blamed on the
    module's author."""

    def __init__(self, txn: lmdb.Transaction[bytes], database: Database) -> None:
        super().__init__(txn, database)  # type: ignore[arg-type] # bytes are buffers too

    def get(self, key: bytes) -> bytes | None:
        try:
            return super().get(key)
        except lmdb.Error as error:
            raise RowsFailed(str(error)) from error

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        try:
            yield from super().scan(start, end)
        except lmdb.Error as error:
            raise RowsFailed(str(error)) from error

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        try:
            yield from super().keys(start, end)
        except lmdb.Error as error:
            raise RowsFailed(str(error)) from error

    def last(self, start: bytes, end: bytes) -> bytes | None:
        try:
            return super().last(start, end)
        except lmdb.Error as error:
            raise RowsFailed(str(error)) from error


class _Written:
    """What a lane wrote to one PState."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        #: Batches that are not known to be applied, in their order.
        self.layers: deque[tuple[int, Changes]] = deque()
        #: How many of the layers delete ranges: as long as there are any, ``rows`` does not tell all.
        self.with_ranges = 0

    def add(self, batch: int, changes: Changes) -> None:
        """Add what a batch changed."""
        self.layers.append((batch, changes))
        if changes.ranges:
            self.with_ranges += 1
            self.rows.clear()
        if not self.with_ranges:
            self._keep(changes)

    def applied(self, below: int) -> None:
        """Note that batches below this number are in the file."""
        while self.layers and self.layers[0][0] < below:
            self.with_ranges -= bool(self.layers.popleft()[1].ranges)
            if not self.with_ranges and not self.rows:
                for _, changes in self.layers:
                    self._keep(changes)
        if len(self.rows) > KEPT_ROWS_MAX and not self.with_ranges:
            self.rows.clear()
            for _, changes in self.layers:
                self._keep(changes)

    def _keep(self, changes: Changes) -> None:
        self.rows.update(dict.fromkeys(changes.deletes))
        self.rows.update(changes.puts)

    def over(self, stored: Rows) -> Rows:
        """Return the rows of a file as the lane's next batch sees them."""
        if self.with_ranges:
            return self.overlay(stored)
        return _Kept(self, stored)

    def overlay(self, stored: Rows) -> Rows:
        """Lay the changes of all batches that are not known to be applied over the rows of a file."""
        for _, changes in self.layers:
            over = Overlay(stored)
            over.add(changes)
            stored = over
        return stored


class _Kept:
    """The rows of a file under those that a lane wrote. What is more than one row is merged when it is asked
    for, which is seldom."""

    def __init__(self, written: _Written, stored: Rows) -> None:
        self._rows = written.rows
        self._written = written
        self._stored = stored
        self._merged: Rows | None = None

    def get(self, key: bytes) -> bytes | None:
        found = self._rows.get(key, _MISSING)
        return self._stored.get(key) if found is _MISSING else found  # type: ignore[return-value]

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        return self._whole().scan(start, end)

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        return self._whole().keys(start, end)

    def last(self, start: bytes, end: bytes) -> bytes | None:
        return self._whole().last(start, end)

    def _whole(self) -> Rows:
        if self._merged is None:
            self._merged = self._written.overlay(self._stored)
        return self._merged


class _Open:
    """The lane of a topology on a task that runs now."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.pstates: dict[str, _Written] = {}
        #: The offset where the next run begins, by depot; None if it must not go on.
        self.positions: dict[str, int | None] = {}


class Lanes:
    """The lanes and the files that an executor has open."""

    def __init__(self, pstates: Iterable[str]) -> None:
        """Begin with nothing open; ``pstates`` are those that the module declares."""
        self._names = [PREFIX + name for name in pstates]
        self._files: dict[TaskId, tuple[int, TaskFile]] = {}
        self._lanes: dict[tuple[str, TaskId], _Open] = {}

    @contextmanager
    def batch(
        self, lane: Lane, folder: str, applied: int, *others: str
    ) -> Iterator[tuple[TaskFile, lmdb.Transaction[bytes], Callable[[str], Rows]]]:
        """Open what a lane's next batch sees: the task's file, a transaction on it, and the rows of each
        PState. ``others`` are databases that are needed too."""
        file = self._file(lane.task, lane.epoch, folder)
        written = self._lane(lane).pstates
        for each in written.values():
            each.applied(applied)
        with file.reading([*self._names, *others]) as txn:

            def rows(pstate: str) -> Rows:
                database = file.database(PREFIX + pstate)
                stored = NoRows() if database is None else _FileRows(txn, database)
                mine = written.get(pstate)
                return stored if mine is None else mine.over(stored)

            yield file, txn, rows

    @contextmanager
    def view(self, task: TaskId, epoch: Epoch, folder: str) -> Iterator[Callable[[str], Rows]]:
        """Open the rows of each PState as they are applied now."""
        file = self._file(task, epoch, folder)
        with file.reading(self._names) as txn:

            def rows(pstate: str) -> Rows:
                database = file.database(PREFIX + pstate)
                return NoRows() if database is None else _FileRows(txn, database)

            yield rows

    def positions(self, lane: Lane) -> dict[str, int | None]:
        """Return the offsets where a lane's next runs begin, by depot."""
        return self._lane(lane).positions

    def ran(self, lane: Lane, batch: int, changes: Mapping[str, Changes]) -> None:
        """Keep what a batch changed, for the batches after it."""
        written = self._lane(lane).pstates
        for name, each in changes.items():
            written.setdefault(name, _Written()).add(batch, each)

    def forget(self, task: TaskId, topology: str | None) -> None:
        """Forget the lanes of a topology on a task; without a topology, all lanes on it and its file."""
        for key in [key for key in self._lanes if key[1] == task and topology in (None, key[0])]:
            del self._lanes[key]
        if topology is None and task in self._files:
            self._files.pop(task)[1].close()

    def _lane(self, lane: Lane) -> _Open:
        key = (lane.topology, lane.task)
        found = self._lanes.get(key)
        if found is None or found.lane != lane:
            found = self._lanes[key] = _Open(lane)
        return found

    def _file(self, task: TaskId, epoch: Epoch, folder: str) -> TaskFile:
        """Return a task's file, opened anew in each epoch: there may be another one in its place, if a
        leader's state was installed."""
        opened = self._files.get(task)
        if opened is not None and (opened[0], opened[1].folder) == (epoch, folder):
            return opened[1]
        if opened is not None:
            del self._files[task]
            opened[1].close()
        file = TaskFile(folder)
        self._files[task] = (epoch, file)
        return file
