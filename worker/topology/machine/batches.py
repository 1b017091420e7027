"""What a stream has under way: batches of records, of calls, or of rows of the engine only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

import msgspec

from stretto.vocabulary.invariants import InvariantViolation, check
from stretto.vocabulary.types import Buffer
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.topology.machine import events
from stretto.worker.topology.machine.effects import Entry
from stretto.worker.topology.machine.inbox import Arrived
from stretto.worker.topology.machine.stored import OfCalls, OfRecords, OfRetry, Origin, RecordKey

_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True, eq=False)
class Records:
    """A batch of records of a depot."""

    depot: str
    size: int
    start: int = 0
    end: int = 0
    results: tuple[tuple[int, bytes], ...] | None = ()
    """What functions returned, by the place in the batch; None if an earlier leader ran them."""
    failures: list[FailureNote] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Retry:
    """One record that is tried again."""

    key: RecordKey
    failures: int
    """How often the record had failed before."""
    note: FailureNote | None = None
    """The failure of a hop that the record made."""


@dataclass(slots=True, eq=False)
class Calls:
    """Calls of one hop, all of them or a part: those that one entry holds, or, after one of them killed an
    executor, each by itself."""

    of: Arrived
    calls: Buffer
    first: int = 0
    """The place of the first of them in the hop."""
    is_last: bool = True
    """Whether these are the last calls of the hop."""
    is_alone: bool = False
    """Whether this is one call that runs by itself, because it may have killed an executor."""
    crashes: int = 0
    failures: list[FailureNote] = field(default_factory=list)
    """Failures of these calls, by the place in the hop."""


@dataclass(slots=True, eq=False)
class Bare:
    """A batch without work: it changes rows of the engine only."""


Work: TypeAlias = Records | Retry | Calls | Bare


@dataclass(slots=True, eq=False)
class Batch:
    """A batch of a stream, from its run until it is processed."""

    number: int
    of: Work
    ran: events.Ran | None = None
    entry: Entry = field(default_factory=Entry)
    is_applied: bool = False
    hops: int = 0
    """How many of its hops are not answered."""

    @property
    def origin(self) -> Origin:
        """What a leader has to know of the batch when its hops are answered, kept with them in the outbox."""
        match self.of:
            case Records(depot=depot, start=start, end=end):
                return OfRecords(depot, start, end)
            case Retry(key=(depot, offset), failures=failures):
                return OfRetry(depot, offset, failures)
            case Calls(of=arrived, first=first):
                return OfCalls(*arrived.key, first)
            case Bare():
                raise InvariantViolation("rows of the engine hop", {"batch": self.number})
            case _:
                assert_never(self.of)


def in_hop(calls: Calls, notes: Iterable[FailureNote]) -> list[FailureNote]:
    """Return the notes of calls of a part, by their places in the hop."""
    return [msgspec.structs.replace(note, index=calls.first + note.index) for note in notes]


def one_by_one(calls: Calls) -> list[Calls]:
    """Split calls into batches of one call each."""
    each = _split(calls.calls)
    if calls.is_alone or not each:
        return [calls]
    calls.of.parts += len(each) - 1
    last = calls.first + len(each) - 1
    return [
        Calls(calls.of, _encode([call]), index, is_last=calls.is_last and index == last, is_alone=True)
        for index, call in enumerate(each, calls.first)
    ]


def cut_off(calls: Calls, left: int) -> Calls:
    """Split off the last calls, which are a batch of their own from now on."""
    each = _split(calls.calls)
    done = len(each) - left
    calls.calls = _encode(each[:done])
    calls.of.parts += 1
    rest = Calls(calls.of, _encode(each[done:]), calls.first + done, is_last=calls.is_last)
    calls.is_last = False
    return rest


def without_first(calls: Buffer, count: int) -> Buffer:
    """Return what is left of a hop whose first calls have run."""
    return _encode(_split(calls)[count:]) if count else calls


def notes_of_all(note: FailureNote, count: int) -> tuple[FailureNote, ...]:
    """Return the failure of all records of a batch: a function that takes many at once does not say which of
    them hopped to where it failed."""
    error = f"{note.error}; one of {count} records taken at once led to it"
    return tuple(FailureNote(index, error, note.traceback) for index in range(count))


def start_of(batch: Batch) -> int:
    """Return the first offset of a batch of records."""
    check(isinstance(batch.of, Records), "a batch without records has no start", batch=batch.number)
    return batch.of.start if isinstance(batch.of, Records) else 0
