"""The file of one task in a snapshot, opened to be read: nobody writes it any more, so it needs no locks.

LMDB allows a process to open a file once only, so all readers of this process share what is opened, and the
last one closes it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from stretto.snapshot.manifest import SnapshotDamaged
from stretto.state import depot as depots
from stretto.state import pstate as pstates
from stretto.state.environment import MAX_DBS, Database, ReadTransaction, StateCorrupt
from stretto.state.task_digest import digest_of
from stretto.state.task_meta import offset_in
from stretto.vocabulary.types import Offset, TaskId

if TYPE_CHECKING:
    from stretto.pstate.btree import Pages

_shared: dict[str, tuple[lmdb.Environment, int]] = {}
_sharing = threading.Lock()


class TaskFile:
    """The file of one task, opened; any thread may read it.

    Raises SnapshotDamaged for what is no such file.
    """

    def __init__(self, path: Path, task: TaskId) -> None:
        self.path = path
        self.task = task
        self._key = str(path.resolve())
        self._is_closed = False
        self._databases: dict[str, Database] = {}
        self._opening = threading.Lock()
        try:
            self._env = _open(self._key)
        except (lmdb.Error, OSError) as error:
            raise self._damaged(error) from error

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            _close(self._key)

    @cached_property
    def pages(self) -> Pages:
        """Pages of the file, to read many rows at once with numpy, which other readers need not load."""
        from stretto.pstate.btree import map_pages  # noqa: PLC0415

        return map_pages(self.path, self._env.stat()["psize"])

    @contextmanager
    def reading(self) -> Iterator[ReadTransaction]:
        """A read transaction whose values are valid within the block only."""
        try:
            with self._env.begin(buffers=True) as txn:
                yield txn
        except lmdb.Error as error:
            raise self._damaged(error) from error

    @contextmanager
    def reading_bytes(self) -> Iterator[lmdb.Transaction[bytes]]:
        """A read transaction whose values may be kept; the block may read pages by itself, too."""
        try:
            with self._env.begin() as txn:
                yield txn
        except (lmdb.Error, IndexError, struct.error) as error:
            # The latter two are what a page that is none looks like.
            raise self._damaged(error) from error

    def names(self) -> list[str]:
        """Names of the databases in the file."""
        try:
            with self._env.begin() as txn:
                return [bytes(name).decode() for name in self._env.dbs(txn)]
        except (lmdb.Error, UnicodeDecodeError) as error:
            raise self._damaged(error) from error

    def database(self, name: str) -> Database | None:
        """Open a database; None if there is none of that name. To be called outside of a transaction."""
        with self._opening:
            found = self._databases.get(name)
            if found is None:
                try:
                    found = self._databases[name] = self._env.open_db(name.encode(), create=False)
                except lmdb.NotFoundError:
                    return None
                except lmdb.Error as error:
                    raise self._damaged(error) from error
            return found

    @property
    def applied(self) -> Offset:
        """Apply offset that the file says of itself; its group may have been further."""
        meta = self._meta()
        with self.reading() as txn:
            try:
                return offset_in(txn, meta, self.task)
            except StateCorrupt as error:
                raise self._damaged(error) from error

    def digest(self) -> str:
        """Digest of what the file holds, as a replica computes it."""
        meta = self._meta()
        names = sorted(self.names())
        databases = {name: self.database(name) for name in names}
        with self.reading() as txn:
            return digest_of(
                txn,
                self.task,
                meta,
                [
                    (name[len(depots.PREFIX) :], found)
                    for name, found in databases.items()
                    if found is not None and name.startswith(depots.PREFIX)
                ],
                [
                    (name[len(pstates.PREFIX) :], found)
                    for name, found in databases.items()
                    if found is not None and name.startswith(pstates.PREFIX)
                ],
            )

    def row(self, pstate: str, key: bytes) -> bytes | None:
        """A value of a PState by its encoded key; None if there is none."""
        database = self.database(pstates.PREFIX + pstate)
        if database is None:
            return None
        with self.reading() as txn:
            found = txn.get(key, db=database)
            return None if found is None else bytes(found)

    def _meta(self) -> Database:
        meta = self.database("meta")
        if meta is None:
            raise self._damaged("it is no state of a task")
        return meta

    def _damaged(self, why: object) -> SnapshotDamaged:
        return SnapshotDamaged(f"{self.path} is damaged ({why}); use another snapshot")


def _open(key: str) -> lmdb.Environment:
    with _sharing:
        found = _shared.get(key)
        if found is None:
            found = (lmdb.open(key, subdir=False, readonly=True, lock=False, max_dbs=MAX_DBS), 0)
        _shared[key] = (found[0], found[1] + 1)
        return found[0]


def _close(key: str) -> None:
    with _sharing:
        environment, users = _shared.pop(key)
        if users > 1:
            _shared[key] = (environment, users - 1)
        else:
            environment.close()
