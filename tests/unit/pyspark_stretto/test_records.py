"""Records as rows, and rows as records."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from pyspark_stretto.columns.records import Records, check_schema
from pyspark_stretto.columns.schema import DEPOT_SCHEMA
from pyspark_stretto.options import Options
from pyspark_stretto.sink import Target
from stretto.errors import UsageError
from stretto.module.partition import task_of
from stretto.specs.modules import DepotSpec
from stretto.state.depot import DepotBatch
from stretto.vocabulary.records import DepotOffset, pack

INT, TEXT, BINARY = IntegerType(), StringType(), BinaryType()


def schema_of(**types: DataType) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in types.items()])


def stored(base: int, *records: bytes, at_ms: int = 1_000) -> DepotBatch:
    return DepotBatch(DepotOffset(base), at_ms, pack("events", records))


def rows(
    schema: StructType, *batches: DepotBatch, start: int = 0, end: int = 1 << 40
) -> list[dict[str, Any]]:
    found = Records(schema).batches(batches, task=3, start=start, end=end)
    return [row for batch in found for row in batch.to_pylist()]


def test_a_row_has_place_time_and_the_record_and_nothing_outside_the_range() -> None:
    batches = (stored(5, b"a", b"bc"), stored(7, b"", b"d", at_ms=2_000))
    found = rows(DEPOT_SCHEMA, *batches, start=6, end=8)
    first, second = datetime.fromtimestamp(1, UTC), datetime.fromtimestamp(2, UTC)
    assert found == [
        {"_task": 3, "offset": 6, "timestamp": first, "value": "bc", "_apply_offset": None},
        {"_task": 3, "offset": 7, "timestamp": second, "value": "", "_apply_offset": None},
    ]
    asked = schema_of(_apply_offset=LongType(), value=TEXT)
    [batch] = Records(asked, 99).batches(batches, task=3, start=6, end=8)
    assert batch.to_pylist() == [{"_apply_offset": 99, "value": "bc"}, {"_apply_offset": 99, "value": ""}]
    with pytest.raises(UsageError, match="column _apply_offset of depot events is bigint, not string"):
        check_schema("depot events", schema_of(_apply_offset=TEXT))


def test_with_a_schema_fields_of_the_record_are_columns() -> None:
    schema = schema_of(
        offset=LongType(),
        n=INT,
        at=TimestampType(),
        day=DateType(),
        sum=DecimalType(10, 2),
        tags=ArrayType(TEXT),
        by=MapType(TEXT, INT),
        p=schema_of(x=DoubleType(), y=INT),
        rest=TEXT,
    )
    record = (
        b'{"n":1,"at":"2026-01-31T12:00:00Z","day":"2026-01-31","sum":"1.50","tags":["a",null],"by":{"k":2},'
        b'"p":{"x":1.5,"z":0},"rest":{"any":[1]},"other":0}'
    )
    first, second = rows(schema, stored(0, record, b'{"n":null}'))
    assert first == {
        "offset": 0,
        "n": 1,
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "day": date(2026, 1, 31),
        "sum": Decimal("1.50"),
        "tags": ["a", None],
        "by": [("k", 2)],
        "p": {"x": 1.5, "y": None},
        "rest": '{"any":[1]}',
    }
    assert set(second.values()) == {1, None}


def test_a_record_that_does_not_fit_is_named() -> None:
    with pytest.raises(UsageError, match="the record at offset 8 of task 3 does not fit the schema given"):
        rows(schema_of(n=INT), stored(7, b'{"n":1}', b'{"n":"x"}'))
    for several in (b'{"n":1},{"n":2}', b"", b"no JSON"):
        with pytest.raises(
            UsageError, match="the record at offset 8 of task 3 does not fit the schema given"
        ):
            rows(schema_of(n=INT), stored(7, b'{"n":1}', several))
    with pytest.raises(UsageError, match="the record at offset 7 of task 3 is no text"):
        rows(DEPOT_SCHEMA, stored(7, b"\xff"))
    assert rows(schema_of(value=BINARY), stored(7, b"\xff")) == [{"value": b"\xff"}]
    with pytest.raises(UsageError, match="column offset of depot events is bigint, not int"):
        check_schema("depot events", schema_of(offset=INT))


# The other way.


def target(schema: StructType, **depot: Any) -> Target:
    found = Target(Options(), "Counts", DepotSpec(name="events", **depot), 4, tuple(schema.fieldNames()))
    found.check(schema)
    return found


def test_rows_become_objects_on_the_task_that_their_field_chooses() -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"word": "a", "at": datetime(2026, 1, 31, tzinfo=UTC)}, {"word": "b", "at": None}],
        pa.schema([("word", pa.string()), ("at", pa.timestamp("us", "Europe/Zurich"))]),
    )
    found = target(schema_of(word=TEXT, at=TimestampType()), partition_by="word").records([batch], home=2)
    expected: dict[int, list[bytes]] = {}
    expected.setdefault(task_of("a", 4), []).append(b'{"word":"a","at":"2026-01-31T00:00:00Z"}')
    expected.setdefault(task_of("b", 4), []).append(b'{"word":"b","at":null}')
    assert found == expected


@pytest.mark.parametrize(
    "type_",
    [YearMonthIntervalType(), ArrayType(YearMonthIntervalType()), StructType().add("v", VariantType())],
)
def test_what_json_has_nothing_for_is_refused_before_anything_is_written(type_: DataType) -> None:
    with pytest.raises(UsageError, match=r"column x has (interval year to month|variant), which JSON has"):
        target(schema_of(x=type_))


def test_times_within_values_are_in_utc_whatever_the_zone_of_the_session_is() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def records(zone: str) -> list[bytes]:
        at = pa.timestamp("us", zone)
        types = {
            "inside": pa.struct([("at", at), ("n", pa.int64())]),
            "many": pa.list_(pa.list_(at)),
            "by_name": pa.map_(pa.string(), pa.struct([("at", at)])),
            "by_time": pa.map_(at, pa.float64()),
            "naive": pa.list_(pa.timestamp("us")),
        }
        row = {
            "inside": {"at": noon, "n": 1},
            "many": [[noon, None], None],
            "by_name": [("a", {"at": noon})],
            "by_time": [(noon, float("nan"))],
            "naive": [noon.replace(tzinfo=None)],
        }
        batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], pa.schema(types))
        return target(schema_of(**dict.fromkeys(types, TEXT))).records([batch], home=2)[2]

    told, absent = records("America/New_York")
    assert told == (
        b'{"inside":{"at":"2026-01-31T12:00:00Z","n":1},"many":[["2026-01-31T12:00:00Z",null],null],'
        b'"by_name":{"a":{"at":"2026-01-31T12:00:00Z"}},"by_time":{"2026-01-31T12:00:00Z":null},'
        b'"naive":["2026-01-31T12:00:00"]}'
    )
    assert absent == b'{"inside":null,"many":null,"by_name":null,"by_time":null,"naive":null}'
    assert records("UTC") == [told, absent]


def test_the_value_alone_is_the_record_as_it_is() -> None:
    text = pa.RecordBatch.from_pylist([{"value": '{"word": "a"}'}])
    assert target(schema_of(value=TEXT)).records([text], home=2) == {2: [b'{"word": "a"}']}
    keyed = target(schema_of(value=TEXT), partition_by="word").records([text], home=2)
    assert keyed == {task_of("a", 4): [b'{"word": "a"}']}
    binary = pa.RecordBatch.from_pylist([{"value": b"\xff", "_task": 1}])
    assert target(schema_of(value=BINARY, _task=INT)).records([binary], home=2) == {1: [b"\xff"]}


def test_rows_that_are_no_records_of_the_depot_are_refused() -> None:
    with pytest.raises(
        UsageError, match="partitioned by 'word', and the rows have no such column; they have n"
    ):
        target(schema_of(n=INT), partition_by="word")
    with pytest.raises(UsageError, match="add a column _task"):
        target(schema_of(n=INT), rule="custom")
    with pytest.raises(UsageError, match="give it another name"):
        target(schema_of(value=INT))
    outside = pa.RecordBatch.from_pylist([{"n": 1, "_task": 4}])
    with pytest.raises(UsageError, match="_task is 4 in a row, and Counts has tasks 0 to 3"):
        target(schema_of(n=INT, _task=INT), rule="custom").records([outside], home=0)
    with pytest.raises(UsageError, match="value is null in a row"):
        target(schema_of(value=TEXT)).records([pa.RecordBatch.from_pylist([{"value": None}])], home=0)
