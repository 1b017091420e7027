"""Every type that a column can have goes through every format, and other tools read what was there."""

from __future__ import annotations

import base64
import json
import math
import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stretto.errors import UsageError
from stretto.export.job import Done, Order, failure_of, run
from stretto.export.planning import Request, manifest_of, planned

SCHEMA = (
    "b boolean, i bigint, d double, s string, x binary, at timestamp, day date, "
    "took interval day to second, amount decimal(38,18), "
    "rec struct<at:timestamp,took:interval day to second,x:binary,s:string>, "
    "many array<timestamp>, by map<string,bigint>, by_day map<date,decimal(38,18)>, "
    "by_time map<timestamp,interval day to second>, _task int"
)
AT = datetime(2026, 1, 31, 12, 30, 45, 123456, tzinfo=UTC)
TOOK = timedelta(days=-3, hours=5, microseconds=123457)
AMOUNT = Decimal("12345678901234567890.123456789012345678")
ROWS: list[dict[str, Any]] = [
    {
        "b": True,
        "i": -(2**63),
        "d": 0.1,
        "s": ' say "hi", \\ and\nbye ',
        "x": b"\x00\xff\n",
        "at": AT,
        "day": date(1, 1, 1),
        "took": TOOK,
        "amount": AMOUNT,
        "rec": {"at": AT, "took": TOOK, "x": b"\x00\xff", "s": ""},
        "many": [AT, None, AT + timedelta(microseconds=1)],
        "by": {"a": 1, "b": None},
        "by_day": {date(2026, 1, 31): AMOUNT, date(1999, 12, 31): Decimal(0)},
        "by_time": {AT: TOOK},
        "_task": 0,
    },
    {
        "b": False,
        "i": 2**63 - 1,
        "d": 1.7976931348623157e308,
        "s": "#\r\n\u00e9\u6f22\U0001f600,NULL",
        "x": b"",
        "at": datetime(1969, 7, 20, 20, 17, 40, 1, tzinfo=UTC),
        "day": date(9999, 12, 31),
        "took": timedelta(days=100_000, microseconds=-1),
        "amount": Decimal("-0.000000000000000001"),
        "rec": {"at": None, "took": None, "x": None, "s": None},
        "many": [],
        "by": {},
        "by_day": {},
        "by_time": {},
        "_task": 1,
    },
    {
        **dict.fromkeys(["b", "i", "d", "x", "at", "day", "took", "amount"]),
        **dict.fromkeys(["rec", "many", "by", "by_day", "by_time"]),
        "s": "  ",
        "_task": 2,
    },
]


class TypedReader(DataSourceReader):
    def __init__(self, names: list[str]) -> None:
        self._names = names

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        for row in ROWS:
            yield tuple(row[name] for name in self._names)


class Typed(DataSource):
    """Rows of all types."""

    @classmethod
    def name(cls) -> str:
        return "typed"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return TypedReader(schema.fieldNames())


Export = Callable[..., tuple[Path, Done]]


@pytest.fixture
def export(spark: SparkSession, tmp_path: Path) -> Export:
    spark.dataSource.register(Typed)

    def export(format_: str, **more: Any) -> tuple[Path, Done]:
        into = tmp_path / f"{format_}-{secrets.token_hex(4)}"
        order = Order(
            source="typed", options={}, format=format_, into=str(into), master="", settings={}, **more
        )
        done = run(order, spark, lambda _: None)
        manifest_of(planned(Request(module="m", object="o", format=format_), "pstate"), done, (), into)
        return into, done

    return export


def plain(value: Any) -> Any:
    """What tools give for the same value, made the same."""
    match value:
        case datetime():
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        case list() if value and all(isinstance(each, tuple) for each in value):
            return {plain(key): plain(inner) for key, inner in value}
        case list() if value and all(
            isinstance(each, dict) and set(each) == {"key", "value"} for each in value
        ):
            return {plain(each["key"]): plain(each["value"]) for each in value}
        case list():
            return [plain(each) for each in value]
        case dict():
            return {plain(key): plain(inner) for key, inner in value.items()}
        case _:
            return value


def micros(value: timedelta | None) -> int | None:
    return None if value is None else value // timedelta(microseconds=1)


