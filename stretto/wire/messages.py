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
    """First on a connection. ``worker`` and ``incarnation`` are empty for a client."""

    version: int
    cluster: str
    worker: WorkerId
    incarnation: Incarnation


class HelloRefused(msgspec.Struct, frozen=True, tag="hello_refused", gc=False):
    why: str


class Welcome(msgspec.Struct, frozen=True, tag="welcome", gc=False):
    """``name`` is who answers: a worker, a supervisor, a conductor."""

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
    """Who leads what, in one module or in all. With ``awaited``: only that group, as soon as its epoch is
    above ``above``, and after ``wait_ms`` in any case; asked of a worker that holds it."""

    request: int
    module: str | None = None
    awaited: GroupKey | None = None
    above: Epoch = Epoch(0)
    wait_ms: int = 0


class AppendBatch(msgspec.Struct, frozen=True, tag="append", gc=False):
    """The body is the payload of the entry."""

    request: int
    group: GroupKey
    kind: Kind
    task: TaskId
    producer: ProducerId
    sequence: int
    count: int
    awaits_streams: bool = False
    """The answer waits until every stream of the depot has processed the records."""
    awaits_microbatches: bool = False
    """The answer waits until every microbatch topology of the depot has processed the records, too."""


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
    """In which the sender leads."""
    number: int
    after: int
    settled: int
    code: str
    """Digest of the module's code that made the calls; a leader that goes by another refuses them for now."""


class Microbatch(msgspec.Struct, frozen=True, tag="microbatch", gc=False):
    """From worker to worker, to the leader of a task. The first body is a message of
    :mod:`stretto.worker.microbatch.machines.messages`, the second calls, if it brings any. Answered with
    Taken, which promises nothing."""

    request: int
    group: GroupKey
    task: TaskId
    topology: str
    code: str
    """Digest of the module's code that the sender goes by; who goes by another refuses it."""


class RunQuery(msgspec.Struct, frozen=True, tag="run_query", gc=False):
    """The body is what a query is given: MessagePack of a list of arguments and a map of named ones.

    With a task, of its leader, for what that task has to say; without, of any worker of the module.
    """

    request: int
    group: GroupKey
    query: str
    task: TaskId | None
    timeout_ms: int


class Stale(msgspec.Struct, frozen=True, gc=False):
    """A follower may answer if it shows all that was visible ``max_staleness_ms`` ago, and what is below
    ``after``, which was seen in ``after_epoch``."""

    max_staleness_ms: int
    after: Offset = Offset(0)
    after_epoch: Epoch = Epoch(0)


class ReadDepot(msgspec.Struct, frozen=True, tag="read_depot", gc=False):
    """What is there from ``offset`` on. A committed read at the end of the depot is answered when there is
    something, and after ``wait_ms`` in any case."""

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
    """Bounds of a depot, and the first offset at or after a time, if one is given."""

    request: int
    group: GroupKey
    task: TaskId
    depot: str
    timestamp_ms: int | None
    stale: Stale | None = None


class ReadRows(msgspec.Struct, frozen=True, tag="read_rows", gc=False):
    """Rows of a PState, by their keys, each with the task that it lies on."""

    request: int
    group: GroupKey
    pstate: str
    tasks: tuple[TaskId, ...]
    keys: tuple[bytes, ...]
    stale: Stale | None = None


class ScanRows(msgspec.Struct, frozen=True, tag="scan_rows", gc=False):
    """Rows of a PState in ``[start, end)``, ascending; with ``backwards`` the last one alone."""

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
    """What rows in ``[start, end)`` begin with, up to one key after ``depth`` bytes: told, or counted."""

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
    """Who ran a query under this number no longer waits for it. Not answered."""

    request: int


class Ask(msgspec.Struct, frozen=True, tag="ask", gc=False):
    """A call of :mod:`stretto.control`: rare, and made for people."""

    request: int
    call: msgspec.Raw


# Replies.


class GroupView(msgspec.Struct, frozen=True, gc=False):
    key: GroupKey
    tasks: tuple[TaskId, ...]
    replicas: tuple[WorkerId, ...]
    epoch: Epoch
    leader: WorkerId | None
    isr: tuple[WorkerId, ...]
    module_tasks: int
    """How many tasks the module has, in all its groups."""


