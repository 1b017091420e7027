"""Encoded keys: they come back, they sort as keys do, and they tell their own end."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, date, datetime, timedelta, timezone
from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import PeerError, UsageError
from stretto.pstate import ordered

INTS = st.integers(ordered.INT_MIN, ordered.INT_MAX)
FLOATS = st.floats(allow_nan=False)
#: Short, of few characters, and with all that could be mistaken for an end.
TEXTS = st.text(st.sampled_from("\0\x01a\xff\u20ac\U0010ffff"), max_size=4) | st.text(max_size=12)
BYTES = st.lists(st.sampled_from([0, 1, 0x30, 0xFE, 0xFF]), max_size=4).map(bytes) | st.binary(max_size=12)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
DATETIMES = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=ZONES)  # noqa: DTZ001
SCALARS: dict[type, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: INTS,
    float: FLOATS,
    str: TEXTS,
    bytes: BYTES,
    datetime: DATETIMES,
    date: st.dates(),
}
RANKS = [*SCALARS, tuple]
KEYS = st.recursive(
    st.one_of(*SCALARS.values()), lambda keys: st.lists(keys, max_size=3).map(tuple), max_leaves=6
)


def compare(left: Any, right: Any) -> int:
    """As the module promises."""
    if type(left) is not type(right):
        return RANKS.index(type(left)) - RANKS.index(type(right))
    if isinstance(left, tuple):
        for one, other in zip(left, right, strict=False):
            if order := compare(one, other):
                return order
        return len(left) - len(right)
    if left is None:
        return 0
    return int(left > right) - int(left < right)


def compare_paths(left: list[Any], right: list[Any]) -> int:
    return compare(tuple(left), tuple(right))


def sign(number: int) -> int:
    return (number > 0) - (number < 0)


@settings(deadline=None)
@given(KEYS)
def test_a_key_comes_back_as_it_was(key: Any) -> None:
    encoded = ordered.encode(key)
    assert ordered.decode(encoded) == key
    assert type(ordered.decode(encoded)) is type(key)
    assert ordered.end_of(encoded, 0) == len(encoded)


@settings(deadline=None)
@given(KEYS, KEYS)
def test_bytes_compare_as_keys_do(left: Any, right: Any) -> None:
    one, other = ordered.encode(left), ordered.encode(right)
    assert sign((one > other) - (one < other)) == sign(compare(left, right))


@settings(deadline=None)
@given(st.data())
def test_within_a_type_bytes_compare_as_python_does(data: st.DataObject) -> None:
    of: st.SearchStrategy[Any] = data.draw(
        st.sampled_from([INTS, FLOATS, TEXTS, BYTES, DATETIMES, st.dates(), st.tuples(TEXTS, INTS)])
    )
    keys = data.draw(st.lists(of, max_size=20))
    assert sorted(keys, key=ordered.encode) == sorted(keys)


@settings(deadline=None)
@given(st.lists(KEYS, max_size=4), KEYS, st.lists(KEYS, max_size=4))
def test_keys_one_after_the_other_are_a_path_that_is_cut_where_they_end(
    before: list[Any], key: Any, after: list[Any]
) -> None:
    at = len(b"".join(map(ordered.encode, before)))
    path = b"".join(map(ordered.encode, [*before, key, *after]))
    assert ordered.decode_at(path, at) == (key, at + len(ordered.encode(key)))
    assert ordered.end_of(path, at) == at + len(ordered.encode(key))


@settings(deadline=None)
@given(st.lists(st.lists(KEYS, min_size=1, max_size=3), max_size=8))
def test_paths_sort_as_lists_of_keys_do(paths: list[list[Any]]) -> None:
    encoded = sorted(paths, key=lambda path: b"".join(map(ordered.encode, path)))
    assert encoded == sorted(paths, key=cmp_to_key(compare_paths))


@settings(deadline=None)
@given(st.lists(KEYS, min_size=1, max_size=2), st.lists(KEYS, min_size=1, max_size=3))
def test_the_subtree_of_a_path_is_all_that_continues_it(path: list[Any], other: list[Any]) -> None:
    start, end = ordered.subtree(b"".join(map(ordered.encode, path)))
    inside = start <= b"".join(map(ordered.encode, other)) < end
    assert inside == (compare(tuple(other[: len(path)]), tuple(path)) == 0)


@settings(deadline=None)
@given(st.sampled_from([TEXTS, BYTES]).flatmap(lambda of: st.tuples(of, of)), st.lists(KEYS, max_size=2))
def test_a_beginning_ranges_over_what_begins_so(pair: tuple[Any, Any], rest: list[Any]) -> None:
    prefix, key = pair
    start, end = ordered.beginning_with(prefix)
    for each in (key, prefix + key):
        path = b"".join(map(ordered.encode, [each, *rest]))
        assert (start <= path < end) == each.startswith(prefix)


@settings(deadline=None)
@given(st.lists(KEYS, max_size=2).map(tuple), st.lists(KEYS, max_size=3).map(tuple))
def test_the_beginning_of_a_tuple_is_its_first_members(prefix: tuple[Any, ...], key: tuple[Any, ...]) -> None:
    start, end = ordered.beginning_with(prefix)
    assert (start <= ordered.encode(key) < end) == (compare(key[: len(prefix)], prefix) == 0)


def test_equal_keys_are_the_same_bytes() -> None:
    assert ordered.encode(-0.0) == ordered.encode(0.0)
    berlin = timezone(timedelta(hours=2))
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert ordered.encode(noon.astimezone(berlin)) == ordered.encode(noon)
    assert ordered.decode(ordered.encode(noon.astimezone(berlin))).tzinfo is UTC


def test_infinities_and_bounds_have_their_places() -> None:
    floats = [-math.inf, -1e308, -5e-324, 0.0, 5e-324, 1.0, math.inf]
    assert sorted(set(floats), key=ordered.encode) == floats
    ints = [ordered.INT_MIN, -256, -255, -1, 0, 1, 255, 256, ordered.INT_MAX]
    assert sorted(set(ints), key=ordered.encode) == ints


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (math.nan, "NaN is no key"),
        (1 << 63, "64 bits at most"),
        (-(1 << 63) - 1, "64 bits at most"),
        (datetime(2026, 1, 1), "has no zone"),  # noqa: DTZ001
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "out of range"),
        ("\ud800", "surrogate"),
        ([1], "is no key; use text"),
        ({"a": 1}, "is no key; use text"),
        ((1, ("a", math.nan)), "NaN is no key"),
    ],
)
def test_what_is_no_key_is_refused(key: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        ordered.encode(key)


@pytest.mark.parametrize("prefix", [1, None, 2.5])
def test_what_has_no_beginning_is_refused(prefix: Any) -> None:
    with pytest.raises(UsageError, match="have beginnings"):
        ordered.beginning_with(prefix)


@settings(deadline=None)
@given(KEYS, st.data())
def test_a_key_that_is_cut_short_is_refused_unless_what_is_left_is_a_key(
    key: Any, data: st.DataObject
) -> None:
    """A text that was cut behind a 00 is a shorter text."""
    cut = ordered.encode(key)[: data.draw(st.integers(0, len(ordered.encode(key)) - 1))]
    try:
        left = ordered.decode(cut)
    except PeerError:
        return
    assert ordered.encode(left) == cut
    assert b"\0\xff" in ordered.encode(key)


@settings(deadline=None)
@given(st.binary(max_size=24))
def test_any_bytes_are_a_key_or_refused(data: bytes) -> None:
    with contextlib.suppress(PeerError):
        ordered.decode(data)
