"""The type of a PState as columns of Spark.

The keys on the way to a row are columns: ``key``, below it ``key_2`` and so on; a member of a set is a key as
well, and an element of a list has its ``position``. What is under them is ``value``; the fields of a record
are columns of their own, unless one of them has the name of another column. With ``nested=map`` there is one
row for each first key, and all that is under it is one value: dicts as maps, sets and lists as arrays. Each
row ends with the task it is on and the offset that its task group was read at.

Most types have a counterpart. Text stands for what has none: a UUID, a time of day; and as JSON for ``Any``,
for a union of several types, and for maps whose keys Spark does not take.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stretto.errors import UsageError
from stretto.pstate import types
from stretto.pstate.tree import Elements, Entries, Leaf, Members, Node, compile_type
from stretto.pstate.types import Type
from stretto.vocabulary.suggest import did_you_mean

Nested: TypeAlias = Literal["rows", "map"]

KEY = "key"
POSITION = "position"
VALUE = "value"
TASK = "_task"
APPLY_OFFSET = "_apply_offset"
OFFSET = "offset"
TIMESTAMP = "timestamp"

DECIMAL = DecimalType(38, 18)

_PLAIN: dict[str, DataType] = {
    "None": StringType(),
    "bool": BooleanType(),
    "int": LongType(),
    "float": DoubleType(),
    "str": StringType(),
    "bytes": BinaryType(),
    "datetime": TimestampType(),
    "date": DateType(),
    "time": StringType(),
    "timedelta": DayTimeIntervalType(),
    "Decimal": DECIMAL,
    "UUID": StringType(),
    "Any": StringType(),
}
_NONE = types.Plain("None")
_NUMBERS = ["float", "int"]

METADATA = (StructField(TASK, IntegerType(), False), StructField(APPLY_OFFSET, LongType(), False))

DEPOT_SCHEMA = StructType(
    [
        StructField(TASK, IntegerType(), False),
        StructField(OFFSET, LongType(), False),
        StructField(TIMESTAMP, TimestampType(), False),
        StructField(VALUE, StringType(), False),
        StructField(APPLY_OFFSET, LongType(), True),
    ]
)
"""Columns of a depot's records. ``_apply_offset`` is null in a stream, which is not read as of one offset."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A PState's tree, which does not branch: the keys from its root down, and what they lead to."""

    keys: tuple[Type, ...]
    """Types of the keys of nested dicts, and then of a set's members if the tree ends with a set."""
    end: Leaf | Members | Elements


def shape_of(type_: Type) -> Shape:
    """Return the keys and the end of a PState's tree."""
    keys: list[Type] = []
    node: Node = compile_type(type_)
    while isinstance(node, Entries):
        keys.append(node.key)
        node = node.child
    if isinstance(node, Members):
        keys.append(node.key)
    return Shape(tuple(keys), node)


# Types.


def optional(type_: Type) -> tuple[Type, bool]:
    """The type of what is not None, and whether None may be in its place."""
    match type_:
        case types.Plain(name="None" | "Any"):
            return type_, True
        case types.Choice(options=options) if _NONE in options:
            left = tuple(each for each in options if each != _NONE)
            return (left[0] if len(left) == 1 else types.Choice(left)), True
        case types.Constant(values=values) if None in values:
            return types.Constant(tuple(value for value in values if value is not None)), True
        case _:
            return type_, False


class Form(enum.Enum):
    """How values of a type are written in a column of Spark."""

    PLAIN = enum.auto()
    """As a type of Spark that corresponds to theirs."""
    TEXT = enum.auto()
    """As text, in the way that people write such a value."""
    JSON = enum.auto()


def form_of(type_: Type) -> Form:
    """Return the form of a type's values other than None."""
    match type_:
        case types.Plain(name="UUID" | "time"):
            return Form.TEXT
        case types.Plain(name=name):
            return Form.JSON if name == "Any" else Form.PLAIN
        case types.Choice(options=options):
            names = [each.name for each in options if isinstance(each, types.Plain)]
            return Form.PLAIN if names == _NUMBERS and len(options) == 2 else Form.JSON
        case types.Constant(values=values):
            return Form.PLAIN if len({type(value) for value in values}) == 1 else Form.JSON
        case types.Dict(key=key):
            named, nullable = optional(key)
            is_key = not nullable and form_of(named) is not Form.JSON and not isinstance(named, types.Dict)
            return Form.PLAIN if is_key else Form.JSON
        case types.Tuple(items=items):
            return Form.PLAIN if items else Form.JSON
        case types.Record(fields=fields):
            return Form.PLAIN if fields else Form.JSON
        case types.Set() | types.List() | types.Run():
            return Form.PLAIN


