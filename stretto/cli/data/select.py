"""``stretto select``: what a PState holds.

Keys are written as text and read by the declared type: ``7``, ``2.5``, ``true``, ``2026-01-31``; bytes in
base64, tuples as JSON lists. Values are shown as JSON, which is how they go into other programs too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName
from stretto.cli.data.serving import serving_pstate
from stretto.client.reading.pstate import PStateReader
from stretto.client.reading.selection import Found, KeyRange, entries, find, plain
from stretto.errors import StrettoError, UsageError

LIMIT = 100


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
    after: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Keys behind this one, the last one shown.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="No more than so many.")] = LIMIT,
    count: Annotated[bool, typer.Option("--count", help="How many there are, alone.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Show what a PState holds: a value, or entries in the order of their keys.

    Example: stretto select WordCount counts fugue

    Example: stretto select PageViews visitors /page/7 --from 2026-01-01T00:00:00Z --limit 5 --json

    Example: stretto select WordCount counts --prefix fu --count
    """
    with serving_pstate(bootstrap, key, module, pstate) as reader:
        found = find(reader.type, keys or [])
        bounds = (prefix, from_, to, after)
        is_chosen = any(bound is not None for bound in bounds)
        if count and not is_chosen:
            typer.echo(reader.count(*found.path))
            return 0
        if found.collection is None:
            if is_chosen:
                raise UsageError("--prefix, --from, --to and --after choose among keys; leave them out here")
            return _show_value(reader, pstate, found, as_json=as_json)
        range_ = KeyRange(found.collection, *bounds)
        if count:
            typer.echo(reader.count(*found.path, **range_.bounds))
            return 0
        return _show_entries(entries(reader, found.path, found.collection, range_, limit + 1), limit, as_json)


# Showing.


def _show_value(reader: PStateReader, pstate: str, found: Found, *, as_json: bool) -> int:
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
                more = f"stretto: there are more than {limit}; see them with --limit or --after"
                typer.echo(more, err=True)
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
    """Return text as it is, on one line, and anything else as JSON."""
    if isinstance(value, str):
        return value if value.isprintable() else msgspec.json.encode(value).decode()
    return msgspec.json.encode(plain(value)).decode()
