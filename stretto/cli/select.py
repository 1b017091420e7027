"""``stretto select``: what a PState holds.

Keys are written as text and read by the declared type: ``7``, ``2.5``, ``true``, ``2026-01-31``; bytes in
base64, tuples as JSON lists. Values are shown as JSON, which is how they go into other programs too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName
from stretto.cli.serving import serving_pstate
from stretto.client.pstate import PStateReader
from stretto.errors import StrettoError, UsageError
from stretto.pstate import types
from stretto.pstate.types import Type, python_type

LIMIT = 100

_Collection: TypeAlias = types.Dict | types.Set | types.List


def select(
    module: ModuleName,
    pstate: Annotated[str, typer.Argument(metavar="PSTATE", help="One of its PStates.", show_default=False)],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="A key, then keys inside what is there.", show_default=False),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="KEY", help="Keys that begin with this.", show_default=False)
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="KEY", help="Keys from this one on.", show_default=False)
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="KEY", help="Keys below this one.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="No more than so many.")] = LIMIT,
    count: Annotated[bool, typer.Option("--count", help="How many there are, alone.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Show what a PState holds: a value, or entries in the order of their keys.

    Example: stretto select WordCount counts fugue

    Example: stretto select PageViews views /home --from 2026-01-01 --to 2026-02-01 --json
    """
    with serving_pstate(bootstrap, key, module, pstate) as reader:
        found = _find(reader.type, keys or [])
        if count:
            _no_range(prefix, from_, to)
            typer.echo(reader.count(*found.path))
            return 0
        if found.collection is None:
            _no_range(prefix, from_, to)
            return _show_value(reader, pstate, found, as_json=as_json)
        range_ = _Range(found.collection, prefix, from_, to)
        return _show_entries(
            _entries(reader, found.path, found.collection, range_, limit + 1), limit, as_json
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """What a path leads to."""

    path: list[Any]
    collection: _Collection | None
    """None: a value, or the member of a set."""
    is_member: bool = False


class _Range:
    """The keys that are wanted, as values."""

    def __init__(
        self,
        type_: _Collection,
        prefix: str | None,
        from_: str | None,
        to: str | None,
    ) -> None:
        key_type = _key_type(type_)
        self.start = None if from_ is None else read_key(key_type, from_)
        self.end = None if to is None else read_key(key_type, to)
        if prefix is None:
            self.prefix: Any = None
        elif isinstance(type_, types.List):
            raise UsageError("the positions of a list have no prefix; use --from and --to")
        elif isinstance(key_type, types.Tuple | types.Run):
            self.prefix = _beginning(key_type, prefix)
        else:
            self.prefix = read_key(key_type, prefix)


def _find(type_: Type, keys: list[str]) -> _Found:
    path: list[Any] = []
    for number, text in enumerate(keys):
        is_last = number == len(keys) - 1
        match type_:
            case types.Dict(key=key, value=value):
                path.append(read_key(key, text))
                type_ = value
            case types.Set(item=item) if is_last:
                return _Found([*path, read_key(item, text)], None, is_member=True)
            case types.List() if is_last:
                return _Found([*path, read_key(types.Plain("int"), text)], None)
            case _:
                raise UsageError(f"{text!r} leads nowhere: nothing has keys in what is above it")
    return _Found(path, type_ if isinstance(type_, types.Dict | types.Set | types.List) else None)


def read_key(type_: Type, text: str) -> Any:
    """Raises UsageError."""
    try:
        if isinstance(type_, types.Tuple | types.Run):
            return msgspec.convert(msgspec.json.decode(text), python_type(type_), strict=False)
        if isinstance(type_, types.Choice) and types.Plain("str") in type_.options:
            return text
        return msgspec.convert(text, python_type(type_), strict=False)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{text!r} is no {type_}: {error}") from None


def _beginning(type_: types.Tuple | types.Run, text: str) -> tuple[Any, ...]:
    """The first members of a tuple, as JSON."""
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


def _key_type(type_: _Collection) -> Type:
    match type_:
        case types.Dict(key=key):
            return key
        case types.Set(item=item):
            return item
        case types.List():
            return types.Plain("int")


def _no_range(*bounds: str | None) -> None:
    if any(bound is not None for bound in bounds):
        raise UsageError("--prefix, --from and --to choose among keys; leave them out here")


# Showing.


def _entries(
    reader: PStateReader,
    path: list[Any],
    type_: _Collection,
    range_: _Range,
    limit: int,
) -> Iterator[tuple[Any, ...]]:
    match type_:
        case types.Dict():
            yield from reader.items(
                *path, prefix=range_.prefix, start=range_.start, end=range_.end, limit=limit
            )
        case types.Set():
            for key in reader.keys(
                *path, prefix=range_.prefix, start=range_.start, end=range_.end, limit=limit
            ):
                yield (key,)
        case types.List():
            start = range_.start or 0
            stop = start + limit if range_.end is None else min(start + limit, range_.end)
            yield from enumerate(reader.slice(*path, start=start, stop=stop), start)


def _show_value(reader: PStateReader, pstate: str, found: _Found, *, as_json: bool) -> int:
    missing = object()
    path = found.path
    value = reader.contains(*path) if found.is_member else reader.get(*path, default=missing)
    if value is missing:
        raise StrettoError(f"{pstate} has nothing under {', '.join(map(_text, path))}")
    row = {"path": [plain(key) for key in path], "value": plain(value)}
    typer.echo(msgspec.json.encode(row) if as_json else _text(value))
    return 0


def _show_entries(entries: Iterator[tuple[Any, ...]], limit: int, as_json: bool) -> int:
    try:
        for number, entry in enumerate(entries):
            if number == limit:
                typer.echo(f"stretto: these are the first {limit}; see more with --limit", err=True)
                break
            if as_json:
                row = dict(zip(("key", "value"), map(plain, entry), strict=False))
                typer.echo(msgspec.json.encode(row))
            else:
                typer.echo("\t".join(map(_text, entry)))
    except BrokenPipeError:
        # Whoever read has enough. What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _text(value: Any) -> str:
    """Text as it is, on one line; anything else as JSON."""
    if isinstance(value, str):
        return value if value.isprintable() else msgspec.json.encode(value).decode()
    return msgspec.json.encode(plain(value)).decode()


def plain(value: Any) -> Any:
    """What JSON can say: a dict with keys that are no text becomes a list of pairs."""
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
