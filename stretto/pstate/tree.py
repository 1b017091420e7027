"""How a PState's type is laid out as rows: what becomes keys, and what becomes values.

A PState is a dict or a set, because its keys choose the task. From there down, a dict, a set or a list in a
dict is *indexed*: each entry, member or element is a row of its own, under a key that is the path to it, one
:mod:`~stretto.pstate.ordered` key after the other. Whatever else stands there is a *value*, the MessagePack
of its declared type, read and written whole; so is all that is inside a list's elements::

    dict[str, dict[date, int]]    {"ann": {day: 3}}        "ann" day   ->  3
    dict[str, set[int]]           {"ann": {7, 9}}          "ann" 7     ->           "ann" 9  ->
    dict[str, list[Visit]]        {"ann": [first, second]} "ann" 0     ->  first    "ann" 1  ->  second
    dict[str, Account]            {"ann": account}         "ann"       ->  account

No row says that a collection exists: an empty one is the same as none. A list's rows are numbered from 0
without a gap, which is why its elements go from the end only, and why they are values: one that had no rows
would be such a gap.

Every key is checked against its declared type and LMDB's limit, every value against its type and
VALUE_BYTES_MAX, and all of them before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_args, get_origin

import msgspec

from stretto.errors import PeerError, UsageError
from stretto.pstate import ordered, types
from stretto.pstate.ordered import KEY_BYTES_MAX, shown
from stretto.pstate.types import Type, not_a_key, python_type
from stretto.vocabulary.decoding import MALFORMED

VALUE_BYTES_MAX = 8 * 1024 * 1024
"""Largest size of a value, encoded."""

Row: TypeAlias = tuple[bytes, bytes]
"""A key, which is a whole path, and a value."""

ABSENT: Final = object()
"""Returned where there are no rows, since None may be a value."""

_encode = msgspec.msgpack.Encoder().encode
#: Types, by name, whose values are checked by their class alone.
_EXACT = {"bool": bool, "str": str, "bytes": bytes}
_INT = types.Plain("int")
_KEY_CLASSES: dict[str, type] = {
    "None": type(None),
    "bool": bool,
    "int": int,
    "str": str,
    "bytes": bytes,
    "datetime": datetime,
    "date": date,
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value, which is one row, read and written whole."""

    type: Type
    decoder: msgspec.msgpack.Decoder[Any]

    def encode(self, value: Any) -> bytes:
        """Encode a value of the declared type; raises UsageError for another, or one that is too large."""
        data = None
        if isinstance(self.type, types.Plain) and not self.type.limits:
            data = _encode_plain(self.type.name, value)
        if data is None:
            try:
                data = _encode(value)
                self.decoder.decode(data)
            except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
                raise UsageError(f"{shown(value)} is no {self.type}: {error}") from None
        if len(data) > VALUE_BYTES_MAX:
            raise UsageError(
                f"a value of {len(data)} bytes is beyond the limit of {VALUE_BYTES_MAX}; split it"
            )
        return data

    @property
    def is_int(self) -> bool:
        """Whether values are ints without limits."""
        return self.type == _INT

    def decode(self, data: bytes) -> Any:
        """Decode a stored value; raises PeerError if it is not of the declared type."""
        try:
            return self.decoder.decode(data)
        except MALFORMED as error:
            raise self._unlike(error) from None

    def decode_all(self, data: Iterable[bytes]) -> list[Any]:
        """Decode stored values, without a call of :meth:`decode` for each."""
        try:
            return list(map(self.decoder.decode, data))
        except MALFORMED as error:
            raise self._unlike(error) from None

    def _unlike(self, error: Exception) -> PeerError:
        return PeerError(f"a value is no {self.type} ({error}); was the PState's type changed?")


@dataclass(frozen=True, slots=True)
class Members:
    """A set, with one row for each member."""

    key: Type


@dataclass(frozen=True, slots=True)
class Elements:
    """A list, with one row for each element, numbered from 0."""

    item: Leaf


@dataclass(frozen=True, slots=True)
class Entries:
    """A dict, whose entries are rows of their own or collections of rows."""

    key: Type
    child: Node


Node: TypeAlias = Leaf | Members | Elements | Entries


