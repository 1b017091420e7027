"""Overlays against a sorted dict: one alone, one on another, and one made of another's changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.pstate.changes import Changes, pack, parse
from stretto.pstate.overlay import NoRows, Overlay, Rows, Undo, take_back

keys = st.binary(min_size=1, max_size=2).map(lambda key: bytes(byte % 4 for byte in key))
values = st.binary(max_size=2)
Step: TypeAlias = tuple[str, bytes, bytes]
steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "delete", "range"]), keys, keys | values), max_size=20
)


class Plain:
    """A dict as rows."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.rows = rows

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter([(key, self.rows[key]) for key in self.keys(start, end)])

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        return iter(sorted(key for key in self.rows if start <= key < end))

    def last(self, start: bytes, end: bytes) -> bytes | None:
        return max(self.keys(start, end), default=None)


def carry_out(taken: list[Step], overlay: Overlay, model: dict[bytes, bytes]) -> None:
    for what, one, other in taken:
        if what == "put":
            overlay.put(one, other)
            model[one] = other
        elif what == "delete":
            overlay.delete(one)
            model.pop(one, None)
        elif one < other:
            overlay.delete_range(one, other)
            for key in [key for key in model if one <= key < other]:
                del model[key]


def check_same(rows: Rows, model: dict[bytes, bytes], start: bytes, end: bytes) -> None:
    plain = Plain(model)
    assert list(rows.scan(start, end)) == list(plain.scan(start, end))
    assert list(rows.keys(start, end)) == list(plain.keys(start, end))
    assert rows.last(start, end) == plain.last(start, end)
    for key in {start, end, *model}:
        assert rows.get(key) == model.get(key)


@settings(deadline=None)
@given(st.dictionaries(keys, values), steps, steps, keys, keys)
def test_an_overlay_is_the_rows_below_with_its_changes(
    below: dict[bytes, bytes], first: list[Step], second: list[Step], start: bytes, end: bytes
) -> None:
    model = dict(below)
    lower = Overlay(Plain(below))
    carry_out(first, lower, model)
    check_same(lower, model, start, end)
    upper = Overlay(lower)
    carry_out(second, upper, model)
    check_same(upper, model, start, end)
    check_same(upper, model, b"", b"\xff")

    again = Overlay(Plain(below))
    for overlay in (lower, upper):
        again.add(parse(pack({"p": overlay.changes()}))["p"])
    check_same(again, model, b"", b"\xff")
    once_more = Overlay(Plain(below))
    once_more.add(again.changes())
    check_same(once_more, model, b"", b"\xff")


def test_nothing_done_changes_nothing() -> None:
    assert not Overlay(NoRows()).changes()
    assert Overlay(NoRows()).changes() == Changes()


def test_what_is_undone_leaves_no_puts() -> None:
    overlay = Overlay(NoRows())
    overlay.put(b"a", b"1")
    overlay.put(b"b", b"1")
    overlay.delete(b"a")
    overlay.put(b"b", b"2")
    assert overlay.changes() == Changes(deletes=(b"a",), puts=((b"b", b"2"),))
    overlay.delete_range(b"a", b"c")
    assert overlay.changes() == Changes(ranges=((b"a", b"c"),))


@settings(deadline=None)
@given(st.dictionaries(keys, values), steps, steps, steps)
def test_what_is_taken_back_leaves_no_trace(
    below: dict[bytes, bytes], kept: list[Step], undone: list[Step], later: list[Step]
) -> None:
    undo: Undo = []
    model = dict(below)
    overlay = Overlay(Plain(below), undo)
    carry_out(kept, overlay, model)
    undo.clear()
    before = overlay.changes()
    carry_out(undone, overlay, dict(model))
    take_back(undo)
    assert overlay.changes() == before
    check_same(overlay, model, b"", b"\xff")
    carry_out(later, overlay, model)
    check_same(overlay, model, b"", b"\xff")
