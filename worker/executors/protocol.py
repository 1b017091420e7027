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
    """The batches that see one another: those of one topology on one task, in one attempt of one epoch.

    An attempt ends when a batch that others may have seen turns out to have no effect.
    """

    topology: str
    task: TaskId
    epoch: Epoch
    attempt: int


class Load(msgspec.Struct, frozen=True, tag="load", gc=False):
    """Import the module. The first request of all, sent once; answered with Loaded or NotLoaded."""

    folder: str
    """The folder where the module's code is unpacked."""
    entry: str
    """The module's class, as ``module.path:ClassName``."""
    tasks: int


class Run(msgspec.Struct, frozen=True, tag="run", gc=False):
    """Run a topology over records of a depot. The first body of the answer is the changes.

    ``batch`` is its number in the lane; those below ``applied`` are in the task's file by now, and those
    between them are laid over it. What the run changes joins them under its own number.
    """

    number: int
    lane: Lane
    file: str
    """The folder of the task's LMDB file."""
    batch: int
    applied: int
    depot: str
    offset: int | None
    """The first offset; None to begin where the run before it ended. Nothing is run if that one failed to, or
    stopped at a failure."""
    records_max: int
    bytes_max: int
    stop_at_failure: bool = False
    skip: tuple[int, ...] = ()
    """Positions in the batch of records that are not run."""
    is_aside: bool = False
    """Whether it runs out of turn: the run after it begins where it would have without this one. Nothing is
    run if the depot does not have the offset any more."""


class RunCalls(msgspec.Struct, frozen=True, tag="run_calls", gc=False):
    """Run steps of a topology that others hopped to; the body is the calls, as hops carry them."""

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
    """The records to run: depot, first offset, end offset."""
    left_out: tuple[tuple[str, int], ...]
    """Records of the spans that are not run: depot, offset."""
    careful: bool
    """Whether records and calls are run one by one, with an Alive after each."""


class Collect(msgspec.Struct, frozen=True, tag="collect", gc=False):
    """Return all that ``after`` rounds of a microbatch changed, and how records begin that were left out."""

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
    """Forget the lanes of a topology on a task, or of all topologies on it: they are over."""

    task: TaskId
    topology: str | None = None


class FailureNote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An exception that a person's code raised for one record, or one call."""

    index: int
    """The place of the record or call in the batch."""
    error: str
    traceback: str = ""
    beginning: bytes = b""
    """The first bytes of the record."""


class Loaded(msgspec.Struct, frozen=True, tag="loaded", gc=False):
    """The module was imported."""


class NotLoaded(msgspec.Struct, frozen=True, tag="not_loaded", gc=False):
    """The module cannot be imported."""

    why: str
    traceback: str = ""


class Ran(msgspec.Struct, frozen=True, tag="ran", gc=False):
    """A batch was run. Bodies: the changes (a part of a payload), then the calls for each of ``hops``."""

    number: int
    start: int
    end: int
    """End of the records that were run: ``[start, end)``. Of calls: how many, from 0 on."""
    left: int = 0
    """How many calls were not run, because what those before them do fills an entry."""
    pstates: int = 0
    """How many PStates were changed."""
    hops: tuple[TaskId, ...] = ()
    results: tuple[tuple[int, bytes], ...] = ()
    """What functions returned, as JSON, by position in the batch; those that returned nothing are left
    out."""
    failures: tuple[FailureNote, ...] = ()
    elapsed_us: int = 0
    delayed_us: int = 0
    """How much of that time the process waited for a processor."""
    times: tuple[Timed, ...] = ()


class SourcedCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call in a microbatch, with the record that it comes from, however many hops ago."""

    step: str
    args: bytes
    depot: str
    task: TaskId
    offset: int


class SourcedFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record of a microbatch that failed, itself or by a call that comes from it."""

    depot: str
    task: TaskId
    offset: int
    error: str
    traceback: str


class RoundRan(msgspec.Struct, frozen=True, tag="round_ran", gc=False):
    """A round was run. Bodies: SourcedCalls for each of ``calls``."""

    number: int
    calls: tuple[tuple[TaskId, int], ...] = ()
    """The tasks that calls are for, and how many each."""
    failures: tuple[SourcedFailure, ...] = ()
    elapsed_us: int = 0
    times: tuple[Timed, ...] = ()
    results: tuple[Result, ...] = ()
    """What functions returned for records; those that returned nothing are left out."""


class Collected(msgspec.Struct, frozen=True, tag="collected", gc=False):
    """The changes of a microbatch on a task, as the body, and of how many PStates they are."""

    number: int
    pstates: int
    beginnings: tuple[bytes, ...]


class QueryRan(msgspec.Struct, frozen=True, tag="query_ran", gc=False):
    """A query was run. The body is what it returned, unless it failed."""

    number: int
    failure: FailureNote | None = None
    elapsed_us: int = 0


class Alive(msgspec.Struct, frozen=True, tag="alive", gc=False):
    """A sign of life: so many records or calls of a round are done, and its time begins anew."""

    number: int
    done: int


class Failed(msgspec.Struct, frozen=True, tag="failed", gc=False):
    """The request cannot be carried out here, through no fault of the person's code or of a record."""

    number: int
    why: str
    is_too_much: bool = False
    """Whether it was carried out, but did more than fits an entry."""


Request: TypeAlias = Run | RunCalls | RunRound | Collect | RunQuery | CombineQuery
ToChild: TypeAlias = Load | Request | Forget
Answer: TypeAlias = Ran | RoundRan | Collected | QueryRan | Failed
FromChild: TypeAlias = Loaded | NotLoaded | Alive | Answer

_encode = msgspec.msgpack.Encoder().encode
decode_to_child = msgspec.msgpack.Decoder(ToChild).decode
decode_from_child = msgspec.msgpack.Decoder(FromChild).decode


def framed(message: ToChild | FromChild, bodies: Sequence[Buffer] = ()) -> bytes:
    """Return a message as bytes for the wire."""
    parts = (_encode(message), *bodies)
    lengths = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    return b"".join((lengths, *parts))


class Parser:
    """Splits a stream of bytes into whole messages, each as its parts."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> list[list[bytes]]:
        """Take bytes as they come, and return the messages that are whole now."""
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
