"""Rounds of microbatches in an executor: what they change is kept here until it is asked for, all at once.

Nobody else writes the PStates of a topology, and its microbatches follow one another; so what lies below the
changes that are kept is the same in all rounds. Records and calls are run in portions, and the worker hears
of each, so that the time that a function may take does not depend on how much there is to do. A call carries
the record that it comes from, however many hops ago, so that what fails is told as a record that fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import lmdb
import msgspec

from stretto.errors import StrettoError
from stretto.module.work import Calls, Outcome, Records, StepCall, Timed, Work, rest
from stretto.pstate.changes import TooMuch, pack_part
from stretto.pstate.overlay import NoRows, Overlay, Rows
from stretto.state import depot as depots
from stretto.state.microbatch_entries import Result
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Buffer, TaskId
from stretto.worker.executors import protocol
from stretto.worker.executors.lanes import Lanes, TaskFile
from stretto.worker.executors.protocol import SourcedCall

if TYPE_CHECKING:
    from stretto.module.runner import TaskRunner

PORTION = 1_000
"""How many records or calls are run between two signs of life."""
PORTION_BYTES = 8 * 1024 * 1024
BEGINNING_BYTES = 1_000
CALLS_BYTES_MAX = 64 * 1024 * 1024
"""The size limit of the calls that a round makes: they travel between workers in one message for each
task."""
RESULTS_BYTES_MAX = 64 * 1024 * 1024
"""The size limit of what functions return in a round: a worker keeps it until the microbatch took effect."""
FAILURES_MAX = 1_000
"""How many failures of one round are reported; what fails beyond that fails again in the next version."""

_encode = msgspec.msgpack.Encoder().encode
_decode_calls = msgspec.msgpack.Decoder(list[SourcedCall]).decode

Source = tuple[str, TaskId, int]


class _Portion(NamedTuple):
    work: Work
    sources: Sequence[Source]
    skip: Collection[int]

    def after(self, done: int) -> _Portion:
        """Return the portion without what is done."""
        skip = {index - done for index in self.skip if index >= done}
        return _Portion(rest(self.work, done), self.sources[done:], skip or ())


@dataclass(slots=True)
class _Kept:
    """What is kept of one topology on one task: the changes of the rounds of one version."""

    lane: protocol.Lane
    version: tuple[int, int]
    rounds: int = 0
    changes: dict[str, Overlay] = field(default_factory=dict)


@dataclass(slots=True)
class _Told:
    """What comes of a round, beside its changes."""

    calls: dict[TaskId, list[SourcedCall]] = field(default_factory=dict)
    failures: list[protocol.SourcedFailure] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    times: dict[str, Timed] = field(default_factory=dict)
    done: int = 0
    calls_bytes: int = 0
    results_bytes: int = 0

    def add(self, outcome: Outcome, sources: Sequence[Source]) -> None:
        """Add what a portion led to. Raises TooMuch if the round makes or returns too much."""
        for task, hops in outcome.hops.items():
            self.calls_bytes += sum(len(hop.args) for hop in hops)
            self.calls.setdefault(task, []).extend(
                SourcedCall(hop.step, hop.args, *sources[hop.origin]) for hop in hops
            )
        self.failures += [
            protocol.SourcedFailure(*sources[each.index], each.error, each.traceback)
            for each in outcome.failures
        ]
        for index, result in outcome.results:
            depot, _, offset = sources[index]
            self.results.append(Result(depot, offset, result))
            self.results_bytes += len(result)
        for each in outcome.times:
            before = self.times.get(each.function)
            self.times[each.function] = each if before is None else before.merged(each)
        self.done += outcome.done
        if self.calls_bytes > CALLS_BYTES_MAX:
            raise TooMuch(
                f"the calls of a round have more than {CALLS_BYTES_MAX} bytes; make smaller microbatches"
            )
        if self.results_bytes > RESULTS_BYTES_MAX:
            raise TooMuch(
                f"what functions return in a round has more than {RESULTS_BYTES_MAX} bytes; return less"
            )


class Rounds:
    """Runs rounds of microbatches, and keeps what they change until it is collected."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self._say = say
        self._kept: dict[tuple[str, TaskId], _Kept] = {}

    def forget(self, task: TaskId, topology: str | None) -> None:
        """Forget what rounds of a topology changed on a task; without a topology, what those of all did."""
        for key in [key for key in self._kept if key[1] == task and topology in (None, key[0])]:
            del self._kept[key]

    def run(
        self, message: protocol.RunRound, bodies: Sequence[bytes], runner: TaskRunner, lanes: Lanes
    ) -> bytes:
        """Run a round, and return its framed answer."""
        began = time.monotonic_ns()
        lane = message.lane
        if message.after == 0:
            self._kept[lane.topology, lane.task] = _Kept(lane, message.version)
        kept = self._found(message)
        told = _Told()
        needed = [depots.PREFIX + depot for depot, _, _ in message.spans]
        with lanes.batch(lane, message.file, 0, *needed) as (file, txn, stored):
            seen: dict[str, Overlay] = {}

            def rows(pstate: str) -> Rows:
                if pstate not in seen:
                    over = seen[pstate] = Overlay(stored(pstate))
                    if pstate in kept.changes:
                        over.add(kept.changes[pstate].changes())
                return seen[pstate]

            for portion in _Input(message, file, txn).portions(bodies):
                # A run does less if what all of it does is too large to be handed on at once.
                while portion.sources:
                    outcome = runner.run(portion.work, rows, skip=portion.skip)
                    for name, changes in outcome.changes.items():
                        seen[name].add(changes)
                        kept.changes.setdefault(name, Overlay(NoRows())).add(changes)
                    told.add(outcome, portion.sources)
                    self._say(protocol.framed(protocol.Alive(message.number, told.done)))
                    portion = portion.after(outcome.done)  # noqa: PLW2901 - the rest of it
        kept.rounds += 1
        answer = protocol.RoundRan(
            message.number,
            tuple((task, len(hops)) for task, hops in told.calls.items()),
            tuple(told.failures[:FAILURES_MAX]),
            (time.monotonic_ns() - began) // 1_000,
            tuple(told.times.values()),
            tuple(told.results),
        )
        return protocol.framed(answer, [_encode(hops) for hops in told.calls.values()])

    def collect(self, message: protocol.Collect, lanes: Lanes) -> bytes:
        """Return all that the rounds of a version changed, as a framed answer."""
        kept = self._found(message)
        packed = pack_part({name: over.changes() for name, over in kept.changes.items()})
        needed = [depots.PREFIX + depot for depot, _ in message.left_out]
        with lanes.batch(message.lane, message.file, 0, *needed) as (file, txn, _):
            beginnings = tuple(_beginning(file, txn, depot, offset) for depot, offset in message.left_out)
        answer = protocol.Collected(message.number, packed.pstates, beginnings)
        return protocol.framed(answer, (packed.body,))

    def _found(self, message: protocol.RunRound | protocol.Collect) -> _Kept:
        kept = self._kept.get((message.lane.topology, message.lane.task))
        wanted = (message.lane, message.version, message.after)
        if kept is None or (kept.lane, kept.version, kept.rounds) != wanted:
            raise StrettoError("what earlier rounds changed was lost with their executor")
        return kept


