"""Values of many rows as columns at once.

Numbers, texts and bytes are taken from the MessagePack of a whole page by operations on arrays. Other types
are decoded by one call for a page (values one after the other are an array, but for its head) and become
columns from the objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from pyspark_stretto.columns.schema import Form, form_of, optional, spark_type
from stretto.errors import PeerError, UsageError
from stretto.pstate import types
from stretto.pstate.types import Type, python_type
from stretto.vocabulary.decoding import MALFORMED

Positions: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Convert: TypeAlias = Callable[[Any], Any]

_NIL = 0xC0
_FALSE = 0xC2
_TRUE = 0xC3
_DOUBLE = 0xCB
_INTS = {
    0xCC: ">u1",
    0xCD: ">u2",
    0xCE: ">u4",
    0xCF: ">u8",
    0xD0: ">i1",
    0xD1: ">i2",
    0xD2: ">i4",
    0xD3: ">i8",
}
_TEXT_HEADS = {**dict.fromkeys(range(0xA0, 0xC0), 1), 0xD9: 2, 0xDA: 3, 0xDB: 5}
_BYTES_HEADS = {0xC4: 2, 0xC5: 3, 0xC6: 5}
_NARROW = 4
"""Widest gap between values, in bytes, that is faster to leave out byte by byte."""
_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


def arrow_type(type_: Type) -> pa.DataType:
    return to_arrow_type(spark_type(type_), timezone="UTC")


# From bytes.


class Values:
    """The values of a page, all of one type, one after the other, and where each ends."""

    def __init__(self, type_: Type, values: bytes, ends: bytes) -> None:
        self._type = type_
        self._raw = values
        self._data: Bytes = np.frombuffer(values, np.uint8)
        self._ends: Positions = np.frombuffer(ends, "<u4").astype(np.int64)
        self._starts: Positions = np.concatenate(([0], self._ends[:-1])).astype(np.int64)

    def column(self) -> pa.Array:
        inner, nullable = optional(self._type)
        if not isinstance(inner, types.Plain) or inner.name not in _BULK or not len(self._ends):
            return column(self._type, self.objects())
        tags = self._data[self._starts]
        absent = tags == _NIL
        found = None
        if not absent.any():
            found = _BULK[inner.name](self._data, tags, self._starts, self._ends)
        elif nullable and absent.all():
            found = pa.nulls(len(tags), arrow_type(self._type))
        elif nullable:
            here = np.flatnonzero(~absent)
            found = _BULK[inner.name](self._data, tags[here], self._starts[here], self._ends[here])
            if found is not None:
                found = found.take(pa.array(np.cumsum(~absent) - 1, mask=absent))
        return column(self._type, self.objects()) if found is None else found

    def objects(self) -> list[Any]:
        try:
            return decoder(self._type).decode(_array_head(len(self._ends)) + self._raw)
        except MALFORMED as error:
            raise PeerError(f"a value is no {self._type} ({error}); was the PState's type changed?") from None


_DECODERS: dict[Type, msgspec.msgpack.Decoder[list[Any]]] = {}


def decoder(type_: Type) -> msgspec.msgpack.Decoder[list[Any]]:
    """Return the decoder of a list of values of this type."""
    if type_ not in _DECODERS:
        _DECODERS[type_] = msgspec.msgpack.Decoder(list[python_type(type_)])  # type: ignore[misc]
    return _DECODERS[type_]


def _array_head(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")


# Each of these gives None where it meets something else than it knows.


def _ints(data: Bytes, tags: Bytes, starts: Positions, ends: Positions) -> pa.Array | None:
    # A number of one byte is that byte, with its sign.
    values = tags.view(np.int8).astype(np.int64)
    sizes = ends - starts
    if int(sizes.max()) == 1:
        return pa.array(values)
    known = int(np.count_nonzero(sizes == 1))
    for tag in np.flatnonzero(np.bincount(tags[sizes > 1], minlength=256)).tolist():
        layout = _INTS.get(tag)
        if layout is None:
            return None
        width = np.dtype(layout).itemsize
        rows = np.flatnonzero((tags == tag) & (sizes == 1 + width))
        windows = np.lib.stride_tricks.sliding_window_view(data, width)
        found = windows[starts[rows] + 1].view(layout).reshape(-1)
        if layout == ">u8" and found.max() > np.uint64(2**63 - 1):
            return None
        values[rows] = found
        known += len(rows)
    return pa.array(values) if known == len(tags) else None


def _floats(data: Bytes, tags: Bytes, starts: Positions, ends: Positions) -> pa.Array | None:
    if not np.all(tags == _DOUBLE) or not np.all(ends - starts == 9):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(data, 8)
    return pa.array(windows[starts + 1].view(">f8").reshape(-1).astype(np.float64))


def _bools(_data: Bytes, tags: Bytes, _starts: Positions, _ends: Positions) -> pa.Array | None:
    found = tags == _TRUE
    return pa.array(found) if np.all(found | (tags == _FALSE)) else None


def _heads(sizes: dict[int, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    table = np.zeros(256, np.int64)
    table[list(sizes)] = list(sizes.values())
    return table


_TEXT_HEAD = _heads(_TEXT_HEADS)
_BYTES_HEAD = _heads(_BYTES_HEADS)


def _texts(data: Bytes, tags: Bytes, starts: Positions, ends: Positions) -> pa.Array | None:
    heads = _TEXT_HEAD[tags]
    return sliced(data, starts + heads, ends, pa.string()) if heads.all() else None


def _binaries(data: Bytes, tags: Bytes, starts: Positions, ends: Positions) -> pa.Array | None:
    heads = _BYTES_HEAD[tags]
    return sliced(data, starts + heads, ends, pa.binary()) if heads.all() else None


_BULK = {"int": _ints, "float": _floats, "bool": _bools, "str": _texts, "bytes": _binaries}


def sliced(data: Bytes, begins: Positions, ends: Positions, type_: pa.DataType) -> pa.Array:
    """Return an array of consecutive parts of the data, with what lies between them left out."""
    kept = data[_inside(len(data), begins, ends)]
    offsets = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(ends - begins, out=offsets[1:])
    return pa.Array.from_buffers(type_, len(begins), [None, pa.py_buffer(offsets), pa.py_buffer(kept)])


def _inside(size: int, begins: Positions, ends: Positions) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the bytes that are in one of the parts."""
    before = np.concatenate(([0], ends[:-1]))
    gaps = begins - before
    widest = int(gaps.max(initial=0))
    if widest > _NARROW:
        steps = np.zeros(size + 1, np.int8)
        steps[begins] += 1
        steps[ends] -= 1
        return np.cumsum(steps[:-1], dtype=np.int8).view(bool)
    inside = np.ones(size, bool)
    for width in range(widest):
        inside[(before + width)[gaps > width]] = False
    if len(ends):
        inside[ends[-1] :] = False
    return inside


