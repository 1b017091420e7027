"""Record batches: what a client packs, a DEPOT entry carries, a depot stores and a reader unpacks.

A batch travels from the producer to the depots of all replicas as the same bytes; whoever only passes it
on looks at its head at most, and whoever reads it slices views. Layout, little-endian::

    version u8   name length u8   flags u16 (0)   count u32   name   count lengths u32   data

The records lie one after the other in ``data``. The lengths are in one block, so that they are summed,
sliced and written by code that runs once per batch and not once per record; their sum must be the
length of ``data``, which makes every slice that they imply lie within it.

:func:`head` is the cheap look (depot and count) of who trusts the batch; :meth:`RecordBatch.parse` checks
all of it and belongs where a batch enters from outside.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NewType

import msgspec

from stretto.errors import PeerError, UsageError
from stretto.vocabulary.invariants import check
from stretto.vocabulary.types import Buffer

check(sys.byteorder == "little", "record lengths are read in place, which needs a little-endian machine")

DepotOffset = NewType("DepotOffset", int)
"""Position of a record in a depot of one task. Not a replog offset."""

BATCH_VERSION = 1

RECORD_BYTES_MAX = 8 * 1024 * 1024
BATCH_BYTES_MAX = 32 * 1024 * 1024
"""Size of a whole batch, with its lengths, which is the payload of one frame and is held in memory."""
DEPOT_NAME_BYTES_MAX = 255

_HEAD = struct.Struct("<BBHI")
_HEAD_BYTES = _HEAD.size
_LENGTH_BYTES = 4
_SPLIT_AT_ONCE_MAX = 4096


def pack(depot: str, records: Sequence[bytes]) -> bytes:
    """Pack records into a batch. Raises UsageError beyond a limit."""
    lengths = array("I", map(len, records))
    head_ = _checked_head(depot, lengths, sum(lengths))
    return b"".join((head_, lengths, *records))


def pack_joined(depot: str, lengths: array[int], data: Buffer | bytearray) -> bytes:
    """Pack records that lie one after the other in ``data``; ``lengths`` is an ``array("I")``."""
    if lengths.typecode != "I":
        raise UsageError(f"lengths are an array of type 'I', not '{lengths.typecode}'")
    total = sum(lengths)
    if total != len(data):
        raise UsageError(f"the lengths add up to {total} bytes, but there are {len(data)}")
    return b"".join((_checked_head(depot, lengths, total), lengths, data))


def head(batch: Buffer) -> tuple[str, int]:
    """Depot and count of a batch that was checked before."""
    if len(batch) < _HEAD_BYTES:
        raise PeerError(f"a record batch of {len(batch)} bytes is cut short")
    version, name_bytes, flags, count = _HEAD.unpack_from(batch)
    if version != BATCH_VERSION or flags:
        raise PeerError(f"a record batch of version {version} with flags {flags} is not known here")
    if count == 0:
        raise PeerError("a record batch holds no record")
    name_end = _HEAD_BYTES + name_bytes
    if len(batch) < name_end:
        raise PeerError(f"a record batch of {len(batch)} bytes is cut short")
    return _depot(bytes(batch[_HEAD_BYTES:name_end])), count


class RecordBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch, or some consecutive records of one, as views of the buffer it came in."""

    depot: str
    lengths: memoryview
    """The length of each record, in format ``I``."""
    data: memoryview
    """The records, one after the other."""

    @classmethod
    def parse(cls, buffer: Buffer) -> RecordBatch:
        """Parse a batch without copying; raises PeerError if the buffer is anything but one whole batch."""
        if len(buffer) > BATCH_BYTES_MAX:
            raise PeerError(f"a record batch of {len(buffer)} bytes is beyond the limit of {BATCH_BYTES_MAX}")
        depot, count = head(buffer)
        view = memoryview(buffer)
        lengths_at = _HEAD_BYTES + view[1]
        data_at = lengths_at + count * _LENGTH_BYTES
        if data_at > len(view):
            raise PeerError(f"a record batch of {count} records is cut short at {len(view)} bytes")
        lengths = view[lengths_at:data_at].cast("I")
        data = view[data_at:]
        total = _total(lengths)
        if total != len(data):
            raise PeerError(f"the records of a batch add up to {total} bytes, but there are {len(data)}")
        if total > RECORD_BYTES_MAX and max(lengths) > RECORD_BYTES_MAX:
            raise PeerError(f"a record of {max(lengths)} bytes is beyond the limit of {RECORD_BYTES_MAX}")
        return cls(depot, lengths, data)

    @property
    def count(self) -> int:
        return len(self.lengths)

    def slice(self, start: int, stop: int) -> RecordBatch:
        """The records ``[start, stop)``, as views; the others are not touched."""
        if not 0 <= start < stop <= self.count:
            raise UsageError(f"[{start}, {stop}) is not within the {self.count} records of a batch")
        lengths = self.lengths[start:stop]
        begin = _total(self.lengths[:start])
        return RecordBatch(self.depot, lengths, self.data[begin : begin + _total(lengths)])

    def records(self) -> list[bytes]:
        """Every record as an object of its own: for a reader that uses each of them."""
        data = bytes(self.data)
        length = _common_length(self.lengths)
        if length is not None and self.count <= _SPLIT_AT_ONCE_MAX:
            return list(_splitter(length, self.count).unpack(data))
        ends = list(accumulate(self.lengths))
        return [data[start:end] for start, end in zip((0, *ends), ends, strict=False)]

    def pack(self) -> bytes:
        """Pack the batch into bytes of its own, for a slice that goes on alone."""
        return pack_joined(self.depot, array("I", self.lengths), self.data)


