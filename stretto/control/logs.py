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
    """Position of the line's first byte in the log."""
    at: str = ""
    """When it was written: UTC, as ISO 8601."""
    level: LogLevel | None = None
    """Level of the line; None if it is none of stretto's, but for instance of a traceback."""
    event: str = ""
    text: str


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    lines: tuple[LogLine, ...]
    """Lines of the page, oldest first."""
    earlier: int | None
    """Position for ``before`` of the next page, towards the beginning; None if nothing is left there."""


class Log(Call[LogPage], frozen=True, kw_only=True):
    """The log of a conductor, of a supervisor, or of a worker of it; newest first, page by page."""

    worker: WorkerId | None = None
    """The worker whose log is meant, asked of the supervisor of its node."""
    before: int | None = None
    """Only lines that are before this position."""
    level: LogLevel = LogLevel.DEBUG
    """The least level of lines that are returned; lines without one always are."""
    lines_max: int = 200
