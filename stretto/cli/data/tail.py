"""``stretto tail``: the records of a depot as they become visible."""

from __future__ import annotations

import base64
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName
from stretto.cli.data.serving import Serving, serving
from stretto.client.reading.depot import Reader, Record
from stretto.errors import OffsetTrimmed, RetriableError, UsageError
from stretto.vocabulary.decoding import MALFORMED

AGAIN_SECONDS = 0.5
"""Pause before a read that nothing answered is repeated; that read has waited for leaders itself."""

_AGO = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def tail(
    module: ModuleName,
    depot: Annotated[str, typer.Argument(metavar="DEPOT", help="One of its depots.", show_default=False)],
    task: Annotated[int | None, typer.Option(metavar="N", help="Only this task.", show_default=False)] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="All that is there, first.")] = False,
    from_offset: Annotated[
        int | None,
        typer.Option(min=0, metavar="O", help="From this offset of each task.", show_default=False),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="From a time, as 2026-01-31T12:00 or 10m (ago).", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End after N records.", show_default=False)
    ] = None,
    no_follow: Annotated[
        bool, typer.Option("--no-follow", help="End when all that is visible now is shown.")
    ] = False,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Also what is not replicated yet, and may vanish.")
    ] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Show the records of a depot, one per line, from now on or from an earlier place. Ctrl-C ends it.

    Example: stretto tail WordCount sentences --since 10m

    Example: stretto tail WordCount sentences --task 3 --from-start --no-follow --json
    """
    if [from_start, from_offset is not None, since is not None].count(True) > 1:
        raise UsageError("give one of --from-start, --from-offset and --since")
    if no_follow and uncommitted:
        raise UsageError("--uncommitted shows what is on its way; leave out --no-follow")
    place = _Place(from_start=from_start, offset=from_offset, since_ms=_millis(since) if since else None)
    try:
        with serving(bootstrap, key, module, depot) as served:
            reader = Reader(served.network, module, depot)
            starts = {each: place.on(reader, each) for each in _chosen(served, module, task)}
            records = (
                _visible_now(reader, starts)
                if no_follow
                else _follow(reader, starts, committed=not uncommitted)
            )
            for count, record in enumerate(records, 1):
                typer.echo(_as_json(record) if as_json else _as_line(record.data))
                if count == limit:
                    break
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        # Whoever read has enough. What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _chosen(served: Serving, module: str, task: int | None) -> list[int]:
    if task is not None and not 0 <= task < served.tasks:
        raise UsageError(f"module {module} has tasks 0 to {served.tasks - 1}, not {task}")
    return list(range(served.tasks)) if task is None else [task]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where to begin on each task: at the end, unless something else is given."""

    from_start: bool
    offset: int | None
    since_ms: int | None

    def on(self, reader: Reader, task: int) -> int:
        if self.offset is not None:
            return self.offset
        if self.since_ms is not None:
            return reader.offset_at(task, self.since_ms)
        start, end = reader.bounds(task)
        return start if self.from_start else end


def _visible_now(reader: Reader, starts: dict[int, int]) -> Iterator[Record]:
    for task, start in starts.items():
        offset, (_, end) = start, reader.bounds(task)
        while offset < end:
            try:
                records, offset = reader.read(task, offset)
            except OffsetTrimmed as trimmed:
                typer.echo(f"stretto: {trimmed}", err=True)
                records, offset = [], trimmed.start
            yield from (record for record in records if record.offset < end)


def _follow(reader: Reader, at: dict[int, int], *, committed: bool) -> Iterator[Record]:
    """Yield records as they become visible, through moments in which nothing answers."""
    while True:
        try:
            for record in reader.tail(start=at, tasks=at, committed=committed):
                yield record
                at[record.task] = record.offset + 1
        except OffsetTrimmed as trimmed:
            typer.echo(f"stretto: {trimmed}", err=True)
            at[trimmed.task] = trimmed.start
        except RetriableError as error:
            typer.echo(f"stretto: {error}", err=True)
            time.sleep(AGAIN_SECONDS)


def _millis(text: str) -> int:
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return int((time.time() - float(ago[1]) * _UNIT_SECONDS[ago[2]]) * 1_000)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000)
    except ValueError:
        raise UsageError(
            f"{text!r} is no time; write one as 2026-01-31T12:00:00+01:00 (local without a zone), "
            "or how long ago as 90s, 10m, 2h or 1d"
        ) from None


def _as_line(data: bytes) -> bytes:
    """Return the value of a record as it was, on one line."""
    if b"\n" not in data:
        return data
    try:
        return msgspec.json.format(data, indent=-1)
    except MALFORMED:
        return data.replace(b"\n", b"\\n")


def _as_json(record: Record) -> bytes:
    """Return a record as JSON; one that is no JSON is ``text``, or ``base64`` if it is no text either."""
    row: dict[str, Any] = {
        "task": record.task,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    try:
        row["record"] = msgspec.Raw(msgspec.json.format(record.data, indent=-1))
    except MALFORMED:
        try:
            row["text"] = record.data.decode()
        except UnicodeDecodeError:
            row["base64"] = base64.b64encode(record.data).decode()
    return msgspec.json.encode(row)
