"""What goes over ZeroMQ: between workers, and between clients and workers.

A message is a header (MessagePack, one of the structs below) and zero or more bodies that travel beside it
untouched: frames of a replog, a batch of records. Every connection begins with a hello that names protocol
and cluster; a worker answers nothing else before it.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.replog.core.effects import Refusal
from stretto.replog.core.messages import AnyMessage
from stretto.replog.frame import Kind
from stretto.vocabulary.decoding import refusing
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, Offset, ProducerId, TaskId, WorkerId
from stretto.wire import catchup

PROTOCOL_VERSION = 1


class Hello(msgspec.Struct, frozen=True, tag="hello", gc=False):
    """The first message on a connection; ``worker`` and ``incarnation`` are empty for a client."""

    version: int
    cluster: str
    worker: WorkerId
    incarnation: Incarnation


class HelloRefused(msgspec.Struct, frozen=True, tag="hello_refused", gc=False):
    """The hello is refused, or was left out; one sentence says why."""

    why: str


class Welcome(msgspec.Struct, frozen=True, tag="welcome", gc=False):
    """The hello is accepted; ``name`` says which worker, supervisor or conductor answers."""

    cluster: str
    name: str


class Replicate(msgspec.Struct, frozen=True, tag="replicate", gc=False):
    """A message of the replication protocol; the body is a run of frames, if any."""

    group: GroupKey
    message: AnyMessage


class Catchup(msgspec.Struct, frozen=True, tag="catchup", gc=False):
    """A message of a transfer of state; the body is hashes, blocks or frames, if any."""

    group: GroupKey
    message: catchup.AnyMessage


# Requests of clients. Each has a number that its reply carries back.


class GetMetadata(msgspec.Struct, frozen=True, tag="get_metadata", gc=False):
    """Ask who leads what, in one module or in all.

    With ``awaited``: only that group, as soon as its epoch is above ``above``, and after ``wait_ms`` in any
    case; asked of a worker that holds it.
    """

    request: int
    module: str | None = None
    awaited: GroupKey | None = None
    above: Epoch = Epoch(0)
    wait_ms: int = 0


class AppendBatch(msgspec.Struct, frozen=True, tag="append", gc=False):
    """Append an entry to a group's log; the body is its payload."""

    request: int
    group: GroupKey
    kind: Kind
    task: TaskId
    producer: ProducerId
    sequence: int
    count: int
    awaits_streams: bool = False
    """Whether the answer waits until every stream of the depot has processed the records."""
    awaits_microbatches: bool = False
    """Whether it waits until every microbatch topology of the depot has processed the records, too."""


class RunSteps(msgspec.Struct, frozen=True, tag="run_steps", gc=False):
    """A hop, from worker to worker: the body is calls of steps of a topology, to run on a task.

    ``source`` is the task that sends it. It and ``number`` tell it from all others: it is run once, however
    often it is sent and whoever leads. It is run behind the one whose number is ``after``. Hops below
    ``settled`` are not sent again.
    """

    request: int
    group: GroupKey
    task: TaskId
    topology: str
    source: TaskId
    epoch: Epoch
    """The epoch in which the sender leads."""
    number: int
    after: int
    settled: int
    code: str
    """Digest of the module's code that made the calls; a leader with other code refuses them for now."""


class Microbatch(msgspec.Struct, frozen=True, tag="microbatch", gc=False):
    """A message about a microbatch, from worker to worker, to the leader of a task.

    The first body is a message of :mod:`stretto.worker.microbatch.machines.messages`, the second calls, if it
    brings any. Answered with Taken, which promises nothing.
    """

    request: int
    group: GroupKey
    task: TaskId
    topology: str
    code: str
    """Digest of the module's code that the sender runs; a leader with other code refuses it."""


class RunQuery(msgspec.Struct, frozen=True, tag="run_query", gc=False):
    """Run a query; the body is MessagePack of a list of arguments and a map of named ones.

    With a task, it is asked of the task's leader, for what that task has to say; without, of any worker of
    the module.
    """

    request: int
    group: GroupKey
    query: str
    task: TaskId | None
    timeout_ms: int


class Stale(msgspec.Struct, frozen=True, gc=False):
    """How old the state may be that a follower answers a read from.

    It may answer if it shows all that was visible ``max_staleness_ms`` ago, and what is below ``after``,
    which was seen in ``after_epoch``.
    """

    max_staleness_ms: int
    after: Offset = Offset(0)
    after_epoch: Epoch = Epoch(0)


