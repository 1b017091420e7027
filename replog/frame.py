"""Entries and the frames that carry them, in memory, on disk and on the wire alike.

A frame is a batch of entries with consecutive offsets and one checksum; followers store and forward
the leader's bytes unchanged. Layout, little-endian::

    header (64 bytes)                                            payload        trailer (4 bytes)
    header_crc  payload_crc  length  count  offset ... magic     length bytes   magic

Both checksums are CRC32C; the header's covers the 60 bytes that follow it. The header has its own,
so that a damaged length is known as damage and not taken for a frame that was cut short. Header and
trailer *end* with bytes that are never zero, so that "the write stopped here" (zeros to the end of
the file) and "these bytes were changed" can be told apart whatever the payload holds:
:mod:`stretto.replog.scan` does so.

Nothing here looks inside a payload, and nothing copies one.
"""

from __future__ import annotations

import enum
import struct

import msgspec
from crc32c import crc32c

from stretto.errors import PeerError, UsageError
from stretto.vocabulary.invariants import check
from stretto.vocabulary.records import BATCH_BYTES_MAX
from stretto.vocabulary.types import Buffer, Epoch, Offset, ProducerId, TaskId

HEADER_BYTES = 64
TRAILER_BYTES = 4
OVERHEAD_BYTES = HEADER_BYTES + TRAILER_BYTES

PAYLOAD_BYTES_MAX = 64 * 1024 * 1024
"""Largest payload of a frame; bounds what a reader must hold in memory to verify one."""

check(BATCH_BYTES_MAX <= PAYLOAD_BYTES_MAX, "a record batch must fit a frame")

FRAME_VERSION = 1

HEADER_MAGIC = int.from_bytes(b"\xa7RPL", "little")
TRAILER = b"\xb5END"

_CRC = struct.Struct("<I")
# header_crc, then: payload_crc length count | offset | epoch task | producer sequence timestamp |
# kind version flags | magic
_FIELDS = "IIIQIIQQQBBHI"
_AFTER_CRC = struct.Struct("<" + _FIELDS)
_HEADER = struct.Struct("<I" + _FIELDS)


class Kind(enum.IntEnum):
    """What a frame's entries do when they are applied."""

    EPOCH = 1
    """Opens a leader's epoch; changes nothing."""
    PRODUCER_OPEN = 2
    """Admits a producer; its sequence starts at 0."""
    PRODUCER_EXPIRE = 3
    """Forgets a producer; its later appends are refused."""
    DEPOT = 4
    """Appends records to a depot of a task."""
    STATE = 5
    """Changes PStates of a task."""
    MARKER = 6
    """Names a point in the log that all replicas can stop at."""
    MICROBATCH = 7
    """A step of a microbatch on a task: primed, staged, committed, rolled."""
    TRIM = 8
    """Takes the oldest records off depots of a task, or empties what was deleted."""
    CLAIM = 9
    """A named producer claims what it will append in a round; changes nothing else."""
    SEAL = 10
    """Seals the log: the tasks go on in the grouping that ``sequence`` numbers, and no append follows."""
    UNSEAL = 11
    """Unseals the log, which goes on: the grouping that it was sealed for was abandoned."""


_KINDS: dict[int, Kind] = {kind.value: kind for kind in Kind}


