"""What a worker and an executor say to each other, over a pair of sockets.

A message is parts: a header (MessagePack, one of the structs below), and bodies that travel beside it
untouched. On the wire, little-endian::

    number of parts u32   the length of each u32   the parts

Requests are answered in their order, each once, though :class:`Alive` may come before; :class:`Forget` is not
answered.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from stretto.module.work import Timed
from stretto.state.microbatch_entries import Result
from stretto.vocabulary.types import Buffer, Epoch, TaskId

MESSAGE_BYTES_MAX = 256 * 1024 * 1024
PARTS_MAX = 1 << 20

_U32 = struct.Struct("<I")


class Lane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Whose batches see one another: those of one topology on one task, in one attempt of one epoch.

    An attempt ends when a batch that others may have seen turns out to have no effect.
    """

    topology: str
    task: TaskId
    epoch: Epoch
    attempt: int


class Load(msgspec.Struct, frozen=True, tag="load", gc=False):
    """First of all, once: import the module. Answered with Loaded or NotLoaded."""

    folder: str
    """Where its code is unpacked."""
    entry: str
    """``module.path:ClassName``."""
    tasks: int


class Run(msgspec.Struct, frozen=True, tag="run", gc=False):
    """Run a topology over records of a depot. The first body of the answer is the changes.

    ``batch`` is its number in the lane; those below ``applied`` are in the task's file by now, and those
    between them are laid over it. What the run changes joins them under its own number.
    """

    number: int
    lane: Lane
    file: str
    """Folder of the task's LMDB file."""
    batch: int
    applied: int
    depot: str
    offset: int | None
    """None: where the run before it ended. Nothing is run if that one failed to, or stopped at a failure."""
    records_max: int
    bytes_max: int
    stop_at_failure: bool = False
    skip: tuple[int, ...] = ()
    """Positions in the batch of records that are not run."""
    is_aside: bool = False
    """Out of turn: whoever goes on does so from where it would have without this one. Nothing is run if the
    depot does not have the offset any more."""


class RunCalls(msgspec.Struct, frozen=True, tag="run_calls", gc=False):
    """Run steps; the body is the calls, as hops carry them."""

    number: int
    lane: Lane
    file: str
    batch: int
    applied: int


class RunRound(msgspec.Struct, frozen=True, tag="run_round", gc=False):
    """Run a round of a microbatch: records of ``spans``, or the calls in the bodies. What it changes is kept
    on top of what the ``after`` rounds before it changed; Failed, if those are not here. Answered with
    RoundRan, after any number of Alive."""

    number: int
    lane: Lane
    file: str
    version: tuple[int, int]
    after: int
    spans: tuple[tuple[str, int, int], ...]
    """Depot, first offset, end offset."""
    left_out: tuple[tuple[str, int], ...]
    """Records of these that are not run: depot, offset."""
    careful: bool
    """One by one, and told after each."""


class Collect(msgspec.Struct, frozen=True, tag="collect", gc=False):
    """All that ``after`` rounds of a microbatch changed, and how records begin that were left out."""

    number: int
    lane: Lane
    file: str
    version: tuple[int, int]
    after: int
    left_out: tuple[tuple[str, int], ...]


class RunQuery(msgspec.Struct, frozen=True, tag="run_query", gc=False):
    """Run a query on what a task's file holds now. The body is what it is given."""

    number: int
    query: str
    task: TaskId
    epoch: Epoch
    file: str


class CombineQuery(msgspec.Struct, frozen=True, tag="combine_query", gc=False):
    """Make one answer of the parts of all tasks. Bodies: what the query was given, then the parts."""

    number: int
    query: str


class Forget(msgspec.Struct, frozen=True, tag="forget", gc=False):
    """The lanes of a topology on a task are over, or those of all topologies on it."""

    task: TaskId
    topology: str | None = None


class FailureNote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a person's code did with one record, or one call: it raised."""

    index: int
    """In the batch."""
    error: str
    traceback: str = ""
    beginning: bytes = b""
    """Of the record."""


class Loaded(msgspec.Struct, frozen=True, tag="loaded", gc=False):
    pass


class NotLoaded(msgspec.Struct, frozen=True, tag="not_loaded", gc=False):
    why: str
    traceback: str = ""


