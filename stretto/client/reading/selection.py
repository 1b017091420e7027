"""Keys and values of PStates as text and as JSON, for people who read them without the module's code.

Keys are written as text and read by the declared type: ``7``, ``2.5``, ``true``, ``2026-01-31``; bytes in
base64, tuples as JSON lists. Values become what JSON can say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from stretto.client.reading.pstate import PStateReader
from stretto.errors import UsageError
from stretto.pstate import types
from stretto.pstate.types import Type, python_type

Collection: TypeAlias = types.Dict | types.Set | types.List


@dataclass(frozen=True, slots=True)
class Found:
    """What a path of keys leads to in a PState."""

    path: list[Any]
    collection: Collection | None
    """Type of the dict, set or list there; None for a value, or the member of a set."""
    is_member: bool = False


class KeyRange:
    """A range of keys, given as text and converted by the type of the collection."""

    def __init__(
        self,
        type_: Collection,
        prefix: str | None,
        from_: str | None,
        to: str | None,
        after: str | None = None,
    ) -> None:
        key_type = _key_type(type_)
        self.start = None if from_ is None else read_key(key_type, from_)
        self.end = None if to is None else read_key(key_type, to)
        self.after = None if after is None else read_key(key_type, after)
        if prefix is None:
            self.prefix: Any = None
        elif isinstance(type_, types.List):
            raise UsageError("the positions of a list have no prefix; use --from and --to")
        elif isinstance(key_type, types.Tuple | types.Run):
            self.prefix = _beginning(key_type, prefix)
        else:
            self.prefix = read_key(key_type, prefix)

    @property
    def bounds(self) -> dict[str, Any]:
        """The range as keyword arguments for a :class:`PStateReader`."""
        return {"prefix": self.prefix, "start": self.start, "end": self.end, "after": self.after}


def find(type_: Type, keys: Sequence[str]) -> Found:
    """Follow keys, given as text, through the type of a PState. Raises UsageError where they lead nowhere."""
    path: list[Any] = []
    for number, text in enumerate(keys):
        is_last = number == len(keys) - 1
        match type_:
            case types.Dict(key=key, value=value):
                path.append(read_key(key, text))
                type_ = value
            case types.Set(item=item) if is_last:
                return Found([*path, read_key(item, text)], None, is_member=True)
            case types.List() if is_last:
                return Found([*path, read_key(types.Plain("int"), text)], None)
            case _:
                raise UsageError(f"{text!r} leads nowhere: nothing has keys in what is above it")
    return Found(path, type_ if isinstance(type_, types.Dict | types.Set | types.List) else None)


def read_key(type_: Type, text: str) -> Any:
    """Return a key that was written as text, by its declared type. Raises UsageError if it is none."""
    try:
        if isinstance(type_, types.Tuple | types.Run):
            return msgspec.convert(msgspec.json.decode(text), python_type(type_), strict=False)
        if isinstance(type_, types.Choice) and any(_is_text(option) for option in type_.options):
            return text
        return msgspec.convert(text, python_type(type_), strict=False)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{text!r} is no {type_}: {error}") from None


def _is_text(type_: Type) -> bool:
    return isinstance(type_, types.Plain) and type_.name == "str"


def _beginning(type_: types.Tuple | types.Run, text: str) -> tuple[Any, ...]:
    """Return the first members of a tuple that was written as a JSON list."""
    try:
        members = msgspec.json.decode(text, type=list[Any])
        kinds = (
            type_.items[: len(members)] if isinstance(type_, types.Tuple) else (type_.item,) * len(members)
        )
        return tuple(
            msgspec.convert(member, python_type(kind), strict=False)
            for member, kind in zip(members, kinds, strict=True)
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{text!r} is no beginning of a {type_}, as a JSON list: {error}") from None


def _key_type(type_: Collection) -> Type:
    match type_:
        case types.Dict(key=key):
            return key
        case types.Set(item=item):
            return item
        case types.List():
            return types.Plain("int")


def entries(
    reader: PStateReader,
    path: list[Any],
    type_: Collection,
    range_: KeyRange,
    limit: int,
) -> Iterator[tuple[Any, ...]]:
    """Iterate over the entries of a dict, the members of a set, or the positions and elements of a list."""
    match type_:
        case types.Dict():
            yield from reader.items(*path, **range_.bounds, limit=limit)
        case types.Set():
            for key in reader.keys(*path, **range_.bounds, limit=limit):
                yield (key,)
        case types.List():
            start = max(range_.start or 0, 0 if range_.after is None else range_.after + 1)
            stop = start + limit if range_.end is None else min(start + limit, range_.end)
            yield from enumerate(reader.slice(*path, start=start, stop=stop), start)


def plain(value: Any) -> Any:
    """Convert a value to what JSON can say: a dict with keys that are no text becomes a list of pairs."""
    match value:
        case dict() if all(isinstance(key, str) for key in value):
            return {key: plain(each) for key, each in value.items()}
        case dict():
            return [[plain(key), plain(each)] for key, each in value.items()]
        case set() | frozenset():
            return sorted((plain(each) for each in value), key=msgspec.json.encode)
        case list() | tuple():
            return [plain(each) for each in value]
        case msgspec.Struct():
            return plain(msgspec.to_builtins(value))
        case _:
            return value