def expected_of_binary_formats() -> list[dict[str, Any]]:
    """Durations are microseconds. Tools show an empty map as an empty list of pairs."""
    rows = []
    for row in ROWS:
        rec = row["rec"] and {**row["rec"], "took": micros(row["rec"]["took"])}
        by_time = row["by_time"] and {key: micros(value) for key, value in row["by_time"].items()}
        told = {**row, "took": micros(row["took"]), "rec": rec, "by_time": by_time}
        rows.append({name: [] if value == {} else value for name, value in told.items()})
    return rows


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [{name: plain(value) for name, value in row.items()} for row in rows]
    found = [{name: [] if value == {} else value for name, value in row.items()} for row in found]
    return sorted(found, key=lambda row: int(row["_task"]))


def by_duckdb(query: str) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows: list[dict[str, Any]] = connection.sql(query).to_arrow_table().to_pylist()
        return rows


def test_parquet_comes_back_equal(export: Export) -> None:
    folder, done = export("parquet")
    assert done.as_microseconds == ("took", "rec", "by_time")
    [path] = folder.iterdir()
    column = parquet.ParquetFile(path).schema.column(5)
    assert column.physical_type == "INT64"
    assert str(column.logical_type).startswith("Timestamp(isAdjustedToUTC=true, timeUnit=microseconds,")
    expected = expected_of_binary_formats()
    pandas = pa.Table.from_pandas(pd.read_parquet(folder, dtype_backend="pyarrow"), preserve_index=False)
    assert in_order(pandas.to_pylist()) == expected
    assert in_order(pl.read_parquet(folder).to_dicts()) == expected
    assert in_order(by_duckdb(f"SELECT * FROM read_parquet('{folder}/*')")) == expected


@pytest.mark.soak
def test_orc_comes_back_equal_or_is_refused(export: Export) -> None:
    """Only pandas reads it, of the three."""
    names = tuple(name for name in ROWS[0] if name != "by_day")

    def read_back(columns: tuple[str, ...], where: str) -> list[dict[str, Any]]:
        folder, _ = export("orc", columns=columns, where=where)
        [path] = folder.iterdir()
        frame = pd.read_orc(path, dtype_backend="pyarrow")
        return in_order(pa.Table.from_pandas(frame, preserve_index=False).to_pylist())

    expected = [{name: row[name] for name in names} for row in expected_of_binary_formats()]
    assert read_back(names, "_task > 0") == expected[1:]
    others = tuple(name for name in names if name != "day")
    assert read_back(others, "_task = 0") == [{name: expected[0][name] for name in others}]

    def refusal(**more: Any) -> str:
        with pytest.raises((PySparkException, UsageError)) as caught:
            export("orc", **more)
        assert failure_of(caught.value).is_usage
        return failure_of(caught.value).sentence

    assert "a day is before 15 October 1582 in some rows" in refusal(columns=names)
    assert "loses entries of maps with dates as keys" in refusal(columns=("by_day", "_task"))


def as_json(value: Any) -> Any:
    """The encoding that docs/build/exports.md tells of."""
    match value:
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case date():
            return value.isoformat()
        case timedelta():
            return micros(value)
        case Decimal():
            return f"{value:.18f}"
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {as_json(key): as_json(inner) for key, inner in value.items()}
        case list():
            return [as_json(each) for each in value]
        case _:
            return value


