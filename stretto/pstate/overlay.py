"""Rows, and rows with changes on top of them.

A batch of a topology sees what earlier batches did, whether that is applied or not. What is applied is rows
in LMDB (:class:`stretto.state.pstate.StoredRows`); what is not is changes, laid over them in the order of
their entries; and what the batch itself does so far is one more layer. An :class:`Overlay` is rows itself, so
it can lie on another one.

Ranges that an overlay deletes hide what is below it. What is put afterwards lies above them.

Overlays may share a list in which each notes what it changed, so that :func:`take_back` can undo all of it.
Clearing the list makes a savepoint. A number that goes up again and again stays a number in an overlay, and
is encoded once, when its bytes are needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from stretto.pstate import ordered
from stretto.pstate.changes import Changes
from stretto.pstate.ordered import INT_MAX, INT_MIN, Range
from stretto.pstate.tree import Row
from stretto.vocabulary.invariants import check, present


class Rows(Protocol):
    """The rows of one PState on one task, to be read."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        """Iterate over the rows in ``[start, end)``, ascending."""
        ...

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Iterate over the keys in ``[start, end)`` alone, which is cheaper."""
        ...

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """Return the greatest key in ``[start, end)``; None if there is none."""
        ...


def beginnings(rows: Rows, start: bytes, end: bytes, depth: int) -> Iterator[bytes]:
    """Iterate over the beginnings of keys in ``[start, end)``, each once.

    A beginning goes up to the end of the one key of a path that follows ``depth`` bytes. Of those with the
    same beginning one or two are looked at, however many there are.
    """
    told = b""
    while start < end:
        for key in rows.keys(start, end):
            ends = ordered.end_of(key, depth)
            if told and ends == len(told) and key.startswith(told):
                start = ordered.subtree(told)[1]
                break
            told = key[:ends]
            yield told
        else:
            return


Undo: TypeAlias = "list[tuple[Overlay, bytes | None, object]]"
"""Changes to undo: the overlay, the key or None for a range, and what was there before."""

_NOTHING: Final = object()
_BEYOND: Final = b"\xff\xff"
"""Bytes that are greater than the end of every range."""
_FEW: Final = 16
_SOME: Final = 16

_encode = msgspec.msgpack.Encoder().encode


def take_back(undo: Undo) -> None:
    """Undo all changes that are noted, the latest first."""
    while undo:
        overlay, key, before = undo.pop()
        overlay.restore(key, before)


