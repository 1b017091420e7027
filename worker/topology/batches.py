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


@dataclass(slots=True, eq=False)
class Ticket:
    """Calls of one hop, in one batch or, after one of them killed an executor, in one batch each."""

    number: int
    left: int = 1
    failures: list[FailureNote] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Calls:
    ticket: Ticket
    calls: Buffer
    index: int | None = None
    """Its place in the hop, if it is alone."""
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
    return note if calls.index is None else msgspec.structs.replace(note, index=calls.index)


def one_by_one(calls: Calls) -> list[Calls]:
    if calls.index is not None:
        return [calls]
    alone = _split(calls.calls)
    calls.ticket.left = len(alone)
    return [Calls(calls.ticket, _encode([each]), index) for index, each in enumerate(alone)]


def end_of(batch: Batch) -> int:
    check(isinstance(batch.of, Records), "a batch without records has no end", batch=batch.number)
    return batch.of.end if isinstance(batch.of, Records) else 0
