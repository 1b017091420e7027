"""A module with all its tasks in memory, run as a cluster runs it, one thing after the other.

Streams take a record at a time, or some of a task if their function takes many at once, with all that it
leads to on any task, before the next. Microbatches take all records that wait, in rounds over all tasks, and
show nothing before they are done; if what they change is too large, they take fewer. There is no time, and
nothing goes wrong but what the module's functions do.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Literal, TypeAlias

import msgspec

from stretto.errors import UsageError
from stretto.module.bound import RowsOf
from stretto.module.checks import CheckedTopology
from stretto.module.module import Depot, Module, declarations
from stretto.module.partition import Partitioner, owner_of, record_of
from stretto.module.runner import TaskRunner, failure_of
from stretto.module.work import Calls, Failure, Outcome, Records, StepCall, Work, first
from stretto.pstate import ordered
from stretto.pstate.changes import TooMuch, pack_part
from stretto.pstate.edit import ReadByMethods, View
from stretto.pstate.memory import MemoryRows
from stretto.pstate.tree import Elements, Entries, Members, encode_index, locate
from stretto.testing.microbatch import Microbatch, Source
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.suggest import did_you_mean
from stretto.vocabulary.types import TaskId

STREAM_RECORDS = 100
"""How many records a stream with ``batch=True`` is given at once, if the test does not say."""
CALLS_MAX = 1_000_000
"""How many calls one record may lead to: with more, steps are taken to hop to each other for ever."""

_Ranges: TypeAlias = dict[tuple[str, TaskId], tuple[int, int]]
"""Records of a microbatch, ``[start, end)``, by depot and task."""


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record that a topology failed on, and left out."""

    topology: str
    depot: str
    task: int
    offset: int
    record: bytes
    error: str
    traceback: str


@dataclass(slots=True)
class Ran:
    """What a run of a module's topologies did."""

    records: int = 0
    """How many records were taken by topologies."""
    results: list[Any] = field(default_factory=list)
    """What functions of topologies returned, in order; None is no result."""
    failures: list[FailedRecord] = field(default_factory=list)


@contextmanager
def module(
    of: type[Module],
    *,
    tasks: int = 4,
    seed: int | None = None,
    stream_records: int = STREAM_RECORDS,
    microbatch_records: int | None = None,
) -> Iterator[ModuleUnderTest]:
    """Run a module in memory, with nothing in it at first.

    ``tasks`` is a power of two. With ``seed`` the tasks take turns by chance, the same for the same seed: a
    module whose functions rely on an order that a cluster does not give then does not come out the same with
    every seed. ``stream_records`` is how many records of a task a stream with ``batch=True`` is given at most
    (with ``seed`` it is fewer now and then), ``microbatch_records`` how many a microbatch takes.
    """
    yield ModuleUnderTest(
        of, tasks=tasks, seed=seed, stream_records=stream_records, microbatch_records=microbatch_records
    )


