"""Which changes, one after the other, give a module another shape.

Threads change on the workers that are there, and only if no new group needs tasks of two of them
(:mod:`stretto.conductor.planning.regrouping`); workers and replicas change under the groups that are there.
Each of these is one step. If the threads that are wanted do not fit the workers, the workers become others
first: as many as are wanted, if that will do, or one for each replica, with which everything fits. In between
there are never more workers than threads.

It is a function of its arguments. What was begun and not finished is begun anew from where it is: the whole
shape that is wanted is one command (:func:`command`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from stretto import control
from stretto.conductor.planning.regrouping import possible_threads
from stretto.errors import UsageError
from stretto.specs.assignments import Assignment, PlacedWorker, run_of
from stretto.vocabulary.plurals import many
from stretto.vocabulary.types import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    threads: int
    workers: int
    factor: int

    def or_else(self, threads: int | None, workers: int | None, factor: int | None) -> Shape:
        return Shape(
            threads=self.threads if threads is None else threads,
            workers=self.workers if workers is None else workers,
            factor=self.factor if factor is None else factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    threads: int

    def is_begun(self, view: control.ModuleView) -> bool:
        return self.threads in (view.threads, view.next_threads)

    def call(self, module: str) -> control.Call[str]:
        return control.ScaleThreads(module=module, threads=self.threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    workers: int
    factor: int

    def is_begun(self, view: control.ModuleView) -> bool:
        return (self.workers, self.factor) == (view.workers, view.replication_factor)

    def call(self, module: str) -> control.Call[str]:
        return control.Scale(module=module, workers=self.workers, replication_factor=self.factor)


Step: TypeAlias = Regroup | Move


def plan(tasks: int, now: Shape, wanted: Shape, possible: tuple[int, ...]) -> list[Step]:
    """Return the steps to the wanted shape. Raises UsageError for a shape that no module can have.

    ``possible`` are the numbers of threads that fit the workers as they are. A single step is for the
    conductor to judge.
    """
    if wanted == now:
        raise UsageError(
            f"it has {many(now.threads, 'thread')}, {many(now.workers, 'worker')} and replication factor "
            f"{now.factor} already; ask for others"
        )
    last = Move(workers=wanted.workers, factor=wanted.factor)
    if wanted.threads == now.threads:
        return [last]
    regroup = Regroup(threads=wanted.threads)
    if not 1 <= wanted.threads <= tasks:
        return [regroup]
    if not 1 <= wanted.workers <= wanted.threads:
        raise UsageError(
            f"{wanted.threads} threads cannot occupy {wanted.workers} workers; "
            f"ask for --workers 1 to {wanted.threads} as well"
        )
    steps: list[Step] = []
    if wanted.threads not in possible:
        fits = wanted.workers <= now.threads and wanted.threads in _possible_after(tasks, now, wanted.workers)
        # More replicas come last: all of them have to be in sync when tasks are regrouped.
        first = last if fits else Move(workers=1, factor=min(now.factor, wanted.factor))
        steps.append(first)
        now = replace(now, workers=first.workers, factor=first.factor)
    steps.append(regroup)
    if (now.workers, now.factor) != (wanted.workers, wanted.factor):
        steps.append(last)
    return steps


def _possible_after(tasks: int, now: Shape, workers: int) -> tuple[int, ...]:
    """Return the numbers of threads that fit so many workers, once these share the present threads."""
    slots = [(slot,) for slot in range(workers) for _ in run_of(now.threads, workers, slot)]
    placed = tuple(PlacedWorker(WorkerId(str(slot)), "") for slot in range(workers))
    return possible_threads(Assignment(generation=0, tasks=tasks, workers=placed, groups=tuple(slots)))


def command(module: str, wanted: Shape) -> str:
    return (
        f"stretto deploy scale-executors {module} --threads {wanted.threads} --workers {wanted.workers} "
        f"--replication-factor {wanted.factor}"
    )
