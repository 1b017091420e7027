"""Rules of a table of guards with one clause missing. Each must be caught by a checker of its world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A table of guards with one clause missing."""

    name: str
    without: str
    """The clause that is missing, as what it demands."""
    guard: str
    instead: Callable[..., Any]

    def of(self, guards: Any) -> Any:
        """Return the table of guards without the clause."""
        return replace(guards, **{self.guard: self.instead})


def mutant(guard: str, without: str, instead: Callable[..., Any], name: str = "") -> Mutant:
    return Mutant(name=name or guard, without=without, guard=guard, instead=instead)


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value
