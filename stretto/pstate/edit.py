"""Reading and changing a PState by paths, as Python values, for the code of a module.

A path is the keys that lead to something: ``("ann", "2026-01-31")``. What it leads to is a value, or a whole
dict, set or list. A change is checked whole before any of it is made, and shows in what is read after it;
:meth:`Editor.changes` is all of them, for the entry that makes them last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from stretto.errors import UsageError
from stretto.pstate import ordered, types
from stretto.pstate.changes import Changes
from stretto.pstate.ordered import Range, shown, subtree
from stretto.pstate.overlay import Overlay, Rows, Undo, beginnings
from stretto.pstate.tree import (
    ABSENT,
    Elements,
    Entries,
    Leaf,
    Members,
    Node,
    Place,
    build,
    checked_key,
    encode_key,
    items_of,
    joined,
    locate,
    rows_of,
)
from stretto.pstate.types import Type


class ReadByMethods:
    """Refuses ``[]``, ``in``, ``len()`` and the like on a PState, with a message that says what to write.

    A change is one of its methods, because keys are paths and each is checked, and so is a read.
    """

    #: Name of the PState in the code that uses it.
    _called = "the_pstate"
    _is_changed = False

    if not TYPE_CHECKING:
        # A type checker knows that it has none of these, and says so before anything runs.

        def __getitem__(self, key: Any) -> NoReturn:
            name, of = self._called, shown(key)
            change = f" and {name}.increment({of}) or {name}.set({of}, value=...) to change it"
            raise UsageError(
                f"a PState has methods, and no []: write {name}.get({of}) to read what is under a key"
                + (change if self._is_changed else "")
            )

        def __setitem__(self, key: Any, value: Any) -> NoReturn:
            self._refuse_change(f"{self._called}.set({shown(key)}, value=...)")

        def __delitem__(self, key: Any) -> NoReturn:
            self._refuse_change(f"{self._called}.delete({shown(key)})")

        def __contains__(self, key: Any) -> NoReturn:
            raise UsageError(f"a PState is not asked by 'in': write {self._called}.contains({shown(key)})")

        def __iter__(self) -> NoReturn:
            name = self._called
            raise UsageError(f"a PState is not gone over by itself: write {name}.keys(), or {name}.items()")

        def __len__(self) -> NoReturn:
            raise UsageError(f"a PState has no len(), nor is it true or false: write {self._called}.count()")

        def _refuse_change(self, instead: str) -> NoReturn:
            if not self._is_changed:
                raise UsageError("a PState is changed by a topology of its module, and only read elsewhere")
            raise UsageError(f"a PState has methods, and no []: write {instead}")


class View(ReadByMethods):
    """Reads what a PState holds on one task."""

    def __init__(self, root: Entries | Members, rows: Rows) -> None:
        self._root = root
        self._rows = rows

    def get(self, *path: Any, default: Any = None) -> Any:
        """Return the value, dict, set or list under these keys, or ``default`` if there is nothing.

        A list's elements have their positions as keys.
        """
        place = self._locate(path)
        if place.node is None:
            raise UsageError(f"{shown(path[-1])} is a member of a set; ask whether it is there")
        if isinstance(place.node, Leaf):
            data = self._rows.get(place.path)
            return default if data is None else place.node.decode(data)
        found = build(place.node, list(self._rows.scan(*subtree(place.path))), len(place.path))
        return default if found is ABSENT else found

    def contains(self, *path: Any) -> bool:
        """Whether there is anything under these keys, or this member in that set."""
        place = self._locate(path)
        if place.node is None or isinstance(place.node, Leaf):
            return self._rows.get(place.path) is not None
        return next(self._rows.keys(*subtree(place.path)), None) is not None

    def keys(
        self, *path: Any, start: Any = None, end: Any = None, prefix: Any = None, after: Any = None
    ) -> Iterator[Any]:
        """Iterate over the keys of a dict, or the members of a set, under this path, ascending.

        Only keys from ``start`` on or behind ``after``, below ``end``, that begin with ``prefix``.
        """
        place = self._locate(path)
        low, high = key_range(place, start=start, end=end, prefix=prefix, after=after)
        for beginning in beginnings(self._rows, low, high, len(place.path)):
            yield ordered.decode_at(beginning, len(place.path))[0]

    def items(
        self, *path: Any, start: Any = None, end: Any = None, prefix: Any = None, after: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """Iterate over entries of a dict: the keys that :meth:`keys` returns, each with what is under it."""
        place = self._locate(path)
        if not isinstance(place.node, Entries):
            raise UsageError("only a dict has items; a set has keys, and a list is read whole or by position")
        low, high = key_range(place, start=start, end=end, prefix=prefix, after=after)
        yield from items_of(place.node, self._rows.scan(low, high), len(place.path))

    def count(
        self, *path: Any, start: Any = None, end: Any = None, prefix: Any = None, after: Any = None
    ) -> int:
        """Count the entries, members or elements under this path; of a dict or a set, also in a key range."""
        place = self._locate(path)
        if isinstance(place.node, Elements) and start is end is prefix is after is None:
            return self._length(place.path)
        low, high = key_range(place, start=start, end=end, prefix=prefix, after=after)
        if isinstance(place.node, Members) or isinstance(getattr(place.node, "child", None), Leaf):
            return sum(1 for _ in self._rows.keys(low, high))
        return sum(1 for _ in beginnings(self._rows, low, high, len(place.path)))

    def _locate(self, path: tuple[Any, ...]) -> Place:
        return locate(self._root, path)

    def _length(self, path: bytes) -> int:
        last = self._rows.last(*subtree(path))
        return 0 if last is None else int(ordered.decode_at(last, len(path))[0]) + 1


class Editor(View):
    """Reads and changes what a PState holds on one task.

    Others see the changes once an entry with :meth:`changes` is applied.
    """

    _is_changed = True

    def __init__(self, root: Entries | Members, rows: Rows, undo: Undo | None = None) -> None:
        self._overlay = Overlay(rows, undo)
        super().__init__(root, self._overlay)

    def changes(self) -> Changes:
        """Return all changes that were made here, for an entry."""
        return self._overlay.changes()

    def set(self, *path: Any, value: Any) -> None:
        """Put a value, or a whole dict, set or list, in the place of what is under these keys."""
        place = self._below_the_root(path)
        if place.node is None:
            raise UsageError(f"{shown(path[-1])} is a member of a set, which has no value; add or discard it")
        if isinstance(place.parent, Elements):
            self._require_element(place, path[-1])
        rows = rows_of(place.node, place.path, value)
        if not isinstance(place.node, Leaf):
            self._overlay.delete_range(*_whole(place.path))
        for key, data in rows:
            self._overlay.put(key, data)

    def delete(self, *path: Any) -> None:
        """Delete what is under these keys, if there is anything; without any keys, all that the task has."""
        place = self._target(path)
        if isinstance(place.parent, Elements):
            raise UsageError(
                "an element of a list cannot be deleted: those behind it would move; truncate it"
            )
        if place.node is None or isinstance(place.node, Leaf):
            self._overlay.delete(place.path)
        else:
            self._overlay.delete_range(*_whole(place.path))

    def increment(self, *path: Any, by: float = 1) -> Any:
        """Add to a number, which is 0 if it does not exist, and return the new one."""
        place = self._below_the_root(path)
        if not isinstance(place.node, Leaf):
            raise UsageError("only a number goes up; the path ends at a collection")
        if isinstance(place.parent, Elements):
            self._require_element(place, path[-1])
        before: Any = self._overlay.number(place.path)
        if before is None:
            data = self._overlay.get(place.path)
            before = 0 if data is None else place.node.decode(data)
        if isinstance(before, bool) or not isinstance(before, int | float):
            raise UsageError(f"{shown(before)} is no number, and does not go up")
        after = before + by
        data = place.node.encode(after)
        if type(after) is int and place.node.is_int:
            self._overlay.put_number(place.path, after)
        else:
            self._overlay.put(place.path, data)
        return after

    def append(self, *path: Any, value: Any) -> int:
        """Append to the list under these keys, which need not exist, and return the element's position."""
        place = self._target(path)
        if not isinstance(place.node, Elements):
            raise UsageError("only a list can be appended to")
        index = self._length(place.path)
        self._overlay.put(joined(place.path, ordered.encode(index)), place.node.item.encode(value))
        return index

    def truncate(self, *path: Any, length: int) -> None:
        """Keep only the first ``length`` elements of a list."""
        place = self._target(path)
        if not isinstance(place.node, Elements):
            raise UsageError("only a list can be truncated")
        if length < 0:
            raise UsageError(f"a list cannot have {length} elements")
        start = joined(place.path, ordered.encode(length))
        if self._overlay.last(start, subtree(place.path)[1]) is not None:
            self._overlay.delete_range(start, _whole(place.path)[1])

    def add(self, *path: Any) -> None:
        """Add the last of these keys to the set that the others lead to."""
        self._overlay.put(self._member(path), b"")

    def discard(self, *path: Any) -> None:
        """Remove the last of these keys from the set that the others lead to, if it is there."""
        self._overlay.delete(self._member(path))

    def _member(self, path: tuple[Any, ...]) -> bytes:
        place = self._target(path)
        if place.node is not None:
            raise UsageError("only a set has members; the path ends elsewhere")
        return place.path

    def _target(self, path: tuple[Any, ...]) -> Place:
        """Return the place that a change is made at."""
        return self._locate(path)

    def _below_the_root(self, path: tuple[Any, ...]) -> Place:
        if not path:
            raise UsageError("give the key to change: a PState is changed key by key")
        return self._target(path)

    def _require_element(self, place: Place, index: Any) -> None:
        if self._overlay.get(place.path) is None:
            raise UsageError(f"the list has no position {index}; append to make it longer")