class ModuleUnderTest:
    """A module with all its tasks in memory, to append to, run, and read.

    Its PStates are attributes: ``m.counts.get("the")``; one called like a method is ``m.pstate(name)``.
    """

    def __init__(
        self,
        of: type[Module],
        *,
        tasks: int,
        seed: int | None = None,
        stream_records: int = STREAM_RECORDS,
        microbatch_records: int | None = None,
    ) -> None:
        if type(tasks) is not int or tasks < 1 or tasks & (tasks - 1):
            raise UsageError(f"the number of tasks is a power of two; {tasks!r} is none")
        if stream_records < 1:
            raise UsageError(f"a stream takes at least one record; stream_records is {stream_records}")
        self._declared = declarations(of)
        self._tasks = [TaskId(task) for task in range(tasks)]
        self._chance = None if seed is None else random.Random(seed)  # noqa: S311 - to be repeated
        self._stream_records = stream_records
        self._microbatch_records = microbatch_records
        self._runners = [TaskRunner(of, task, tasks) for task in self._tasks]
        self._partitioners = {
            name: Partitioner(depot, tasks) for name, depot in self._declared.depots.items()
        }
        self._depots: dict[str, list[list[bytes]]] = {
            name: [[] for _ in self._tasks] for name in self._declared.depots
        }
        self._rows = {name: [MemoryRows() for _ in self._tasks] for name in self._declared.pstates}
        self._progress = {
            (name, depot): [0] * tasks
            for name, topology in self._declared.functions.topologies.items()
            for depot in topology.depots
        }
        self._next_task = 0

    # What a client does.

    def append(self, depot: str | Depot[Any], *values: Any, task: int | None = None) -> None:
        """Append values, each to the task that its depot's partitioning chooses, or to ``task``.

        A value is what JSON can say, or a dataclass or struct; ``bytes`` are a record as it is.
        """
        name = depot.name if isinstance(depot, Depot) else depot
        partitions = self._depots.get(name)
        if partitions is None:
            raise UsageError(f"{self._declared.name} has no depot {name}; {did_you_mean(name, self._depots)}")
        if task is not None and task not in self._tasks:
            raise UsageError(f"there is no task {task}; they are 0 to {len(self._tasks) - 1}")
        for value in values:
            if task is None:
                record, chosen = self._partitioners[name].place(value)
            else:
                record, chosen = record_of(value), TaskId(task)
            if chosen is None:
                chosen = self._tasks[self._next_task]
                self._next_task = (self._next_task + 1) % len(self._tasks)
            partitions[chosen].append(record)

    def pstate(self, name: str) -> PStateUnderTest:
        """Return a PState of the module, over all tasks, to be read."""
        if name not in self._rows:
            raise UsageError(f"{self._declared.name} has no PState {name}; {did_you_mean(name, self._rows)}")
        return PStateUnderTest(name, self._declared.pstates[name].root, list(self._rows[name]))

    def __getattr__(self, name: str) -> PStateUnderTest:
        try:
            return self.pstate(name)
        except UsageError as error:
            raise AttributeError(str(error)) from None

    def query(self, name: str, /, *args: Any, **named: Any) -> Any:
        """Ask a query, and return its answer as a client gets it: plain values."""
        queries = self._declared.functions.queries
        if name not in queries:
            raise UsageError(f"{self._declared.name} has no query {name}; {did_you_mean(name, queries)}")
        query = queries[name]
        given = query.signature.arguments(args, named)
        data = msgspec.msgpack.encode(given)
        key = query.declared.key
        if key is not None:
            chosen = query.signature.decode(data)[query.signature.parameters.index(key)]
            owner = owner_of(chosen, len(self._tasks))
            return msgspec.msgpack.decode(self._ask(owner, name, data))
        parts = [self._ask(task, name, data) for task in self._tasks]
        answer = self._runners[0].combine(name, data, parts, raising=True)
        return msgspec.msgpack.decode(answer.result)

    def _ask(self, task: TaskId, name: str, args: bytes) -> bytes:
        return (
            self._runners[task]
            .query(name, args, lambda pstate: self._rows[pstate][task], raising=True)
            .result
        )

    # What a cluster does.

    def run(self, *, failures: Literal["raise", "keep"] = "raise") -> Ran:
        """Run until every record that was appended has been taken by every topology of its depot.

        What a function raises ends the run, unless failures are to be kept: then the record is left out, as
        one that was tried often enough, and listed in what is returned.
        """
        ran = Ran()
        topologies = self._declared.functions.topologies
        for name, topology in topologies.items():
            if topology.declared.kind == "stream":
                self._run_stream(name, topology, ran, raising=failures == "raise")
        for name, topology in topologies.items():
            if topology.declared.kind == "microbatch":
                while self._run_microbatch(name, topology, ran, raising=failures == "raise"):
                    pass
        return ran

    def _run_stream(self, name: str, topology: CheckedTopology, ran: Ran, *, raising: bool) -> None:
        while waiting := [
            (task, depot)
            for task in self._tasks
            for depot in topology.depots
            if self._progress[name, depot][task] < len(self._depots[depot][task])
        ]:
            task, depot = self._chance.choice(waiting) if self._chance else waiting[0]
            start = self._progress[name, depot][task]
            records = self._depots[depot][task][start : start + self._stream_size(topology)]
            work = Records(name, depot, DepotOffset(start), records)
            taken = self._run_records(topology, task, work, ran, raising=raising)
            self._progress[name, depot][task] += taken
            ran.records += taken

    def _stream_size(self, topology: CheckedTopology) -> int:
        if not topology.signature.batch:
            return 1
        return self._chance.randint(1, self._stream_records) if self._chance else self._stream_records

    def _run_records(
        self, topology: CheckedTopology, task: TaskId, work: Records, ran: Ran, *, raising: bool
    ) -> int:
        """Run records with all that they lead to; return how many were run."""
        outcome = self._outcome(task, work, raising=raising)
        # As on a cluster: what is done here does not wait for what is done elsewhere.
        self._apply(task, outcome)
        elsewhere = self._carry_out_hops(work.topology, outcome, raising=raising)
        if elsewhere and outcome.done > 1 and topology.declared.retry != "none":
            # As on a cluster: it is not known which of them hopped there, so each is run again by itself.
            for index in range(outcome.done):
                alone = replace(
                    work, first=DepotOffset(work.first + index), records=work.records[index : index + 1]
                )
                self._run_records(topology, task, alone, ran, raising=raising)
            return outcome.done
        failed = {failure.index: failure for failure in outcome.failures}
        if elsewhere:
            failed = dict.fromkeys(range(outcome.done), elsewhere[0]) | failed
        ran.results += [
            msgspec.json.decode(result) for index, result in outcome.results if index not in failed
        ]
        for index, failure in sorted(failed.items()):
            source = Source(work.depot, task, work.first + index)
            ran.failures.append(_failed(work.topology, source, bytes(work.records[index]), failure))
        return outcome.done

    def _outcome(self, task: TaskId, work: Work, *, raising: bool) -> Outcome:
        """Run the work, or only its first part if the whole is too large for an entry; return what it did."""
        outcome = self._runners[task].run(work, self._applied(task), raising=raising)
        try:
            pack_part(outcome.changes)
        except TooMuch as error:
            if outcome.done > 1:
                return self._outcome(task, first(work, 1), raising=raising)
            if raising:
                raise
            return Outcome(failures=[failure_of(0, error)], done=1)
        return outcome

    def _carry_out_hops(self, name: str, outcome: Outcome, *, raising: bool) -> list[Failure]:
        """Carry out hops and those that they lead to; return what failed.

        What one does is applied at once; behind one that fails all go on.
        """
        waiting = deque(_by_task(outcome))
        failures: list[Failure] = []
        count = 0
        while waiting:
            task, calls = waiting.popleft()
            count += len(calls)
            if count > CALLS_MAX:
                raise UsageError(
                    f"a record of {name} leads to more than {CALLS_MAX} hops; do steps hop in a circle?"
                )
            done = self._outcome(task, Calls(name, calls), raising=raising)
            self._apply(task, done)
            failures += done.failures
            waiting += _by_task(done)
            if done.done < len(calls):
                waiting.appendleft((task, calls[done.done :]))
        return failures

    def _run_microbatch(self, name: str, topology: CheckedTopology, ran: Ran, *, raising: bool) -> bool:
        """Run one microbatch over the records that wait; return False if there are none."""
        ranges = {
            (depot, task): (start, min(end, start + (self._microbatch_records or end)))
            for depot in topology.depots
            for task in self._tasks
            if (start := self._progress[name, depot][task]) < (end := len(self._depots[depot][task]))
        }
        if not ranges:
            return False
        done = self._microbatch(name, ranges, raising=raising)
        while (too_much := _too_much(done)) is not None:
            if _is_one_record(ranges):
                if raising:
                    raise too_much
                (((depot, where), (offset, _)),) = ranges.items()
                done.fail(Source(depot, where, offset), failure_of(0, too_much))
                break
            ranges = _half(ranges)
            done = self._microbatch(name, ranges, raising=raising)
        for task, overlays in enumerate(done.overlays):
            for pstate, overlay in overlays.items():
                self._rows[pstate][task].apply(overlay.changes())
        for (depot, task), (start, end) in ranges.items():
            self._progress[name, depot][task] = end
            ran.records += end - start
        ran.results += [msgspec.json.decode(result) for _, result in sorted(done.results.items())]
        for source, failure in done.failures.items():
            record = self._depots[source.depot][source.task][source.offset]
            ran.failures.append(_failed(name, source, record, failure))
        return True

    def _microbatch(self, name: str, ranges: _Ranges, *, raising: bool) -> Microbatch:
        inputs = {
            (depot, task): [(offset, self._depots[depot][task][offset]) for offset in range(start, end)]
            for (depot, task), (start, end) in ranges.items()
        }
        return Microbatch(
            name, self._runners, self._applied, inputs, chance=self._chance, raising=raising
        ).run()

    def _applied(self, task: TaskId) -> RowsOf:
        return lambda pstate: self._rows[pstate][task]

    def _apply(self, task: TaskId, outcome: Outcome) -> None:
        for pstate, changes in outcome.changes.items():
            self._rows[pstate][task].apply(changes)


