"""The type of a PState as data: what the metastore keeps of it, and what readers use.

:func:`describe` turns an annotation into a description, :func:`python_type` turns a description into an
annotation that decodes the same bytes, where the author's own classes are not at hand: records then become
structs of the same name and fields. Descriptions of equal meaning are equal, and :func:`incompatible` tells
why data that was written under one of them cannot be read under another.

The classes of fields (struct, dataclass, NamedTuple, TypedDict) are all *records*, told apart only by whether
their values are written as maps or as arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, Literal, TypeAlias, Union
from uuid import UUID

import msgspec
from msgspec import inspect

from stretto.errors import UsageError

_PLAIN: dict[str, Any] = {
    "None": NoneType,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "datetime": datetime,
    "date": date,
    "time": time,
    "timedelta": timedelta,
    "Decimal": Decimal,
    "UUID": UUID,
    "Any": Any,
}
_PLAIN_INFO: dict[type[inspect.Type], str] = {
    inspect.NoneType: "None",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "timedelta",
    inspect.DecimalType: "Decimal",
    inspect.UUIDType: "UUID",
    inspect.AnyType: "Any",
}
_KEYS = frozenset({"None", "bool", "int", "float", "str", "bytes", "datetime", "date"})
_KEY_TYPES = "use str, int, float, bool, bytes, date, datetime or a tuple of them"
_NUMBERS = frozenset({"bool", "int", "float"})
_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")


class Plain(msgspec.Struct, frozen=True, array_like=True, tag="plain"):
    """A type by its name."""

    name: str
    limits: tuple[str, ...] = ()
    """What ``msgspec.Meta`` demands of values, such as ``ge=0``, or of a collection's length."""

    def __post_init__(self) -> None:
        if self.name not in _PLAIN:
            raise ValueError(f"there is no type {self.name}")

    def __str__(self) -> str:
        return self.name + _limited(self.limits)


class Dict(msgspec.Struct, frozen=True, array_like=True, tag="dict"):
    key: Type
    value: Type
    limits: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"dict[{self.key}, {self.value}]" + _limited(self.limits)


class Set(msgspec.Struct, frozen=True, array_like=True, tag="set"):
    """Also a frozenset."""

    item: Type
    limits: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"set[{self.item}]" + _limited(self.limits)


class List(msgspec.Struct, frozen=True, array_like=True, tag="list"):
    item: Type
    limits: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"list[{self.item}]" + _limited(self.limits)


class Tuple(msgspec.Struct, frozen=True, array_like=True, tag="tuple"):
    """Of as many members as there are types; ``Run`` has any number of one."""

    items: tuple[Type, ...]

    def __str__(self) -> str:
        return f"tuple[{', '.join(map(str, self.items)) or '()'}]"


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    item: Type
    limits: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"tuple[{self.item}, ...]" + _limited(self.limits)


class Choice(msgspec.Struct, frozen=True, array_like=True, tag="choice"):
    """A union; in one order, however it was written."""

    options: tuple[Type, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.options))


class Constant(msgspec.Struct, frozen=True, array_like=True, tag="constant"):
    """One of these values: a Literal, or an Enum by what it is written as."""

    values: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return f"Literal[{', '.join(map(repr, self.values))}]"


class Field(msgspec.Struct, frozen=True, array_like=True):
    name: str
    written: str
    """Name of the field in what is stored."""
    type: Type
    required: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" + ("" if self.required else " = ...")


class Record(msgspec.Struct, frozen=True, array_like=True, tag="record"):
    name: str
    fields: tuple[Field, ...]
    as_array: bool = False
    tag_field: str | None = None
    tag_value: str | int | None = None

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.fields))})"


Type: TypeAlias = Plain | Dict | Set | List | Tuple | Run | Choice | Constant | Record


def describe(annotation: Any) -> Type:
    """Return the type that an annotation means, as data. Raises UsageError for what cannot be stored."""
    try:
        found = _described(inspect.type_info(annotation), ())
        msgspec.msgpack.Decoder(annotation)
    except (TypeError, NameError) as error:
        raise UsageError(f"{_named(annotation)} cannot be stored: {error}") from None
    return found


def _described(info: inspect.Type, inside: tuple[type, ...]) -> Type:
    plain = _PLAIN_INFO.get(type(info))
    if plain is not None:
        return Plain(plain, _limits(info))
    match info:
        case inspect.DictType():
            key, value = _described(info.key_type, inside), _described(info.value_type, inside)
            return Dict(key, value, _limits(info))
        case inspect.SetType() | inspect.FrozenSetType():
            return Set(_described(info.item_type, inside), _limits(info))
        case inspect.ListType():
            return List(_described(info.item_type, inside), _limits(info))
        case inspect.TupleType():
            return Tuple(tuple(_described(each, inside) for each in info.item_types))
        case inspect.VarTupleType():
            return Run(_described(info.item_type, inside), _limits(info))
        case inspect.UnionType():
            return Choice(tuple(sorted((_described(each, inside) for each in info.types), key=str)))
        case inspect.LiteralType():
            return _constant(info.values)
        case inspect.EnumType():
            return _constant([each.value for each in info.cls])
        case (
            inspect.StructType()
            | inspect.DataclassType()
            | inspect.TypedDictType()
            | inspect.NamedTupleType()
        ):
            return _record(info, inside)
        case _:
            name = _named(getattr(info, "cls", type(info)))
            raise UsageError(f"{name} cannot be stored; use a dataclass or a msgspec.Struct of plain types")


