"""Many seeds, or all mutants, on all cores; verdicts in their order."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from stretto.sim.campaign import Caught, cores
from stretto.sim.microbatch.mutants import MUTANTS
from stretto.sim.microbatch.simulation import run_seed
from stretto.sim.simulation import Verdict
from stretto.worker.microbatch.guards import GUARDS, Guards

MUTANT_SEEDS = 100
"""How many seeds a mutant must survive to be called a survivor."""


def guards_of(mutant: str | None) -> Guards:
    return next((each.guards for each in MUTANTS if each.name == mutant), GUARDS)


def _run(job: tuple[int, str | None]) -> Verdict:
    seed, mutant = job
    return run_seed(seed, guards_of(mutant))


def run_seeds(first: int, count: int, *, mutant: str | None = None) -> Iterator[Verdict]:
    jobs = [(seed, mutant) for seed in range(first, first + count)]
    if count == 1:
        yield _run(jobs[0])
        return
    with ProcessPoolExecutor(cores()) as pool:
        try:
            yield from pool.map(_run, jobs)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def catch(name: str) -> Caught:
    for seed in range(MUTANT_SEEDS):
        verdict = run_seed(seed, guards_of(name))
        if verdict.violation is not None:
            return Caught(name, f"seed {seed}", verdict.violation)
    return Caught(name, None)


def catch_all() -> Iterator[Caught]:
    with ProcessPoolExecutor(cores()) as pool:
        try:
            yield from pool.map(catch, [mutant.name for mutant in MUTANTS])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