# From objects.


def column(type_: Type, objects: Sequence[Any], wanted: pa.DataType | None = None) -> pa.Array:
    """Return objects of a type as a column.

    ``wanted`` is another type than that of the values: text, or decimals of other digits.
    """
    own = arrow_type(type_)
    if wanted is not None and pa.types.is_string(wanted) and wanted != own:
        return pa.array([None if each is None else text_of(each) for each in objects], wanted)
    convert = converter(type_)
    try:
        return pa.array(objects if convert is None else [*map(convert, objects)], wanted or own)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise UsageError(
            f"a value that is {type_} does not fit Spark's {spark_type(type_).simpleString()} ({error}); "
            "read its column as text, by a schema in which it is string"
        ) from None


def converter(type_: Type) -> Convert | None:
    """Return the function that turns a value into what Arrow takes for it; None if none is needed."""
    inner, nullable = optional(type_)
    convert = _converter(inner)
    if convert is None or not nullable:
        return convert
    return lambda value: None if value is None else convert(value)


def _converter(type_: Type) -> Convert | None:
    match form_of(type_):
        case Form.TEXT:
            return str
        case Form.JSON:
            return json_text
        case Form.PLAIN:
            pass
    match type_:
        case types.Choice():
            return float
        case types.Dict(key=key, value=value):
            return _pairs(converter(key), converter(value))
        case types.Set(item=item) | types.List(item=item) | types.Run(item=item):
            each = converter(item)
            return list if each is None else (lambda items: [*map(each, items)])
        case types.Tuple(items=items):
            parts = [(f"_{number}", converter(item)) for number, item in enumerate(items, 1)]
            return lambda members: {
                name: member if part is None else part(member)
                for (name, part), member in zip(parts, members, strict=True)
            }
        case types.Record(fields=fields):
            named = [(field.name, converter(field.type)) for field in fields]
            return lambda record: {name: field_of(record, name, part) for name, part in named}
        case _:
            return None


def _pairs(key: Convert | None, value: Convert | None) -> Convert:
    if key is None and value is None:
        return lambda found: list(found.items())
    each_key, each_value = key or _itself, value or _itself
    return lambda found: [(each_key(name), each_value(item)) for name, item in found.items()]


def _itself(value: Any) -> Any:
    return value


def field_of(record: Any, name: str, convert: Convert | None) -> Any:
    """Return one field of a record, converted; None if it was not written."""
    value = getattr(record, name)
    if value is msgspec.UNSET or value is None:
        return None
    return value if convert is None else convert(value)


def fields(record: types.Record, name: str, objects: Sequence[Any]) -> list[Any]:
    """Return one field of many records."""
    found = list(map(attrgetter(name), objects))
    required = next(field.required for field in record.fields if field.name == name)
    return found if required else [None if each is msgspec.UNSET else each for each in found]


def json_text(value: Any) -> str:
    return _to_json(_sayable(value)).decode()


def text_of(value: Any) -> str:
    """Return a value as people would write it, and as JSON if it has parts."""
    told = _to_json(_sayable(value))
    return _from_json(told) if told.startswith(b'"') else told.decode()


def _sayable(value: Any) -> Any:
    """Return what JSON can express: a dict whose keys are not all text becomes a list of pairs."""
    match value:
        case dict():
            if all(isinstance(key, str) for key in value):
                return {key: _sayable(item) for key, item in value.items()}
            return [[_sayable(key), _sayable(item)] for key, item in value.items()]
        case list() | tuple() | set() | frozenset():
            return [_sayable(item) for item in value]
        case msgspec.Struct():
            return _sayable(msgspec.to_builtins(value))
        case _:
            return value
