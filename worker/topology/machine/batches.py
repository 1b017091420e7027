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
    depot: str
    size: int
    start: int = 0
    end: int = 0
    results: tuple[tuple[int, bytes], ...] | None = ()
    """By the place in the batch; None if they were run by an earlier leader."""
    failures: list[FailureNote] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Retry:
    key: RecordKey
    failures: int
    """Before this time."""
    note: FailureNote | None = None
    """Of a hop of it that failed."""


@dataclass(slots=True, eq=False)
class Calls:
    """Calls of one hop, all of them or a part: those that one entry holds, or, after one of them killed an
    executor, each by itself."""

    of: Arrived
    calls: Buffer
    first: int = 0
    """The place of the first of them in the hop."""
    is_last: bool = True
    """Nothing of the hop comes behind them."""
    is_alone: bool = False
    """It is one call, for it may have killed an executor."""
    crashes: int = 0
    failures: list[FailureNote] = field(default_factory=list)
    """By the place in the hop."""


@dataclass(slots=True, eq=False)
class Bare:
    """Rows of the engine only."""


Work: TypeAlias = Records | Retry | Calls | Bare


@dataclass(slots=True, eq=False)
class Batch:
    number: int
    of: Work
    ran: events.Ran | None = None
    entry: Entry = field(default_factory=Entry)
    is_applied: bool = False
    hops: int = 0
    """Unanswered."""

    @property
    def origin(self) -> Origin:
        """What is known of it to whoever leads when its hops are answered."""
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
    """Notes of calls of a part, by their places in the hop."""
    return [msgspec.structs.replace(note, index=calls.first + note.index) for note in notes]


def one_by_one(calls: Calls) -> list[Calls]:
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
    """The last of them, which is a batch of its own from now on."""
    each = _split(calls.calls)
    done = len(each) - left
    calls.calls = _encode(each[:done])
    calls.of.parts += 1
    rest = Calls(calls.of, _encode(each[done:]), calls.first + done, is_last=calls.is_last)
    calls.is_last = False
    return rest


def without_first(calls: Buffer, count: int) -> Buffer:
    """What is left of a hop whose first calls have run."""
    return _encode(_split(calls)[count:]) if count else calls


def notes_of_all(note: FailureNote, count: int) -> tuple[FailureNote, ...]:
    """A function that takes many records at once does not tell which of them hopped to where it failed."""
    error = f"{note.error}; one of {count} records taken at once led to it"
    return tuple(FailureNote(index, error, note.traceback) for index in range(count))


def start_of(batch: Batch) -> int:
    check(isinstance(batch.of, Records), "a batch without records has no start", batch=batch.number)
    return batch.of.start if isinstance(batch.of, Records) else 0