def _record(
    info: inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType,
    inside: tuple[type, ...],
) -> Record:
    if info.cls in inside:
        raise UsageError(f"{info.cls.__name__} holds itself, which cannot be described; break the circle")
    fields = tuple(
        Field(
            field.name,
            field.encode_name,
            _described(field.type, (*inside, info.cls)),
            field.required,
        )
        for field in info.fields
    )
    if isinstance(info, inspect.StructType):
        return Record(info.cls.__name__, fields, info.array_like, info.tag_field, info.tag)
    return Record(info.cls.__name__, fields, isinstance(info, inspect.NamedTupleType))


def _limits(info: inspect.Type) -> tuple[str, ...]:
    found = ((name, getattr(info, name, None)) for name in _LIMITS)
    return tuple(f"{name}={value!r}" for name, value in found if value is not None)


def _limited(limits: tuple[str, ...]) -> str:
    return f" with {', '.join(limits)}" if limits else ""


def _constant(values: Sequence[Any]) -> Constant:
    if not all(value is None or type(value) in (int, str) for value in values):
        raise UsageError(f"values such as {list(values)!r} cannot be stored; make them text or ints")
    return Constant(tuple(sorted(values, key=repr)))


def _named(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


# Without the author's code.


def python_type(type_: Type) -> Any:
    """Return an annotation for msgspec that reads what was written under ``type_``."""
    match type_:
        case Plain(name=name):
            return _PLAIN[name]
        case Dict(key=key, value=value):
            return dict[python_type(key), python_type(value)]  # type: ignore[misc]
        case Set(item=item):
            return set[python_type(item)]  # type: ignore[misc]
        case List(item=item):
            return list[python_type(item)]  # type: ignore[misc]
        case Tuple(items=items):
            return tuple[tuple(map(python_type, items))]  # type: ignore[misc]
        case Run(item=item):
            return tuple[python_type(item), ...]  # type: ignore[misc]
        case Choice(options=options):
            return Union[tuple(map(python_type, options))]  # noqa: UP007 - made while running
        case Constant(values=values):
            return Literal[values]
        case Record():
            return _struct(type_)


def _struct(record: Record) -> Any:
    """Make a struct class for a record without its author's class.

    A field that was not written is UNSET, or None in an array: only the author's class knows the default.
    """
    absent = None if record.as_array else msgspec.UNSET
    fields = [
        (
            field.name,
            python_type(field.type),
            msgspec.field(name=field.written)
            if field.required
            else msgspec.field(name=field.written, default=absent),
        )
        for field in record.fields
    ]
    return msgspec.defstruct(
        record.name,
        fields,
        frozen=True,
        kw_only=True,
        array_like=record.as_array,
        tag_field=record.tag_field,
        tag=record.tag_value,
    )


# Rules.


def not_a_key(type_: Type) -> str | None:
    """Return why values of this type cannot be keys, or None if they can."""
    match type_:
        case Plain(name=name) if name in _KEYS:
            return None
        case Tuple(items=items):
            return next(filter(None, map(not_a_key, items)), None)
        case Run(item=item):
            return not_a_key(item)
        case Choice(options=options):
            if len(_NUMBERS & {each.name for each in options if isinstance(each, Plain)}) > 1:
                return f"{type_} has keys that are equal and not the same, such as 1 and 1.0; choose one type"
            return next(filter(None, map(not_a_key, options)), None)
        case _:
            return f"{type_} is no type of keys; {_KEY_TYPES}"


def incompatible(old: Type, new: Type) -> str | None:
    """Return why what was written as ``old`` cannot be read as ``new``, or None if it can.

    A record may have another name, and more fields that have defaults; in an array, at its end. A field keeps
    its default, as rows that were written without it may be there. Limits may only go.
    """
    match old, new:
        case (Plain(), Plain()) if old.name == new.name:
            return _narrowed(old, new)
        case (Record(), Record()):
            return _incompatible_records(old, new)
        case (Dict(), Dict()):
            within = incompatible(old.key, new.key) or incompatible(old.value, new.value)
            return within or _narrowed(old, new)
        case (Set(), Set()):
            return incompatible(old.item, new.item) or _narrowed(old, new)
        case (List(), List()):
            return incompatible(old.item, new.item) or _narrowed(old, new)
        case (Run(), Run()):
            return incompatible(old.item, new.item) or _narrowed(old, new)
        case (Tuple(), Tuple()) if len(old.items) == len(new.items):
            return next(filter(None, map(incompatible, old.items, new.items)), None)
        case (Choice(), Choice()) if len(old.options) == len(new.options):
            return next(filter(None, map(incompatible, old.options, new.options)), None)
    return None if old == new else f"{old} cannot become {new}"


def _narrowed(old: Plain | Dict | Set | List | Run, new: Plain | Dict | Set | List | Run) -> str | None:
    added = [limit for limit in new.limits if limit not in old.limits]
    return f"{new} would refuse values that {old} took; leave out {added[0]}" if added else None


def _incompatible_records(old: Record, new: Record) -> str | None:
    layouts = [(each.as_array, each.tag_field, each.tag_value) for each in (old, new)]
    if layouts[0] != layouts[1]:
        return f"{new.name} is written in another way than before"
    before = {field.written: field for field in old.fields}
    after = {field.written: field for field in new.fields}
    gone = [name for name in before if name not in after]
    if gone:
        return f"{new.name} has lost its field {gone[0]!r}"
    needed = [name for name, field in after.items() if name not in before and field.required]
    if needed:
        return f"field {needed[0]!r} of {new.name} is new and has no default"
    strict = [name for name, field in before.items() if after[name].required and not field.required]
    if strict:
        return f"field {strict[0]!r} of {new.name} had a default, and rows may lack it; give it one"
    if new.as_array and list(after)[: len(before)] != list(before):
        return f"the fields of {new.name} have another order; add new ones at the end"
    for name, field in before.items():
        why = incompatible(field.type, after[name].type)
        if why is not None:
            return f"field {name!r} of {new.name}: {why}"
    return None
