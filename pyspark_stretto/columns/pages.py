"""Pages of rows as Arrow batches.

Only what the schema asks for is decoded: the last key column that is wanted and those before it, and of
records the fields that are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_stretto.columns import values
from pyspark_stretto.columns.keys import Keys
from pyspark_stretto.columns.schema import (
    APPLY_OFFSET,
    POSITION,
    TASK,
    VALUE,
    Nested,
    exploded,
    key_name,
    nested_type,
    shape_of,
)
from pyspark_stretto.columns.values import Positions, Values, arrow_type, text_of
from stretto.pstate import types
from stretto.pstate.ordered import end_of
from stretto.pstate.pages import Page
from stretto.pstate.tree import Elements, Leaf, Members
from stretto.pstate.types import Type

_INT = types.Plain("int")


class Columns:
    """Converts pages of one PState to Arrow batches with the columns of one schema."""

    def __init__(self, type_: Type, schema: StructType, nested: Nested = "rows") -> None:
        self._shape = shape_of(type_)
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._wanted = set(self._arrow.names)
        self._is_nested = nested == "map" and nested_type(type_) is not None
        self._levels: tuple[Type, ...] = self._shape.keys
        self._names = [key_name(level) for level in range(len(self._levels))]
        if isinstance(self._shape.end, Elements):
            self._levels = (*self._levels, _INT)
            self._names.append(POSITION)
        self._value = _value_type(self._shape.end)
        self._record = None if self._value is None else exploded(self._value, self._names)
        if self._record is not None and not self._record.as_array:
            # What is not in the type is skipped by the decoder.
            fields = tuple(field for field in self._record.fields if field.name in self._wanted)
            self._record = msgspec.structs.replace(self._record, fields=fields)

    def batches(self, pages: Iterable[Page], *, task: int, apply_offset: int) -> Iterator[pa.RecordBatch]:
        """Convert pages of one task to batches; both named values become columns if the schema has them."""
        constants = {TASK: task, APPLY_OFFSET: apply_offset}
        for page in whole_keys(pages) if self._is_nested else pages:
            if page.count:
                found = self._maps(page) if self._is_nested else self._rows(page)
                yield self._batch(found, constants)

    def _batch(self, found: dict[str, pa.Array], constants: dict[str, int]) -> pa.RecordBatch:
        count = len(next(iter(found.values())))
        arrays = []
        for field in self._arrow:
            array = found.get(field.name)
            if array is None:
                array = pa.array(np.full(count, constants[field.name], field.type.to_pandas_dtype()))
            arrays.append(as_wanted(array, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    # One row for each.

    def _rows(self, page: Page) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        keys = Keys(page.keys, page.key_ends)
        at = keys.starts
        deepest = max((level for level, name in enumerate(self._names) if name in self._wanted), default=0)
        for level in range(deepest + 1):
            is_last = level == len(self._levels) - 1
            found[self._names[level]], at = keys.take(self._levels[level], at, is_last=is_last)
        if self._record is not None:
            if self._wanted.intersection(field.name for field in self._record.fields):
                found |= self._fields(self._record, Values(self._record, page.values, page.value_ends))
        elif self._value is not None and VALUE in self._wanted:
            found[VALUE] = self._values(Values(self._value, page.values, page.value_ends), self._value)
        return found

    def _fields(self, record: types.Record, stored: Values) -> dict[str, pa.Array]:
        objects = stored.objects()
        return {
            field.name: values.column(
                field.type, values.fields(record, field.name, objects), self._arrow.field(field.name).type
            )
            for field in record.fields
            if field.name in self._wanted
        }

    def _values(self, stored: Values, type_: Type) -> pa.Array:
        wanted = self._arrow.field(VALUE).type
        is_other = pa.types.is_string(wanted) or pa.types.is_decimal(wanted)
        if is_other and wanted != arrow_type(type_):
            return values.column(type_, stored.objects(), wanted)
        return stored.column()

    # One row for each first key.

    def _maps(self, page: Page) -> dict[str, pa.Array]:
        keys = Keys(page.keys, page.key_ends)
        at = keys.starts
        columns: list[pa.Array] = []
        firsts: list[Positions] = []
        for level, type_ in enumerate(self._levels):
            is_last = level == len(self._levels) - 1
            column, at = keys.take(type_, at, is_last=is_last)
            columns.append(column)
            firsts.append(_firsts(keys.prefixes(at)) if not is_last else np.arange(page.count))
        found: pa.Array = columns[-1]
        if self._value is not None:
            found = Values(self._value, page.values, page.value_ends).column()
        for level in range(len(self._levels) - 1, 0, -1):
            offsets = np.append(np.searchsorted(firsts[level], firsts[level - 1]), len(firsts[level]))
            starts = pa.array(offsets.astype(np.int32))
            if level == len(self._levels) - 1 and not isinstance(self._shape.end, Leaf):
                found = pa.ListArray.from_arrays(starts, found)
            else:
                found = pa.MapArray.from_arrays(starts, columns[level].take(pa.array(firsts[level])), found)
        return {self._names[0]: columns[0].take(pa.array(firsts[0])), VALUE: found}


def _value_type(end: Leaf | Members | Elements) -> Type | None:
    match end:
        case Leaf(type=type_):
            return type_
        case Elements(item=item):
            return item.type
        case Members():
            return None


def _firsts(prefixes: pa.Array) -> Positions:
    """Return the rows whose prefix differs from that of the row before."""
    changed = pc.not_equal(prefixes[1:], prefixes[:-1]).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.flatnonzero(changed) + 1)).astype(np.int64)


def as_wanted(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return the array as the type that the schema asks for: text, or whatever Arrow can cast it to."""
    if array.type == wanted:
        return array
    if pa.types.is_string(wanted):
        return pa.array([None if each is None else text_of(each) for each in array.to_pylist()], wanted)
    try:
        return array.cast(wanted)
    except pa.ArrowNotImplementedError:
        return pa.array(_pylist(array), wanted)