class ReadDepot(msgspec.Struct, frozen=True, tag="read_depot", gc=False):
    """Read a depot from ``offset`` on.

    A committed read at the end of the depot is answered when there is something, and after ``wait_ms`` in any
    case.
    """

    request: int
    group: GroupKey
    task: TaskId
    depot: str
    offset: int
    max_bytes: int
    committed: bool
    wait_ms: int = 0
    stale: Stale | None = None


class FindOffset(msgspec.Struct, frozen=True, tag="find_offset", gc=False):
    """Find the bounds of a depot, and the first offset at or after a time, if one is given."""

    request: int
    group: GroupKey
    task: TaskId
    depot: str
    timestamp_ms: int | None
    stale: Stale | None = None


class ReadRows(msgspec.Struct, frozen=True, tag="read_rows", gc=False):
    """Read rows of a PState, by their keys, each with the task that it lies on."""

    request: int
    group: GroupKey
    pstate: str
    tasks: tuple[TaskId, ...]
    keys: tuple[bytes, ...]
    stale: Stale | None = None


class ScanRows(msgspec.Struct, frozen=True, tag="scan_rows", gc=False):
    """Read rows of a PState in ``[start, end)``, ascending; with ``backwards`` the last one alone."""

    request: int
    group: GroupKey
    task: TaskId
    pstate: str
    start: bytes
    end: bytes
    rows_max: int
    backwards: bool = False
    stale: Stale | None = None


class ScanKeys(msgspec.Struct, frozen=True, tag="scan_keys", gc=False):
    """List, or count, what rows in ``[start, end)`` begin with, up to one key after ``depth`` bytes."""

    request: int
    group: GroupKey
    task: TaskId
    pstate: str
    start: bytes
    end: bytes
    depth: int
    keys_max: int
    tell: bool
    stale: Stale | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel", gc=False):
    """The client no longer waits for the query that it ran under this number. Not answered."""

    request: int


class Ask(msgspec.Struct, frozen=True, tag="ask", gc=False):
    """A call of :mod:`stretto.control`: rare, and made for people."""

    request: int
    call: msgspec.Raw


# Replies.


class GroupView(msgspec.Struct, frozen=True, gc=False):
    """A task group as a worker knows it: tasks, replicas, leader and ISR."""

    key: GroupKey
    tasks: tuple[TaskId, ...]
    replicas: tuple[WorkerId, ...]
    epoch: Epoch
    leader: WorkerId | None
    isr: tuple[WorkerId, ...]
    module_tasks: int
    """How many tasks the module has, in all its groups."""


class Metadata(msgspec.Struct, frozen=True, tag="metadata", gc=False):
    """The answer to GetMetadata: where workers listen, and who leads which group."""

    request: int
    addresses: dict[WorkerId, str]
    groups: tuple[GroupView, ...]


class StreamResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a topology made of the records of a batch, by their position in it."""

    topology: str
    results: tuple[tuple[int, bytes], ...]
    """Results as JSON; records for which nothing was returned are left out."""
    failures: tuple[tuple[int, str], ...]
    is_lost: bool = False
    """Whether the results are lost: the records are processed, but the leader that ran them is gone."""


class Appended(msgspec.Struct, frozen=True, tag="appended", gc=False):
    """The entry is acknowledged: it is committed, and every read from now on sees it."""

    request: int
    offset: Offset | None
    streams: tuple[StreamResult, ...] = ()
    """What streams made of the records, if they were waited for."""


class StepFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call of a hop that failed."""

    origin: int
    """The number that the sender gave it."""
    error: str
    traceback: str


class StepsRun(msgspec.Struct, frozen=True, tag="steps_run", gc=False):
    """The steps have run, also where they hopped to, and are applied; except for those that failed."""

    request: int
    failures: tuple[StepFailure, ...]


class Taken(msgspec.Struct, frozen=True, tag="taken", gc=False):
    """The message reached the leader that it was meant for."""

    request: int


class Refused(msgspec.Struct, frozen=True, tag="refused", gc=False):
    """The request was not carried out and has had no effect; most reasons pass."""

    request: int
    reason: Refusal
    leader: WorkerId | None
    epoch: Epoch