def key_range(
    place: Place, *, start: Any = None, end: Any = None, prefix: Any = None, after: Any = None
) -> Range:
    """Return the range of rows under some keys of a dict or a set.

    Those are from ``start`` on, behind ``after``, below ``end``, and begin with ``prefix``.
    """
    node: Node | None = place.node
    if not isinstance(node, Entries | Members):
        raise UsageError("only dicts and sets have keys; the path ends elsewhere")
    low, high = subtree(place.path)
    if start is not None:
        low = joined(place.path, encode_key(node.key, start))
    if end is not None:
        high = joined(place.path, encode_key(node.key, end))
    if prefix is not None:
        first, last = ordered.beginning_with(_checked_prefix(node.key, prefix))
        low, high = max(low, joined(place.path, first)), min(high, place.path + last)
    if after is not None:
        low = max(low, ordered.behind(joined(place.path, encode_key(node.key, after))))
    return low, max(low, high)


def _checked_prefix(type_: Type, prefix: Any) -> Any:
    """Return the prefix if keys of this type can begin with it; raise UsageError otherwise."""
    match type_:
        case types.Plain(name="str" | "bytes"):
            return checked_key(type_, prefix)
        case types.Tuple(items=items) if isinstance(prefix, tuple) and len(prefix) <= len(items):
            return tuple(map(checked_key, items, prefix))
        case types.Run(item=item) if isinstance(prefix, tuple):
            return tuple(checked_key(item, each) for each in prefix)
        case types.Choice(options=options):
            for option in options:
                with suppress(UsageError):
                    return _checked_prefix(option, prefix)
        case _:
            pass
    raise UsageError(f"{shown(prefix)} is no beginning of a key here: no {type_} begins like that")


def _whole(path: bytes) -> Range:
    start, end = subtree(path)
    if len(end) > ordered.KEY_BYTES_MAX:
        raise UsageError(f"a key of {len(path)} bytes leaves no room for what is under it; shorten it")
    return start, end