def _pylist(array: pa.Array) -> list[Any]:
    return array.to_pylist()  # type: ignore[no-any-return]


# Keys that are not cut.


def whole_keys(pages: Iterable[Page]) -> Iterator[Page]:
    """The same rows, in pages that have all or nothing of what is under a first key."""
    held: list[Page] = []
    beginning = b""
    for page in pages:
        if not page.count:
            continue
        if held and not key_at(page, 0).startswith(beginning):
            yield joined(held)
            held = []
        last = key_at(page, page.count - 1)
        beginning = last[: end_of(last, 0)]
        cut = bisect_left(range(page.count), beginning, key=lambda row, page=page: key_at(page, row))  # type: ignore[misc]
        if cut:
            yield joined([*held, part(page, 0, cut)])
            held = [part(page, cut, page.count)]
        else:
            held.append(page)
    if held:
        yield joined(held)


def key_at(page: Page, row: int) -> bytes:
    """Return the key of one row."""
    ends = memoryview(page.key_ends).cast("I")
    return page.keys[ends[row - 1] if row else 0 : ends[row]]


def part(page: Page, start: int, stop: int) -> Page:
    """Return rows ``[start, stop)`` as a page of their own."""
    keys, key_ends = _cut(page.keys, page.key_ends, start, stop)
    stored, value_ends = _cut(page.values, page.value_ends, start, stop)
    return Page(stop - start, keys, key_ends, stored, value_ends)


def _cut(data: bytes, ends: bytes, start: int, stop: int) -> tuple[bytes, bytes]:
    positions = np.frombuffer(ends, "<u4")
    begin = int(positions[start - 1]) if start else 0
    return data[begin : int(positions[stop - 1])], (positions[start:stop] - np.uint32(begin)).tobytes()


def joined(pages: list[Page]) -> Page:
    if len(pages) == 1:
        return pages[0]
    keys, key_ends = _joined([(page.keys, page.key_ends) for page in pages])
    stored, value_ends = _joined([(page.values, page.value_ends) for page in pages])
    return Page(sum(page.count for page in pages), keys, key_ends, stored, value_ends)


def _joined(parts: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    begins = np.cumsum([0, *(len(data) for data, _ in parts)]).astype("<u4")
    ends = [np.frombuffer(ends, "<u4") + begin for (_, ends), begin in zip(parts, begins, strict=False)]
    return b"".join(data for data, _ in parts), np.concatenate(ends).tobytes()
