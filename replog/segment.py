"""One file of the log: a header, then frames.

A segment is named after its base, the offset of its first entry. Its header repeats the base, names
the format, and holds the epoch that was running just below the base (see
:mod:`stretto.replog.epochs`). A segment file appears under its name only by a rename after its header
is durable: so a header that cannot be read is always corruption, never a torn creation.

Only the last segment of a log is written to. Reading verifies what it returns. A segment may be read
on one thread while frames are added on another: what is added becomes visible last.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence

from crc32c import crc32c

from stretto.errors import StorageCorrupt, StrettoError, UsageError
from stretto.replog.epochs import History, starting_below
from stretto.replog.frame import HEADER_BYTES, OVERHEAD_BYTES, Damaged, Frame, Header, header_at, verify_body
from stretto.replog.index import SealedIndex, SparseIndex, decode_index, encode_index
from stretto.replog.scan import Scan
from stretto.replog.storage import EpochStart, File, Folder
from stretto.vocabulary.types import Epoch, Offset

FORMAT_VERSION = 1
SEGMENT_HEADER_BYTES = 64
TEMPORARY = ".tmp"

_MAGIC = b"strSEG\r\n"
# magic, format version, has an epoch, base, epoch, start of the epoch; padded; checksum at the end
_HEADER = struct.Struct("<8sIIQQQ20x")
_CRC = struct.Struct("<I")
_NAME = re.compile(r"(\d{20})\.(replog|index)")

_WALK_BYTES = 16 * 1024


def segment_name(base: Offset) -> str:
    return f"{base:020d}.replog"


def index_name(base: Offset) -> str:
    return f"{base:020d}.index"


def bases(names: list[str], suffix: str) -> list[Offset]:
    """Bases of the segments (``replog``) or index files (``index``) among ``names``, ascending."""
    matches = map(_NAME.fullmatch, names)
    return sorted(Offset(int(match[1])) for match in matches if match and match[2] == suffix)


def encode_header(base: Offset, before: EpochStart | None) -> bytes:
    epoch, start = (before.epoch, before.start) if before else (0, 0)
    fields = _HEADER.pack(_MAGIC, FORMAT_VERSION, before is not None, base, epoch, start)
    return fields + _CRC.pack(crc32c(fields))


def decode_header(data: bytes, name: str, base: Offset) -> EpochStart | None:
    """Read a segment's header; return the epoch before its base.

    Raises StorageCorrupt, or StrettoError for another format.
    """
    if len(data) < SEGMENT_HEADER_BYTES:
        raise StorageCorrupt(name, base, 0, f"a segment begins with {SEGMENT_HEADER_BYTES} bytes of header")
    fields = memoryview(data)[: _HEADER.size]
    if crc32c(fields) != _CRC.unpack_from(data, _HEADER.size)[0]:
        raise StorageCorrupt(name, base, 0, "the segment header does not match its checksum")
    magic, version, has_epoch, its_base, epoch, start = _HEADER.unpack(fields)
    if magic != _MAGIC or its_base != base:
        raise StorageCorrupt(name, base, 0, f"the segment header is that of base {its_base}")
    if version != FORMAT_VERSION:
        raise StrettoError(
            f"segment {name} has format version {version}, this release reads version {FORMAT_VERSION}; "
            "open it with the release that wrote it"
        )
    return EpochStart(Epoch(epoch), Offset(start)) if has_epoch else None


def replace_durably(folder: Folder, name: str, content: bytes) -> File:
    """Put a file with ``content`` under ``name`` in one step, and return it open.

    The rename itself is durable once the caller syncs the folder.
    """
    file = folder.open(name + TEMPORARY, create=True)
    file.truncate(0)
    file.writev(0, (content,))
    file.fdatasync()
    folder.rename(name + TEMPORARY, name)
    return file


class Segment:
    """A segment file with what is known of it."""

    __slots__ = ("base", "before", "end", "epochs", "file", "index", "name", "size")

    def __init__(self, file: File, base: Offset, before: EpochStart | None, index: SparseIndex) -> None:
        self.file = file
        self.name = segment_name(base)
        self.base = base
        #: The epoch running just below ``base``.
        self.before = before
        #: End of the entries known to be written here.
        self.end = base
        #: Bytes of header and whole frames; nothing beyond them is ever read.
        self.size = SEGMENT_HEADER_BYTES
        #: Epochs whose first entry is in this segment.
        self.epochs: History = ()
        self.index = index

    @classmethod
    def create(cls, folder: Folder, base: Offset, before: EpochStart | None, interval_bytes: int) -> Segment:
        """Make a new, empty segment, durable on return."""
        file = replace_durably(folder, segment_name(base), encode_header(base, before))
        folder.sync()
        return cls(file, base, before, SparseIndex(interval_bytes))

    @classmethod
    def open(cls, folder: Folder, base: Offset, interval_bytes: int) -> Segment:
        """Open a segment and read its header only; :meth:`scan` or :meth:`trust` learns the rest."""
        name = segment_name(base)
        file = folder.open(name)
        try:
            before = decode_header(file.read(0, SEGMENT_HEADER_BYTES), name, base)
        except BaseException:
            file.close()
            raise
        return cls(file, base, before, SparseIndex(interval_bytes))

    def scan(self, *, last: bool) -> Scan:
        """Learn end, index and epochs from the frames, verifying all of them."""
        before = self.before
        epoch = before.epoch if before else Epoch(0)
        epochs: list[EpochStart] = []
        known = before is not None
        scan = Scan(
            self.file, self.name, position=SEGMENT_HEADER_BYTES, offset=self.base, epoch=epoch, last=last
        )
        add = self.index.add
        for header, position, _ in scan:
            if header.epoch != epoch or not known:
                epoch, known = header.epoch, True
                epochs.append(EpochStart(epoch, header.offset))
            add(header.offset, position)
        self.end, self.size, self.epochs = scan.offset, scan.position, tuple(epochs)
        return scan

    def extend(self, frames: Sequence[Frame]) -> None:
        """Take note of frames that were written at the end."""
        position = self.size
        epoch = self.epochs[-1].epoch if self.epochs else self.before and self.before.epoch
        for frame in frames:
            header = frame.header
            self.index.add(header.offset, position)
            if header.epoch != epoch:
                epoch = header.epoch
                self.epochs += (EpochStart(epoch, header.offset),)
            position += frame.size_bytes
        self.size = position
        self.end = frames[-1].end_offset

    @property
    def last_epoch(self) -> EpochStart | None:
        """The epoch that is running at the segment's end."""
        return self.epochs[-1] if self.epochs else self.before

    def shortened(self, end: Offset, position: int) -> None:
        """Take note that the file ends at ``position``, where the frames from ``end`` on began."""
        self.index.truncate(end)
        self.epochs = starting_below(self.epochs, end)
        self.size, self.end = position, end

    def trust(self, sealed: SealedIndex) -> None:
        """Take end, index and epochs from the index file."""
        self.end, self.epochs, self.index = sealed.end, sealed.epochs, sealed.index
        self.size = self.file.size()

    def load_index(self, folder: Folder, interval_bytes: int) -> SealedIndex | None:
        """Read the segment's index file; None if it is missing or damaged."""
        try:
            file = folder.open(index_name(self.base))
        except FileNotFoundError:
            return None
        data = file.read(0, file.size())
        file.close()
        return decode_index(data, self.base, self.file.size(), interval_bytes)

    def store_index(self, folder: Folder) -> None:
        file = folder.open(index_name(self.base), create=True)
        file.truncate(0)
        file.writev(0, (encode_index(self.base, self.size, self.end, self.epochs, self.index),))
        file.close()

    def locate(self, offset: Offset) -> int:
        """Position of the frame that begins at ``offset``, or of the end."""
        if offset == self.end:
            return self.size
        header, position = next(self.walk(offset))
        if header.offset != offset:
            raise UsageError(
                f"offset {offset} is inside the frame of [{header.offset}, {header.end_offset}); "
                "ask for a frame's first offset"
            )
        return position

    def walk(self, start: Offset) -> Iterator[tuple[Header, int]]:
        """Headers and positions from the frame that holds ``start`` on; payloads are not looked at."""
        offset, position = self.index.floor(start)
        size = self.size
        while position < size:
            view = self._view(position, _WALK_BYTES, offset)
            at = 0
            while at + HEADER_BYTES <= len(view):
                header, length, _ = self._header(view, at, position, offset)
                offset = header.end_offset
                if offset > start:
                    yield header, position + at
                at += length + OVERHEAD_BYTES
            if not at:
                raise self._corrupt(offset, position, "the file ends inside a header")
            position += at

    def read(self, start: Offset, end: Offset, max_bytes: int) -> tuple[Offset, memoryview]:
        """Verified whole frames of ``[start, end)``: at least one, then as fit in ``max_bytes``."""
        position = self.locate(start)
        view = self._view(position, max(max_bytes, HEADER_BYTES), start)
        offset = start
        at = 0
        while offset < end and at + HEADER_BYTES <= len(view):
            header, length, payload_crc = self._header(view, at, position, offset)
            size = length + OVERHEAD_BYTES
            if header.end_offset > end:
                break
            if at + size > len(view):
                if at:
                    break
                view = self._view(position, size, offset)
            try:
                verify_body(view, at, length, payload_crc)
            except Damaged as damage:
                raise self._corrupt(offset, position + at, damage) from None
            offset = header.end_offset
            at += size
        return offset, view[:at]

    def absent(self, start: Offset, max_bytes: int) -> tuple[int, Callable[[], None] | None]:
        """Like :meth:`File.absent <stretto.replog.storage.File.absent>`, for :meth:`read` from ``start`` on.

        Also returns how many bytes there are from ``start`` on, or a few more.
        """
        _, position = self.index.floor(start)
        length = min(_WALK_BYTES + max_bytes, self.size - position)
        return self.size - position, self.file.absent(position, length)

    def _header(self, view: memoryview, at: int, position: int, offset: Offset) -> tuple[Header, int, int]:
        """The header at ``view[at]``, which must be that of the frame at ``offset``."""
        try:
            header, length, payload_crc = header_at(view, at)
        except Damaged as damage:
            raise self._corrupt(offset, position + at, damage) from None
        if header.offset != offset:
            raise self._corrupt(offset, position + at, f"the frame here begins at offset {header.offset}")
        return header, length, payload_crc

    def _view(self, position: int, length: int, offset: Offset) -> memoryview:
        """Bytes from ``position`` on, as many as the segment has."""
        wanted = min(length, self.size - position)
        data = self.file.read(position, wanted)
        if len(data) < wanted:
            raise self._corrupt(offset, position, f"{wanted - len(data)} bytes at the end are gone")
        return memoryview(data)

    def _corrupt(self, offset: Offset, position: int, why: object) -> StorageCorrupt:
        return StorageCorrupt(self.name, offset, position, str(why))
