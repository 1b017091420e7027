"""The rules of streams that hop with one clause missing. Each must be caught by a checker of the world."""

from __future__ import annotations

from stretto.sim.virtual.rules import Mutant, always, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant("has_run", "a hop that was taken is not run again", always(False)),
    mutant("may_follow", "a hop is taken only behind the one before it", always(True)),
    mutant("may_ask", "a hop that is settled is not answered", always(True)),
    mutant("may_send", "a hop leaves only when what made it is applied", always(True)),
    mutant("may_answer", "a hop is answered when it is applied", lambda _, hops: hops == 0),
    mutant(
        "may_answer",
        "a hop is answered when all that it led to is",
        lambda is_applied, _: is_applied,
        "may_answer_early",
    ),
    mutant("may_clear", "a hop stays in the outbox until it is answered", always(True)),
    mutant("is_settled", "failures are kept until nobody asks for them", always(True)),
    mutant("notes_run", "that a hop has run is in the entry of what it did", always(False)),
    mutant("passes_records", "the progress passes records in the entry of what they did", always(False)),
    mutant("remembers_failure", "how a hop failed is remembered with that it has run", always(False)),
)
