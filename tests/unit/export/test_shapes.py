"""Which columns a format can hold, which are rewritten, and which are refused; no Spark runs here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from stretto.errors import StrettoError, UsageError
from stretto.export import columns, job
from stretto.export.columns import WRITE_SETTINGS, Shaped, nested, shaped_for
from stretto.export.job import Done, Event, Failed, Order, failure_of, shaped

ORDER = Order(options={"module": "m"}, format="json", into="/into", master="local", settings={})
FORMATS = ("parquet", "orc", "json", "csv")


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in fields.items()])


class Rows:
    """A DataFrame of nothing but its schema, which tells what was done to it."""

    def __init__(self, schema: StructType, done: tuple[Any, ...] = ()) -> None:
        self.schema = schema
        self.done = done

    def __getitem__(self, name: str) -> str:
        return name

    def withColumns(self, columns: dict[str, Any]) -> Rows:  # noqa: N802 - Spark's name
        return Rows(self.schema, (*self.done, ("with", tuple(columns))))

    def where(self, condition: str) -> Rows:
        return Rows(self.schema, (*self.done, ("where", condition)))

    def select(self, *names: str) -> Rows:
        chosen = [name.strip("`") for name in names]
        return Rows(StructType([self.schema[name] for name in chosen]), (*self.done, ("select", *names)))


def is_rewritten(type_: DataType, format_: str) -> bool:
    return columns._rewrite(type_, format_) is not None


@pytest.mark.parametrize(
    ("type_", "formats"),
    [
        (LongType(), ()),
        (StringType(), ()),
        (BooleanType(), ()),
        (DayTimeIntervalType(), FORMATS),
        (DecimalType(10, 2), ("json", "csv")),
        (DoubleType(), ("json", "csv")),
        (FloatType(), ("json", "csv")),
        (ArrayType(LongType()), ()),
        (ArrayType(DayTimeIntervalType()), FORMATS),
        (MapType(StringType(), LongType()), ()),
        (MapType(LongType(), LongType()), ("json",)),
        (MapType(DecimalType(), LongType()), ("json", "csv")),
        (MapType(StringType(), DayTimeIntervalType()), FORMATS),
        (struct(a=LongType()), ()),
        (struct(a=LongType(), b=DayTimeIntervalType()), FORMATS),
    ],
)
def test_what_a_format_has_a_type_for_is_written_as_it_is(type_: DataType, formats: tuple[str, ...]) -> None:
    assert tuple(format_ for format_ in FORMATS if is_rewritten(type_, format_)) == formats


@pytest.mark.parametrize("type_", [DateType(), TimestampType(), TimestampNTZType()])
def test_days_are_written_as_they_are_but_for_orc(type_: DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_gregorian", lambda each: each)
    assert [format_ for format_ in FORMATS if is_rewritten(type_, format_)] == ["orc"]


def test_in_csv_what_is_nested_is_json_and_bytes_are_text() -> None:
    schema = struct(
        key=StringType(), raw=BinaryType(), many=ArrayType(LongType()), by=MapType(LongType(), LongType())
    )
    assert nested(schema) == ("raw", "many", "by")
    for name in nested(schema):
        assert columns._of_csv(schema[name].dataType) is not None
    assert columns._of_csv(StringType()) is None
    assert columns._of_csv(DoubleType()) is not None


def test_keys_of_maps_in_json_are_text() -> None:
    assert columns._key_text(StringType()) is None
    for type_ in (BinaryType(), TimestampType(), TimestampNTZType(), LongType(), struct(a=LongType())):
        assert columns._key_text(type_) is not None


@pytest.mark.parametrize("type_", [YearMonthIntervalType(), NullType(), VariantType()])
@pytest.mark.parametrize("format_", FORMATS)
def test_what_no_other_tool_reads_is_refused_wherever_it_is(type_: DataType, format_: str) -> None:
    for each in (type_, ArrayType(type_), MapType(StringType(), type_), struct(a=LongType(), b=type_)):
        rows: Any = Rows(struct(ok=LongType(), odd=each))
        with pytest.raises(UsageError, match=f"column odd is .*which {format_} files have nothing for"):
            shaped_for(rows, format_)


def test_maps_with_days_as_keys_are_refused_for_orc_alone() -> None:
    days = MapType(DateType(), LongType())
    for type_ in (
        days,
        ArrayType(days),
        MapType(StringType(), days),
        MapType(struct(a=DateType()), LongType()),
    ):
        with pytest.raises(UsageError, match="Spark loses entries of maps with dates as keys"):
            columns._check("by", type_, "orc")
        columns._check("by", type_, "parquet")
    columns._check("by", MapType(StringType(), DateType()), "orc")


def test_a_shape_tells_what_became_of_the_columns() -> None:
    schema = struct(a=LongType(), b=StringType())
    plain: Any = Rows(schema)
    assert shaped_for(plain, "parquet") == Shaped(rows=plain, schema=schema)


# The job, with a session that only tells what was asked of it.


def test_rows_and_columns_are_chosen_before_they_are_shaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "shaped_for", lambda *args: args)
    rows: Any = Rows(struct(a=LongType(), b=StringType(), c=LongType()))
    order = msgspec.structs.replace(ORDER, where="a > 1", columns=("a", "b"), partition_by=("b",))
    found: Any = shaped(order, rows)
    assert found[0].done == (("where", "a > 1"), ("select", "`a`", "`b`"))
    assert found[1:] == ("json", ("b",))
    untouched: Any = shaped(ORDER, rows)
    assert untouched[0] is rows


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"columns": ("a", "bb")}, r"--columns names bb, and there is no such column; .*\bb\b"),
        ({"partition_by": ("aa",)}, "--partition-by names aa, and there is no such column"),
        ({"partition_by": ("a", "b", "many")}, "--partition-by leaves no column for the files"),
        ({"columns": ("a",), "partition_by": ("a",)}, "--partition-by leaves no column for the files"),
        ({"partition_by": ("many",)}, r"--partition-by takes plain columns, and many is array<bigint>"),
    ],
)
def test_columns_that_there_are_not_or_that_name_no_folders_are_refused(
    changes: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "shaped_for", lambda *args: args)
    rows: Any = Rows(struct(a=LongType(), b=StringType(), many=ArrayType(LongType())))
    with pytest.raises(UsageError, match=why):
        shaped(msgspec.structs.replace(ORDER, **changes), rows)


class Settings:
    def __init__(self, **now: str) -> None:
        self.now = dict(now)

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.now.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.now[name] = value

    def unset(self, name: str) -> None:
        del self.now[name]


def test_settings_of_a_session_are_as_before_when_the_block_ends() -> None:
    conf = Settings(a="1")
    spark: Any = SimpleNamespace(conf=conf)
    seen: list[dict[str, str]] = []

    def fail() -> None:
        with job._set(spark, {"a": "2", "b": "3"}):
            seen.append(dict(conf.now))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (seen, conf.now) == ([{"a": "2", "b": "3"}], {"a": "1"})


class Writing:
    """Reader, writer and rows at once: every call is noted, and answers with itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.conf = Settings()
        self.read = self.write = self.rows = self
        self.schema_told = struct(a=LongType())
        self.settings: dict[str, str] = {}
        self.sparkContext = SimpleNamespace(statusTracker=lambda: SimpleNamespace(getActiveStageIds=list))

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **named: Any) -> Writing:
            self.calls.append((name, *args, named) if named else (name, *args))
            if name == "save":
                self.settings = dict(self.conf.now)
            return self

        return call


