"""``stretto append``: records into a depot, one from the command line or many from a file or a pipe.

Lines are read, checked and sent as they come. At the first line that is no record nothing further is read;
what came before it is waited for, so that a person knows exactly how far it went.
"""

from __future__ import annotations

import enum
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Key, ModuleName
from stretto.cli.data.serving import Serving, serving
from stretto.client.appending.acks import Ack
from stretto.client.appending.producer import Producer
from stretto.errors import OutcomeUnknown, ProcessingFailed, ResultUnknown, StrettoError, UsageError
from stretto.module.partition import Partitioner
from stretto.vocabulary.decoding import MALFORMED

PROGRESS_SECONDS = 0.1


class Acknowledge(enum.StrEnum):
    """What an append waits for."""

    ALL = "all"
    STREAMS = "streams"
    APPEND = "append"
    NONE = "none"


def append(
    module: ModuleName,
    depot: Annotated[str, typer.Argument(metavar="DEPOT", help="One of its depots.", show_default=False)],
    record: Annotated[
        str | None,
        typer.Argument(metavar="RECORD", help="JSON; or - to read lines of it.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="F.ndjson", help="A file with a record on each line.", show_default=False
        ),
    ] = None,
    ack: Annotated[
        Acknowledge,
        typer.Option(
            help="all: until every topology has processed the records; streams: until streams have; append: "
            "until they are replicated and visible; none: not at all."
        ),
    ] = Acknowledge.ALL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Append records to a depot of a module. A record is a JSON value.

    The field that the depot is partitioned by chooses the task. A line that is no record ends it: those
    before it are appended, none after.

    Example: stretto append WordCount sentences '{"user": "ann", "text": "so it goes"}'

    Example: stretto append WordCount sentences --file sentences.ndjson
    """
    if (record is None) == (file is None):
        raise UsageError("give one of: a record, --file F.ndjson, or - to read lines from standard input")
    if record is not None and not record.strip():
        raise UsageError("the record is empty; give JSON, or - to read lines of it from standard input")
    with _input(record, file) as lines, serving(bootstrap, key, module, depot) as served:
        appending = _Appending(served, module, ack)
        try:
            appending.append(lines)
        except KeyboardInterrupt:
            typer.echo(f"stretto: interrupted; {_records(appending.appended)} had been confirmed", err=True)
            raise
    typer.echo(appending.summary())
    if record is not None and record != "-":
        for topology, result in appending.returned.items():
            typer.echo(f"{topology} returned {msgspec.json.encode(result).decode()}")
    if appending.failed:
        raise StrettoError(f"{appending.failed}; see 'stretto failures {module}'")
    return 0


class _Lines:
    """The lines that are read, each with its number from 1, and the progress through them."""

    def __init__(self, name: str, read: Iterator[bytes], tell: Callable[[int], None]) -> None:
        self.name = name
        self._read = read
        self._tell = tell

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        done_bytes, told_at = 0, 0.0
        for number, line in enumerate(self._read, 1):
            done_bytes += len(line)
            if (now := time.monotonic()) - told_at > PROGRESS_SECONDS:
                told_at = now
                self._tell(done_bytes)
            if text := line.strip():
                yield number, text

    def at(self, number: int) -> str:
        return f"line {number} of {self.name}" if self.name else "the record"


@contextmanager
def _input(record: str | None, file: Path | None) -> Iterator[_Lines]:
    if file is not None:
        with file.open("rb") as opened, _progress(opened) as tell:
            yield _Lines(str(file), opened, tell)
    elif record == "-":
        yield _Lines("standard input", sys.stdin.buffer, lambda _: None)
    else:
        yield _Lines("", iter([(record or "").encode(errors="surrogateescape")]), lambda _: None)


@contextmanager
def _progress(file: BinaryIO) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; nothing elsewhere."""
    console = Console(stderr=True)
    columns = (
        TextColumn("appending"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=os.fstat(file.fileno()).st_size or None)
        yield lambda done: bar.update(task, completed=done)


class _Appending:
    def __init__(self, served: Serving, module: str, ack: Acknowledge) -> None:
        self._partitioner = Partitioner(served.depot, served.tasks)
        self._producer = Producer(served.network, module, served.depot.name, ack=ack.value)
        self._waits = ack is not Acknowledge.NONE
        #: Results of the last appended record, by topology.
        self.returned: dict[str, Any] = {}
        #: What a topology said of the first record that it failed on; empty if there is none.
        self.failed = ""
        self._under_way: deque[tuple[int, Ack]] = deque()
        self._began = time.monotonic()
        self.sent = 0
        self.appended = 0

    def append(self, lines: _Lines) -> None:
        """Append all lines. Raises StrettoError that says how far it went."""
        try:
            for number, line in lines:
                self._send(number, line)
                self._settle(lines, wait=False)
        except _NoRecord as wrong:
            self._finish(lines)
            if not lines.name:
                raise UsageError(f"the record is {wrong}") from None
            so_far = f"{self._so_far()} and nothing from there on"
            raise StrettoError(f"{lines.at(wrong.line)} is {wrong}; {so_far}") from None
        self._finish(lines)

    def summary(self) -> str:
        seconds = time.monotonic() - self._began
        if not self._waits:
            return f"sent {_records(self.sent)}"
        rate = f" in {seconds:.1f} s, {self.appended / seconds:,.0f} per second" if self.appended > 1 else ""
        return f"appended {_records(self.appended)}{rate}"

    def _so_far(self) -> str:
        if not self._waits:
            return f"{_records(self.sent)} before it {_were(self.sent)} sent"
        return f"{_records(self.appended)} before it {_were(self.appended)} appended"

    def _send(self, number: int, line: bytes) -> None:
        try:
            value: Any = msgspec.json.decode(line)
        except MALFORMED as error:
            raise _NoRecord(number, f"not JSON: {error}") from None
        try:
            # As it was written: only its task depends on what it says.
            ack = self._producer.append(line, task=self._partitioner.place(value).task)
        except UsageError as error:
            raise _NoRecord(number, f"refused: {error}") from None
        self.sent += 1
        if self._waits:
            self._under_way.append((number, ack))

    def _finish(self, lines: _Lines) -> None:
        self._producer.flush()
        self._settle(lines, wait=True)

    def _settle(self, lines: _Lines, *, wait: bool) -> None:
        """Count acknowledged records; the first that was not appended ends the command with an error."""
        under_way = self._under_way
        while under_way and (wait or under_way[0][1].done()):
            number, ack = under_way.popleft()
            try:
                self.returned = ack.result()
            except (ProcessingFailed, ResultUnknown) as error:
                self.failed = self.failed or f"{lines.at(number)} is appended, but {error}"
            except StrettoError as error:
                self._producer.flush()
                self.appended += sum(map(_is_good, under_way))
                others = f"; {_records(self.appended)} of {self.sent:,} were appended" if lines.name else ""
                is_unknown = isinstance(error, OutcomeUnknown)
                what = "may be appended or not" if is_unknown else "was not appended"
                raise StrettoError(f"{lines.at(number)} {what}: {error}{others}") from None
            self.appended += 1


class _NoRecord(Exception):
    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def _is_good(sent: tuple[int, Ack]) -> bool:
    try:
        _returned = sent[1].result(0)
    except (ProcessingFailed, ResultUnknown):
        return True
    except (StrettoError, TimeoutError):
        return False
    return True


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