class Metadata(msgspec.Struct, frozen=True, tag="metadata", gc=False):
    request: int
    addresses: dict[WorkerId, str]
    groups: tuple[GroupView, ...]


class StreamResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a topology made of the records of a batch, by their position in it."""

    topology: str
    results: tuple[tuple[int, bytes], ...]
    """As JSON; those that returned nothing are left out."""
    failures: tuple[tuple[int, str], ...]
    is_lost: bool = False
    """They are processed, but what came of them is not known: the leader that ran them is gone."""


class Appended(msgspec.Struct, frozen=True, tag="appended", gc=False):
    request: int
    offset: Offset | None
    streams: tuple[StreamResult, ...] = ()
    """If they were waited for."""


class StepFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    origin: int
    """As the caller numbered it."""
    error: str
    traceback: str


class StepsRun(msgspec.Struct, frozen=True, tag="steps_run", gc=False):
    """They have, here and wherever they hopped to, and what they did is applied; except for these."""

    request: int
    failures: tuple[StepFailure, ...]


class Taken(msgspec.Struct, frozen=True, tag="taken", gc=False):
    """It reached who was meant."""

    request: int


class Refused(msgspec.Struct, frozen=True, tag="refused", gc=False):
    """Not done, and it has had no effect; most reasons pass."""

    request: int
    reason: Refusal
    leader: WorkerId | None
    epoch: Epoch


class Unknown(msgspec.Struct, frozen=True, tag="unknown", gc=False):
    request: int


class Fault(enum.StrEnum):
    """What the refusal of a call means to who asked."""

    USAGE = "usage"
    """Such a thing cannot be asked for."""
    PASSING = "passing"
    """The same call may succeed later."""
    OTHER = "other"

    @classmethod
    def of(cls, error: StrettoError) -> Fault:
        match error:
            case UsageError():
                return cls.USAGE
            case RetriableError():
                return cls.PASSING
            case _:
                return cls.OTHER

    def error(self, why: str) -> StrettoError:
        """The error that it was, as far as who asked can tell."""
        return {Fault.USAGE: UsageError, Fault.PASSING: RetriableError}.get(self, StrettoError)(why)


class Failed(msgspec.Struct, frozen=True, tag="failed", gc=False):
    """It does not work like this: one sentence says why."""

    request: int
    why: str
    fault: Fault = Fault.OTHER


class DepotBatches(msgspec.Struct, frozen=True, tag="depot_batches", gc=False):
    """Each body is a stored batch; ``bases`` and ``timestamps_ms`` are theirs, in order. ``epoch`` and
    ``offset`` as in RowValues."""

    request: int
    start: int
    end: int
    bases: tuple[int, ...]
    timestamps_ms: tuple[int, ...]
    epoch: Epoch = Epoch(0)
    offset: Offset = Offset(0)


class DepotOffsets(msgspec.Struct, frozen=True, tag="depot_offsets", gc=False):
    request: int
    start: int
    end: int
    found: int | None
    epoch: Epoch = Epoch(0)
    offset: Offset = Offset(0)


class RowValues(msgspec.Struct, frozen=True, tag="row_values", gc=False):
    """Of the first so many keys, as many as fitted; None where there is no row. Read in ``epoch``, where
    everything below ``offset`` was applied."""

    request: int
    values: tuple[bytes | None, ...]
    epoch: Epoch
    offset: Offset


class RowPage(msgspec.Struct, frozen=True, tag="row_page", gc=False):
    """``next`` is where to go on; None if there is nothing more. ``epoch`` and ``offset`` as in RowValues."""

    request: int
    keys: tuple[bytes, ...]
    values: tuple[bytes, ...]
    count: int
    next: bytes | None
    epoch: Epoch = Epoch(0)
    offset: Offset = Offset(0)


class QueryGoesOn(msgspec.Struct, frozen=True, tag="query_goes_on", gc=False):
    """Not an answer: it shows who runs the query whether somebody is still there to be told."""

    request: int


class QueryAnswered(msgspec.Struct, frozen=True, tag="query_answered", gc=False):
    """The body is what the query returned: MessagePack."""

    request: int


class QueryFailed(msgspec.Struct, frozen=True, tag="query_failed", gc=False):
    """Its function raised, hung or ended its process; ``traceback`` is its author's own."""

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