class Ran(msgspec.Struct, frozen=True, tag="ran", gc=False):
    """Its bodies: the changes (a part of a payload), then the calls for each of ``hops``."""

    number: int
    start: int
    end: int
    """Offsets of the records that it ran: ``[start, end)``. Of calls: how many, from 0 on."""
    left: int = 0
    """Calls that it did not run: what those before them do fills an entry."""
    pstates: int = 0
    """How many PStates the changes are of."""
    hops: tuple[TaskId, ...] = ()
    results: tuple[tuple[int, bytes], ...] = ()
    """By position in the batch, as JSON; those that returned nothing are left out."""
    failures: tuple[FailureNote, ...] = ()
    elapsed_us: int = 0
    delayed_us: int = 0
    """Of these, how long others had the processor that it wanted."""
    times: tuple[Timed, ...] = ()


class SourcedCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call in a microbatch, with the record that it comes from, however many hops ago."""

    step: str
    args: bytes
    depot: str
    task: TaskId
    offset: int


class SourcedFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    depot: str
    task: TaskId
    offset: int
    error: str
    traceback: str


class RoundRan(msgspec.Struct, frozen=True, tag="round_ran", gc=False):
    """Its bodies: SourcedCalls for each of ``calls``."""

    number: int
    calls: tuple[tuple[TaskId, int], ...] = ()
    """For which task, and how many."""
    failures: tuple[SourcedFailure, ...] = ()
    elapsed_us: int = 0
    times: tuple[Timed, ...] = ()
    results: tuple[Result, ...] = ()
    """Of records; those that returned nothing are left out."""


class Collected(msgspec.Struct, frozen=True, tag="collected", gc=False):
    """Its body: the changes, of so many PStates."""

    number: int
    pstates: int
    beginnings: tuple[bytes, ...]


class QueryRan(msgspec.Struct, frozen=True, tag="query_ran", gc=False):
    """The body is what it returned, unless it failed."""

    number: int
    failure: FailureNote | None = None
    elapsed_us: int = 0


class Alive(msgspec.Struct, frozen=True, tag="alive", gc=False):
    """So many records or calls of a round are done, and its time begins anew."""

    number: int
    done: int


class Failed(msgspec.Struct, frozen=True, tag="failed", gc=False):
    """Neither the person's code nor a record is at fault: the request cannot be carried out here."""

    number: int
    why: str
    is_too_much: bool = False
    """It was, but did more than fits an entry."""


Request: TypeAlias = Run | RunCalls | RunRound | Collect | RunQuery | CombineQuery
ToChild: TypeAlias = Load | Request | Forget
Answer: TypeAlias = Ran | RoundRan | Collected | QueryRan | Failed
FromChild: TypeAlias = Loaded | NotLoaded | Alive | Answer

_encode = msgspec.msgpack.Encoder().encode
decode_to_child = msgspec.msgpack.Decoder(ToChild).decode
decode_from_child = msgspec.msgpack.Decoder(FromChild).decode


def framed(message: ToChild | FromChild, bodies: Sequence[Buffer] = ()) -> bytes:
    parts = (_encode(message), *bodies)
    lengths = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    return b"".join((lengths, *parts))


class Parser:
    """Bytes in, as they come; whole messages out, each as its parts."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> list[list[bytes]]:
        self._buffer += data
        messages: list[list[bytes]] = []
        at = 0
        while (found := self._one(at)) is not None:
            parts, at = found
            messages.append(parts)
        if at:
            del self._buffer[:at]
        return messages

    def _one(self, at: int) -> tuple[list[bytes], int] | None:
        buffer = self._buffer
        if len(buffer) < at + 4:
            return None
        count = _U32.unpack_from(buffer, at)[0]
        if not 0 < count <= PARTS_MAX:
            raise ValueError(f"a message of {count} parts")
        begin = at + 4 + 4 * count
        if len(buffer) < begin:
            return None
        lengths = struct.unpack_from(f"<{count}I", buffer, at + 4)
        end = begin + sum(lengths)
        if end - at > MESSAGE_BYTES_MAX:
            raise ValueError(f"a message of {end - at} bytes")
        if len(buffer) < end:
            return None
        parts = []
        for length in lengths:
            parts.append(bytes(memoryview(buffer)[begin : begin + length]))
            begin += length
        return parts, end
