"""Rows of a PState in bulk: many keys and values in a few buffers, for code that makes columns of them.

A page is made with as few operations of the interpreter per row as there can be: rows leave LMDB in runs,
are taken apart by ``zip`` and put together by ``join``, and their lengths are summed by numpy. It holds whole
rows only. :func:`read_pages` serves any transaction: that of a worker's scan process, or of a reader of a
snapshot's files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from stretto.pstate.ordered import EVERYTHING

if TYPE_CHECKING:
    import lmdb
    from lmdb import _Database

PAGE_BYTES = 1024 * 1024
"""Bytes of keys and values that a page has at most, not counting its last row."""
_RUN_ROWS = 64
_RUN_ROWS_MAX = 1_024
"""Most rows that are taken from LMDB at once, so few that they stay in the processor's cache."""

_Sizes: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_first = itemgetter(0)


class Page(msgspec.Struct, frozen=True, gc=False):
    """Rows of a PState, ascending by key, in four buffers.

    ``key_ends`` and ``value_ends`` are u32, little-endian: row ``n`` has the bytes from the end of row
    ``n - 1`` to its own.
    """

    count: int
    keys: bytes
    """Keys of the rows, one after the other, as :mod:`stretto.pstate.ordered` writes paths."""
    key_ends: bytes
    values: bytes
    value_ends: bytes

    @property
    def last_key(self) -> bytes:
        """The key of the last row, at which to read on."""
        ends = memoryview(self.key_ends).cast("I")
        return self.keys[ends[-2] if self.count > 1 else 0 :]


NO_ROWS = Page(0, b"", b"", b"", b"")


def read_pages(
    txn: lmdb.Transaction[bytes],
    database: _Database,
    start: bytes = EVERYTHING[0],
    end: bytes = EVERYTHING[1],
    max_bytes: int = PAGE_BYTES,
) -> Iterator[Page]:
    """Iterate over pages with all rows in ``[start, end)``."""
    cursor = txn.cursor(database)
    after, more = False, True
    while more:
        page, more = read_page(cursor, start, end, after=after, max_bytes=max_bytes)
        if page.count:
            yield page
            start, after = page.last_key, True


def read_page(
    cursor: lmdb.Cursor[bytes], start: bytes, end: bytes, *, after: bool = False, max_bytes: int = PAGE_BYTES
) -> tuple[Page, bool]:
    """Return a page of the first rows in ``[start, end)``, and whether there may be more.

    With ``after``, the row of ``start`` itself is left out. To go on, give the page's last key as ``start``,
    and ``after``.
    """
    found = cursor.set_range(start) if start else cursor.first()
    if found and after and cursor.key() == start:
        found = cursor.next()
    if not found:
        return NO_ROWS, False
    rows = cursor.iternext()
    gathered = _Gathered()
    left_bytes, run_rows, more = max_bytes, _RUN_ROWS, True
    while more and left_bytes > 0:
        run = list(islice(rows, run_rows))
        more = len(run) == run_rows
        if run and run[-1][0] >= end:
            del run[bisect_left(run, end, key=_first) :]
            more = False
        if not run:
            break
        keys, values = zip(*run, strict=True)
        key_sizes, value_sizes = _sizes(keys), _sizes(values)
        sizes = np.cumsum(key_sizes + value_sizes)
        if sizes[-1] > left_bytes:
            # One row that does not fit is taken, so that there is always one.
            fits = int(np.searchsorted(sizes, left_bytes)) + 1
            more = more or fits < len(run)
            keys, values, key_sizes, value_sizes = (
                keys[:fits],
                values[:fits],
                key_sizes[:fits],
                value_sizes[:fits],
            )
            left_bytes = 0
        left_bytes -= int(sizes[-1])
        gathered.add(keys, values, key_sizes, value_sizes)
        run_rows = min(4 * run_rows, _RUN_ROWS_MAX)
    return gathered.page(), more


class _Gathered:
    """Runs of rows that become a page."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._key_sizes: list[_Sizes] = []
        self._value_sizes: list[_Sizes] = []
        self._count = 0

    def add(
        self, keys: tuple[bytes, ...], values: tuple[bytes, ...], key_sizes: _Sizes, value_sizes: _Sizes
    ) -> None:
        self._keys.append(b"".join(keys))
        self._values.append(b"".join(values))
        self._key_sizes.append(key_sizes)
        self._value_sizes.append(value_sizes)
        self._count += len(keys)

    def page(self) -> Page:
        if not self._count:
            return NO_ROWS
        key_ends, value_ends = _ends(self._key_sizes), _ends(self._value_sizes)
        return Page(self._count, b"".join(self._keys), key_ends, b"".join(self._values), value_ends)


def _sizes(parts: tuple[bytes, ...]) -> _Sizes:
    return np.fromiter(map(len, parts), np.int64, len(parts))


def _ends(sizes: list[_Sizes]) -> bytes:
    return np.cumsum(np.concatenate(sizes)).astype("<u4").tobytes()
