"""Records of a depot as rows.

A row has where its record lies (``_task``, ``offset``), when its batch was appended (``timestamp``), the
record as it is (``value``), and the offset that its task group was read at (``_apply_offset``). A schema that
the caller gives chooses among these and adds others: fields of the record, which is JSON then. A field that a
record lacks is null; one that is of another type is an error that tells which record it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from types import GenericAlias
from typing import Any, TypedDict, Union, cast

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_stretto.columns.schema import APPLY_OFFSET, DEPOT_SCHEMA, OFFSET, TASK, TIMESTAMP, VALUE
from stretto.errors import UsageError
from stretto.state.depot import DepotBatch
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.records import RecordBatch

ROWS_AT_ONCE = 50_000
BYTES_AT_ONCE = 4 * 1024 * 1024

_PYTHON: dict[type[DataType], Any] = {
    BooleanType: bool,
    ByteType: int,
    ShortType: int,
    IntegerType: int,
    LongType: int,
    FloatType: float,
    DoubleType: float,
    DecimalType: Decimal,
    DateType: date,
    TimestampType: datetime,
    TimestampNTZType: datetime,
    BinaryType: bytes,
    StringType: Any,
}


_typed_dict = cast("Callable[..., Any]", TypedDict)


@dataclass(frozen=True, slots=True)
class _Part:
    """Records of one depot batch, with the offset of the first and the time of its append."""

    base: int
    timestamp_ms: int
    records: RecordBatch


def check_schema(what: str, given: StructType) -> None:
    """Raise UsageError unless the records of a depot can be read with this schema."""
    own = {field.name: field.dataType for field in DEPOT_SCHEMA.fields}
    for field in given.fields:
        actual = own.get(field.name)
        wanted = field.dataType
        if field.name == VALUE and isinstance(wanted, BinaryType):
            continue
        if actual is not None and wanted.simpleString() != actual.simpleString():
            raise UsageError(
                f"column {field.name} of {what} is {actual.simpleString()}, not {wanted.simpleString()} as "
                f"in the schema given; say {actual.simpleString()}"
            )
        if actual is None:
            _python_type(field.name, wanted)


class Records:
    """Converts records to rows of one schema.

    ``apply_offset`` is that of the pin or the snapshot, and None in a stream.
    """

    def __init__(self, schema: StructType, apply_offset: int | None = None) -> None:
        self._apply_offset = apply_offset
        self._arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        known = set(DEPOT_SCHEMA.names)
        self._fields = [field for field in schema.fields if field.name not in known]
        types = {field.name: _python_type(field.name, field.dataType) for field in self._fields}
        self._row = _dict_of(types)
        self._rows: msgspec.json.Decoder[Any] = msgspec.json.Decoder(GenericAlias(list, self._row))
        self._texts = {field.name for field in self._fields if isinstance(field.dataType, StringType)}

    def batches(
        self, stored: Iterable[DepotBatch], *, task: int, start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Convert the records ``[start, end)`` of the stored batches, many of them at a time."""
        gathered: list[_Part] = []
        rows = size = 0
        for each in stored:
            batch = RecordBatch.parse(each.payload)
            first, last = max(start - each.base, 0), min(end - each.base, batch.count)
            if first >= last:
                continue
            if (first, last) != (0, batch.count):
                batch = batch.slice(first, last)
            gathered.append(_Part(each.base + first, each.timestamp_ms, batch))
            rows += batch.count
            size += len(batch.data)
            if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield self._batch(task, gathered)
                gathered, rows, size = [], 0, 0
        if gathered:
            yield self._batch(task, gathered)

    def _batch(self, task: int, parts: list[_Part]) -> pa.RecordBatch:
        counts = [part.records.count for part in parts]
        count = sum(counts)
        columns: dict[str, Callable[[], pa.Array]] = {
            TASK: lambda: pa.array(np.full(count, task, np.int32)),
            OFFSET: lambda: pa.array(
                np.concatenate([np.arange(part.base, part.base + part.records.count) for part in parts])
            ),
            TIMESTAMP: lambda: pa.array(
                np.repeat(np.array([part.timestamp_ms * 1_000 for part in parts], np.int64), counts)
            ).cast(pa.timestamp("us", "UTC")),
            VALUE: lambda: _values(parts),
            APPLY_OFFSET: lambda: _same(self._apply_offset, count),
        }
        fields = self._parsed(task, parts) if self._fields else {}
        arrays = []
        for field in self._arrow:
            array = columns[field.name]() if field.name in columns else fields[field.name]
            if field.name == VALUE and pa.types.is_string(field.type):
                array = _as_text(array, task, parts)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _parsed(self, task: int, parts: list[_Part]) -> dict[str, pa.Array]:
        records = [record for part in parts for record in part.records.records()]
        try:
            rows = self._rows.decode(b"[" + b",".join(records) + b"]")
        except MALFORMED:
            rows = []
        if len(rows) != len(records):
            # One of them is no JSON, or more than one value: it is told which.
            rows = [self._one(task, at, record) for at, record in zip(_offsets(parts), records, strict=True)]
        found = {}
        for field in self._fields:
            values: list[Any] = [row.get(field.name) for row in rows]
            if field.name in self._texts:
                values = [_text(each) for each in values]
            try:
                found[field.name] = pa.array(values, self._arrow.field(field.name).type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise UsageError(
                    f"field {field.name} of records of task {task} does not fit "
                    f"{field.dataType.simpleString()} ({error}); choose another type in the schema given"
                ) from None
        return found

    def _one(self, task: int, offset: int, record: bytes) -> Any:
        try:
            return msgspec.json.decode(record, type=self._row)
        except MALFORMED as error:
            raise UsageError(
                f"the record at offset {offset} of task {task} does not fit the schema given ({error}); "
                "read it as value, without a schema"
            ) from None


def _same(value: int | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.int64()) if value is None else pa.array(np.full(count, value, np.int64))


def _text(value: Any) -> str | None:
    return value if value is None or type(value) is str else msgspec.json.encode(value).decode()


def _offsets(parts: list[_Part]) -> Iterator[int]:
    for part in parts:
        yield from range(part.base, part.base + part.records.count)


def _values(parts: list[_Part]) -> pa.Array:
    lengths = np.concatenate([np.frombuffer(part.records.lengths, np.uint32) for part in parts])
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    data = b"".join(part.records.data for part in parts)
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
    )