class _Input:
    """The input of a round: records of its task, and calls."""

    def __init__(self, message: protocol.RunRound, file: TaskFile, txn: lmdb.Transaction[bytes]) -> None:
        self._message = message
        self._lane = message.lane
        self._file = file
        self._txn = txn
        self._portion = 1 if message.careful else PORTION

    def portions(self, bodies: Sequence[bytes]) -> Iterator[_Portion]:
        """Iterate over the input in portions."""
        for span in self._message.spans:
            yield from self._records(*span)
        for body in bodies:
            calls = _decode_calls(body)
            for at in range(0, len(calls), self._portion):
                chosen = calls[at : at + self._portion]
                steps = [StepCall(call.step, call.args, index) for index, call in enumerate(chosen)]
                sources = [(call.depot, call.task, call.offset) for call in chosen]
                yield _Portion(Calls(self._lane.topology, steps), sources, ())

    def _records(self, depot: str, start: int, end: int) -> Iterator[_Portion]:
        left_out = {offset for name, offset in self._message.left_out if name == depot}
        at = start
        while at < end:
            records_max = min(PORTION, end - at)
            first, records = _records_from(self._file, self._txn, depot, at, PORTION_BYTES, records_max)
            records = records[: max(0, end - first)]
            if not records:
                return
            for index in range(0, len(records), self._portion):
                chosen = records[index : index + self._portion]
                base = DepotOffset(first + index)
                sources = [(depot, self._lane.task, base + each) for each in range(len(chosen))]
                skip = {each for each in range(len(chosen)) if base + each in left_out} if left_out else ()
                yield _Portion(Records(self._lane.topology, depot, base, chosen), sources, skip)
            at = first + len(records)


def _records_from(
    file: TaskFile, txn: lmdb.Transaction[bytes], depot: str, offset: int, /, *limits: int
) -> tuple[DepotOffset, list[Buffer]]:
    """Read records from an offset on; ``limits`` are bytes and records."""
    database = file.database(depots.PREFIX + depot)
    if database is None:
        return DepotOffset(offset), []
    return depots.records_from(
        txn,  # type: ignore[arg-type] # bytes are buffers too
        database,
        DepotOffset(offset),
        max_bytes=limits[0],
        max_records=limits[1],
    )


def _beginning(file: TaskFile, txn: lmdb.Transaction[bytes], depot: str, offset: int) -> bytes:
    first, records = _records_from(file, txn, depot, offset, 1, 1)
    return bytes(records[0][:BEGINNING_BYTES]) if records and first == offset else b""
