"""What every declaration of a module has: a name, and the line where it is written."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import FrameType

_OURS = frozenset({"stretto.module.declaration", "stretto.module.module", "stretto.module.functions"})


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a source file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Declaration:
    """Base of what a module declares (depots, PStates, functions), with the line where it is written."""

    #: Name of the attribute that the declaration was first bound to; empty before that.
    name = ""
    #: The class whose attribute that is; None before it is bound.
    owner: type | None = None

    def __init__(self, place: Place | None = None) -> None:
        self.place = place or place_outside()

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.name:
            self.name = name
            self.owner = owner


def place_outside() -> Place:
    """Return the line of the first caller that is outside of the module API."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in _OURS:
        frame = frame.f_back
    return Place("?", 0) if frame is None else Place(frame.f_code.co_filename, frame.f_lineno)


def class_statement(module: type) -> FrameType | None:
    """Return the frame that runs the class statement of ``module``, as long as it runs."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != module.__module__:
        frame = frame.f_back
    return frame