def _as_text(array: pa.Array, task: int, parts: list[_Part]) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        for offset, record in zip(_offsets(parts), array.to_pylist(), strict=True):
            try:
                record.decode()
            except UnicodeDecodeError:
                raise UsageError(
                    f"the record at offset {offset} of task {task} is no text; read the depot with a schema "
                    "in which value is binary"
                ) from None
        raise


def _python_type(name: str, wanted: DataType) -> Any:
    """Return the Python type that a field of JSON is decoded as; null is always possible."""
    found: Any
    match wanted:
        case ArrayType():
            found = GenericAlias(list, _python_type(name, wanted.elementType))
        case MapType() if isinstance(wanted.keyType, StringType):
            found = GenericAlias(dict, (str, _python_type(name, wanted.valueType)))
        case StructType():
            found = _dict_of({field.name: _python_type(name, field.dataType) for field in wanted.fields})
        case _:
            found = _PYTHON.get(type(wanted))
            if found is None:
                raise UsageError(
                    f"column {name} of the schema given is {wanted.simpleString()}, which JSON has nothing "
                    "for; read it as string"
                )
    return found if found is Any else Union[found, None]  # noqa: UP007 - found when it runs


def _dict_of(fields: dict[str, Any]) -> Any:
    """Return a dict type with at most these fields; others in the JSON are skipped."""
    return _typed_dict("_dict_of", fields, total=False)
