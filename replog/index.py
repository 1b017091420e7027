"""Where in a segment an offset lies, to within a few kilobytes.

The index is sparse: one entry per ``interval_bytes`` of segment, each the exact start of a frame; a
reader steps over the frames in between by their headers. The active segment's index lives in memory
and is rebuilt by the scan at open. A sealed segment never changes again, so its index is also
written beside it, together with everything else that a scan would find out (its end and the epochs
that begin in it): opening a log then costs one small read per sealed segment.

The file is a cache. It is written without waiting for the disk, and believed only if its checksum
is right and it describes a segment of exactly the size found; otherwise the segment is scanned.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right

from crc32c import crc32c

from stretto.replog.epochs import History
from stretto.replog.storage import EpochStart
from stretto.vocabulary.types import Epoch, Offset

_MAGIC = b"strIDX\x01\n"
# magic, base, size in bytes of the segment, end offset, index entries, epochs
_PREFIX = struct.Struct("<8sQQQII")
_CRC = struct.Struct("<I")


class SparseIndex:
    """Offsets and positions of some frames of one segment, ascending."""

    __slots__ = ("_interval_bytes", "_next_position", "offsets", "positions")

    def __init__(self, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self._next_position = 0
        self.offsets = array("Q")
        self.positions = array("Q")

    def add(self, offset: Offset, position: int) -> None:
        """Offer a frame; kept if it lies far enough from the one before."""
        if position >= self._next_position:
            # In this order: a reader on another thread must find a position for every offset it sees.
            self.positions.append(position)
            self.offsets.append(offset)
            self._next_position = position + self._interval_bytes

    def floor(self, offset: Offset) -> tuple[Offset, int]:
        """The nearest indexed frame at or below ``offset``."""
        at = bisect_right(self.offsets, offset) - 1
        return Offset(self.offsets[at]), self.positions[at]

    def truncate(self, end: Offset) -> None:
        """Forget frames from ``end`` on."""
        keep = bisect_right(self.offsets, end - 1)
        del self.offsets[keep:]
        del self.positions[keep:]
        self._next_position = self.positions[-1] + self._interval_bytes if keep else 0


class SealedIndex:
    """Content of the index file of a sealed segment."""

    __slots__ = ("end", "epochs", "index")

    def __init__(self, end: Offset, epochs: History, index: SparseIndex) -> None:
        self.end = end
        self.epochs = epochs
        self.index = index


def encode_index(base: Offset, size: int, end: Offset, epochs: History, index: SparseIndex) -> bytes:
    flat_epochs = array("Q", [number for entry in epochs for number in (entry.epoch, entry.start)])
    body = b"".join(
        (
            _PREFIX.pack(_MAGIC, base, size, end, len(index.offsets), len(epochs)),
            _little_endian(index.offsets),
            _little_endian(index.positions),
            _little_endian(flat_epochs),
        )
    )
    return body + _CRC.pack(crc32c(body))


def decode_index(data: bytes, base: Offset, size: int, interval_bytes: int) -> SealedIndex | None:
    """Decode an index file; None unless ``data`` is a whole index of the segment with that base and size."""
    if len(data) < _PREFIX.size + _CRC.size:
        return None
    body = memoryview(data)[: -_CRC.size]
    if crc32c(body) != _CRC.unpack_from(data, len(body))[0]:
        return None
    magic, its_base, its_size, end, entries, epoch_count = _PREFIX.unpack_from(body)
    if magic != _MAGIC or its_base != base or its_size != size:
        return None
    if len(body) != _PREFIX.size + 8 * (2 * entries + 2 * epoch_count):
        return None
    numbers = array("Q", bytes(body[_PREFIX.size :]))
    if sys.byteorder == "big":
        numbers.byteswap()
    index = SparseIndex(interval_bytes)
    index.offsets = numbers[:entries]
    index.positions = numbers[entries : 2 * entries]
    pairs = iter(numbers[2 * entries :])
    epochs = tuple(EpochStart(Epoch(epoch), Offset(start)) for epoch, start in zip(pairs, pairs, strict=True))
    return SealedIndex(Offset(end), epochs, index)


def _little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = array("Q", numbers)
        numbers.byteswap()
    return numbers.tobytes()
