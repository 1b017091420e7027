"""Columns as a format can hold them, so that other tools read what was there.

What a format has no type for is written as something that has one, or is refused in a sentence; nothing is
cut. Durations are whole numbers of microseconds everywhere. In JSON, decimals are text, since tools read
numbers as binary fractions, and so are the keys of maps; numbers that are none are refused. In CSV, nested
columns are such JSON, and bytes are base64. ORC takes no days of before 1582, and no dates as keys of maps.

Spark's own ways would be: times cut to milliseconds and texts stripped of their blanks in CSV and JSON, dates
as keys of maps by their inner number, fields that are null left out of JSON, and times without a zone in
Parquet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from stretto.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    Rewrite: TypeAlias = Callable[[Column], Column]

TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
TIME_WITHOUT_ZONE = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_TIMES = {"timestampFormat": TIME, "timestampNTZFormat": TIME_WITHOUT_ZONE}
_JSON = {**_TIMES, "ignoreNullFields": "false"}
WRITE_OPTIONS = {
    "json": _JSON,
    "csv": {
        **_TIMES,
        # As RFC 4180 has it: a quote within quotes is doubled. An empty text is quoted, nothing is not.
        "header": "true",
        "escape": '"',
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
}
#: Settings of Spark while it writes.
WRITE_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Days of before 1582 as everybody counts them.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """What is to be written, and what became of its columns."""

    rows: DataFrame
    schema: StructType
    """Types of the columns; numbers are numbers in CSV too, where all is text."""
    as_json: tuple[str, ...] = ()
    as_microseconds: tuple[str, ...] = ()


def shaped_for(rows: DataFrame, format_: str, partition_by: tuple[str, ...] = ()) -> Shaped:
    """The rows with columns that the format can hold; raises UsageError for what it cannot hold."""
    from pyspark.sql.types import DayTimeIntervalType, FractionalType, StructType  # noqa: PLC0415

    for field in rows.schema.fields:
        _check(field.name, field.dataType, format_)
    as_json = nested(rows.schema) if format_ == "csv" else ()
    columns = {}
    for field in rows.schema.fields:
        column = rows[f"`{field.name}`"]
        rewrite = _of_csv(field.dataType) if format_ == "csv" else _rewrite(field.dataType, format_)
        if field.name in partition_by:
            rewrite = _guarded(field.name, field.dataType, rewrite)
        if rewrite is not None:
            columns[field.name] = rewrite(column)
    written = rows.withColumns(columns) if columns else rows
    kept = {field.name: field for field in rows.schema.fields if isinstance(field.dataType, FractionalType)}
    schema = [kept.get(field.name, field) if format_ == "csv" else field for field in written.schema.fields]
    return Shaped(
        rows=written,
        schema=StructType(schema),
        as_json=as_json,
        as_microseconds=tuple(
            field.name for field in rows.schema.fields if _has(field.dataType, DayTimeIntervalType)
        ),
    )


def nested(schema: StructType) -> tuple[str, ...]:
    """The columns that hold more than one plain value."""
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType  # noqa: PLC0415

    kinds = (ArrayType, MapType, StructType, BinaryType, VariantType)
    return tuple(field.name for field in schema.fields if isinstance(field.dataType, kinds))


def _inner(type_: DataType) -> tuple[DataType, ...]:
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415

    match type_:
        case ArrayType():
            return (type_.elementType,)
        case MapType():
            return (type_.keyType, type_.valueType)
        case StructType():
            return tuple(field.dataType for field in type_.fields)
        case _:
            return ()


def _has(type_: DataType, kind: type[DataType]) -> bool:
    return isinstance(type_, kind) or any(_has(inner, kind) for inner in _inner(type_))


def _check(name: str, type_: DataType, format_: str) -> None:
    from pyspark.sql.types import (  # noqa: PLC0415
        CalendarIntervalType,
        NullType,
        TimeType,
        VariantType,
        YearMonthIntervalType,
    )

    for kind in (YearMonthIntervalType, CalendarIntervalType, TimeType, VariantType, NullType):
        if _has(type_, kind):
            raise UsageError(
                f"column {name} is {type_.simpleString()}, which {format_} files have nothing for that other "
                "tools read; choose other columns, or read it as string with --schema"
            )
    if format_ == "orc" and _has_day_keys(type_):
        raise UsageError(
            f"column {name} is {type_.simpleString()}, and Spark loses entries of maps with dates as keys "
            "when it writes ORC files; export it as parquet, or with --nested rows"
        )


def _has_day_keys(type_: DataType) -> bool:
    from pyspark.sql.types import DateType, MapType  # noqa: PLC0415

    if isinstance(type_, MapType) and _has(type_.keyType, DateType):
        return True
    return any(map(_has_day_keys, _inner(type_)))


def _guarded(name: str, type_: DataType, rewrite: Rewrite | None) -> Rewrite | None:
    """Refuse empty texts in a column that names folders: Hive has one name for them and for nothing."""
    from pyspark.sql import functions as sql  # noqa: PLC0415
    from pyspark.sql.types import StringType  # noqa: PLC0415

    if not isinstance(type_, StringType):
        return rewrite
    why = (
        f"column {name} is an empty text in some rows, which folders of --partition-by cannot tell from one "
        f"that is not there; leave such rows out, with --where \"{name} <> ''\", or partition by another one"
    )
    return lambda column: sql.when(column.isin("", _HIVE_NULL), _refusal(why, "string")).otherwise(column)


def _refusal(why: str, type_: str) -> Column:
    """A column that fails the job with a sentence, where a row has what cannot be written."""
    from pyspark.sql import functions as sql  # noqa: PLC0415

    told = f"{UsageError.__module__}.{UsageError.__qualname__}: {why}"
    return sql.raise_error(sql.lit(told)).cast(type_)


def _of_csv(type_: DataType) -> Rewrite | None:
    from pyspark.sql import functions as sql  # noqa: PLC0415
    from pyspark.sql.types import BinaryType  # noqa: PLC0415

    if isinstance(type_, BinaryType):
        return sql.base64
    if _inner(type_):
        inside = _rewrite(type_, "json") or _same
        return lambda column: sql.to_json(inside(column), _JSON)
    return _rewrite(type_, "csv")


def _same(column: Column) -> Column:
    return column


def _rewrite(type_: DataType, format_: str) -> Rewrite | None:
    """How to write values of a type in a format; None to write them as they are."""
    from pyspark.sql.types import (  # noqa: PLC0415
        ArrayType,
        DateType,
        DayTimeIntervalType,
        DecimalType,
        FractionalType,
        MapType,
        StructType,
        TimestampNTZType,
        TimestampType,
    )

    match type_:
        case DayTimeIntervalType():
            return _microseconds
        case DecimalType() if format_ in ("json", "csv"):
            return lambda column: column.cast("string")
        case FractionalType() if format_ == "json":
            return _finite(type_)
        case FractionalType() if format_ == "csv":
            return _number_text
        case DateType() | TimestampType() | TimestampNTZType() if format_ == "orc":
            return _gregorian(type_)
        case ArrayType():
            return _of_array(type_, format_)
        case MapType():
            return _of_map(type_, format_)
        case StructType():
            return _of_struct(type_, format_)
        case _:
            return None


def _microseconds(column: Column) -> Column:
    from pyspark.sql import functions as sql  # noqa: PLC0415

    def part(name: str) -> Column:
        return sql.extract(sql.lit(name), column)

    hours = part("DAY").cast("bigint") * 24 + part("HOUR")
    whole = (hours * 60 + part("MINUTE")) * 60_000_000
    return (whole + (part("SECOND") * 1_000_000).cast("bigint")).cast("bigint")


def _finite(type_: DataType) -> Rewrite:
    from pyspark.sql import functions as sql  # noqa: PLC0415

    why = (
        "a number is NaN or infinite in some rows, for which JSON has nothing; export it as parquet, or "
        "leave such rows out, with --where"
    )
    kind = type_.simpleString()
    strange = [float("nan"), float("inf"), float("-inf")]
    return lambda column: sql.when(column.isin(*strange), _refusal(why, kind)).otherwise(column)


def _number_text(column: Column) -> Column:
    """Numbers as text; infinite ones as most tools recognize them."""
    from pyspark.sql import functions as sql  # noqa: PLC0415

    text = sql.when(column == float("inf"), sql.lit("inf")).when(column == float("-inf"), sql.lit("-inf"))
    return text.otherwise(column.cast("string"))


def _gregorian(type_: DataType) -> Rewrite:
    """Refuse days that Spark writes to ORC files by another calendar than other tools read them by."""
    from pyspark.sql import functions as sql  # noqa: PLC0415

    why = (
        "a day is before 15 October 1582 in some rows, which ORC files keep by a calendar that few tools "
        "know; export it as parquet, or leave such rows out, with --where"
    )
    kind = type_.simpleString()
    first = sql.lit("1582-10-15").cast(kind)
    return lambda column: sql.when(column < first, _refusal(why, kind)).otherwise(column)


def _of_array(type_: DataType, format_: str) -> Rewrite | None:
    from pyspark.sql import functions as sql  # noqa: PLC0415

    [element] = _inner(type_)
    inside = _rewrite(element, format_)
    return None if inside is None else lambda column: sql.transform(column, inside)


def _of_map(type_: DataType, format_: str) -> Rewrite | None:
    from pyspark.sql import functions as sql  # noqa: PLC0415

    key, value = _inner(type_)
    of_key = _key_text(key) if format_ == "json" else _rewrite(key, format_)
    of_value = _rewrite(value, format_)
    if of_key is None and of_value is None:
        return None

    def rewritten(column: Column) -> Column:
        if of_value is not None:
            column = sql.transform_values(column, lambda _, each: of_value(each))
        if of_key is not None:
            column = sql.transform_keys(column, lambda each, _: of_key(each))
        return column

    return rewritten


def _key_text(type_: DataType) -> Rewrite | None:
    """How to write the keys of a map in JSON, which has texts only; None to write them as they are."""
    from pyspark.sql import functions as sql  # noqa: PLC0415
    from pyspark.sql.types import BinaryType, StringType, TimestampNTZType, TimestampType  # noqa: PLC0415

    match type_:
        case StringType():
            return None
        case BinaryType():
            return sql.base64
        case TimestampType():
            return lambda column: sql.date_format(column, TIME)
        case TimestampNTZType():
            return lambda column: sql.date_format(column, TIME_WITHOUT_ZONE)
        case _ if _inner(type_):
            inside = _rewrite(type_, "json") or _same
            return lambda column: sql.to_json(inside(column), _JSON)
        case _:
            inside = _rewrite(type_, "json") or _same
            return lambda column: inside(column).cast("string")


def _of_struct(type_: DataType, format_: str) -> Rewrite | None:
    from pyspark.sql import functions as sql  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    if not isinstance(type_, StructType):
        return None
    inside = {field.name: _rewrite(field.dataType, format_) for field in type_.fields}
    if not any(inside.values()):
        return None

    def rewritten(column: Column) -> Column:
        fields = [(rewrite or _same)(column.getField(name)).alias(name) for name, rewrite in inside.items()]
        return sql.when(column.isNotNull(), sql.struct(*fields))

    return rewritten
