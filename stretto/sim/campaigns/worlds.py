"""Worlds beside the one of replicas: many tasks, on groups that are only a model.

Seeds, or all mutants, run on all cores; their verdicts come in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from stretto.sim.campaigns.replication import Caught, cores
from stretto.sim.microbatch import mutants as microbatch_mutants
from stretto.sim.microbatch import plan as microbatch_plan
from stretto.sim.microbatch import simulation as microbatch
from stretto.sim.replication.simulation import Verdict
from stretto.sim.stream import mutants as stream_mutants
from stretto.sim.stream import plan as stream_plan
from stretto.sim.stream import simulation as stream
from stretto.sim.virtual.rules import Mutant
from stretto.worker.microbatch.machines.guards import GUARDS as MICROBATCH_GUARDS
from stretto.worker.topology.machine.guards import GUARDS as STREAM_GUARDS

MUTANT_SEEDS = 200
"""How many seeds a mutant must survive to be called a survivor."""


@dataclass(frozen=True, kw_only=True)
class SmallWorld:
    """A world that ``stretto sim`` can run instead of that of replicas; its name is the option."""

    name: str
    describe: Callable[[int], str]
    """Describes in words what a seed draws."""
    run_seed: Callable[..., Verdict]
    """Runs one seed, with a table of guards and a trace."""
    guards: Any
    mutants: tuple[Mutant, ...]

    def guards_of(self, mutant: str | None) -> Any:
        found = [each for each in self.mutants if each.name == mutant]
        return found[0].of(self.guards) if found else self.guards


WORLDS = {
    world.name: world
    for world in (
        SmallWorld(
            name="microbatch",
            describe=lambda seed: microbatch_plan.Plan.draw(seed).describe(),
            run_seed=microbatch.run_seed,
            guards=MICROBATCH_GUARDS,
            mutants=microbatch_mutants.MUTANTS,
        ),
        SmallWorld(
            name="stream",
            describe=lambda seed: stream_plan.Plan.draw(seed).describe(),
            run_seed=stream.run_seed,
            guards=STREAM_GUARDS,
            mutants=stream_mutants.MUTANTS,
        ),
    )
}


def _run(job: tuple[str, int, str | None]) -> Verdict:
    name, seed, mutant = job
    world = WORLDS[name]
    return world.run_seed(seed, world.guards_of(mutant))


def run_seeds(world: str, first: int, count: int, *, mutant: str | None = None) -> Iterator[Verdict]:
    """Run seeds of a world, and yield their verdicts in the order of the seeds."""
    jobs = [(world, seed, mutant) for seed in range(first, first + count)]
    if count == 1:
        yield _run(jobs[0])
        return
    with ProcessPoolExecutor(cores()) as pool:
        try:
            yield from pool.map(_run, jobs)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def catch(world: str, name: str) -> Caught:
    """Run a mutant of a world under seeds, until a checker catches it."""
    for seed in range(MUTANT_SEEDS):
        verdict = _run((world, seed, name))
        if verdict.violation is not None:
            return Caught(name, f"seed {seed}", verdict.violation)
    return Caught(name, None)


def catch_all(world: str) -> Iterator[Caught]:
    """Run all mutants of a world, and yield how each ended, in the order of their list."""
    names = [mutant.name for mutant in WORLDS[world].mutants]
    with ProcessPoolExecutor(cores()) as pool:
        try:
            yield from pool.map(catch, [world] * len(names), names)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
