"""The traceback of a person's function, without the engine's frames that called it or that it called."""

from __future__ import annotations

from pathlib import Path
from traceback import StackSummary, TracebackException

_PACKAGE = Path(__file__).parents[1]
_OURS = tuple(f"{_PACKAGE / name}/" for name in ("module", "testing", "pstate"))
_CHARACTERS_MAX = 8_000
_FRAMES_MAX = 50


def trimmed(error: BaseException) -> str:
    """Return the traceback of an error with the person's own frames only; empty if there are none."""
    told = TracebackException.from_exception(error, limit=-_FRAMES_MAX)
    _trim(told, set())
    if not told.stack:
        return ""
    text = "".join(told.format()).rstrip("\n")
    return text if len(text) <= _CHARACTERS_MAX else "...\n" + text[-_CHARACTERS_MAX:]


def _trim(told: TracebackException, seen: set[int]) -> None:
    if id(told) in seen:
        return
    seen.add(id(told))
    told.stack = StackSummary.from_list(
        [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
    )
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _trim(other, seen)
