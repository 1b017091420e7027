"""What becomes rows, under which keys, and what is refused before it does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import PeerError, UsageError
from stretto.pstate import ordered, tree
from stretto.pstate.tree import (
    ABSENT,
    Entries,
    Leaf,
    Members,
    build,
    compile_type,
    locate,
    paths_of,
    row_of,
    rows_of,
)
from stretto.pstate.types import describe


@dataclass
class Visit:
    page: str
    seconds: float


def compiled(annotation: Any) -> Entries | Members:
    return compile_type(describe(annotation), annotation)


def path(*keys: Any) -> bytes:
    return b"".join(map(ordered.encode, keys))


DAY = date(2026, 1, 31)

SHAPES: list[tuple[Any, Any, list[tuple[Any, ...]]]] = [
    (dict[str, int], {"a": 1, "b": 2}, [("a",), ("b",)]),
    (dict[str, dict[date, int]], {"a": {DAY: 1}, "b": {DAY: 2}}, [("a", DAY), ("b", DAY)]),
    (dict[str, set[int]], {"a": {1, 2}, "b": {3}}, [("a", 1), ("a", 2), ("b", 3)]),
    (dict[str, list[Visit]], {"a": [Visit("x", 1.5), Visit("y", 2)]}, [("a", 0), ("a", 1)]),
    (dict[str, Visit], {"a": Visit("x", 1)}, [("a",)]),
    (set[tuple[str, int]], {("a", 1), ("a", 2)}, [(("a", 1),), (("a", 2),)]),
    (dict[str, dict[int, dict[str, bool]]], {"a": {1: {"x": True}}}, [("a", 1, "x")]),
    (dict[str, list[dict[str, int]]], {"a": [{}, {"x": 1}]}, [("a", 0), ("a", 1)]),
    (dict[str, tuple[int, ...]], {"a": ()}, [("a",)]),
    (dict[str, int | None], {"a": None, "a\0b": 1}, [("a",), ("a\0b",)]),
    (dict[str, dict[str, int]], {"a": {"b": 1}, "a\0b": {"c": 2}}, [("a", "b"), ("a\0b", "c")]),
    (Annotated[dict[str, Annotated[list[int], "x"]], "y"], {"a": [1]}, [("a", 0)]),
]


@pytest.mark.parametrize(("annotation", "value", "paths"), SHAPES, ids=[str(each[0]) for each in SHAPES])
def test_a_row_for_each_entry_member_and_element(
    annotation: Any, value: Any, paths: list[tuple[Any, ...]]
) -> None:
    root = compiled(annotation)
    rows = sorted(rows_of(root, b"", value))
    assert [key for key, _ in rows] == [path(*keys) for keys in paths]
    assert build(root, rows, 0) == value


def test_empty_collections_have_no_rows() -> None:
    root = compiled(dict[str, dict[str, list[int]]])
    assert rows_of(root, b"", {"a": {}, "b": {"c": []}}) == []
    assert build(root, [], 0) is ABSENT


def test_a_path_leads_to_entries_members_elements_and_values() -> None:
    root = compiled(dict[str, dict[int, list[str]]])
    assert isinstance(locate(root, ["a"]).node, Entries)
    assert isinstance(locate(root, ["a", 1]).node, tree.Elements)
    place = locate(root, ["a", 1, 0])
    assert isinstance(place.node, Leaf)
    assert place.path == path("a", 1, 0)
    assert locate(compiled(set[float]), [1]).path == path(1.0)


@pytest.mark.parametrize(
    ("annotation", "keys", "sentence"),
    [
        (dict[str, int], [7], "7 is no key here; give one that is a str"),
        (dict[int, int], ["7"], "'7' is no key here; give one that is an int"),
        (dict[int, int], [True], "True is no key here"),
        (dict[bool, int], [1], "1 is no key here"),
        (dict[float, int], [(1 << 53) + 1], "is no key here"),
        (dict[date, int], [datetime(2026, 1, 1, tzinfo=UTC)], "is no key here"),
        (dict[tuple[str, int], int], [("a",)], r"give one that is a tuple\[str, int\]"),
        (dict[tuple[int, ...], int], [(1, "a")], "'a' is no key here"),
        (dict[str | None, int], [7], "give one that is a None | str"),
        (dict[str, int], ["a", "b"], "'b' leads nowhere: above it is an int"),
        (set[str], ["a", "b"], "'b' leads nowhere: above it is a member of a set"),
        (dict[str, list[int]], ["a", -1], "-1 is no position in a list"),
        (dict[str, list[int]], ["a", "0"], "'0' is no position in a list"),
        (dict[str, int], ["x" * 510], "a key of 512 bytes is beyond the limit of 511"),
        (dict[str, dict[str, int]], ["x" * 300, "y" * 300], "beyond the limit of 511, which a path shares"),
    ],
)
def test_paths_that_lead_nowhere(annotation: Any, keys: list[Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        locate(compiled(annotation), keys)


def test_the_longest_key_is_as_long_as_lmdb_takes() -> None:
    assert len(locate(compiled(dict[str, int]), ["x" * 509]).path) == ordered.KEY_BYTES_MAX


@pytest.mark.parametrize(
    ("annotation", "value", "sentence"),
    [
        (dict[str, int], {"a": "1"}, "'1' is no int"),
        (dict[str, int], {"a": True}, "True is no int"),
        (dict[str, int], {"a": 1 << 63}, "beyond 64 bits"),
        (dict[str, str], {"a": "\ud800"}, "surrogate"),
        (dict[str, bytes], {"a": "text"}, "'text' is no bytes"),
        (dict[str, Visit], {"a": Visit("x", "long")}, "is no Visit"),  # type: ignore[arg-type]
        (dict[str, Visit], {"a": {"page": "x"}}, "is no Visit.*missing required field"),
        (dict[str, bytes], {"a": bytes(tree.VALUE_BYTES_MAX)}, "beyond the limit of 8388608; split it"),
        (dict[str, list[int]], {"a": {1}}, r"\{1\} is no list"),
        (dict[str, set[int]], {"a": [1]}, r"\[1\] is no set"),
        (dict[str, dict[str, int]], {"a": 1}, "1 is no dict"),
        (dict[str, Annotated[int, msgspec.Meta(ge=0)]], {"a": -5}, "-5 is no int with ge=0"),
        (dict[str, Annotated[str, msgspec.Meta(max_length=2)]], {"a": "long"}, "'long' is no str"),
    ],
)
def test_values_of_other_types(annotation: Any, value: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        rows_of(compiled(annotation), b"", value)


def test_an_int_is_a_float_where_one_is_declared() -> None:
    root = compiled(dict[str, float])
    read = build(root, rows_of(root, b"", {"a": 1}), 0)["a"]
    assert (read, type(read)) == (1.0, float)


def test_a_value_of_a_type_that_was_changed_is_told() -> None:
    rows = rows_of(compiled(dict[str, str]), b"", {"a": "text"})
    with pytest.raises(PeerError, match="was the PState's type changed"):
        build(compiled(dict[str, int]), rows, 0)


def test_without_the_authors_classes_values_have_their_fields() -> None:
    rows = rows_of(compiled(dict[str, Visit]), b"", {"a": Visit("x", 1.5)})
    read = build(compile_type(describe(dict[str, Visit])), rows, 0)["a"]
    assert (read.page, read.seconds) == ("x", 1.5)


@given(st.lists(st.text(max_size=600) | st.integers() | st.just("a\0b")))
def test_many_keys_have_the_paths_that_each_has(keys: list[Any]) -> None:
    root = compile_type(describe(dict[str, int]))
    assert isinstance(root, Entries)
    try:
        expected = [row_of(root, key) for key in keys]
    except UsageError:
        with pytest.raises(UsageError):
            paths_of(root, keys)
    else:
        assert paths_of(root, keys) == expected