class PStateUnderTest(ReadByMethods):
    """Reads a PState over all tasks, as :class:`stretto.client.PStateReader` does.

    It takes and refuses the same.
    """

    def __init__(self, name: str, root: Entries | Members, rows: list[MemoryRows]) -> None:
        self._name = self._called = name
        self._root = root
        self._views = [View(root, each) for each in rows]

    def get(self, *path: Any, default: Any = None) -> Any:
        """Return the value, dict, set or list under these keys, or ``default`` if there is nothing.

        A list's elements have their positions as keys.
        """
        return self._at(path).get(*path, default=default)

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return what is under each of these keys of the PState; keys that it does not have are left out."""
        if not isinstance(self._root, Entries):
            raise UsageError(f"PState {self._name} is a set, which has no values; ask whether a key is there")
        return {key: self.get(key) for key in dict.fromkeys(keys) if self.contains(key)}

    def contains(self, *path: Any) -> bool:
        """Whether there is anything under these keys, or this member in that set."""
        return self._at(path).contains(*path)

    def keys(
        self,
        *path: Any,
        prefix: Any = None,
        start: Any = None,
        end: Any = None,
        after: Any = None,
        limit: int | None = None,
    ) -> Iterator[Any]:
        """Iterate over keys of a dict or members of a set, ascending; without a path, those of all tasks."""
        span = {"prefix": prefix, "start": start, "end": end, "after": after}
        found = [
            [(ordered.encode(key), key) for key in view.keys(*path, **span)] for view in self._concerned(path)
        ]
        return islice((key for _, key in merge(*found, key=itemgetter(0))), limit)

    def items(
        self,
        *path: Any,
        prefix: Any = None,
        start: Any = None,
        end: Any = None,
        after: Any = None,
        limit: int | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """Iterate over entries of a dict: the keys that :meth:`keys` returns, each with what is under it.

        To go on later, give the last key as ``after``.
        """
        span = {"prefix": prefix, "start": start, "end": end, "after": after}
        found = [
            [(ordered.encode(key), (key, value)) for key, value in view.items(*path, **span)]
            for view in self._concerned(path)
        ]
        return islice((item for _, item in merge(*found, key=itemgetter(0))), limit)

    def count(
        self, *path: Any, prefix: Any = None, start: Any = None, end: Any = None, after: Any = None
    ) -> int:
        """Count the entries, members or elements under this path; of a dict or a set, also in a key range."""
        span = {"prefix": prefix, "start": start, "end": end, "after": after}
        return sum(view.count(*path, **span) for view in self._concerned(path))

    def slice(self, *path: Any, start: int = 0, stop: int | None = None) -> list[Any]:
        """Return the elements of a list from position ``start`` on and below ``stop``."""
        place = locate(self._root, path)
        if not isinstance(place.node, Elements):
            raise UsageError("only a list has slices; the path ends elsewhere")
        for position in (start, 0 if stop is None else stop):
            encode_index(position)
        return list(self.get(*path, default=()))[start:stop]

    def _concerned(self, path: tuple[Any, ...]) -> list[View]:
        return [self._at(path)] if path else self._views

    def _at(self, path: tuple[Any, ...]) -> View:
        if not path:
            raise UsageError(f"give a key of PState {self._name}; items() and keys() go over all of them")
        locate(self._root, path)
        return self._views[owner_of(path[0], len(self._views))]


def _too_much(done: Microbatch) -> TooMuch | None:
    """Return the error if what a microbatch changes on a task is too large to be staged there."""
    for overlays in done.overlays:
        try:
            pack_part({pstate: overlay.changes() for pstate, overlay in overlays.items()})
        except TooMuch as error:
            return error
    return None


def _is_one_record(ranges: _Ranges) -> bool:
    return sum(end - start for start, end in ranges.values()) == 1


def _half(ranges: _Ranges) -> _Ranges:
    """Halve the records of each depot and task; or the number of these, if each has one record.

    A cluster does the same.
    """
    if all(end - start == 1 for start, end in ranges.values()):
        return dict(islice(ranges.items(), len(ranges) // 2))
    return {key: (start, start + max(1, (end - start) // 2)) for key, (start, end) in ranges.items()}


def _by_task(outcome: Outcome) -> list[tuple[TaskId, list[StepCall]]]:
    return list(outcome.hops.items())


def _failed(topology: str, source: Source, record: bytes, failure: Failure) -> FailedRecord:
    return FailedRecord(topology, *source, record, failure.error, failure.traceback)