class Unknown(msgspec.Struct, frozen=True, tag="unknown", gc=False):
    """It is not known whether the request was carried out, or will be."""

    request: int


class Fault(enum.StrEnum):
    """What the refusal of a call means to the caller."""

    USAGE = "usage"
    """The caller asked for something that cannot be."""
    PASSING = "passing"
    """The same call may succeed later."""
    OTHER = "other"

    @classmethod
    def of(cls, error: StrettoError) -> Fault:
        """The fault that stands for an error on the wire."""
        match error:
            case UsageError():
                return cls.USAGE
            case RetriableError():
                return cls.PASSING
            case _:
                return cls.OTHER

    def error(self, why: str) -> StrettoError:
        """The error to raise for the caller, of the class that this fault stands for."""
        return {Fault.USAGE: UsageError, Fault.PASSING: RetriableError}.get(self, StrettoError)(why)


class Failed(msgspec.Struct, frozen=True, tag="failed", gc=False):
    """The request cannot be carried out as it is; one sentence says why."""

    request: int
    why: str
    fault: Fault = Fault.OTHER


class DepotBatches(msgspec.Struct, frozen=True, tag="depot_batches", gc=False):
    """The answer to ReadDepot: each body is a stored batch.

    ``bases`` and ``timestamps_ms`` are theirs, in order. ``epoch`` and ``offset`` as in RowValues.
    """

    request: int
    start: int
    end: int
    bases: tuple[int, ...]
    timestamps_ms: tuple[int, ...]
    epoch: Epoch = Epoch(0)
    offset: Offset = Offset(0)


class DepotOffsets(msgspec.Struct, frozen=True, tag="depot_offsets", gc=False):
    """The answer to FindOffset: the bounds of the depot, and what was found."""

    request: int
    start: int
    end: int
    found: int | None
    epoch: Epoch = Epoch(0)
    offset: Offset = Offset(0)


class RowValues(msgspec.Struct, frozen=True, tag="row_values", gc=False):
    """The answer to ReadRows: values of the first keys, as many as fitted; None where there is no row.

    Read in ``epoch``, where everything below ``offset`` was applied.
    """

    request: int
    values: tuple[bytes | None, ...]
    epoch: Epoch
    offset: Offset


class RowPage(msgspec.Struct, frozen=True, tag="row_page", gc=False):
    """A page of rows or keys; ``next`` is where to go on, None if there is nothing more.

    ``epoch`` and ``offset`` as in RowValues.
    """

    request: int
    keys: tuple[bytes, ...]
    values: tuple[bytes, ...]
    count: int
    next: bytes | None
    epoch: Epoch = Epoch(0)
    offset: Offset = Offset(0)


class QueryGoesOn(msgspec.Struct, frozen=True, tag="query_goes_on", gc=False):
    """Shows the worker that runs a query whether its client is still connected; it answers nothing."""

    request: int


class QueryAnswered(msgspec.Struct, frozen=True, tag="query_answered", gc=False):
    """The body is what the query returned: MessagePack."""

    request: int


class QueryFailed(msgspec.Struct, frozen=True, tag="query_failed", gc=False):
    """The function of the query raised, hung or ended its process; ``traceback`` is its author's own."""

    request: int
    error: str
    traceback: str = ""


class Answer(msgspec.Struct, frozen=True, tag="answer", gc=False):
    """What a call returned; a call that fails is answered with Failed."""

    request: int
    result: msgspec.Raw


ToWorker: TypeAlias = (
    Hello
    | Replicate
    | Catchup
    | GetMetadata
    | AppendBatch
    | RunSteps
    | Microbatch
    | RunQuery
    | Cancel
    | ReadDepot
    | FindOffset
    | ReadRows
    | ScanRows
    | ScanKeys
    | Ask
)
ToClient: TypeAlias = (
    Welcome
    | HelloRefused
    | Metadata
    | Appended
    | StepsRun
    | Taken
    | Refused
    | Unknown
    | Failed
    | DepotBatches
    | DepotOffsets
    | RowValues
    | RowPage
    | QueryGoesOn
    | QueryAnswered
    | QueryFailed
    | Answer
)
Any: TypeAlias = ToWorker | ToClient

encode = msgspec.msgpack.Encoder().encode
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_to_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)
decode_to_worker = refusing(_to_worker, "message")
decode_to_client = refusing(_to_client, "reply")
