"""The rules of microbatches with one clause missing. Each must be caught by a checker of the simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stretto.worker.microbatch.guards import GUARDS, Guards


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    without: str
    """What the missing clause demands."""
    guard: str
    instead: Callable[..., Any]

    @property
    def guards(self) -> Guards:
        return replace(GUARDS, **{self.guard: self.instead})


def _mutant(guard: str, without: str, instead: Callable[..., Any], name: str = "") -> Mutant:
    return Mutant(name=name or guard, without=without, guard=guard, instead=instead)


MUTANTS: tuple[Mutant, ...] = (
    _mutant("may_prime", "a record is replaced by what follows it only", _always(True)),
    _mutant("begins_anew", "a coordinator continues no version of another one", _always(False)),
    _mutant("same_speaker", "a task is spoken for by one participant in a version", _always(True)),
    _mutant("holds_all", "calls are run when all are here", _always(True)),
    _mutant(
        "calls_to_run",
        "only calls of runs that count are run",
        lambda expected, held: sorted(held),
    ),
    _mutant("runs_again", "what was run is not run again", _always(True)),
    _mutant("all_staged", "a batch is committed when all have staged", _always(True)),
    _mutant("is_staged", "staged means applied", _always(True)),
    _mutant("is_committed", "tasks roll when the commit is applied", _always(True)),
    _mutant("all_rolled", "the next id begins when all have rolled", _always(True)),
)