def test_a_job_reads_writes_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = Writing()
    monkeypatch.setattr(job, "shaped", lambda _, rows: Shaped(rows=rows, schema=rows.schema_told))
    monkeypatch.setattr("pyspark.sql.Observation", lambda _: SimpleNamespace(get={"rows": 7}))
    monkeypatch.setattr("pyspark.sql.functions.count", lambda _: SimpleNamespace(alias=lambda name: name))
    monkeypatch.setattr("pyspark.sql.functions.lit", lambda value: value)
    own = {"spark.sql.session.timeZone": "CET"}
    order = msgspec.structs.replace(ORDER, schema="a bigint", partition_by=("a",), settings=own)
    done = job.run(order, spark, print)
    assert done == Done(7, struct(a=LongType()).jsonValue(), ())
    named = {call[0]: call[1:] for call in spark.calls}
    assert named["schema"] == ("a bigint",)
    assert named["partitionBy"] == ("a",)
    assert named["save"] == ("file:///into",)
    assert ("format", "stretto") in spark.calls
    assert ("format", "json") in spark.calls
    assert ("options", {"module": "m"}) in spark.calls
    # What a person sets stays as it is.
    assert spark.settings == {key: value for key, value in WRITE_SETTINGS.items() if key not in own}
    assert spark.conf.now == {}
    plain: Any = Writing()
    job.run(ORDER, plain, print)
    assert not {"schema", "partitionBy"} & {call[0] for call in plain.calls}


class Session:
    stopped = 0

    def stop(self) -> None:
        Session.stopped += 1


def test_a_job_tells_how_it_ended_and_stops_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    done = Done(7, {}, ())
    monkeypatch.setattr(job, "_session", lambda _: Session())
    monkeypatch.setattr(job, "run_to_the_end", lambda *_: done)
    assert job._main(ORDER, told.append) == 0

    def fails(*_: object) -> Done:
        raise UsageError("no such column")

    monkeypatch.setattr(job, "run_to_the_end", fails)
    with pytest.raises(UsageError):
        job._main(ORDER, told.append)
    assert (told, Session.stopped) == ([done, Failed("no such column", True)], 2)
    monkeypatch.setattr(job, "_session", fails)
    with pytest.raises(UsageError):
        job._main(ORDER, told.append)
    assert told[2:] == [Failed("Spark did not start with master local: no such column", False)]


