"""Changes of a log that touch more than one file, made atomic.

Dropping segments from either end, or all of them, takes several operations on the folder, and a
crash can leave any subset of those not yet synced. So such a change is first written down, durably,
as an *intent*: from that moment it has happened. Carrying it out only ever removes files, shortens
one, or creates an empty one, all of which can be done again; a log that finds an intent at open
carries it out before it looks at anything else. The intent is removed when all that is durable, and
no entry is written while one exists.

A change of one file only (shortening the active segment, removing the first one) is atomic as it is.
"""

from __future__ import annotations

import enum
import struct

import msgspec
from crc32c import crc32c

from stretto.errors import StorageCorrupt
from stretto.replog.segment import (
    TEMPORARY,
    bases,
    encode_header,
    index_name,
    replace_durably,
    segment_name,
)
from stretto.replog.storage import EpochStart, Folder
from stretto.vocabulary.types import Epoch, Offset

INTENT_NAME = "intent"

_MAGIC = b"strINT\x01\n"
# magic, change, has an epoch, offset, position, epoch, start of the epoch; checksum
_RECORD = struct.Struct("<8sIIQQQQ")
_CRC = struct.Struct("<I")


class Change(enum.IntEnum):
    """The kinds of change that touch more than one file."""

    TRUNCATE = 1
    """Drop everything from ``offset`` on, which lies at byte ``position`` of its segment."""
    CUT = 2
    """Drop the segments below the one with base ``offset``."""
    RESET = 3
    """Replace the log by an empty one at ``offset``, continuing epoch ``before``."""


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a log, written down before it is carried out."""

    change: Change
    offset: Offset
    position: int = 0
    before: EpochStart | None = None


def carry_out(folder: Folder, intent: Intent) -> None:
    """Write the intent down, carry it out, and forget it; durable on return."""
    replace_durably(folder, INTENT_NAME, _encode(intent)).close()
    folder.sync()
    _do(folder, intent)


def resume(folder: Folder) -> None:
    """Carry out the intent that a crash left behind."""
    _do(folder, read_intent(folder))


def read_intent(folder: Folder) -> Intent:
    """Read the intent that a crash left behind, if there is one."""
    file = folder.open(INTENT_NAME)
    data = file.read(0, file.size())
    file.close()
    return _decode(data)


def _do(folder: Folder, intent: Intent) -> None:
    match intent.change:
        case Change.TRUNCATE:
            _truncate(folder, intent.offset, intent.position)
        case Change.CUT:
            _remove(folder, Offset(0), intent.offset)
        case Change.RESET:
            _remove(folder, Offset(0), None)
            header = encode_header(intent.offset, intent.before)
            replace_durably(folder, segment_name(intent.offset), header).close()
    folder.sync()
    folder.remove(INTENT_NAME)
    folder.sync()


def _truncate(folder: Folder, end: Offset, position: int) -> None:
    names = folder.names()
    base = max(base for base in bases(names, "replog") if base <= end)
    _remove(folder, Offset(base + 1), None)
    if index_name(base) in names:
        # Of a segment that was sealed, and will be again: nothing may be taken for an index of that one.
        folder.remove(index_name(base))
    file = folder.open(segment_name(base))
    file.truncate(position)
    file.fdatasync()
    file.close()


def _remove(folder: Folder, first: Offset, end: Offset | None) -> None:
    """Remove segments and index files with bases in ``[first, end)``."""
    names = folder.names()
    for suffix, name_of in (("index", index_name), ("replog", segment_name)):
        for base in bases(names, suffix):
            if base >= first and (end is None or base < end):
                folder.remove(name_of(base))


def remove_temporaries(folder: Folder, names: list[str]) -> None:
    """Remove files that a crash left before their rename; nothing refers to them."""
    for name in names:
        stem = name.removesuffix(TEMPORARY)
        if stem != name and (stem == INTENT_NAME or bases([stem], "replog")):
            folder.remove(name)


def _encode(intent: Intent) -> bytes:
    before = intent.before
    epoch, start = (before.epoch, before.start) if before else (0, 0)
    fields = _RECORD.pack(
        _MAGIC, intent.change, before is not None, intent.offset, intent.position, epoch, start
    )
    return fields + _CRC.pack(crc32c(fields))


def _decode(data: bytes) -> Intent:
    if len(data) != _RECORD.size + _CRC.size:
        raise StorageCorrupt(INTENT_NAME, Offset(0), 0, "it does not have the size of an intent")
    fields = data[: _RECORD.size]
    magic, change, has_epoch, offset, position, epoch, start = _RECORD.unpack(fields)
    if magic != _MAGIC or crc32c(fields) != _CRC.unpack_from(data, _RECORD.size)[0]:
        raise StorageCorrupt(INTENT_NAME, Offset(0), 0, "it does not match its checksum")
    before = EpochStart(Epoch(epoch), Offset(start)) if has_epoch else None
    return Intent(change=Change(change), offset=Offset(offset), position=position, before=before)
