"""The PStates of one task, each a database of the task's file whose rows are those of :mod:`stretto.pstate`.

Nothing here knows what the rows mean, except that keys are paths of :mod:`stretto.pstate.ordered` keys.

Deleting a range takes as long as it has rows, in the transaction of its batch, but little memory: LMDB reuses
the pages that it empties for those that it copies next. All of a PState is dropped at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stretto.pstate.changes import Changes
from stretto.pstate.ordered import EVERYTHING, KEY_BYTES_MAX
from stretto.pstate.tree import Row
from stretto.vocabulary.types import Offset

if TYPE_CHECKING:
    from stretto.state.environment import Database, ReadTransaction, WriteTransaction

PREFIX = "pstate/"
"""Prefix of the names of the databases that are PStates."""


def apply(txn: WriteTransaction, database: Database, changes: Changes) -> None:
    """Make the changes of an entry in a PState's database."""
    for start, end in changes.ranges:
        if (start, end) == EVERYTHING:
            txn.drop(database, delete=False)
        else:
            _delete_range(txn, database, start, end)
    for key in changes.deletes:
        txn.delete(key, db=database)
    if changes.puts:
        txn.cursor(database).putmulti(changes.puts)


def _delete_range(txn: WriteTransaction, database: Database, start: bytes, end: bytes) -> None:
    cursor = txn.cursor(database)
    found = cursor.set_range(start)
    while found and cursor.key() < end:
        cursor.delete()
        found = bool(cursor.key())


class StoredRows:
    """Rows of a PState as applied, as of a transaction: the lowest of the layers that a batch sees."""

    def __init__(self, txn: ReadTransaction, database: Database, applied: Offset = Offset(0)) -> None:
        self._txn = txn
        #: Applied offset that the task's file has in this transaction.
        self.applied = applied
        self._database = database

    def get(self, key: bytes) -> bytes | None:
        found = self._txn.get(key, db=self._database)
        return None if found is None else bytes(found)

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        cursor = self._txn.cursor(self._database)
        found = cursor.set_range(start) if start else cursor.first()
        while found and (key := bytes(cursor.key())) < end:
            yield key, bytes(cursor.value())
            found = cursor.next()

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        cursor = self._txn.cursor(self._database)
        found = cursor.set_range(start) if start else cursor.first()
        while found and (key := bytes(cursor.key())) < end:
            yield key
            found = cursor.next()

    def last(self, start: bytes, end: bytes) -> bytes | None:
        cursor = self._txn.cursor(self._database)
        # An end may be a byte longer than a key: that behind the longest path.
        found = cursor.prev() if cursor.set_range(end[:KEY_BYTES_MAX]) else cursor.last()
        key = bytes(cursor.key()) if found else b""
        return key if found and key >= start else None


def rows(txn: ReadTransaction, database: Database) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield every row, in order; valid within the transaction."""
    yield from txn.cursor(database)