def from_inferred(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bring rows of a tool that guesses types from texts, and takes maps for structs, into one shape."""
    found = []
    for row in rows:
        told = {name: as_json(plain(value)) for name, value in row.items()}
        for name in ("by", "by_day", "by_time"):
            if told[name] is not None:
                told[name] = {key: each for key, each in told[name].items() if each is not None}
        found.append(told)
    return sorted(found, key=lambda row: int(row["_task"]))


def test_json_comes_back_equal(export: Export) -> None:
    folder, _ = export("json")
    expected = [as_json(row) for row in ROWS]
    lines = [json.loads(line) for path in folder.iterdir() for line in path.read_text().split("\n") if line]
    assert sorted(lines, key=lambda row: int(row["_task"])) == expected
    without_nulls = from_inferred(expected)
    texts = dict.fromkeys(("amount", "at", "day", "s", "x"), "VARCHAR")
    columns = ", ".join(f"'{name}': '{type_}'" for name, type_ in texts.items())
    found = by_duckdb(
        f"SELECT * FROM read_json('{folder}/*', columns = {{{columns}, i: 'BIGINT', _task: 'INT'}})"
    )
    assert in_order(found) == [{name: row[name] for name in (*texts, "i", "_task")} for row in expected]
    assert len(by_duckdb(f"SELECT * FROM '{folder}/*.json'")) == len(ROWS)
    assert from_inferred(pl.read_ndjson(folder / "*").to_dicts()) == without_nulls
    [path] = folder.iterdir()
    frame = pd.read_json(path, lines=True, dtype=False)
    assert frame["rec"][0] == expected[0]["rec"]
    assert list(frame["at"])[:2] == [row["at"] for row in expected][:2]


def test_csv_comes_back_equal(export: Export) -> None:
    folder, done = export("csv")
    assert set(done.as_json) == {"x", "rec", "many", "by", "by_day", "by_time"}
    types = {field["name"]: field["type"] for field in done.schema["fields"]}
    assert (types["d"], types["amount"], types["took"]) == ("double", "decimal(38,18)", "long")
    nested = set(done.as_json) - {"x"}
    expected = [as_json(row) for row in ROWS]

    kinds: dict[str, Callable[[str], Any]] = {"i": int, "d": float, "took": int, "_task": int}
    kinds["b"] = lambda text: text == "true"

    def read_back(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Bring a value of a tool that reads texts into one shape."""
        found = []
        for row in rows:
            told = {name: json.loads(each) if each and name in nested else each for name, each in row.items()}
            for name, kind in kinds.items():
                told[name] = None if told[name] is None else kind(told[name])
            found.append(told)
        return sorted(found, key=lambda row: int(row["_task"]))

    polars = pl.read_csv(folder / "*", infer_schema=False)
    assert read_back(polars.to_dicts()) == expected
    query = f"SELECT * FROM read_csv('{folder}/*', all_varchar = true, allow_quoted_nulls = false)"
    assert read_back(by_duckdb(query)) == expected
    [path] = folder.iterdir()
    frame = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""], lineterminator="\n")
    rows = [
        {name: each if isinstance(each, str) else None for name, each in row.items()}
        for row in frame.to_dict("records")
    ]
    # Pandas takes an empty text for nothing.
    assert read_back(rows) == [
        {name: None if each == "" else each for name, each in row.items()} for row in expected
    ]


@pytest.mark.soak
@pytest.mark.parametrize("format_", ["json", "csv", "parquet"])
def test_what_is_no_number_is_kept_or_refused(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    source = tmp_path / "source"
    pl.DataFrame({"d": [math.nan, math.inf, -math.inf, 1.5], "n": [0, 1, 2, 3]}).write_parquet(source)
    into = tmp_path / "out"
    asked = Order(
        source="parquet",
        options={"path": str(source)},
        format=format_,
        into=str(into),
        master="",
        settings={},
    )
    if format_ == "json":
        with pytest.raises(PySparkException) as caught:
            run(asked, spark, lambda _: None)
        assert failure_of(caught.value).is_usage
        assert (
            "is NaN or infinite in some rows, for which JSON has nothing" in failure_of(caught.value).sentence
        )
        return
    run(asked, spark, lambda _: None)
    reads: dict[str, tuple[Callable[[Path], Any], ...]] = {
        "csv": (pl.read_csv, pd.read_csv),
        "parquet": (pl.read_parquet, pd.read_parquet),
    }
    [path] = into.glob("part-*")
    for read in reads[format_]:
        found = list(read(path)["d"])
        assert math.isnan(found[0])
        assert [float(each) for each in found[1:]] == [math.inf, -math.inf, 1.5]
    found = by_duckdb(f"SELECT d::DOUBLE AS d FROM '{path}'")
    assert [each["d"] for each in found[1:]] == [math.inf, -math.inf, 1.5]


def test_an_empty_text_that_names_a_folder_and_what_no_tool_reads_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    pl.DataFrame({"s": ["a", "", None], "n": [0, 1, 2]}).write_parquet(source)

    def refusal(**more: Any) -> str:
        asked = Order(
            source="parquet",
            options={"path": str(source)},
            format="parquet",
            into=str(tmp_path / "out"),
            master="",
            settings={},
            **more,
        )
        with pytest.raises((PySparkException, UsageError)) as caught:
            run(asked, spark, lambda _: None)
        failed = failure_of(caught.value)
        assert failed.is_usage
        return failed.sentence

    why = refusal(partition_by=("s",))
    assert why.startswith("column s is an empty text in some rows")
    assert "\n" not in why
    assert refusal(schema="n interval year to month").startswith("column n is interval year to month, which")
    asked = Order(
        source="parquet",
        options={"path": str(source)},
        format="parquet",
        where="s is null or s <> ''",
        partition_by=("s",),
        into=str(tmp_path / "some"),
        master="",
        settings={},
    )
    run(asked, spark, lambda _: None)
    found = by_duckdb(
        f"SELECT s, n FROM read_parquet('{tmp_path}/some/*/*.parquet', hive_partitioning = true)"
    )
    assert sorted((row["n"], row["s"]) for row in found) == [(0, "a"), (2, None)]
