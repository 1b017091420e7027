"""What daemons said. Asked of a conductor, a supervisor, or for a worker of its supervisor."""

from __future__ import annotations

import enum

import msgspec

from stretto.control.call import Call
from stretto.vocabulary.types import WorkerId


class LogLevel(enum.StrEnum):
    """Least first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    position: int
    """Its first byte in the log."""
    at: str = ""
    """UTC, as ISO 8601."""
    level: LogLevel | None = None
    """None: it is none of stretto's, but for instance of a traceback."""
    event: str = ""
    text: str


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    lines: tuple[LogLine, ...]
    """Oldest first."""
    earlier: int | None
    """Where to go on towards the beginning: ``before`` of the next page. None: nothing is left there."""


class Log(Call[LogPage], frozen=True, kw_only=True):
    """What a daemon said: a conductor, a supervisor, or a worker of it. Newest first, page by page."""

    worker: WorkerId | None = None
    """Asked of the supervisor of its node."""
    before: int | None = None
    """Only what is above this position."""
    level: LogLevel = LogLevel.DEBUG
    """The least; lines without one are told always."""
    lines_max: int = 200
