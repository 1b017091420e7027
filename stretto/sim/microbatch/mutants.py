"""The rules of microbatches with one clause missing. Each must be caught by a checker of the simulation."""

from __future__ import annotations

from stretto.sim.virtual.rules import Mutant, always, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant("may_prime", "a record is replaced by what follows it only", always(True)),
    mutant("begins_anew", "a coordinator continues no version of another one", always(False)),
    mutant("same_speaker", "a task is spoken for by one participant in a version", always(True)),
    mutant("holds_all", "calls are run when all are here", always(True)),
    mutant(
        "calls_to_run",
        "only calls of runs that count are run",
        lambda expected, held: sorted(held),
    ),
    mutant("runs_again", "what was run is not run again", always(True)),
    mutant("all_staged", "a batch is committed when all have staged", always(True)),
    mutant("is_staged", "staged means applied", always(True)),
    mutant("is_committed", "tasks roll when the commit is applied", always(True)),
    mutant("all_rolled", "the next id begins when all have rolled", always(True)),
    mutant("is_everywhere", "an appender is told when all tasks show the microbatch", always(True)),
    mutant("returned_then", "what is told of an earlier leader's run was rolled", always(True)),
    mutant("results_count", "what is told was returned by the run that was staged", always(True)),
)
