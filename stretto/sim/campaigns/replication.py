"""Many seeds, or all mutants, on all cores.

Each seed is a world of its own, so they run in processes; results come back in the order of the seeds, which
makes the output of a campaign as reproducible as its seeds.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from stretto.replog.core.guards import GUARDS, Guards
from stretto.sim.replication.mutants import MUTANTS
from stretto.sim.replication.scenario import ExpectationFailed, run_script, scripts
from stretto.sim.replication.simulation import STEPS, TOTALS, Verdict, run_seed

ALL_TOTALS_FROM_SEEDS = 300
"""Number of seeds from which a total of zero means that the simulator does not try what it claims to."""

MUTANT_SEEDS = 600
"""How many seeds a mutant must survive to be called a survivor."""


@dataclass
class Summary:
    """What the verdicts of a campaign add up to."""

    seeds: int = 0
    steps: int = 0
    violations: list[Verdict] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.steps += verdict.steps
        self.totals.update(verdict.totals)
        if verdict.violation is not None:
            self.violations.append(verdict)

    @property
    def untried(self) -> list[str]:
        """Return what should have happened in so many seeds, and never did."""
        if self.seeds < ALL_TOTALS_FROM_SEEDS:
            return []
        return [name for name in TOTALS if not self.totals[name]]


@dataclass(frozen=True)
class Caught:
    """How a mutant ended: what caught it, and what the checker said. ``by`` is None if it survived."""

    mutant: str
    by: str | None
    violation: str = ""


def cores() -> int:
    return len(os.sched_getaffinity(0))


def guards_of(mutant: str | None) -> Guards:
    """Return the guards of a mutant, or the real ones if it is not the name of one."""
    for each in MUTANTS:
        if each.name == mutant:
            return each.guards
    return GUARDS


def _run(job: tuple[int, int, str | None]) -> Verdict:
    seed, steps, mutant = job
    return run_seed(seed, guards_of(mutant), steps)


def run_seeds(first: int, count: int, *, steps: int = STEPS, mutant: str | None = None) -> Iterator[Verdict]:
    """Run seeds, and yield their verdicts in the order of the seeds."""
    jobs = [(seed, steps, mutant) for seed in range(first, first + count)]
    if count == 1:
        yield _run(jobs[0])
        return
    with ProcessPoolExecutor(cores()) as pool:
        try:
            yield from pool.map(_run, jobs, chunksize=max(1, min(16, count // (4 * cores()))))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def catch(name: str) -> Caught:
    """Run a mutant under the scripts and then under seeds, until a checker catches it."""
    mutant = next(each for each in MUTANTS if each.name == name)
    ordered = sorted(scripts(), key=lambda script: name not in script.catches)
    for script in ordered:
        try:
            verdict = run_script(script, mutant.guards)
        except ExpectationFailed:
            continue  # the script noticed, but only a checker counts
        if verdict.violation is not None:
            return Caught(name, f"scenario {script.name}", verdict.violation)
    for seed in range(MUTANT_SEEDS):
        verdict = run_seed(seed, mutant.guards)
        if verdict.violation is not None:
            return Caught(name, f"seed {seed}", verdict.violation)
    return Caught(name, None)


def catch_all() -> Iterator[Caught]:
    """Run all mutants, and yield how each ended, in the order of their list."""
    with ProcessPoolExecutor(cores()) as pool:
        try:
            yield from pool.map(catch, [mutant.name for mutant in MUTANTS])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
