"""What a stream has under way: batches of records, of calls, or of rows of the engine only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from stretto.invariants import check
from stretto.replog.frame import Buffer
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.topology import work
from stretto.worker.topology.work import Entry, RecordKey

_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True, eq=False)
class Records:
    depot: str
    size: int
    start: int = 0
    end: int = 0
    results: tuple[tuple[int, bytes], ...] = ()
    failures: list[FailureNote] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Retry:
    key: RecordKey
    failures: int
    """Before this time."""
    note: FailureNote | None = None
    """Of a hop of it that failed."""


@dataclass(slots=True, eq=False)
class Ticket:
    """Calls of one hop, in one batch or in several: those that one entry does not hold, or, after one of them
    killed an executor, each by itself."""

    number: int
    left: int = 1
    failures: list[FailureNote] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Calls:
    ticket: Ticket
    calls: Buffer
    first: int = 0
    """The place of the first of them in the hop."""
    is_alone: bool = False
    """It is one call, for it may have killed an executor."""
    crashes: int = 0
    failures: list[FailureNote] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Bare:
    """Rows of the engine only."""


Work: TypeAlias = Records | Retry | Calls | Bare


@dataclass(slots=True, eq=False)
class Batch:
    number: int
    of: Work
    ran: work.Ran | None = None
    entry: Entry = field(default_factory=Entry)
    is_applied: bool = False
    hops: int = 0
    """Unanswered."""


def in_hop(calls: Calls, note: FailureNote) -> FailureNote:
    return msgspec.structs.replace(note, index=calls.first + note.index) if calls.first else note


def one_by_one(calls: Calls) -> list[Calls]:
    if calls.is_alone:
        return [calls]
    alone = _split(calls.calls)
    calls.ticket.left += len(alone) - 1
    return [
        Calls(calls.ticket, _encode([each]), index, is_alone=True)
        for index, each in enumerate(alone, calls.first)
    ]


def cut_off(calls: Calls, left: int) -> Calls:
    """The last of them, which is a batch of its own from now on."""
    each = _split(calls.calls)
    done = len(each) - left
    calls.calls = _encode(each[:done])
    calls.ticket.left += 1
    return Calls(calls.ticket, _encode(each[done:]), calls.first + done)


def notes_of_all(note: FailureNote, count: int) -> tuple[FailureNote, ...]:
    """A function that takes many records at once does not tell which of them hopped to where it failed."""
    error = f"{note.error}; one of {count} records taken at once led to it"
    return tuple(FailureNote(index, error, note.traceback) for index in range(count))


def end_of(batch: Batch) -> int:
    check(isinstance(batch.of, Records), "a batch without records has no end", batch=batch.number)
    return batch.of.end if isinstance(batch.of, Records) else 0
