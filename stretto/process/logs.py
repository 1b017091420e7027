"""Logs of daemons: readable lines on a terminal, JSON elsewhere, always on stderr. Daemons that nobody writes
a file for remember the end of their own.

What cannot be written, because a disk is full or a terminal is gone, is lost: a daemon has better things to
do than to die of its log.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from typing import TextIO

import structlog

RECENT_BYTES = 256 * 1024
SPARING_SECONDS = 5.0


class Recent:
    """The newest lines of this process's log, as JSON; from any thread."""

    def __init__(self, bytes_max: int = RECENT_BYTES) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._start = 0
        self._end = 0
        self._render = structlog.processors.JSONRenderer()

    def __call__(
        self, logger: structlog.typing.WrappedLogger, name: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Remember an event, as a processor of structlog, which passes it on as it is."""
        text = self._render(logger, name, dict(event))
        line = (text.encode() if isinstance(text, str) else text) + b"\n"
        with self._lock:
            self._lines.append(line)
            self._end += len(line)
            while self._end - self._start > self._bytes_max:
                self._start += len(self._lines.popleft())
        return event

    def held(self) -> tuple[int, bytes]:
        """All lines that are remembered, and where they begin, in bytes since the process began."""
        with self._lock:
            return self._start, b"".join(self._lines)


RECENT = Recent()


class Sparing:
    """Logs each event at most once in some seconds: for what peers can bring about as often as they like.

    What was left out is told with the next line, as ``times``. From one thread.
    """

    def __init__(
        self, logger: structlog.typing.FilteringBoundLogger, seconds: float = SPARING_SECONDS
    ) -> None:
        self._logger = logger
        self._seconds = seconds
        #: When each event was last written, and how often it has happened since.
        self._events: dict[str, tuple[float, int]] = {}

    def warning(self, event: str, **values: object) -> None:
        times = self._due(event)
        if times:
            self._logger.warning(event, times=times, **values)

    def exception(self, event: str, **values: object) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        times = self._due(event)
        if times:
            self._logger.error(event, times=times, exc_info=True, **values)  # noqa: LOG014 - its caller's

    def _due(self, event: str) -> int:
        """How often an event has happened since it was written; 0 if it is not to be written now."""
        now = time.monotonic()
        at, times = self._events.get(event, (-self._seconds, 0))
        is_due = now - at >= self._seconds
        self._events[event] = (now, 0) if is_due else (at, times + 1)
        return times + 1 if is_due else 0


class _Lossy:
    """A stream that drops what cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure(level: int = logging.INFO, *, remember: bool = False) -> None:
    """Set up logging, once in a process; ``remember`` keeps the newest lines in :data:`RECENT`."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            *([RECENT] if remember else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(_Lossy(sys.stderr)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
