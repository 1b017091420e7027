"""Keys that people write as text, and values that JSON can say."""

from __future__ import annotations

from datetime import date
from typing import Any, cast

import msgspec
import pytest

from stretto.client.reading.pstate import PStateReader
from stretto.client.reading.selection import Collection, Found, KeyRange, entries, find, plain, read_key
from stretto.errors import UsageError
from stretto.pstate.types import describe


class Total(msgspec.Struct):
    sums: dict[int, float]


def collection(annotation: Any) -> Collection:
    return cast(Collection, describe(annotation))


@pytest.mark.parametrize(
    ("annotation", "text", "key"),
    [
        (int, "7", 7),
        (float, "2.5", 2.5),
        (bool, "true", True),
        (str, "7", "7"),
        (date, "2026-01-31", date(2026, 1, 31)),
        (bytes, "YWI=", b"ab"),
        (tuple[str, int], '["a", 1]', ("a", 1)),
        (tuple[int, ...], '["1", 2]', (1, 2)),
        (int | str, "7", "7"),
        (int | None, "7", 7),
    ],
)
def test_a_key_is_read_by_its_declared_type(annotation: Any, text: str, key: Any) -> None:
    found = read_key(describe(annotation), text)
    assert (found, type(found)) == (key, type(key))


@pytest.mark.parametrize(
    ("annotation", "text"), [(int, "seven"), (tuple[int, int], "1, 2"), (tuple[int, int], "[1]")]
)
def test_text_that_is_no_key_is_refused_with_the_type(annotation: Any, text: str) -> None:
    with pytest.raises(UsageError, match=r"is no (int|tuple)"):
        read_key(describe(annotation), text)


def test_a_path_leads_to_a_collection_a_value_an_element_or_a_member() -> None:
    nested = describe(dict[int, dict[str, int]])
    assert find(nested, []) == Found([], collection(dict[int, dict[str, int]]))
    assert find(nested, ["7"]) == Found([7], collection(dict[str, int]))
    assert find(nested, ["7", "a"]) == Found([7, "a"], None)
    assert find(describe(dict[str, list[str]]), ["a", "2"]) == Found(["a", 2], None)
    assert find(describe(dict[str, set[int]]), ["a", "2"]) == Found(["a", 2], None, is_member=True)


@pytest.mark.parametrize("annotation", [dict[str, int], dict[str, set[str]], dict[str, list[str]]])
def test_a_path_that_goes_on_behind_a_value_leads_nowhere(annotation: Any) -> None:
    with pytest.raises(UsageError, match="'1' leads nowhere"):
        find(describe(annotation), ["a", "1", "b"])


def test_bounds_are_read_by_the_type_of_the_keys() -> None:
    ranged = KeyRange(collection(dict[int, str]), "7", "1", "9", "2")
    assert ranged.bounds == {"prefix": 7, "start": 1, "end": 9, "after": 2}
    assert KeyRange(collection(set[str]), "a", None, None).bounds == {
        "prefix": "a",
        "start": None,
        "end": None,
        "after": None,
    }
    assert KeyRange(collection(list[str]), None, "3", "5").bounds["start"] == 3
    with pytest.raises(UsageError, match="positions of a list have no prefix"):
        KeyRange(collection(list[str]), "1", None, None)


def test_the_beginning_of_a_tuple_is_a_prefix() -> None:
    pairs = collection(dict[tuple[str, date], int])
    assert KeyRange(pairs, '["a"]', None, None).prefix == ("a",)
    assert KeyRange(pairs, '["a", "2026-01-31"]', None, None).prefix == ("a", date(2026, 1, 31))
    assert KeyRange(collection(set[tuple[int, ...]]), "[1, 2, 3]", None, None).prefix == (1, 2, 3)
    for text in ('["a", "2026-01-31", 3]', '"a"', "[1"):
        with pytest.raises(UsageError, match="is no beginning of a tuple"):
            KeyRange(pairs, text, None, None)


class Reader:
    """Tells what it was asked for."""

    def items(self, *path: Any, **bounds: Any) -> list[Any]:
        return [("items", (path, bounds))]

    def keys(self, *path: Any, **bounds: Any) -> list[Any]:
        return [(path, bounds["limit"])]

    def slice(self, *_: Any, start: int, stop: int) -> list[int]:
        return list(range(100))[start:stop]


def ask(annotation: Any, *, from_: str | None = None, to: str | None = None, after: str | None = None) -> Any:
    type_ = collection(annotation)
    ranged = KeyRange(type_, None, from_, to, after)
    return list(entries(cast(PStateReader, Reader()), ["p"], type_, ranged, 3))


def test_entries_of_dicts_and_sets_are_those_of_the_range() -> None:
    bounds = {"prefix": None, "start": 1, "end": None, "after": None, "limit": 3}
    assert ask(dict[int, int], from_="1") == [("items", (("p",), bounds))]
    assert ask(set[int]) == [((("p",), 3),)]


def test_elements_of_a_list_come_with_their_positions() -> None:
    assert ask(list[int]) == [(0, 0), (1, 1), (2, 2)]
    assert ask(list[int], from_="5") == [(5, 5), (6, 6), (7, 7)]
    assert ask(list[int], from_="5", to="7") == [(5, 5), (6, 6)]
    assert ask(list[int], from_="5", to="90") == [(5, 5), (6, 6), (7, 7)]
    assert ask(list[int], after="0") == [(1, 1), (2, 2), (3, 3)]
    assert ask(list[int], from_="9", after="4") == [(9, 9), (10, 10), (11, 11)]


def test_values_become_what_json_can_say() -> None:
    assert plain({"a": {1: (2, 3)}}) == {"a": [[1, [2, 3]]]}
    assert plain({3, 20, 1}) == [1, 20, 3]
    assert plain(Total({1: 2.5})) == {"sums": [[1, 2.5]]}
    assert plain([date(2026, 1, 31), None]) == [date(2026, 1, 31), None]
