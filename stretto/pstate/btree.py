"""LMDB's B+tree as it is in its file, for reading many rows, or keys that divide them, at once.

LMDB hands out one row at a time, and an interpreter spends more on the handing out than on the row. It also
tells how many rows a database has, but not where the middle one is. Both are written in its pages: the keys
of branch pages divide what is below them into pages of about the same fill, and a leaf page is a table of its
rows, which numpy reads for hundreds of pages in one go. A page that a transaction can reach is not written
again as long as that is open; so the process that has one may read the file beside LMDB.

Layout of LMDB 0.9, little-endian. The main database holds, under the name of a database: pad u32, flags u16,
depth u16, branch pages u64, leaf pages u64, overflow pages u64, entries u64, root u64. A page begins with its
number u64, pad u16, flags u16, lower u16, upper u16, and then has u16 offsets of its nodes, up to ``lower``.
A branch node is its child's number (u16, u16, u16, the lowest first), the length of its key u16, the key. A
leaf node is the length of its value (u16, u16, the lowest first), flags u16, the length of its key u16, the
key, the value; a value that is too long for that lies on pages of its own, and the flags say so.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import lmdb
import numpy as np

from stretto.errors import StorageError
from stretto.pstate.ordered import EVERYTHING
from stretto.pstate.pages import NO_ROWS, PAGE_BYTES, Page

IS_KNOWN = lmdb.version()[:2] == (0, 9)
"""Whether the layout of this LMDB is known; another may differ, and is then left to read its own pages."""

_DATABASE = struct.Struct("<IHHQQQQQ")
_PAGE = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_BRANCH = 0x01
_LEAF = 0x02
_LONG_VALUE = 0x01
_CHOICES = 16
"""Pages to choose from for each part, so many that it matters little if some hold more than others."""

_Below: TypeAlias = tuple[bytes, int]
"""The least key below a page, and its number."""
Pages: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
"""The pages of a file, each a row of the array."""
_Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


def map_pages(file: Path, page_bytes: int) -> Pages:
    """Map the pages that a ``data.mdb`` has now; ``page_bytes`` is from the environment's ``stat``."""
    fd = os.open(file, os.O_RDONLY)
    try:
        mapped = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(fd)
    whole = len(mapped) // page_bytes * page_bytes
    return np.frombuffer(mapped, np.uint8, whole).reshape(-1, page_bytes)


