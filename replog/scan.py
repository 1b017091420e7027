"""Telling whole frames, a torn tail, and corruption apart.

A write that was never confirmed may be on disk in part, and is then cut: it is *torn*. Bytes that
were confirmed and have changed since must never be cut, for that would undo an acknowledged append:
they are *corrupt*, and the replica has to be rebuilt from others. A scan reads a segment front to
back, verifies every byte, and decides between the two by where the bytes stop making sense:

=====================================================  =======
at the first position that is no whole frame           verdict
=====================================================  =======
fewer bytes than a header are left                     torn
the header is whole, the frame runs past the end       torn
the header is not, and from its last byte on there     torn
is nothing but zeros up to the end of the file
the header is whole, the body is not, and from the     torn
middle of the trailer on there is nothing but zeros
anything else, or any of this before the last segment  corrupt
=====================================================  =======

File systems may extend a file before its data arrives, hence the zeros. Header and trailer end with
bytes that are never zero, so a frame of full length with one byte changed has a byte that is not
zero where a torn one has only zeros: after a damaged header, the trailer; and at least one of the
trailer's last two bytes otherwise. (A frame that lacks its very last byte *and* was zero-filled is
the same bytes as one whose last byte was changed to zero. It counts as corrupt, the safe reading.)

Offsets that are not contiguous and epochs that go back are corruption too, however well the
checksums match.
"""

from __future__ import annotations

from collections.abc import Iterator

from stretto.errors import StorageCorrupt
from stretto.replog.frame import (
    HEADER_BYTES,
    OVERHEAD_BYTES,
    Damaged,
    Header,
    header_at,
    verify_body,
)
from stretto.replog.storage import File
from stretto.vocabulary.types import Epoch, Offset

_CHUNK_BYTES = 1024 * 1024
_TRAILER_TELLTALE_BYTES = 2
"""Bytes of a trailer by which a torn write is told from corruption: a torn write leaves both zero.

One changed byte cannot make both zero.
"""


class Scan:
    """One pass over the frames of a segment file, from a known position on.

    Iterating yields ``(header, position, size in bytes)`` of each frame. Afterwards ``position`` and
    ``offset`` are the end of the good frames, and ``torn_bytes`` says how much lies behind it, to be
    cut. Raises StorageCorrupt.
    """

    __slots__ = ("_file", "_last", "_name", "_size", "epoch", "offset", "position", "torn_bytes", "why_torn")

    def __init__(
        self, file: File, name: str, *, position: int, offset: Offset, epoch: Epoch, last: bool
    ) -> None:
        self._file = file
        self._name = name
        self._last = last
        self._size = file.size()
        self.position = position
        self.offset = offset
        self.epoch = epoch
        self.torn_bytes = 0
        self.why_torn = ""

    def __iter__(self) -> Iterator[tuple[Header, int, int]]:
        wanted = _CHUNK_BYTES
        while self.position < self._size and not self.torn_bytes:
            chunk_position = self.position
            view = memoryview(self._file.read(chunk_position, wanted))
            available = len(view)
            wanted = _CHUNK_BYTES
            at = 0
            while True:
                left = available - at
                if left < HEADER_BYTES:
                    break
                try:
                    header, length, payload_crc = header_at(view, at)
                except Damaged as damage:
                    self._judge(HEADER_BYTES - 1, damage)
                    break
                size = length + OVERHEAD_BYTES
                if left < size:
                    wanted = max(size, _CHUNK_BYTES)
                    break
                try:
                    verify_body(view, at, length, payload_crc)
                except Damaged as damage:
                    self._judge(size - _TRAILER_TELLTALE_BYTES, damage)
                    break
                if header.offset != self.offset or header.epoch < self.epoch:
                    raise self._does_not_follow(header)
                self.offset = header.end_offset
                self.epoch = header.epoch
                yield header, self.position, size
                at += size
                self.position = chunk_position + at
            if at == 0 and not self.torn_bytes:
                self._ends_inside_frame(available, wanted)

    def _does_not_follow(self, header: Header) -> StorageCorrupt:
        if header.offset != self.offset:
            return self._corrupt(f"the frame here begins at offset {header.offset}")
        return self._corrupt(f"epoch {header.epoch} follows epoch {self.epoch}")

    def _ends_inside_frame(self, available: int, wanted: int) -> None:
        """Take the frame at ``position`` for torn if the file ends inside it, and not just the chunk."""
        left = self._size - self.position
        if available < HEADER_BYTES or wanted > left:
            self._torn(f"the file ends {left} bytes into a frame")

    def _judge(self, telltale: int, damage: Damaged) -> None:
        """Decide whether a bad frame is torn or corrupt: torn if only zeros follow from ``telltale`` on."""
        if not self._only_zeros_from(self.position + telltale):
            raise self._corrupt(str(damage))
        self._torn("the frame runs into zeros")

    def _torn(self, why: str) -> None:
        if not self._last:
            raise self._corrupt(f"{why}, and this is not the last segment")
        self.torn_bytes = self._size - self.position
        self.why_torn = why

    def _only_zeros_from(self, position: int) -> bool:
        while position < self._size:
            chunk = self._file.read(position, _CHUNK_BYTES)
            if chunk != bytes(len(chunk)):
                return False
            if not chunk:
                break
            position += len(chunk)
        return True

    def _corrupt(self, why: str) -> StorageCorrupt:
        return StorageCorrupt(self._name, self.offset, self.position, why)