class Place(NamedTuple):
    """What a path of keys leads to in a PState."""

    node: Node | None
    """What is there; None for a member of a set, which has nothing below."""
    path: bytes
    """Key of the row, or the beginning of the keys of a collection's rows."""
    parent: Node | None


def compile_type(type_: Type, annotation: Any = None) -> Members | Entries:
    """Return the tree of a PState of this type; values become the annotation's classes, if there is one.

    Raises UsageError with why no PState can have it.
    """
    root = _node(type_, annotation)
    if isinstance(root, Members | Entries):
        return root
    raise UsageError(
        f"a PState is a dict or a set, whose keys choose the tasks, not {type_}; "
        "keep a single value under a key of a dict"
    )


def _node(type_: Type, annotation: Any) -> Node:
    match type_:
        case types.Dict(key=key, value=value):
            _require_keys(key)
            return Entries(key, _node(value, _argument(annotation, 1)))
        case types.Set(item=item):
            _require_keys(item)
            return Members(item)
        case types.List(item=item):
            return Elements(_leaf(item, _argument(annotation, 0)))
        case _:
            return _leaf(type_, annotation)


def _leaf(type_: Type, annotation: Any) -> Leaf:
    return Leaf(type_, msgspec.msgpack.Decoder(python_type(type_) if annotation is None else annotation))


def _require_keys(type_: Type) -> None:
    why = not_a_key(type_)
    if why is not None:
        raise UsageError(why)


def _argument(annotation: Any, index: int) -> Any:
    if annotation is None:
        return None
    while get_origin(annotation) is Annotated or hasattr(annotation, "__value__"):
        # These, and type aliases of Python 3.12, stand for what is in them.
        annotation = getattr(annotation, "__value__", None) or get_args(annotation)[0]
    return get_args(annotation)[index]


# Paths.


def locate(root: Node, path: Sequence[Any]) -> Place:
    """Return the place that these keys lead to. Raises UsageError."""
    if len(path) == 1 and type(root) is Entries:
        return Place(root.child, row_of(root, path[0]), root)
    place = Place(root, b"", None)
    for key in path:
        place = step(place, key)
    return place


def row_of(root: Entries, key: Any) -> bytes:
    """Return the path of what is under one key of a PState."""
    return joined(b"", encode_key(root.key, key))


def paths_of(root: Entries, keys: Iterable[Any]) -> list[bytes]:
    """Return the paths of many keys of a PState; text, which most keys are, takes no call for each."""
    is_text = type(root.key) is types.Plain and root.key.name == "str"
    rows = [
        ordered.TEXT_BEGINS + key.encode() + ordered.TEXT_ENDS
        if is_text and type(key) is str and key.isascii() and "\0" not in key
        else encode_key(root.key, key)
        for key in keys
    ]
    if rows:
        joined(b"", max(rows, key=len))
    return rows


def step(place: Place, key: Any) -> Place:
    """Return the place that one more key leads to. Raises UsageError."""
    match place.node:
        case Entries(key=type_, child=child):
            return Place(child, joined(place.path, encode_key(type_, key)), place.node)
        case Members(key=type_):
            return Place(None, joined(place.path, encode_key(type_, key)), place.node)
        case Elements(item=item):
            return Place(item, joined(place.path, encode_index(key)), place.node)
        case Leaf(type=type_):
            raise UsageError(f"{shown(key)} leads nowhere: above it is {_article(type_)}, which has no keys")
        case None:
            raise UsageError(f"{shown(key)} leads nowhere: above it is a member of a set")


def encode_key(type_: Type, key: Any) -> bytes:
    """Encode a key of the declared type. Raises UsageError if it is none."""
    if type(key) is str and type(type_) is types.Plain and type_.name == "str":
        return ordered.encode(key)
    return ordered.encode(checked_key(type_, key))


def encode_index(index: Any) -> bytes:
    """Encode a position in a list. Raises UsageError if it is none."""
    if type(index) is not int or index < 0:
        raise UsageError(f"{shown(index)} is no position in a list; they are ints from 0 on")
    return ordered.encode(index)