class Tree:
    """The B+tree of one database, as of a transaction, which must outlive it."""

    def __init__(self, txn: lmdb.Transaction[bytes], name: str, pages: Pages) -> None:
        """Find the root; ``pages`` are those of the transaction's file, mapped after it began."""
        stored = txn.get(name.encode())
        self._depth = self._root = 0
        if stored is not None:
            _, _, self._depth, _, _, _, _, self._root = _DATABASE.unpack(stored)
        self._pages = pages
        self._page_bytes = pages.shape[1]

    def splits(self, parts: int, start: bytes = EVERYTHING[0], end: bytes = EVERYTHING[1]) -> list[bytes]:
        """Return keys strictly within ``[start, end)`` that cut its rows into parts of about the same size.

        They ascend; there are ``parts - 1`` of them, or fewer if there are few rows.
        """
        if not self._depth or parts < 2 or not IS_KNOWN:
            return []
        level: list[_Below] = [(b"", self._root)]
        for _ in range(self._depth - 1):
            if len(level) >= _CHOICES * parts:
                break
            level = [child for page in level for child in self._children(page, start, end)]
        chosen = (level[len(level) * part // parts][0] for part in range(1, parts))
        return sorted({key for key in chosen if start < key < end})

    def read_page(
        self, start: bytes, end: bytes, *, after: bool = False, max_bytes: int = PAGE_BYTES
    ) -> tuple[Page, bool] | None:
        """Return a page of rows, as :func:`stretto.pstate.pages.read_page` does, read from the file itself.

        None for what only LMDB reads: a value that is not on a leaf page, the layout of another version.
        """
        if not self._depth:
            return NO_ROWS, False
        if not IS_KNOWN:
            return None
        # All rows of the first leaf may be below the range, but not all of two.
        room = max(2, max_bytes // self._page_bytes)
        found = list(islice(self._leaves((b"", self._root), self._depth, start, end), room + 1))
        leaves = _Leaves(self._pages, np.array(found[:room], np.int64))
        if leaves.has_long_values:
            return None
        first, behind = leaves.find(start, after=after), leaves.find(end)
        return leaves.page(first, behind), len(found) > room and behind == leaves.count

    def _leaves(self, page: _Below, depth: int, start: bytes, end: bytes) -> Iterator[int]:
        if depth == 1:
            yield page[1]
            return
        for child in self._children(page, start, end):
            yield from self._leaves(child, depth - 1, start, end)

    def _children(self, page: _Below, start: bytes, end: bytes) -> list[_Below]:
        """Return the children of a branch page that may hold rows of the range."""
        least, number = page
        data = self._pages[number].tobytes() if number < len(self._pages) else b""
        own, _, flags, lower, _ = _PAGE.unpack_from(data) if data else (0, 0, 0, 0, 0)
        if own != number or not flags & _BRANCH:
            raise StorageError(f"page {number} of a state's file is no branch of its tree")
        keys, children = [], []
        for offset in struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", data, _PAGE.size):
            low, middle, high, key_bytes = _NODE.unpack_from(data, offset)
            keys.append(data[offset + _NODE.size : offset + _NODE.size + key_bytes])
            children.append(low | middle << 16 | high << 32)
        # The first key of a page is not written: all that is below its parent's is there.
        keys[0] = least
        first, behind = max(0, bisect_right(keys, start) - 1), bisect_left(keys, end)
        return list(zip(keys[first:behind], children[first:behind], strict=True))


class _Leaves:
    """The rows of leaf pages, in order."""

    def __init__(self, file: Pages, numbers: _Numbers) -> None:
        if (numbers >= len(file)).any():
            raise StorageError("a state's file is shorter than its tree")
        pages = file[numbers]
        page_bytes = pages.shape[1]
        words = pages.view("<u2")
        is_leaf = words[:, 5] & _LEAF != 0
        if not (is_leaf & (pages.view("<u8")[:, 0] == numbers)).all():
            raise StorageError("a page of a state's file is no leaf of its tree")
        counts = (words[:, 6].astype(np.int64) - _PAGE.size) // 2
        page = np.repeat(np.arange(len(pages)), counts)
        in_page = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
        nodes = page * page_bytes + words[page, _PAGE.size // 2 + in_page]
        flat, at = words.reshape(-1), nodes // 2
        self.count = len(page)
        self.has_long_values = bool((flat[at + 2] & _LONG_VALUE).any())
        self._bytes = pages.reshape(-1)
        self._keys_at: _Numbers = nodes + _NODE.size
        self._key_sizes: _Numbers = flat[at + 3].astype(np.int64)
        self._value_sizes: _Numbers = flat[at] + (flat[at + 1].astype(np.int64) << 16)

    def find(self, key: bytes, *, after: bool = False) -> int:
        """Return the first row that is not below the key; with ``after``, the first behind it."""
        find = bisect_right if after else bisect_left
        return find(range(self.count), key, key=self._key)

    def _key(self, row: int) -> bytes:
        at = self._keys_at[row]
        return self._bytes[at : at + self._key_sizes[row]].tobytes()

    def page(self, first: int, behind: int) -> Page:
        if first >= behind:
            return NO_ROWS
        keys_at, key_sizes = self._keys_at[first:behind], self._key_sizes[first:behind]
        keys, key_ends = self._gathered(keys_at, key_sizes)
        values, value_ends = self._gathered(keys_at + key_sizes, self._value_sizes[first:behind])
        return Page(behind - first, keys, key_ends, values, value_ends)

    def _gathered(self, starts: _Numbers, sizes: _Numbers) -> tuple[bytes, bytes]:
        ends = np.cumsum(sizes)
        at = np.repeat(starts - (ends - sizes), sizes)
        at += np.arange(len(at))
        return self._bytes[at].tobytes(), ends.astype("<u4").tobytes()
