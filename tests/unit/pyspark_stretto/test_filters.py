"""Filters that are pushed read exactly the rows that match, and no task that cannot have any."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
    StringStartsWith,
)

from pyspark_stretto import filters
from pyspark_stretto.filters import DepotFilters, KeyFilters
from stretto.module.partition import owner_of
from stretto.pstate import ordered
from stretto.pstate.types import describe
from stretto.wire.scans import OFFSET_END

TASKS = 4

TEXTS = st.sampled_from(["", "a", "a\0", "a\0b", "ab", "b", "ba", "\U0010ffff"])
INTS = st.integers(-300, 300) | st.sampled_from([-(2**63), 2**63 - 1])
FLOATS = st.sampled_from([-1.5, -0.0, 0.0, 1.0, 1e300])
MOMENTS = st.sampled_from([datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)])
DATES = st.sampled_from([date(2026, 1, day) for day in (1, 2, 3)])
KEYS: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: INTS,
    float: FLOATS,
    datetime: MOMENTS,
    date: DATES,
    bool: st.booleans(),
    bytes: st.sampled_from([b"", b"\0", b"\xff", b"\0\xff", b"a"]),
    int | None: st.none() | INTS,
}


def matches(each: Filter, value: Any) -> bool:
    """As Spark means it."""
    match each:
        case IsNull():
            return value is None
        case EqualNullSafe(value=wanted):
            return bool(value == wanted)
        case _ if value is None:
            return False
        case IsNotNull():
            return True
        case EqualTo(value=wanted):
            return bool(value == wanted)
        case In(value=wanted):
            return value in wanted
        case GreaterThan(value=wanted):
            return bool(value > wanted)
        case GreaterThanOrEqual(value=wanted):
            return bool(value >= wanted)
        case LessThan(value=wanted):
            return bool(value < wanted)
        case LessThanOrEqual(value=wanted):
            return bool(value <= wanted)
        case StringStartsWith(value=wanted):
            return str(value).startswith(wanted)
        case _:
            raise AssertionError(each)


def drawn(
    data: st.DataObject, attribute: tuple[str, ...], keys: st.SearchStrategy[Any], *, text: bool
) -> Filter:
    present = keys.filter(lambda key: key is not None)
    kinds: list[Any] = [
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        LessThan,
        LessThanOrEqual,
        In,
        IsNotNull,
        IsNull,
    ]
    kind = data.draw(st.sampled_from([*kinds, EqualNullSafe, *([StringStartsWith] if text else [])]))
    if kind in (IsNotNull, IsNull):
        return kind(attribute)  # type: ignore[no-any-return]
    if kind is In:
        return In(attribute, tuple(data.draw(st.lists(present, max_size=4))))
    return kind(attribute, data.draw(present))  # type: ignore[no-any-return]


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_rows_in_the_ranges_are_those_that_match(data: st.DataObject) -> None:
    first, second = data.draw(st.sampled_from(list(KEYS))), data.draw(st.sampled_from(list(KEYS)))
    paths = data.draw(st.lists(st.tuples(KEYS[first], KEYS[second]), max_size=12))
    pushed = [
        drawn(data, (column,), KEYS[kind], text=kind is str)
        for column, kind in (("key", first), ("key_2", second))
        for _ in range(data.draw(st.integers(0, 2)))
    ]
    chosen = KeyFilters([("key", describe(first)), ("key_2", describe(second))])
    left = chosen.push(pushed)
    done = [each for each in pushed if not any(each is other for other in left)]
    for path in paths:
        row = b"".join(map(ordered.encode, path))
        ranges = chosen.ranges(owner_of(path[0], TASKS), TASKS)
        is_read = any(start <= row < end for start, end in ranges)
        assert ranges == sorted(ranges)
        wanted = all(matches(each, path[each.attribute == ("key_2",)]) for each in pushed)  # type: ignore[attr-defined]
        exact = all(matches(each, path[each.attribute == ("key_2",)]) for each in done)  # type: ignore[attr-defined]
        assert is_read or not wanted, "a row that matches has to be read"
        assert exact or not is_read, "Spark does not look again at what was taken over"


def test_an_equal_key_is_read_from_its_task_alone() -> None:
    chosen = KeyFilters([("key", describe(str)), ("key_2", describe(int))])
    assert chosen.push([EqualTo(("key",), "ann"), GreaterThan(("key_2",), 7)]) == []
    found = {task: chosen.ranges(task, TASKS) for task in range(TASKS)}
    path = ordered.encode("ann")
    assert {task for task, ranges in found.items() if ranges} == {owner_of("ann", TASKS)}
    assert found[owner_of("ann", TASKS)] == [(ordered.behind(path + ordered.encode(7)), path + b"\x21")]


PAIR = tuple[str, int]
MEMBERS: list[tuple[tuple[str, ...], st.SearchStrategy[Any]]] = [
    (("key", "_1"), TEXTS),
    (("key", "_2"), INTS),
    (("key_2", "_1"), DATES),
    (("key_2", "_2", "_1"), st.booleans()),
    (("key_2", "_2", "_2"), TEXTS),
]


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_members_of_tuples_narrow_what_is_read_one_after_the_other(data: st.DataObject) -> None:
    chosen = KeyFilters([("key", describe(PAIR)), ("key_2", describe(tuple[date, tuple[bool, str]]))])
    pushed = [
        drawn(data, attribute, strategy, text=strategy is TEXTS)
        for attribute, strategy in MEMBERS
        for _ in range(data.draw(st.integers(0, 2)))
    ]
    left = chosen.push(pushed)
    done = [each for each in pushed if not any(each is other for other in left)]
    for members in data.draw(st.lists(st.tuples(*(strategy for _, strategy in MEMBERS)), max_size=12)):
        first, second = members[:2], (members[2], members[3:])
        row = ordered.encode(first) + ordered.encode(second)
        ranges = chosen.ranges(owner_of(first, TASKS), TASKS)
        is_read = any(start <= row < end for start, end in ranges)
        values = dict(zip((attribute for attribute, _ in MEMBERS), members, strict=True))
        assert is_read or not all(matches(each, values[each.attribute]) for each in pushed)  # type: ignore[attr-defined]
        assert not is_read or all(matches(each, values[each.attribute]) for each in done)  # type: ignore[attr-defined]


def test_the_first_members_of_a_tuple_are_a_range_of_every_task_and_all_of_them_a_key_of_one() -> None:
    chosen = KeyFilters([("key", describe(PAIR))])
    first = EqualTo(("key", "_1"), "ann")
    assert chosen.push([IsNotNull(("key",)), IsNotNull(("key", "_1")), first]) == []
    expected = ordered.beginning_with(("ann",))
    assert [chosen.ranges(task, TASKS) for task in range(TASKS)] == [[expected]] * TASKS
    whole = KeyFilters([("key", describe(PAIR))])
    assert whole.push([first, EqualTo(("key", "_2"), 7)]) == []
    owner = owner_of(("ann", 7), TASKS)
    assert [task for task in range(TASKS) if whole.ranges(task, TASKS)] == [owner]
    assert whole.ranges(owner, TASKS) == [ordered.subtree(ordered.encode(("ann", 7)))]
    # Of the second member alone nothing follows.
    second = KeyFilters([("key", describe(PAIR))])
    assert second.push([EqualTo(("key", "_2"), 7)]) == [EqualTo(("key", "_2"), 7)]
    assert second.ranges(0, TASKS) == [ordered.EVERYTHING]


def test_what_is_not_certain_is_left_to_spark() -> None:
    chosen = KeyFilters([("key", describe(float)), ("key_2", describe(str | int))])
    doubtful: list[Filter] = [
        EqualTo(("value",), 1),
        Not(EqualTo(("key",), 1.0)),
        StringEndsWith(("key",), "a"),
        LessThan(("key",), float("nan")),
        EqualTo(("key",), "text"),
        EqualTo(("key_2",), "a"),
        EqualTo(("key", "_1"), 1.0),
    ]
    assert chosen.push(doubtful) == doubtful
    assert chosen.ranges(0, TASKS) == [ordered.EVERYTHING]
    naive = KeyFilters([("key", describe(datetime))])
    assert len(naive.push([EqualTo(("key",), datetime(2026, 1, 1))])) == 1  # noqa: DTZ001
    assert len(KeyFilters([("key", describe(str))]).push([EqualTo(("key",), "x" * 600)])) == 1
    assert len(KeyFilters([(None, describe(int))]).push([EqualTo(("key",), "7")])) == 1


def test_of_many_keys_their_range_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "POINTS_MAX", 3)
    chosen = KeyFilters([("key", describe(int))])
    many = In(("key",), tuple(range(10, 20)))
    assert chosen.push([many]) == [many]
    assert chosen.ranges(0, TASKS) == [(ordered.encode(10), ordered.behind(ordered.encode(19)))]


def test_as_many_keys_as_are_read_one_by_one_are_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "POINTS_MAX", 3)
    chosen = KeyFilters([("key", describe(int))])
    few = In(("key",), (10, 15, 19))
    assert chosen.push([few]) == []
    found = {pair for task in range(TASKS) for pair in chosen.ranges(task, TASKS)}
    assert found == {(ordered.encode(key), ordered.behind(ordered.encode(key))) for key in (10, 15, 19)}


def test_tasks_are_chosen_by_their_number() -> None:
    for each, wanted in (
        (EqualTo(("_task",), 2), [2]),
        (In(("_task",), (0, 3, 9)), [0, 3]),
        (GreaterThan(("_task",), 1), [2, 3]),
        (GreaterThanOrEqual(("_task",), 1), [1, 2, 3]),
        (LessThan(("_task",), 1), [0]),
        (IsNotNull(("_task",)), [0, 1, 2, 3]),
        (LessThanOrEqual(("_task",), 1), [0, 1]),
    ):
        chosen, depot = KeyFilters([("key", describe(str))]), DepotFilters()
        assert chosen.push([each]) == depot.push([each]) == []
        assert [task for task in range(TASKS) if chosen.ranges(task, TASKS)] == wanted
        assert [task for task in range(TASKS) if depot.fits(task)] == wanted


def test_offsets_of_records_are_narrowed_and_times_are_looked_at_again() -> None:
    depot = DepotFilters()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    since = GreaterThan(("timestamp",), moment)
    pushed: list[Filter] = [GreaterThan(("offset",), 4), LessThanOrEqual(("offset",), 9), since]
    assert depot.push(pushed) == [since]
    assert (depot.start, depot.end, depot.start_ms) == (5, 10, int(moment.timestamp() * 1_000))
    assert DepotFilters().end == OFFSET_END


@pytest.mark.parametrize(
    ("pushed", "bounds"),
    [
        ([EqualTo(("offset",), 5)], (5, 6)),
        ([EqualTo(("offset",), 5), GreaterThanOrEqual(("offset",), 3), LessThan(("offset",), 9)], (5, 6)),
        ([GreaterThanOrEqual(("offset",), 3), LessThan(("offset",), 9), EqualTo(("offset",), 5)], (5, 6)),
        ([GreaterThanOrEqual(("offset",), 3), GreaterThan(("offset",), 1)], (3, OFFSET_END)),
        ([LessThan(("offset",), 9), LessThanOrEqual(("offset",), 20)], (0, 9)),
        ([IsNotNull(("offset",)), LessThanOrEqual(("offset",), 20), LessThan(("offset",), 30)], (0, 21)),
    ],
)
def test_the_narrowest_bounds_of_offsets_hold(pushed: list[Filter], bounds: tuple[int, int]) -> None:
    depot = DepotFilters()
    assert depot.push(pushed) == []
    assert (depot.start, depot.end) == bounds
