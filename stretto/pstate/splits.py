"""Keys that cut the rows of a database into parts of about the same size, found without reading the rows.

LMDB tells how many rows a database has, but not where the middle one is. Its B+tree does: the keys of its
branch pages divide what is below them into pages of about the same fill. So a few branch pages are read from
the file, from the root down, until there are keys enough to choose from. A page that a transaction can reach
is not written again as long as that is open.

Layout of LMDB 0.9, little-endian: the main database holds, under the name of a database, pad u32, flags u16,
depth u16, branch pages u64, leaf pages u64, overflow pages u64, entries u64, root u64. A page begins with its
number u64, pad u16, flags u16, lower u16, upper u16, and then has u16 offsets of its nodes, up to ``lower``.
A branch node is its child's number (u16, u16, u16, the lowest first), the length of its key u16, the key.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from stretto.errors import StorageError
from stretto.ordered import EVERYTHING

if TYPE_CHECKING:
    import lmdb

_DATABASE = struct.Struct("<IHHQQQQQ")
_PAGE = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_BRANCH = 0x01
_CHOICES = 16
"""Pages for each part: what one holds more than another matters little then."""

_Below: TypeAlias = tuple[bytes, int]
"""The least key below a page, and its number."""


def splits(
    txn: lmdb.Transaction[bytes],
    name: str,
    parts: int,
    *,
    file: Path,
    page_bytes: int,
    start: bytes = EVERYTHING[0],
    end: bytes = EVERYTHING[1],
) -> list[bytes]:
    """Ascending keys strictly within ``[start, end)``: ``parts - 1``, or fewer if there are few rows.

    ``name`` is that of a database, ``file`` the ``data.mdb`` that the transaction is on, ``page_bytes`` what
    its ``stat`` tells.
    """
    stored = txn.get(name.encode())
    if stored is None or parts < 2:
        return []
    _, _, depth, _, _, _, _, root = _DATABASE.unpack(stored)
    level: list[_Below] = [(b"", root)]
    fd = os.open(file, os.O_RDONLY)
    try:
        for _ in range(depth - 1):
            if len(level) >= _CHOICES * parts:
                break
            level = _within([each for page in level for each in _children(fd, page_bytes, page)], start, end)
    finally:
        os.close(fd)
    chosen = (level[len(level) * part // parts][0] for part in range(1, parts))
    return sorted({key for key in chosen if start < key < end})


def _within(level: list[_Below], start: bytes, end: bytes) -> list[_Below]:
    """Those that may hold rows of the range."""
    nexts = [key for key, _ in level[1:]] + [EVERYTHING[1]]
    return [each for each, behind in zip(level, nexts, strict=True) if behind > start and each[0] < end]


def _children(fd: int, page_bytes: int, page: _Below) -> list[_Below]:
    least, number = page
    data = os.pread(fd, page_bytes, number * page_bytes)
    if len(data) < page_bytes:
        raise StorageError(f"page {number} of a state's file is cut short")
    own, _, flags, lower, _ = _PAGE.unpack_from(data)
    if own != number or not flags & _BRANCH:
        raise StorageError(f"page {number} of a state's file is no branch of its tree")
    offsets = struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", data, _PAGE.size)
    found: list[_Below] = []
    for offset in offsets:
        low, middle, high, key_bytes = _NODE.unpack_from(data, offset)
        key = data[offset + _NODE.size : offset + _NODE.size + key_bytes]
        # The first key of a page is not written: all that is below its parent's is there.
        found.append((key if found else least, low | middle << 16 | high << 32))
    return found