def check_depot_name(depot: str) -> str:
    """Return a name that a depot may have; raises UsageError for any other."""
    size = len(depot.encode())
    if not 0 < size <= DEPOT_NAME_BYTES_MAX:
        raise UsageError(f"a depot name has 1 to {DEPOT_NAME_BYTES_MAX} bytes, not {size}")
    if not depot.isprintable():
        raise UsageError(f"a depot name has printable characters only, unlike {depot!r}")
    return depot


def _checked_head(depot: str, lengths: array[int], total: int) -> bytes:
    count = len(lengths)
    if count == 0:
        raise UsageError("a batch holds at least one record")
    if total > RECORD_BYTES_MAX and (longest := max(lengths)) > RECORD_BYTES_MAX:
        raise UsageError(f"a record of {longest} bytes is beyond the limit of {RECORD_BYTES_MAX}")
    head_ = _head_of(depot, count)
    size = len(head_) + count * _LENGTH_BYTES + total
    if size > BATCH_BYTES_MAX:
        raise UsageError(f"a batch of {size} bytes is beyond the limit of {BATCH_BYTES_MAX}; split it")
    return head_


def _common_length(lengths: memoryview) -> int | None:
    """The length of every record, if it is one. Records of one size are common, and cheap to recognize."""
    raw = bytes(lengths)
    first = raw[:_LENGTH_BYTES]
    return lengths[0] if raw == first * len(lengths) else None


def _total(lengths: memoryview) -> int:
    if not lengths:
        return 0
    length = _common_length(lengths)
    return sum(lengths) if length is None else length * len(lengths)


@lru_cache(maxsize=1024)
def _head_of(depot: str, count: int) -> bytes:
    name = check_depot_name(depot).encode()
    return _HEAD.pack(BATCH_VERSION, len(name), 0, count) + name


@lru_cache(maxsize=1024)
def _depot(name: bytes) -> str:
    try:
        return check_depot_name(name.decode())
    except (UsageError, UnicodeDecodeError) as error:
        raise PeerError(f"a record batch names no depot: {error}") from None


@lru_cache(maxsize=16)
def _splitter(length: int, count: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * count)