def joined(path: bytes, key: bytes) -> bytes:
    """Append an encoded key to a path. Raises UsageError if that is too long."""
    row = path + key
    if len(row) > KEY_BYTES_MAX:
        raise UsageError(
            f"a key of {len(row)} bytes is beyond the limit of {KEY_BYTES_MAX}, which a path shares; "
            "shorten it, or use a hash of it"
        )
    return row


def checked_key(type_: Type, key: Any) -> Any:
    """Return a key as it is stored. Raises UsageError if it is none of this type."""
    match type_:
        case types.Plain(name="float") if type(key) is int and float(key) == key:
            return float(key)
        case types.Plain(name="float") if isinstance(key, float):
            return key
        case types.Plain(name=name) if isinstance(key, _KEY_CLASSES.get(name, ())):
            # A bool is an int and a datetime is a date, but not here.
            if isinstance(key, bool) == (name == "bool") and isinstance(key, datetime) == (
                name == "datetime"
            ):
                return key
        case types.Tuple(items=items) if isinstance(key, tuple) and len(key) == len(items):
            return tuple(map(checked_key, items, key))
        case types.Run(item=item) if isinstance(key, tuple):
            return tuple(checked_key(item, each) for each in key)
        case types.Choice(options=options):
            for option in options:
                try:
                    return checked_key(option, key)
                except UsageError:
                    continue
        case _:
            pass
    raise UsageError(f"{shown(key)} is no key here; give one that is {_article(type_)}")


def _article(type_: Type) -> str:
    return f"{'an' if str(type_)[0] in 'aeiou' else 'a'} {type_}"


# Values.


def rows_of(node: Node, path: bytes, value: Any) -> list[Row]:
    """Return the rows that store a whole value. Raises UsageError."""
    match node:
        case Leaf():
            return [(path, node.encode(value))]
        case Members(key=type_):
            if not isinstance(value, set | frozenset):
                raise UsageError(f"{shown(value)} is no set")
            return [(joined(path, encode_key(type_, member)), b"") for member in value]
        case Elements(item=item):
            if not isinstance(value, list | tuple):
                raise UsageError(f"{shown(value)} is no list")
            return [
                (joined(path, ordered.encode(index)), item.encode(each)) for index, each in enumerate(value)
            ]
        case Entries(key=type_, child=child):
            if not isinstance(value, Mapping):
                raise UsageError(f"{shown(value)} is no dict")
            return [
                row
                for key, each in value.items()
                for row in rows_of(child, joined(path, encode_key(type_, key)), each)
            ]


def build(node: Node, rows: Sequence[Row], at: int) -> Any:
    """Return the value that these rows store; ABSENT if there are none.

    ``at`` is how many bytes of their keys lead to it.
    """
    if not rows:
        return ABSENT
    match node:
        case Leaf():
            return node.decode(rows[0][1])
        case Members():
            return {ordered.decode_at(key, at)[0] for key, _ in rows}
        case Elements(item=item):
            return [item.decode(value) for _, value in rows]
        case Entries():
            return dict(items_of(node, rows, at))


def items_of(node: Entries, rows: Iterable[Row], at: int) -> Iterator[tuple[Any, Any]]:
    """Iterate over the entries of a dict, made from its rows as they come."""
    group: list[Row] = []
    beginning = b""
    for row in rows:
        end = ordered.end_of(row[0], at)
        if group and row[0][:end] != beginning:
            yield ordered.decode_at(beginning, at)[0], build(node.child, group, len(beginning))
            group = []
        beginning = row[0][:end]
        group.append(row)
    if group:
        yield ordered.decode_at(beginning, at)[0], build(node.child, group, len(beginning))


def _encode_plain(name: str, value: Any) -> bytes | None:
    """Encode a value of a common type; None where the decoder has to check it. Raises UsageError."""
    exact = _EXACT.get(name)
    if exact is not None and type(value) is exact:
        try:
            return _encode(value)
        except UnicodeEncodeError:
            raise UsageError(f"{shown(value)} holds half of a surrogate pair; it is no text") from None
    if name == "int" and type(value) is int:
        if not ordered.INT_MIN <= value <= ordered.INT_MAX:
            raise UsageError(f"{shown(value)} is beyond 64 bits; use float, str or Decimal for such numbers")
        return _encode(value)
    if name == "float" and type(value) in (float, int):
        return _encode(float(value))
    return None
