"""Columns made in bulk hold what the plain decoders find, for every shape that a PState can have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DecimalType, StringType, StructField, StructType

from pyspark_stretto.columns.pages import Columns
from pyspark_stretto.columns.schema import Nested, check_fits, pstate_schema
from stretto.errors import UsageError
from stretto.pstate.pages import Page
from stretto.pstate.tree import Row, compile_type, rows_of
from stretto.pstate.types import describe


@dataclass
class Account:
    owner: str
    balance: int = 0
    note: str | None = None


class Point(NamedTuple):
    x: int
    y: float


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


def page_of(rows: list[Row]) -> Page:
    keys, values = [row[0] for row in rows], [row[1] for row in rows]
    return Page(len(rows), b"".join(keys), _ends(keys), b"".join(values), _ends(values))


def _ends(parts: list[bytes]) -> bytes:
    return np.cumsum([len(part) for part in parts]).astype("<u4").tobytes()


def pages_of(annotation: Any, value: Any, size: int = 1_000) -> Iterator[Page]:
    root = compile_type(describe(annotation), annotation)
    rows = sorted(rows_of(root, b"", value))
    for at in range(0, len(rows), size):
        yield page_of(rows[at : at + size])


def read(
    annotation: Any, value: Any, nested: Nested = "rows", schema: StructType | None = None, size: int = 1_000
) -> list[dict[str, Any]]:
    """What Spark would get, checked as Spark checks it."""
    type_ = describe(annotation)
    schema = schema or pstate_schema(type_, nested)
    columns = Columns(type_, schema, nested)
    found: list[dict[str, Any]] = []
    for batch in columns.batches(pages_of(annotation, value, size), task=3, apply_offset=70):
        assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
        batch.validate(full=True)
        found += batch.to_pylist()
    for row in found:
        assert row.pop("_task", 3) == 3
        assert row.pop("_apply_offset", 70) == 70
    return found


INTS = st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.datetimes(datetime(1000, 1, 1), datetime(9000, 1, 1)).map(lambda each: each.replace(tzinfo=UTC))  # noqa: DTZ001
DATES = st.dates()
FLOATS = st.floats(allow_nan=False).map(lambda each: each + 0.0)
TEXT = st.text(max_size=12) | st.sampled_from(["", "\0", "a\0b", "\0\0", "ä\0ö"])
BINARY = st.binary(max_size=12) | st.sampled_from([b"\0", b"\xff", b"\0\xff", b"\xff\0\xff"])
KEYS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, TEXT),
    (bytes, BINARY),
    (int, INTS | st.integers(-300, 300)),
    (float, FLOATS),
    (bool, st.booleans()),
    (date, DATES),
    (datetime, MOMENTS),
    (int | None, st.none() | INTS),
    (str | None, st.none() | TEXT),
    (tuple[str, int], st.tuples(TEXT, INTS)),
    (tuple[date, str | None, float], st.tuples(DATES, st.none() | TEXT, FLOATS)),
]
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, INTS | st.integers(-40, 300)),
    (float, st.floats(allow_nan=False)),
    (str, st.text(max_size=40)),
    (bytes, st.binary(max_size=40)),
    (bool, st.booleans()),
    (int | None, st.none() | INTS),
    (str | None, st.none() | st.text()),
    (datetime, MOMENTS),
    (date, DATES),
    (timedelta, st.timedeltas(timedelta(days=-9_000), timedelta(days=9_000))),
    (Decimal, st.decimals(-(10**9), 10**9, places=6)),
    (Literal["red", "green"], st.sampled_from(["red", "green"])),
    (list[int] | None, st.none() | st.lists(INTS, max_size=3)),
]


def shown(key: Any) -> Any:
    """How Arrow tells a key."""
    return {f"_{number}": part for number, part in enumerate(key, 1)} if isinstance(key, tuple) else key


@pytest.mark.parametrize(("annotation", "keys"), KEYS, ids=[str(each) for each, _ in KEYS])
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_keys_of_every_type_are_what_was_written(
    annotation: Any, keys: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    members = data.draw(st.sets(keys, max_size=20))
    found = read(set[annotation], members)
    assert len(found) == len(members)
    assert all(shown(member) in [row["key"] for row in found] for member in members)


@pytest.mark.parametrize(("annotation", "values"), VALUES, ids=[str(each) for each, _ in VALUES])
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_values_of_every_type_are_what_was_written(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    stored = data.draw(st.dictionaries(st.integers(0, 100), values, max_size=20))
    found = read(dict[int, annotation], stored, size=7)
    assert {row["key"]: row["value"] for row in found} == stored


@settings(deadline=None, max_examples=30)
@given(data=st.data(), size=st.integers(1, 9))
def test_what_is_under_keys_is_the_same_as_rows_and_as_maps(data: st.DataObject, size: int) -> None:
    outer, outer_keys = data.draw(st.sampled_from([KEYS[0], KEYS[2], KEYS[9]]))
    middle, middle_keys = data.draw(st.sampled_from([KEYS[0], KEYS[1], KEYS[5]]))
    inner = data.draw(st.sampled_from([dict[int, str], set[int], list[str]]))
    leaves: dict[Any, st.SearchStrategy[Any]] = {
        dict[int, str]: st.dictionaries(INTS, TEXT, min_size=1, max_size=4),
        set[int]: st.sets(INTS, min_size=1, max_size=4),
        list[str]: st.lists(TEXT, min_size=1, max_size=4),
    }
    stored = data.draw(
        st.dictionaries(
            outer_keys, st.dictionaries(middle_keys, leaves[inner], min_size=1, max_size=3), max_size=5
        )
    )
    annotation = dict[outer, dict[middle, inner]]  # type: ignore[valid-type]
    flat = [
        (shown(first), second, third)
        for first, below in stored.items()
        for second, last in below.items()
        for third in _told(last)
    ]
    rows = read(annotation, stored, size=size)
    names = ["key", "key_2", *(["key_3"] if inner != list[str] else ["position"])]
    told = [(*(row[name] for name in names[:2]), _third(row, names[2])) for row in rows]
    assert sorted(told, key=repr) == sorted(flat, key=repr)
    maps = read(annotation, stored, "map", size=size)
    assert _by_key(maps, inner) == {
        repr(shown(key)): {name: _sorted(last) for name, last in below.items()}
        for key, below in stored.items()
    }


def _told(last: Any) -> list[Any]:
    match last:
        case dict():
            return list(last.items())
        case set():
            return list(last)
        case _:
            return list(enumerate(last))


def _third(row: dict[str, Any], name: str) -> Any:
    return (row[name], row["value"]) if "value" in row else row[name]


def _sorted(last: Any) -> Any:
    return sorted(last) if isinstance(last, set) else last


def _as_dict(pairs: list[tuple[Any, Any]], inner: Any) -> dict[Any, Any]:
    return {key: dict(last) if inner == dict[int, str] else last for key, last in pairs}


def _by_key(maps: list[dict[str, Any]], inner: Any) -> dict[str, Any]:
    return {repr(row["key"]): _as_dict(row["value"], inner) for row in maps}


def test_fields_of_a_record_are_columns() -> None:
    stored = {1: Account("ann", 7), 2: Account("bob", -3, "owes")}
    assert read(dict[int, Account], stored) == [
        {"key": 1, "owner": "ann", "balance": 7, "note": None},
        {"key": 2, "owner": "bob", "balance": -3, "note": "owes"},
    ]
    assert read(dict[str, list[Point]], {"a": [Point(1, 2.5), Point(3, 4.0)]}) == [
        {"key": "a", "position": 0, "x": 1, "y": 2.5},
        {"key": "a", "position": 1, "x": 3, "y": 4.0},
    ]


def test_a_record_with_a_field_that_is_named_like_a_column_stays_one() -> None:
    @dataclass
    class Entry:
        Key: str
        size: int

    assert read(dict[str, Entry], {"a": Entry("b", 1)}) == [{"key": "a", "value": {"Key": "b", "size": 1}}]


def test_what_spark_has_no_type_for_is_text() -> None:
    name = UUID(int=5)
    assert read(dict[int, UUID], {1: name}) == [{"key": 1, "value": str(name)}]
    assert read(dict[int, time], {1: time(12, 30)}) == [{"key": 1, "value": "12:30:00"}]
    anything = {1: {"a": [1, None]}, 2: "text", 3: None, 4: {1: 2}}
    assert [row["value"] for row in read(dict[int, Any], anything)] == [
        '{"a":[1,null]}',
        '"text"',
        None,
        "[[1,2]]",
    ]
    pets: dict[str, Cat | Dog] = {"a": Cat(9), "b": Dog("rex")}
    assert [row["value"] for row in read(dict[str, Cat | Dog], pets)] == [
        '{"type":"Cat","lives":9}',
        '{"type":"Dog","name":"rex"}',
    ]
    assert [row["key"] for row in read(set[int | str], {1, "a"})] == ["1", '"a"']
    assert read(dict[int, int | float], {1: 2, 2: 2.5}) == [
        {"key": 1, "value": 2.0},
        {"key": 2, "value": 2.5},
    ]
    natural = Annotated[int, msgspec.Meta(ge=0)]
    assert read(dict[int, natural | float], {1: 2}) == read(dict[int, int | float], {1: 2})


def test_values_may_hold_whatever_msgpack_can() -> None:
    annotation = dict[str, tuple[set[int], dict[str, list[float]], Point, Account | None]]
    stored = {"a": ({1}, {"x": [0.5]}, Point(1, 2.0), None), "b": (set(), {}, Point(3, 4.0), Account("ann"))}
    assert read(annotation, stored) == [
        {"key": "a", "value": {"_1": [1], "_2": [("x", [0.5])], "_3": {"x": 1, "y": 2.0}, "_4": None}},
        {
            "key": "b",
            "value": {
                "_1": [],
                "_2": [],
                "_3": {"x": 3, "y": 4.0},
                "_4": {"owner": "ann", "balance": 0, "note": None},
            },
        },
    ]


def test_a_given_schema_chooses_columns_and_may_ask_for_text() -> None:
    type_ = describe(dict[str, Account])
    chosen = StructType(
        [StructField("balance", StringType()), StructField("_task", pstate_schema(type_)["_task"].dataType)]
    )
    check_fits("PState accounts", pstate_schema(type_), chosen)
    assert read(dict[str, Account], {"a": Account("ann", 7)}, schema=chosen) == [{"balance": "7"}]
    stored = {1: Decimal("0.1") ** 20}
    with pytest.raises(UsageError, match="by a schema in which it is string"):
        read(dict[int, Decimal], stored)
    text = StructType([StructField("value", StringType())])
    assert read(dict[int, Decimal], stored, schema=text) == [{"value": "1E-20"}]
    exact = StructType([StructField("value", DecimalType(30, 20))])
    check_fits("PState sums", pstate_schema(describe(dict[int, Decimal])), exact)
    assert read(dict[int, Decimal], stored, schema=exact) == [{"value": Decimal("1E-20")}]


def test_a_schema_that_does_not_fit_is_refused_with_what_there_is() -> None:
    own = pstate_schema(describe(dict[str, int]))
    with pytest.raises(UsageError, match="has a column valu, and PState counts has none; did you mean value"):
        check_fits("PState counts", own, StructType([StructField("valu", StringType())]))
    with pytest.raises(
        UsageError, match=r"column key of PState counts is string, and decimal\(38,18\) in the"
    ):
        check_fits("PState counts", own, StructType([StructField("key", DecimalType(38, 18))]))


def test_a_page_without_rows_makes_no_batch() -> None:
    type_ = describe(dict[str, int])
    columns = Columns(type_, pstate_schema(type_))
    assert list(columns.batches([Page(0, b"", b"", b"", b"")], task=0, apply_offset=0)) == []
