"""One microbatch over all tasks, in memory: rounds of hops until there are none, and then all at once.

A record that fails is left out, and the whole is begun again without it, so that what comes out is as if it
had never been appended. A function that takes many records or calls at once does not tell which of them made
a hop; if such a hop fails, the batch is run again one by one to find out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from stretto.errors import UsageError
from stretto.module.bound import RowsOf
from stretto.module.runner import TaskRunner
from stretto.module.work import Calls, Failure, Records, StepCall, Work, rest
from stretto.pstate.overlay import Overlay
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import TaskId

ROUNDS_MAX = 1_000
"""How many rounds of hops a microbatch may have, as on a cluster: more are taken to go on for ever."""

T = TypeVar("T")


class Source(NamedTuple):
    """A record, by its depot, task and offset."""

    depot: str
    task: TaskId
    offset: int


class _Unit(NamedTuple):
    """Work for one task, and the record that each part of it is due to."""

    task: TaskId
    work: Work
    sources: Sequence[Source]


class Microbatch:
    """One microbatch of a topology over all tasks, in memory."""

    def __init__(
        self,
        topology: str,
        runners: Sequence[TaskRunner],
        applied: Callable[[TaskId], RowsOf],
        inputs: Mapping[tuple[str, TaskId], Sequence[tuple[int, bytes]]],
        *,
        chance: random.Random | None,
        raising: bool,
    ) -> None:
        self._topology = topology
        self._runners = runners
        self._applied = applied
        self._inputs = inputs
        self._chance = chance
        self._raising = raising
        self._singly = False
        #: What the batch has done so far on each task, by name of the PState.
        self.overlays: list[dict[str, Overlay]] = []
        self.failures: dict[Source, Failure] = {}
        #: What functions returned for each record, as JSON.
        self.results: dict[Source, bytes] = {}

    def run(self) -> Microbatch:
        """Run all records, without those that fail."""
        while failed := self._attempt():
            if self._singly:
                self.failures |= failed
            self._singly = True
        return self

    def fail(self, source: Source, failure: Failure) -> None:
        """Make a microbatch of this one record fail, without any effect."""
        self.overlays = []
        self.results = {}
        self.failures = {source: failure}

    def _attempt(self) -> dict[Source, Failure]:
        """Run rounds until there are no hops, or until one fails; return what failed in that."""
        self.overlays = [{} for _ in self._runners]
        self.results = {}
        failed: dict[Source, Failure] = {}
        units = list(self._records())
        rounds = 0
        while units and not failed:
            hops: dict[TaskId, list[tuple[StepCall, Source]]] = {}
            for unit in units if self._chance is None else self._chance.sample(units, len(units)):
                self._run_unit(unit, hops, failed)
            units = [unit for task in sorted(hops) for unit in self._calls(task, hops[task])]
            rounds += 1
            if rounds > ROUNDS_MAX and units:
                steps = sorted({call.step for calls in hops.values() for call, _ in calls})
                raise UsageError(
                    f"steps of {self._topology} hop for more than {ROUNDS_MAX} rounds, "
                    f"lastly to {', '.join(steps)}; do they hop in a circle?"
                )
        return failed

    def _records(self) -> Iterator[_Unit]:
        for (depot, task), records in self._inputs.items():
            wanted = [each for each in records if Source(depot, task, each[0]) not in self.failures]
            for some in self._parts(wanted):
                sources = [Source(depot, task, offset) for offset, _ in some]
                first = DepotOffset(some[0][0])
                yield _Unit(task, Records(self._topology, depot, first, [each for _, each in some]), sources)

    def _calls(self, task: TaskId, calls: Sequence[tuple[StepCall, Source]]) -> Iterator[_Unit]:
        for some in self._parts(calls):
            yield _Unit(task, Calls(self._topology, [call for call, _ in some]), [each for _, each in some])

    def _parts(self, of: Sequence[T]) -> list[Sequence[T]]:
        if self._singly:
            return [of[at : at + 1] for at in range(len(of))]
        return [of] if of else []

    def _run_unit(
        self,
        unit: _Unit,
        hops: dict[TaskId, list[tuple[StepCall, Source]]],
        failed: dict[Source, Failure],
    ) -> None:
        work, sources = unit.work, unit.sources
        while sources:
            done = self._runners[unit.task].run(work, self._rows(unit.task), raising=self._raising)
            for pstate, changes in done.changes.items():
                self._overlay(unit.task, pstate).add(changes)
            for task, calls in done.hops.items():
                hops.setdefault(task, []).extend((call, sources[call.origin]) for call in calls)
            self.results |= {sources[index]: result for index, result in done.results}
            for failure in done.failures:
                failed.setdefault(sources[failure.index], failure)
            work, sources = rest(work, done.done), sources[done.done :]

    def _rows(self, task: TaskId) -> RowsOf:
        return lambda pstate: self._overlay(task, pstate)

    def _overlay(self, task: TaskId, pstate: str) -> Overlay:
        overlays = self.overlays[task]
        if pstate not in overlays:
            overlays[pstate] = Overlay(self._applied(task)(pstate))
        return overlays[pstate]
