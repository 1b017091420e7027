"""Records made up by their types: what a person can append as it is, to see a module do something.

Every field is there. One with a default has that, which its author found fit; a number is 1, a text ``...``,
a moment some day at noon, a choice its first option. What comes out is decoded by every function that would
take it, and left out if one refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec import NODEFAULT, inspect

from stretto.module.fields import fields_in
from stretto.module.partition import Partitioner

if TYPE_CHECKING:
    from stretto.module.checks import CheckedTopology
    from stretto.module.module import Depot

TEXT = "..."
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SIZE_MAX = 100
"""Largest length of a text or list in a record: it is shown to a person."""
_TASKS = 1_024
"""Number of tasks for a trial whether a record has one; any number will do."""
_TEXTS = (TEXT, "a", "A", "1", "0", "ann", "Ann", "ann@example.org", "https://example.org", "2026-01-31")
"""Texts to try where a pattern restricts a field."""

_Path: TypeAlias = tuple[type, ...]
"""The classes that a value is inside of, to stop at a class that contains itself."""


def sample_records(
    depots: Mapping[str, Depot[Any]], topologies: Mapping[str, CheckedTopology]
) -> dict[str, str]:
    """Return a record of each depot, as JSON; those of which none is known are left out."""
    found: dict[str, str] = {}
    for name, depot in depots.items():
        takers = [each for each in topologies.values() if name in each.depots]
        # Defaults are made by their author's code, and no hint is worth a launch.
        with suppress(Exception):
            found[name] = _sample_of(depot, takers)
    return found


class _NoSample(Exception):
    """Raised where no value of a type is known."""


def _sample_of(depot: Depot[Any], takers: Sequence[CheckedTopology]) -> str:
    by = depot.spec.partition_by
    keys = () if by is None else (by,) if isinstance(by, str) else by
    annotations = [each.signature.annotation for each in takers]
    if depot.annotation is not Any:
        annotations.insert(0, depot.annotation)
    values = [_root(each, keys) for each in annotations if each is not Any and each is not bytes]
    # Where a function chooses tasks, only people with the module's class can append; no sample is shown.
    record, _ = Partitioner(depot.spec, _TASKS).place(_merged(values, keys))
    for each in takers:
        each.signature.decode(record)
    return json.dumps(msgspec.json.decode(record), ensure_ascii=False)


def _merged(values: Sequence[Any], keys: Sequence[str]) -> Any:
    """Return one value that has the fields of all values, and those that the depot is partitioned by."""
    objects = [each for each in values if isinstance(each, dict)]
    if not objects and not keys:
        return values[0] if values else "any JSON"
    merged: dict[Any, Any] = dict.fromkeys(keys, TEXT)
    for each in reversed(objects):
        merged |= each
    return merged


def _root(annotation: Any, keys: Sequence[str]) -> Any:
    info = inspect.type_info(annotation)
    while isinstance(info, inspect.Metadata):
        info = info.type
    if isinstance(info, inspect.DictType) and keys:
        return {key: _sample(info.value_type) for key in keys}
    if isinstance(info, inspect.UnionType):
        return _choice(info, (), keys)
    return _sample(info)


def _sample(info: inspect.Type, inside: _Path = ()) -> Any:
    match info:
        case inspect.Metadata(type=inner):
            return _sample(inner, inside)
        case inspect.UnionType():
            return _choice(info, inside)
        case (
            inspect.StructType()
            | inspect.DataclassType()
            | inspect.TypedDictType()
            | inspect.NamedTupleType()
        ):
            return _object(info, inside)
        case inspect.TupleType(item_types=items):
            return [_sample(each, inside) for each in items]
        case inspect.DictType():
            return _dict(info, inside)
        case inspect.CollectionType():
            return _list(info, inside)
        case _:
            return _scalar(info)


def _choice(info: inspect.UnionType, inside: _Path, keys: Sequence[str] = ()) -> Any:
    """Return a value of the first option that has these fields; None only if there is no other option."""
    options = sorted(info.types, key=lambda each: isinstance(each, inspect.NoneType))
    fitting = [each for each in options if (fields := fields_in(each)) is None or fields.issuperset(keys)]
    for each in fitting or options:
        with suppress(_NoSample):
            return _sample(each, inside)
    raise _NoSample


def _object(
    info: inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType,
    inside: _Path,
) -> Any:
    if info.cls in inside:
        raise _NoSample
    values = {each.encode_name: _field(each, (*inside, info.cls)) for each in info.fields}
    if isinstance(info, inspect.NamedTupleType):
        return list(values.values())
    if not isinstance(info, inspect.StructType):
        return values
    tag = {} if info.tag_field is None else {info.tag_field: info.tag}
    return [*tag.values(), *values.values()] if info.array_like else {**tag, **values}


def _field(field: inspect.Field, inside: _Path) -> Any:
    if field.default is not NODEFAULT:
        return field.default
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return _sample(field.type, inside)


def _list(info: inspect.CollectionType, inside: _Path) -> list[Any]:
    count = _size(max(1, info.min_length or 0))
    if info.max_length == 0:
        return []
    try:
        return [_sample(info.item_type, inside)] * count
    except _NoSample:
        if info.min_length:
            raise
        return []


def _size(count: int) -> int:
    if count > SIZE_MAX:
        raise _NoSample
    return count


def _dict(info: inspect.DictType, inside: _Path) -> dict[Any, Any]:
    try:
        return {_sample(info.key_type, inside): _sample(info.value_type, inside)}
    except _NoSample:
        if info.min_length:
            raise
        return {}


def _scalar(info: inspect.Type) -> Any:
    match info:
        case inspect.AnyType() | inspect.RawType():
            return TEXT
        case inspect.NoneType():
            return None
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return _number(info)
        case inspect.StrType():
            return _text(info)
        case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
            return TEXT.encode()
        case inspect.DateTimeType(tz=tz):
            return NOON.replace(tzinfo=None) if tz is False else NOON
        case inspect.TimeType(tz=tz):
            return NOON.timetz() if tz else NOON.time()
        case inspect.EnumType(cls=cls):
            return next(iter(cls))
        case inspect.LiteralType(values=values):
            return values[0]
        case _:
            return _other(info)


def _other(info: inspect.Type) -> Any:
    known: dict[type, Any] = {
        inspect.DateType: NOON.date(),
        inspect.TimeDeltaType: timedelta(hours=1),
        inspect.UUIDType: UUID(int=1),
        inspect.DecimalType: Decimal("1.5"),
    }
    if type(info) not in known:
        raise _NoSample
    return known[type(info)]


def _number(info: inspect.IntType | inspect.FloatType) -> Any:
    """Return 1, or the number nearest to it within the limits."""
    step = info.multiple_of or 1
    low = [each for each in (info.ge, None if info.gt is None else info.gt + 1) if each is not None]
    high = [each for each in (info.le, None if info.lt is None else info.lt - 1) if each is not None]
    number = min([max([1, *low]), *high])
    if info.multiple_of:
        number = -(-number // step) * step
        if high and number > min(high):
            number -= step
    return int(number) if isinstance(info, inspect.IntType) else float(number)


def _text(info: inspect.StrType) -> str:
    length_min, length_max = _size(info.min_length or 0), info.max_length
    texts = [text.ljust(length_min, ".")[:length_max] for text in _TEXTS]
    if info.pattern is None:
        return texts[0]
    for text in texts:
        if re.search(info.pattern, text):
            return text
    raise _NoSample
