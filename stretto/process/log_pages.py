"""Pages of a daemon's log, from its end backwards: what a person reads of it without going there.

A worker's log is a file that its supervisor reads, so it can be read also when the worker is dead. Conductors
and supervisors remember the end of their own. Either way a page is cut out of one span of bytes, so looking
for lines that are rare takes several pages and never a whole file.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stretto.control import Log, LogLevel, LogLine, LogPage
from stretto.errors import StrettoError
from stretto.process.logs import Recent

SPAN_BYTES = 512 * 1024
"""Bytes that are looked through for one page."""

_LEVELS = list(LogLevel)
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def of_file(path: Path, call: Log) -> LogPage:
    """The page of a worker's log file that a call asks for."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            end = size if call.before is None else min(call.before, size)
            begin = max(0, end - SPAN_BYTES)
            file.seek(begin)
            return _page(file.read(end - begin), begin, 0, call)
    except FileNotFoundError:
        raise StrettoError(f"there is no log {path.name} here: the worker was never started") from None
    except OSError as error:
        raise StrettoError(f"the log {path.name} cannot be read: {error.strerror}") from error


def of_memory(recent: Recent, call: Log) -> LogPage:
    """The page of this process's own log that a call asks for."""
    start, held = recent.held()
    size = len(held) if call.before is None else max(0, min(call.before - start, len(held)))
    begin = max(0, size - SPAN_BYTES)
    return _page(held[begin:size], start + begin, start, call)


def _page(data: bytes, begin: int, first: int, call: Log) -> LogPage:
    """Cut a page out of the whole lines of ``data``, at ``begin`` of a log that begins at ``first``."""
    at = data.find(b"\n") + 1 if begin > first else 0
    earlier = begin + at
    found: list[LogLine] = []
    while (end := data.find(b"\n", at)) >= 0:
        line = _line(begin + at, data[at:end])
        if line.level is None or _LEVELS.index(line.level) >= _LEVELS.index(call.level):
            found.append(line)
        at = end + 1
    if len(found) > call.lines_max:
        found = found[-call.lines_max :]
        earlier = found[0].position
    return LogPage(lines=tuple(found), earlier=earlier if earlier > first else None)


def _line(position: int, line: bytes) -> LogLine:
    """Parse a line; what is none of ours, such as the traceback of a crash, is text."""
    try:
        fields = {name: msgspec.json.decode(value) for name, value in _decode(line).items()}
        level = LogLevel(fields.pop("level"))
        at, event = str(fields.pop("timestamp")), str(fields.pop("event"))
    except (msgspec.DecodeError, ValueError, KeyError):
        return LogLine(position=position, text=line.decode(errors="replace"))
    told = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
    return LogLine(position=position, at=at, level=level, event=event, text=told)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