class Overlay:
    """Rows with changes on top of them. Iterations in progress may or may not see new changes."""

    def __init__(self, below: Rows, undo: Undo | None = None) -> None:
        self._below = below
        self._undo = undo
        #: Rows that are put or, as None, deleted here; numbers are not encoded yet.
        self._rows: dict[bytes, bytes | int | float | None] = {}
        #: The keys of ``_rows`` in order, but for those in ``_fresh``, which join them when they are needed.
        self._keys: list[bytes] = []
        self._fresh: list[bytes] = []
        #: Ranges in which the rows below are not seen, disjoint and ascending.
        self._hidden: list[Range] = []

    # Changing.

    def put(self, key: bytes, value: bytes) -> None:
        self._set(key, value)

    def put_number(self, key: bytes, number: float) -> None:
        """Put an int or a float, which is encoded as MessagePack only when its bytes are needed."""
        self._set(key, number)

    def number(self, key: bytes) -> float | None:
        """Return the number under a key if it was put by :meth:`put_number`; None otherwise."""
        found = self._rows.get(key)
        return found if type(found) in (int, float) else None  # type: ignore[return-value]

    def counting(
        self, rows_of_paths: Mapping[tuple[Any, ...], bytes], otherwise: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a fast function that increments numbers: it takes one call, where an Editor needs six.

        An int that was put as such, under a known path, is incremented right here; all else goes
        ``otherwise``.
        """
        rows, undo = self._rows, self._undo
        smallest, largest = INT_MIN, INT_MAX

        def increment(*path: Any, by: float = 1) -> Any:
            try:
                row = rows_of_paths.get(path)
            except TypeError:
                # A list, which is no key; ``otherwise`` refuses it.
                row = None
            if row is not None:
                before = rows.get(row)
                if type(before) is int and type(by) is int:
                    after = before + by
                    if smallest <= after <= largest:
                        if undo is not None:
                            undo.append((self, row, before))
                        rows[row] = after
                        return after
            return otherwise(*path, by=by)

        return increment

    def delete(self, key: bytes) -> None:
        self._set(key, None)

    def _set(self, key: bytes, value: bytes | float | None) -> None:
        rows = self._rows
        before = rows.get(key, _NOTHING)
        if before is _NOTHING:
            self._fresh.append(key)
        if self._undo is not None:
            self._undo.append((self, key, before))
        rows[key] = value

    def delete_range(self, start: bytes, end: bytes) -> None:
        keys = self._in_order()
        low, high = bisect_left(keys, start), bisect_left(keys, end)
        gone = {key: self._rows.pop(key) for key in keys[low:high]}
        del keys[low:high]
        first, last = self._touching(start, end)
        merged = self._hidden[first:last]
        if self._undo is not None:
            self._undo.append((self, None, _Range(gone, first, merged)))
        if merged:
            start, end = min(start, merged[0][0]), max(end, merged[-1][1])
        self._hidden[first:last] = [(start, end)]

    def _touching(self, start: bytes, end: bytes) -> tuple[int, int]:
        """Return which hidden ranges overlap this one or lie next to it."""
        first = bisect_left(self._hidden, (start, b""))
        if first and self._hidden[first - 1][1] >= start:
            first -= 1
        return first, bisect_right(self._hidden, (end, _BEYOND))

    def restore(self, key: bytes | None, before: object) -> None:
        """Restore what was there before the latest change that is noted."""
        if isinstance(before, _Range):
            self._rows.update(before.rows)
            self._keys = sorted([*self._in_order(), *before.rows])
            self._hidden[before.at : before.at + 1] = before.merged
        elif before is _NOTHING:
            self._drop(present(key, "the key of a change that was noted"))
        else:
            self._rows[key] = before  # type: ignore[index,assignment]

    def _drop(self, key: bytes) -> None:
        del self._rows[key]
        if self._fresh and self._fresh[-1] == key:
            self._fresh.pop()
        else:
            keys = self._in_order()
            at = bisect_left(keys, key)
            check(keys[at] == key, "a change that was noted is not there", key=key)
            del keys[at]

    def add(self, changes: Changes) -> None:
        """Add the changes of an entry that comes after all that is here."""
        for start, end in changes.ranges:
            self.delete_range(start, end)
        for key in changes.deletes:
            self._set(key, None)
        for key, value in changes.puts:
            self._set(key, value)

    def changes(self) -> Changes:
        """Return all changes that were made here as one."""
        keys = self._in_order()
        return Changes(
            tuple(self._hidden),
            tuple(key for key in keys if self._rows[key] is None and not self._hides(key)),
            tuple(
                [
                    (key, value if type(value) is bytes else _encode(value))
                    for key in keys
                    if (value := self._rows[key]) is not None
                ]
            ),
        )

    # Reading.

    def get(self, key: bytes) -> bytes | None:
        found = self._rows.get(key, _NOTHING)
        if found is _NOTHING:
            return self._below.get(key) if not self._hidden or not self._hides(key) else None
        if type(found) is bytes or found is None:
            return found
        return _encode(found)

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        return self._merged(
            start, end, (row for each in self._visible(start, end) for row in self._below.scan(*each))
        )

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        below = ((key, b"") for each in self._visible(start, end) for key in self._below.keys(*each))
        return (key for key, _ in self._merged(start, end, below))

    def _merged(self, start: bytes, end: bytes, below: Iterator[Row]) -> Iterator[Row]:
        """Merge rows from below with those of this overlay, which replace them."""
        mine = self._keys_in(start, end)
        key = next(mine, None)
        for row in below:
            while key is not None and key < row[0]:
                yield from self._row(key)
                key = next(mine, None)
            if key != row[0]:
                yield row
        while key is not None:
            yield from self._row(key)
            key = next(mine, None)

    def _row(self, key: bytes) -> Iterator[Row]:
        value = self._rows.get(key)
        if value is not None:
            yield key, value if isinstance(value, bytes) else _encode(value)

    def last(self, start: bytes, end: bytes) -> bytes | None:
        mine = self._last(start, end)
        stop = end
        while (below := self._below.last(start, stop)) is not None and self.get(below) is None:
            hidden = self._hiding(below)
            stop = max(start, hidden[0]) if hidden else below
            if stop <= start:
                below = None
                break
        return max((key for key in (mine, below) if key is not None), default=None)

    def _last(self, start: bytes, end: bytes) -> bytes | None:
        """Return the greatest key in the range that is put here; None if there is none."""
        keys = self._in_order()
        for at in range(bisect_left(keys, end) - 1, -1, -1):
            if keys[at] < start:
                return None
            if self._rows[keys[at]] is not None:
                return keys[at]
        return None

    def _visible(self, start: bytes, end: bytes) -> Iterator[Range]:
        """Iterate over the parts of a range that are not hidden."""
        at = start
        first, last = self._touching(start, end)
        for low, high in self._hidden[first:last]:
            if high > at and low < end:
                if at < low:
                    yield at, low
                at = high
        if at < end:
            yield at, end

    def _hides(self, key: bytes) -> bool:
        return self._hiding(key) is not None

    def _hiding(self, key: bytes) -> Range | None:
        if not self._hidden:
            return None
        at = bisect_right(self._hidden, (key, _BEYOND)) - 1
        return self._hidden[at] if at >= 0 and key < self._hidden[at][1] else None

    def _keys_in(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Iterate over keys of this overlay, some at a time: the first of many cost little."""
        size = _SOME
        while True:
            keys = self._in_order()
            at = bisect_left(keys, start)
            some = keys[at : at + size]
            for key in some:
                if key >= end:
                    return
                yield key
            if len(some) < size:
                return
            start = some[-1] + b"\0"
            size *= 4

    def _in_order(self) -> list[bytes]:
        if self._fresh:
            if len(self._fresh) < _FEW:
                for key in self._fresh:
                    insort(self._keys, key)
            else:
                self._keys += self._fresh
                self._keys.sort()
            self._fresh.clear()
        return self._keys


@dataclass(frozen=True, slots=True)
class _Range:
    """What a deletion of a range replaced, to undo it."""

    rows: dict[bytes, bytes | int | float | None]
    at: int
    """Index of the range among the hidden ones."""
    merged: list[Range]
    """Hidden ranges that were merged into it."""


class NoRows:
    """The rows of a PState that was never written to."""

    def get(self, key: bytes) -> bytes | None:  # noqa: ARG002
        return None

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:  # noqa: ARG002
        return iter(())

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:  # noqa: ARG002
        return iter(())

    def last(self, start: bytes, end: bytes) -> bytes | None:  # noqa: ARG002
        return None
