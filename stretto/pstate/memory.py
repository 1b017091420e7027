"""The rows of a PState in memory, for tests."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from stretto.pstate.changes import Changes
from stretto.pstate.tree import Row


class MemoryRows:
    """The rows of a PState in memory, with the methods of :class:`~stretto.pstate.overlay.Rows`.

    Nothing may be applied during a scan.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def apply(self, changes: Changes) -> None:
        for start, end in changes.ranges:
            low, high = bisect_left(self._keys, start), bisect_left(self._keys, end)
            for key in self._keys[low:high]:
                del self._rows[key]
            del self._keys[low:high]
        for key in changes.deletes:
            if self._rows.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        for key, value in changes.puts:
            if key not in self._rows:
                insort(self._keys, key)
            self._rows[key] = value

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        return ((key, self._rows[key]) for key in self.keys(start, end))

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        keys = self._keys
        return (keys[at] for at in range(bisect_left(keys, start), bisect_left(keys, end)))

    def last(self, start: bytes, end: bytes) -> bytes | None:
        at = bisect_left(self._keys, end) - 1
        return self._keys[at] if at >= 0 and self._keys[at] >= start else None