def spark_type(type_: Type) -> DataType:
    """Return the type of Spark for values of a type."""
    type_, _ = optional(type_)
    if form_of(type_) is not Form.PLAIN:
        return StringType()
    match type_:
        case types.Plain(name=name):
            return _PLAIN[name]
        case types.Choice():
            return DoubleType()
        case types.Constant(values=values):
            return LongType() if isinstance(values[0], int) else StringType()
        case types.Dict(key=key, value=value):
            return MapType(spark_type(key), spark_type(value), optional(value)[1])
        case types.Set(item=item) | types.List(item=item) | types.Run(item=item):
            return ArrayType(spark_type(item), optional(item)[1])
        case types.Tuple(items=items):
            return StructType(
                [
                    StructField(f"_{number}", spark_type(item), optional(item)[1])
                    for number, item in enumerate(items, 1)
                ]
            )
        case types.Record(fields=fields):
            return StructType([_field(field.name, field.type, field.required) for field in fields])


def _field(name: str, type_: Type, required: bool = True) -> StructField:
    return StructField(name, spark_type(type_), optional(type_)[1] or not required)


# Columns.


def pstate_schema(type_: Type, nested: Nested = "rows") -> StructType:
    """Return the columns of a PState of this type."""
    shape = shape_of(type_)
    if nested == "map":
        inside = nested_type(type_)
        if inside is not None:
            return StructType([_field(KEY, shape.keys[0]), StructField(VALUE, inside, False), *METADATA])
    fields = [_field(key_name(level), key) for level, key in enumerate(shape.keys)]
    match shape.end:
        case Leaf(type=value):
            fields += value_fields(value, [field.name for field in fields])
        case Elements(item=item):
            fields.append(StructField(POSITION, LongType(), False))
            fields += value_fields(item.type, [field.name for field in fields])
        case Members():
            pass
    return StructType([*fields, *METADATA])


def key_name(level: int) -> str:
    """Return the name of the key column of a level, counted from 0."""
    return KEY if level == 0 else f"{KEY}_{level + 1}"


def value_fields(type_: Type, taken: list[str]) -> list[StructField]:
    """Return the columns for values: one, or those of a record's fields."""
    record = exploded(type_, taken)
    if record is not None:
        return [_field(field.name, field.type, field.required) for field in record.fields]
    return [_field(VALUE, type_)]


def exploded(type_: Type, taken: list[str]) -> types.Record | None:
    """Return the record whose fields become columns; None if values are one column.

    Spark ignores case in the names of columns.
    """
    if not isinstance(type_, types.Record) or form_of(type_) is not Form.PLAIN:
        return None
    names = [name.lower() for name in (*taken, TASK, APPLY_OFFSET, *(field.name for field in type_.fields))]
    return type_ if len(set(names)) == len(names) else None


def nested_type(type_: Type) -> DataType | None:
    """Return the type of all that is under a first key as one value; None if that is one row anyway."""
    root = compile_type(type_)
    if isinstance(root, Members) or isinstance(root.child, Leaf):
        return None
    return _nested(root.child)


def _nested(node: Node) -> DataType:
    match node:
        case Leaf(type=type_):
            return spark_type(type_)
        case Members(key=key):
            return ArrayType(spark_type(key), optional(key)[1])
        case Elements(item=item):
            return ArrayType(spark_type(item.type), optional(item.type)[1])
        case Entries(key=key, child=child):
            named, nullable = optional(key)
            if nullable or form_of(named) is Form.JSON:
                raise UsageError(f"keys that are {key} cannot be those of a map; read it with nested=rows")
            below = optional(child.type)[1] if isinstance(child, Leaf) else False
            return MapType(spark_type(key), _nested(child), below)


# A schema of the caller's own.


def check_fits(what: str, own: StructType, given: StructType) -> None:
    """Raise UsageError unless the columns that are asked for are some of those there are.

    Any column can be read as text, and a decimal with other digits than ours.
    """
    there = {field.name: field.dataType for field in own.fields}
    for field in given.fields:
        if field.name not in there:
            nearest = did_you_mean(field.name, there)
            raise UsageError(f"the schema given has a column {field.name}, and {what} has none; {nearest}")
        actual, wanted = there[field.name], field.dataType
        if isinstance(wanted, StringType) or (
            isinstance(wanted, DecimalType) and isinstance(actual, DecimalType)
        ):
            continue
        is_, asked = actual.simpleString(), wanted.simpleString()
        if is_ != asked:
            raise UsageError(
                f"column {field.name} of {what} is {is_}, and {asked} in the schema given; "
                f"say {is_}, or string for text"
            )