def test_whose_fault_a_failure_is() -> None:
    assert failure_of(UsageError("so not")) == Failed("so not", True)
    assert failure_of(StrettoError("broken")) == Failed("broken", False)
    assert failure_of(AnalysisException("[X_Y] A column is missing. SQLSTATE: 1")) == Failed(
        "A column is missing", True
    )
    assert failure_of(ValueError("it broke")) == Failed("it broke", False)
    assert failure_of(ValueError("")) == Failed("ValueError", False)


class Number:
    """A column of one row, as far as sums and products go."""

    def __init__(self, value: float) -> None:
        self.value = value

    def cast(self, _: str) -> Number:
        return Number(int(self.value))

    def __mul__(self, factor: int) -> Number:
        return Number(self.value * factor)

    def __add__(self, other: Number) -> Number:
        return Number(self.value + other.value)


def test_a_duration_becomes_its_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"DAY": 1, "HOUR": 2, "MINUTE": 3, "SECOND": 4.000005}
    monkeypatch.setattr("pyspark.sql.functions.lit", lambda value: value)
    monkeypatch.setattr("pyspark.sql.functions.extract", lambda name, _: Number(parts[name]))
    column: Any = None
    found: Any = columns._microseconds(column)
    assert found.value == (((1 * 24 + 2) * 60 + 3) * 60 + 4) * 1_000_000 + 5


@pytest.mark.parametrize(
    ("format_", "told"),
    [("csv", DecimalType(10, 2)), ("json", StringType()), ("parquet", DecimalType(10, 2))],
)
def test_numbers_are_told_as_such_in_csv_where_all_is_text(format_: str, told: DataType) -> None:
    class Casting(Rows):
        def __getitem__(self, name: str) -> Any:
            return SimpleNamespace(cast=lambda type_: (name, type_))

        def withColumns(self, columns: dict[str, Any]) -> Rows:  # noqa: N802 - Spark's name
            assert columns == {"sum": ("`sum`", "string")}
            return Rows(struct(name=StringType(), sum=StringType()))

    rows: Any = Casting(struct(name=StringType(), sum=DecimalType(10, 2)))
    # Spark's own way with a decimal is to cast it, in both.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_number_text", lambda column: column.cast("string"))
        shape = shaped_for(rows, format_)
    assert shape.schema == struct(name=StringType(), sum=told)
    assert (shape.rows is rows) == (format_ == "parquet")


def test_a_session_has_the_settings_of_the_order_and_knows_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[Any, ...]] = []

    class Builder:
        def __getattr__(self, name: str) -> Any:
            def call(*args: Any) -> Builder:
                told.append((name, *args))
                return self

            return call

    builder = Builder()
    registered: list[Any] = []
    monkeypatch.setattr("pyspark.sql.SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr("pyspark_stretto.register", registered.append)
    session = job._session(msgspec.structs.replace(ORDER, settings={"a": "1", "b": "2"}))
    assert registered == [session]
    assert told[0] == ("master", "local")
    assert told[2:] == [("config", "a", "1"), ("config", "b", "2"), ("getOrCreate",)]


def test_nested_columns_are_told_to_be_json_in_csv_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_of_csv", lambda _: None)
    rows: Any = Rows(struct(a=LongType(), many=ArrayType(LongType())))
    assert shaped_for(rows, "csv").as_json == ("many",)
    assert shaped_for(rows, "parquet").as_json == ()


def test_keys_and_values_of_maps_are_rewritten_each_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def transformed(column: str, of: Any) -> str:
        return f"{column} {of('k', 'v')}"

    monkeypatch.setattr("pyspark.sql.functions.transform_values", transformed)
    monkeypatch.setattr("pyspark.sql.functions.transform_keys", transformed)
    monkeypatch.setattr(columns, "_key_text", lambda type_: None if type_ == StringType() else str.upper)
    monkeypatch.setattr(columns, "_rewrite", lambda type_, _: str.title if type_ == DoubleType() else None)

    def of_map(key: DataType, value: DataType) -> Any:
        rewrite: Any = columns._of_map(MapType(key, value), "json")
        return None if rewrite is None else rewrite("m")

    assert of_map(LongType(), DoubleType()) == "m V K"
    assert of_map(LongType(), LongType()) == "m K"
    assert of_map(StringType(), DoubleType()) == "m V"
    assert of_map(StringType(), LongType()) is None
