"""A depot of one task, as one database of the task's file: batches in the order of their records.

The key of a batch is three big-endian integers, the value is the batch exactly as its producer packed it::

    first record's offset u64   newest timestamp so far u64   timestamp u64   ->   record batch

Keys ascend by offset, so a batch is always put at the end (``append=True``, which keeps pages full).
Timestamps are wall clocks of the leaders of the day and may go back. The *newest so far* never does, and
the first batch with a timestamp of at least ``t`` is also the first one whose newest-so-far reaches
``t``: so reading by time is a binary search over the keys, and needs no second index.

An offset lies in the last batch that starts at or below it; nothing is stored per record. Batches are trimmed
from the front only, and one always stays: the first tells where the depot begins, the last where it goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import lmdb
import msgspec

from stretto.errors import UsageError
from stretto.vocabulary import records
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Buffer

if TYPE_CHECKING:
    from stretto.state.environment import Database, ReadTransaction, WriteTransaction

PREFIX = "depot/"
"""Prefix of the names of the databases that are depots."""

_KEY = struct.Struct(">QQQ")
_OFFSET_END = 1 << 63


class DepotBatch(msgspec.Struct, frozen=True, gc=False):
    """A whole stored batch: records ``[base, end)``."""

    base: DepotOffset
    timestamp_ms: int
    payload: bytes
    """The batch as it was packed; :meth:`stretto.vocabulary.records.RecordBatch.parse` reads it."""

    @property
    def end(self) -> DepotOffset:
        return DepotOffset(self.base + records.head(self.payload)[1])


class DepotSlice(msgspec.Struct, frozen=True, gc=False):
    """What a read got: records ``[start, end)``, in whole batches.

    The first batch may begin below ``start``: the reader skips what it did not ask for. ``start`` is beyond
    the offset asked for only if the depot no longer has it.
    """

    start: DepotOffset
    end: DepotOffset
    batches: tuple[DepotBatch, ...] = ()


class Depot:
    """The writing end of a depot: where the next batch goes."""

    __slots__ = ("database", "end", "newest_ms")

    def __init__(self, database: Database, end: DepotOffset, newest_ms: int) -> None:
        self.database = database
        #: One beyond the offset of the last record.
        self.end = end
        #: The newest timestamp of any batch.
        self.newest_ms = newest_ms

    @classmethod
    def load(cls, database: Database, txn: WriteTransaction) -> Depot:
        """Find the end of the depot in its database."""
        cursor = txn.cursor(database)
        if not cursor.last():
            return cls(database, DepotOffset(0), 0)
        base, newest_ms, _ = _KEY.unpack(cursor.key())
        return cls(database, DepotOffset(base + records.head(cursor.value())[1]), newest_ms)

    def copy(self) -> Depot:
        return Depot(self.database, self.end, self.newest_ms)

    def append(self, txn: WriteTransaction, batch: Buffer, count: int, timestamp_ms: int) -> None:
        self.newest_ms = max(self.newest_ms, timestamp_ms)
        key = _KEY.pack(self.end, self.newest_ms, timestamp_ms)
        txn.put(key, batch, append=True, db=self.database)
        self.end = DepotOffset(self.end + count)


def read(
    txn: ReadTransaction, database: Database, offset: DepotOffset, *, max_bytes: int, max_records: int
) -> DepotSlice:
    """Read from the batch that holds ``offset``: one batch, and more as long as they fit both limits."""
    if not 0 <= offset < _OFFSET_END:
        raise UsageError(f"{offset} is no offset of a depot; they are from 0 on")
    cursor = txn.cursor(database)
    if not _seek(cursor, offset):
        return DepotSlice(offset, offset)
    start = max(offset, _base(cursor))
    end = start
    batches: list[DepotBatch] = []
    while True:
        base, _, timestamp_ms = _KEY.unpack(cursor.key())
        value = cursor.value()
        batch_end = DepotOffset(base + records.head(value)[1])
        if offset >= batch_end:
            return DepotSlice(offset, offset)
        if batches and (len(value) > max_bytes or batch_end - start > max_records):
            break
        # Copied, so that no transaction has to last as long as its reader.
        batches.append(DepotBatch(DepotOffset(base), timestamp_ms, bytes(value)))
        max_bytes -= len(value)
        end = batch_end
        if max_bytes <= 0 or end - start >= max_records or not cursor.next():
            break
    return DepotSlice(start, end, tuple(batches))


def records_from(
    txn: ReadTransaction, database: Database, offset: DepotOffset, *, max_bytes: int, max_records: int
) -> tuple[DepotOffset, list[Buffer]]:
    """Read records from ``offset`` on, at most so many; also return where they begin.

    That is further if the depot no longer has the record at ``offset``.
    """
    found = read(txn, database, offset, max_bytes=max_bytes, max_records=max_records)
    taken: list[Buffer] = []
    for stored in found.batches:
        batch = records.RecordBatch.parse(stored.payload)
        skipped = max(0, found.start - stored.base)
        end = min(batch.count, skipped + max_records - len(taken))
        if skipped or end < batch.count:
            batch = batch.slice(skipped, end)
        taken += batch.records()
        if len(taken) >= max_records:
            break
    return found.start, taken


def bounds(txn: ReadTransaction, database: Database) -> tuple[DepotOffset, DepotOffset]:
    """First offset of the depot, and one beyond the last."""
    cursor = txn.cursor(database)
    if not cursor.first():
        return DepotOffset(0), DepotOffset(0)
    start = _base(cursor)
    cursor.last()
    return start, DepotOffset(_base(cursor) + records.head(cursor.value())[1])


def trim(txn: WriteTransaction, database: Database, below: DepotOffset) -> None:
    """Delete the batches that end at or below an offset; the last one stays, whatever it is."""
    for key in _whole_below(txn.cursor(database), below):
        txn.delete(key, db=database)


def trim_point(
    txn: ReadTransaction, database: Database, below: DepotOffset, max_batches: int
) -> DepotOffset | None:
    """Where the depot would begin after a trim of so many batches at most; None if there is none to trim."""
    keys = _whole_below(txn.cursor(database), below, max_batches)
    if not keys:
        return None
    cursor = txn.cursor(database)
    cursor.set_range(keys[-1])
    cursor.next()
    return _base(cursor)


def _whole_below(cursor: lmdb.Cursor[Any], below: DepotOffset, max_batches: int | None = None) -> list[bytes]:
    """Keys of batches whose successor begins at or below an offset; values may be large, and stay unread."""
    found: list[bytes] = []
    for key in cursor.iternext(keys=True, values=False):
        if _KEY.unpack(key)[0] > below or (max_batches is not None and len(found) > max_batches):
            break
        found.append(bytes(key))
    return found[:-1]


def offset_at(txn: ReadTransaction, database: Database, timestamp_ms: int) -> DepotOffset:
    """The first offset of the first batch with at least this timestamp; the end if there is none."""
    low, high = bounds(txn, database)
    cursor = txn.cursor(database)
    # Both are starts of batches, or the end. Batches below low are too old, those from high on are not.
    while low < high:
        _seek(cursor, DepotOffset((low + high) // 2))
        base, newest_ms, _ = _KEY.unpack(cursor.key())
        if newest_ms >= timestamp_ms:
            high = DepotOffset(base)
        else:
            low = DepotOffset(base + records.head(cursor.value())[1])
    return high


def batches(txn: ReadTransaction, database: Database) -> Iterator[tuple[int, int, memoryview]]:
    """Base, timestamp and bytes of every batch, in order; valid within the transaction."""
    for key, value in txn.cursor(database):
        base, _, timestamp_ms = _KEY.unpack(key)
        yield base, timestamp_ms, value


def _seek(cursor: lmdb.Cursor[memoryview], offset: DepotOffset) -> bool:
    """Move to the last batch that starts at or below ``offset``, else to the first; False without any."""
    if cursor.set_range(_KEY.pack(offset + 1, 0, 0)):
        return cursor.prev() or cursor.first()
    return cursor.last()


def _base(cursor: lmdb.Cursor[memoryview]) -> DepotOffset:
    return DepotOffset(_KEY.unpack(cursor.key())[0])
