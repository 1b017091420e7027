"""Keys of many rows as columns at once.

What :mod:`stretto.pstate.ordered` does for one key is done here for all keys of a page with a few operations
on arrays: the bytes stay where they are, and where each row has got to is an array of positions. Texts become
a column by leaving out the bytes between them. A union of several types, and a tuple of any length, are
decoded one by one.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_stretto.columns.schema import Form, form_of, optional
from pyspark_stretto.columns.values import Bytes, Positions, column, json_text, sliced
from stretto.errors import PeerError
from stretto.pstate import types
from stretto.pstate.ordered import (
    INT_BYTES_MAX,
    TAG_BYTES,
    TAG_DATE,
    TAG_DATETIME,
    TAG_FLOAT,
    TAG_NONE,
    TAG_TEXT,
    TAG_TRUE,
    TAG_ZERO,
    decode_at,
)
from stretto.pstate.types import Type

_PADDING = 16
"""Bytes that follow the last key, so that reading a little beyond it is no error."""
_ESCAPED = b"\0\xff"
_SIGN = np.uint64(1 << 63)
_DATE_OF_1970 = 719_163
_TAGS = {"str": TAG_TEXT, "bytes": TAG_BYTES, "float": TAG_FLOAT, "datetime": TAG_DATETIME, "date": TAG_DATE}


class Keys:
    """The keys of a page, one after the other, and where each ends."""

    def __init__(self, keys: bytes, ends: bytes) -> None:
        self._raw = keys
        self._data: Bytes = np.frombuffer(keys + bytes(_PADDING), np.uint8)
        self.ends: Positions = np.frombuffer(ends, "<u4").astype(np.int64)
        self.starts: Positions = np.concatenate(([0], self.ends[:-1])).astype(np.int64)

    def take(self, type_: Type, at: Positions, *, is_last: bool = False) -> tuple[pa.Array, Positions]:
        """Decode what begins at ``at`` in each row, with its ends; what is last ends with its row."""
        inner, nullable = optional(type_)
        if nullable and inner != type_:
            return self._take_optional(inner, at, is_last=is_last)
        if form_of(inner) is Form.JSON:
            return self._take_each(inner, at)
        match inner:
            case types.Plain(name=name):
                return self._take_plain(name, at, is_last=is_last)
            case types.Tuple(items=items):
                return self._take_tuple(items, at)
            case _:
                return self._take_each(inner, at)

    def prefixes(self, ends: Positions) -> pa.Array:
        """Return each row's key up to its position in ``ends``, as bytes to compare."""
        return self._sliced(self.starts, ends, pa.binary())

    def _take_plain(self, name: str, at: Positions, *, is_last: bool) -> tuple[pa.Array, Positions]:
        tags = self._data[at]
        if name in _TAGS and not np.all(tags == _TAGS[name]):
            raise _damaged(tags[tags != _TAGS[name]][0])
        match name:
            case "str" | "bytes":
                ends = self.ends if is_last else self._terminated(at)
                return self._texts(at, ends, pa.string() if name == "str" else pa.binary()), ends
            case "int":
                return self._ints(tags, at)
            case "float":
                bits = self._words(at)
                bits ^= np.where(bits & _SIGN, _SIGN, ~np.uint64(0))
                return pa.array(bits.view(np.float64)), at + 9
            case "datetime":
                micros = (self._words(at) ^ _SIGN).view(np.int64)
                return pa.array(micros).view(pa.timestamp("us", "UTC")), at + 9
            case "date":
                days = self._words(at) >> np.uint64(32)
                return pa.array((days.astype(np.int64) - _DATE_OF_1970).astype(np.int32)).view(pa.date32()), (
                    at + 5
                )
            case "bool":
                return pa.array(tags == TAG_TRUE), at + 1
            case _:
                return pa.nulls(len(at), pa.string()), at + 1

    def _ints(self, tags: Bytes, at: Positions) -> tuple[pa.Array, Positions]:
        distances = tags.astype(np.int64) - TAG_ZERO
        sizes = np.abs(distances)
        size_max = int(sizes.max(initial=0))
        if size_max > INT_BYTES_MAX:
            raise _damaged(tags[sizes > INT_BYTES_MAX][0])
        values = np.zeros(len(at), np.uint64)
        if size_max:
            # The eight bytes behind the tag, of which those behind the number are shifted out.
            unused = np.uint64(64) - sizes.astype(np.uint64) * np.uint64(8)
            values = np.where(sizes > 0, self._words(at) >> np.minimum(unused, np.uint64(63)), np.uint64(0))
        negative = distances < 0
        if negative.any():
            width = sizes[negative].astype(np.uint64) * np.uint64(8)
            power = np.where(width == 64, np.uint64(0), np.uint64(1) << np.minimum(width, np.uint64(63)))
            values[negative] += np.uint64(1) - power
        return pa.array(values.view(np.int64)), at + 1 + sizes

    def _words(self, at: Positions) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return the eight bytes behind each tag, as numbers."""
        windows = np.lib.stride_tricks.sliding_window_view(self._data, 8)
        return windows[at + 1].view(">u8").reshape(-1).astype(np.uint64)

    def _take_tuple(self, items: tuple[Type, ...], at: Positions) -> tuple[pa.Array, Positions]:
        members = []
        at = at + 1
        for item in items:
            member, at = self.take(item, at)
            members.append(member)
        fields = [
            pa.field(f"_{number}", member.type, nullable=optional(item)[1])
            for number, (member, item) in enumerate(zip(members, items, strict=True), 1)
        ]
        return pa.StructArray.from_arrays(members, fields=fields), at + 1

    def _take_optional(self, inner: Type, at: Positions, *, is_last: bool) -> tuple[pa.Array, Positions]:
        absent = self._data[at] == TAG_NONE
        if not absent.any():
            return self.take(inner, at, is_last=is_last)
        present = np.flatnonzero(~absent)
        column, ends = self.take(inner, at[present])
        after = at + 1
        after[present] = ends
        places = np.cumsum(~absent) - 1
        return column.take(pa.array(places, mask=absent)), after

    def _take_each(self, type_: Type, at: Positions) -> tuple[pa.Array, Positions]:
        """Decode a key that has no vectorized form, row by row."""
        found = [decode_at(self._raw, position) for position in at.tolist()]
        ends = np.fromiter((end for _, end in found), np.int64, len(found))
        if form_of(type_) is Form.JSON:
            return pa.array([json_text(key) for key, _ in found], pa.string()), ends
        return column(type_, [key for key, _ in found]), ends

    # Texts.

    @cached_property
    def _is_escaped(self) -> bool:
        # The first look is for one byte, which no text has: it is the faster by far.
        return b"\xff" in self._raw and _ESCAPED in self._raw

    @cached_property
    def _terminators(self) -> Positions:
        zeros = np.flatnonzero(self._data[: len(self._raw)] == 0)
        return zeros[self._data[zeros + 1] != 0xFF] if self._is_escaped else zeros

    def _terminated(self, at: Positions) -> Positions:
        return self._terminators[np.searchsorted(self._terminators, at + 1)] + 1

    def _texts(self, at: Positions, ends: Positions, type_: pa.DataType) -> pa.Array:
        if not self._is_escaped:
            return self._sliced(at + 1, ends - 1, type_)
        found = self._sliced(at + 1, ends - 1, pa.binary())
        return pa.array([each.as_py().replace(_ESCAPED, b"\0") for each in found], pa.binary()).cast(type_)

    def _sliced(self, begins: Positions, ends: Positions, type_: pa.DataType) -> pa.Array:
        return sliced(self._data[: len(self._raw)], begins, ends, type_)


def _damaged(tag: int) -> PeerError:
    return PeerError(f"a key is damaged: the tag {tag:02x} is not that of its type")