class Header(msgspec.Struct, frozen=True, gc=False):
    """Everything about a frame except its payload."""

    offset: Offset
    epoch: Epoch
    kind: Kind
    count: int
    """Entries in the frame: it covers offsets ``[offset, offset + count)``."""
    task: TaskId
    producer: ProducerId
    sequence: int
    """First of the ``count`` sequence numbers that the producer gave to these entries."""
    timestamp_ms: int
    """Wall clock of the leader that created the frame."""

    @property
    def end_offset(self) -> Offset:
        return Offset(self.offset + self.count)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A header with the encoded bytes of the whole frame, in one or more buffers."""

    header: Header
    parts: tuple[Buffer, ...]
    size_bytes: int
    """Size of the whole frame, header and trailer included."""

    @property
    def end_offset(self) -> Offset:
        return self.header.end_offset

    def __repr__(self) -> str:
        return f"Frame({self.header}, {self.size_bytes} bytes)"


class Damaged(Exception):
    """Bytes that are no frame. The caller says what that means, by where the bytes came from."""


def encode(header: Header, payload: Buffer = b"") -> Frame:
    """A frame around ``payload``, which is kept as it is, not copied."""
    length = len(payload)
    if length > PAYLOAD_BYTES_MAX:
        raise UsageError(
            f"a frame of {length} bytes is beyond the limit of {PAYLOAD_BYTES_MAX}; split the batch"
        )
    if header.count < 1:
        raise UsageError(f"a frame holds at least one entry, not {header.count}")
    try:
        fields = _AFTER_CRC.pack(
            crc32c(payload),
            length,
            header.count,
            header.offset,
            header.epoch,
            header.task,
            header.producer,
            header.sequence,
            header.timestamp_ms,
            header.kind,
            FRAME_VERSION,
            0,
            HEADER_MAGIC,
        )
    except struct.error as error:
        raise UsageError(f"a field of {header} does not fit its width: {error}") from None
    parts = (_CRC.pack(crc32c(fields)) + fields, payload, TRAILER)
    return Frame(header, parts, length + OVERHEAD_BYTES)


def decode(buffer: Buffer) -> tuple[Frame, ...]:
    """The consecutive whole frames that ``buffer`` consists of, as slices of it.

    Raises PeerError if any of it fails its checksum or is cut short.
    """
    view = memoryview(buffer)
    end = len(view)
    at = 0
    frames: list[Frame] = []
    while at < end:
        try:
            header, size = frame_at(view, at)
        except Damaged as damage:
            raise PeerError(f"received a damaged frame at byte {at} of {end}: {damage}") from None
        frames.append(Frame(header, (view[at : at + size],), size))
        at += size
    return tuple(frames)


def payload(frame: Frame) -> Buffer:
    """The payload, without a copy where the frame's parts allow it."""
    parts = frame.parts
    if len(parts) == 3:
        return parts[1]
    whole = parts[0] if len(parts) == 1 else b"".join(parts)
    return memoryview(whole)[HEADER_BYTES:-TRAILER_BYTES]


def header_at(view: memoryview, at: int) -> tuple[Header, int, int]:
    """Header, payload length and payload checksum of the frame at ``at``; raises Damaged.

    The caller has made sure that ``HEADER_BYTES`` are there.
    """
    (
        header_crc,
        payload_crc,
        length,
        count,
        offset,
        epoch,
        task,
        producer,
        sequence,
        timestamp_ms,
        kind_value,
        version,
        _flags,
        magic,
    ) = _HEADER.unpack_from(view, at)
    if crc32c(view[at + 4 : at + HEADER_BYTES]) != header_crc:
        raise Damaged("the header does not match its checksum")
    kind = _KINDS.get(kind_value)
    if magic != HEADER_MAGIC or version != FRAME_VERSION or kind is None:
        raise Damaged(f"frame version {version} with kind {kind_value} is not known here")
    if length > PAYLOAD_BYTES_MAX or count < 1:
        raise Damaged(f"a frame of {count} entries in {length} bytes is out of bounds")
    header = Header(offset, epoch, kind, count, task, producer, sequence, timestamp_ms)
    return header, length, payload_crc


def verify_body(view: memoryview, at: int, length: int, payload_crc: int) -> None:
    """Check payload and trailer of the frame at ``at``, which is wholly in ``view``; raises Damaged."""
    start = at + HEADER_BYTES
    stop = start + length
    if crc32c(view[start:stop]) != payload_crc:
        raise Damaged("the payload does not match its checksum")
    if view[stop : stop + TRAILER_BYTES] != TRAILER:
        raise Damaged("the trailer is not a frame's")


def frame_at(view: memoryview, at: int) -> tuple[Header, int]:
    """Header and size in bytes of the verified frame at ``at``; raises Damaged."""
    left = len(view) - at
    if left < HEADER_BYTES:
        raise Damaged(f"{left} bytes are too few for a header")
    header, length, payload_crc = header_at(view, at)
    size = length + OVERHEAD_BYTES
    if left < size:
        raise Damaged(f"the frame has {size} bytes, of which {left} are there")
    verify_body(view, at, length, payload_crc)
    return header, size
