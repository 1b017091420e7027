"""A worker's clients: their requests become events of a replica, its answers become replies.

Reads go their own way: :mod:`stretto.worker.reads.reads`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, assert_never

from stretto.control import ModuleDescription
from stretto.errors import PeerError, StrettoError
from stretto.options import OptionSet
from stretto.pstate.changes import check_payload
from stretto.replog.core import effects, events
from stretto.replog.core.effects import Refusal
from stretto.replog.core.producers import NO_PRODUCER, ROUNDS_MAX, is_named, round_of
from stretto.replog.frame import Kind
from stretto.state.environment import DEPOTS_MAX
from stretto.vocabulary.records import BATCH_BYTES_MAX, RecordBatch, head
from stretto.vocabulary.types import Epoch, Millis, Offset, TaskId
from stretto.wire import messages as wire
from stretto.worker.reads import reads
from stretto.worker.reads.reads import Reads
from stretto.worker.replica.tickets import Ticket

if TYPE_CHECKING:
    from stretto.network.transport import Connection
    from stretto.worker.calls import Calls
    from stretto.worker.metadata import Metadata
    from stretto.worker.microbatch.microbatches import Microbatches
    from stretto.worker.replica.group import Group
    from stretto.worker.replica.meter import Meter
    from stretto.worker.replica.tickets import Tickets
    from stretto.worker.topology.queries import Queries
    from stretto.worker.topology.streams import Streams
    from stretto.worker.topology.waiting import Waiters

MARKER_BYTES_MAX = 64
_RECORDS = (Kind.DEPOT, Kind.PRODUCER_OPEN, Kind.CLAIM)
"""Kinds of entries that producers append: they wait for no more than that the entry cannot be lost."""


_Awaits: TypeAlias = tuple["Group", TaskId, str, int]
"""The records that an append waits for: the group, the task, the depot and how many they are."""


@dataclass(slots=True, eq=False)
class _Waiting(Ticket):
    """An append whose client waits for its outcome."""

    clients: Clients
    connection: Connection
    request: int
    meter: Meter
    kind: Kind
    """The kind of entry that a failure is counted under."""
    awaits: _Awaits | None = None
    """The records that streams have to process before the client is answered; None if it does not wait for
    that."""
    awaits_microbatches: bool = False
    """Whether microbatches have to process the records, too."""

    def on_reply(self, result: effects.Result) -> None:
        self.clients.answer(self, result)


@dataclass(slots=True, eq=False)
class _Own(Ticket):
    """An append of an entry of the worker's own."""

    meter: Meter
    kind: Kind
    then: Callable[[effects.Result], None]

    def on_reply(self, result: effects.Result) -> None:
        self.meter.answered(self.kind, result)
        self.then(result)


class Host(reads.Host, Protocol):
    """The worker, as its clients see it."""

    @property
    def tickets(self) -> Tickets: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def calls(self) -> Calls: ...

    @property
    def queries(self) -> Queries: ...

    @property
    def streams(self) -> Streams: ...

    @property
    def microbatches(self) -> Microbatches: ...

    @property
    def waiters(self) -> Waiters: ...


class Clients:
    """The requests of a worker's clients. The loop owns it."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._tickets = worker.tickets
        self.reads = Reads(worker, worker.tickets)
        self.described(worker.description)
        self.options_changed(worker.options, worker.config.module)

    def described(self, description: ModuleDescription) -> None:
        """Take the module's description: a request for something that the module does not have is refused."""
        self._pstates = frozenset(pstate.name for pstate in description.pstates)
        self.reads.described(description)

    def options_changed(self, options: OptionSet, module: str) -> None:
        """Take the options that requests depend on."""
        self._append_timeout_ms = options.per_depot("replication.append.timeout.millis", module)
        self.reads.options_changed(options, module)

    def received(
        self, sender: Connection, message: wire.ToWorker, bodies: list[memoryview], *, is_worker: bool
    ) -> None:
        """Hand a request to the part of the worker that answers it."""
        match message:
            case wire.ReadRows():
                self.reads.received(sender, message)
            case wire.AppendBatch(kind=Kind.STATE) if not is_worker:
                why = "PStates are changed by the topologies of their module; append records to its depots"
                self._worker.transport.reply(sender, wire.Failed(message.request, why))
            case wire.AppendBatch():
                self._append(sender, message, bodies)
            case wire.ReadDepot() | wire.FindOffset() | wire.ScanRows() | wire.ScanKeys():
                self.reads.received(sender, message)
            case wire.RunQuery():
                self._worker.queries.received(sender, message, bodies)
            case wire.Cancel():
                self._worker.queries.cancelled(sender, message.request)
            case wire.GetMetadata():
                self._worker.metadata.asked(sender, message)
            case wire.Ask():
                self._worker.calls.asked(sender, message)
            case wire.Hello() | wire.Replicate() | wire.Catchup() | wire.RunSteps() | wire.Microbatch():
                raise PeerError("not a request of a client")
            case _:
                assert_never(message)

    # Appends.

    def _append(self, sender: Connection, message: wire.AppendBatch, bodies: list[memoryview]) -> None:
        group = self._group(sender, message)
        body = bodies[0] if bodies else memoryview(b"")
        why = self._wrong(message, body)
        if why is not None:
            self._worker.transport.reply(sender, wire.Failed(message.request, why, wire.Fault.USAGE))
        elif group is not None:
            why = _has_no_place(group, message, body)
            if why is not None:
                self._worker.transport.reply(sender, wire.Failed(message.request, why, wire.Fault.USAGE))
                return
            if _waits_in_vain(group, message):
                refused = wire.Refused(message.request, Refusal.HANDING_OVER, None, Epoch(0))
                self._worker.transport.reply(sender, refused)
                return
            waiting = _Waiting(self, sender, message.request, group.meter, message.kind)
            if message.awaits_streams and message.kind is Kind.DEPOT:
                waiting.awaits = (group, message.task, head(body)[0], message.count)
                waiting.awaits_microbatches = message.awaits_microbatches
            group.step(
                events.Append(
                    request=self._tickets.take(waiting),
                    kind=message.kind,
                    task=message.task,
                    producer=message.producer,
                    sequence=message.sequence,
                    count=message.count,
                    payload=body,
                    timestamp_ms=time.time_ns() // 1_000_000,
                    timeout_ms=self._timeout_ms(message.kind, body),
                    until_applied=waiting.awaits is not None or message.kind not in _RECORDS,
                )
            )

    def append_own(
        self,
        group: Group,
        kind: Kind,
        task: TaskId,
        payload: bytes,
        then: Callable[[effects.Result], None],
    ) -> None:
        """Append an entry of the worker's own; ``then`` gets the outcome."""
        group.step(
            events.Append(
                request=self._tickets.take(_Own(group.meter, kind, then)),
                kind=kind,
                task=task,
                producer=NO_PRODUCER,
                sequence=0,
                count=1,
                payload=payload,
                timestamp_ms=time.time_ns() // 1_000_000,
                until_applied=True,
            )
        )

    def _wrong(self, message: wire.AppendBatch, body: memoryview) -> str | None:
        """Why an append can never be taken, or None."""
        if not _fits_a_frame(message):
            return "no entry has such a task, producer, sequence or count"
        if message.kind is Kind.PRODUCER_OPEN:
            is_good = message.producer > 0 and not is_named(message.producer) and message.count == 1
            return None if is_good else "a producer's id is a positive number of 63 bits"
        if message.kind is Kind.MARKER:
            is_alone = message.producer == NO_PRODUCER and message.count == 1
            is_good = is_alone and 0 < len(body) <= MARKER_BYTES_MAX
            return None if is_good else f"a marker is a name of 1 to {MARKER_BYTES_MAX} bytes"
        if message.kind is Kind.CLAIM:
            is_good = is_named(message.producer) and message.count == 1 and not body
            return None if is_good and _fits(message) else "only a named producer claims a round"
        if message.kind not in (Kind.DEPOT, Kind.STATE):
            return f"clients append records, not {message.kind.name}"
        if is_named(message.producer) and (message.kind is not Kind.DEPOT or not _fits(message)):
            return "a named producer appends at most 2^32 records in a round"
        if message.kind is Kind.STATE:
            return self._wrong_changes(message, body)
        if len(body) > BATCH_BYTES_MAX:
            return f"a batch of {len(body)} bytes is beyond the limit of {BATCH_BYTES_MAX}; send smaller ones"
        try:
            batch = RecordBatch.parse(body)
        except StrettoError as error:
            return str(error)
        if batch.count != message.count:
            return f"the batch holds {batch.count} records, not {message.count}"
        return self.reads.undeclared(batch.depot)

    def _wrong_changes(self, message: wire.AppendBatch, body: memoryview) -> str | None:
        if message.count != 1:
            return "changes of PStates are one entry"
        try:
            check_payload(body, self._pstates)
        except StrettoError as error:
            return str(error)
        return None

    def _timeout_ms(self, kind: Kind, body: memoryview) -> Millis | None:
        """The time-out of a depot that has one of its own, or None; the module's is among the core's
        settings."""
        own = self._append_timeout_ms.special
        return own.get(head(body)[0]) if own and kind is Kind.DEPOT else None

    def _group(self, sender: Connection, message: wire.AppendBatch) -> Group | None:
        group = self._worker.groups.get(message.group)
        if group is None:
            refused = wire.Refused(message.request, Refusal.NOT_LEADER, None, Epoch(0))
            self._worker.transport.reply(sender, refused)
        return group

    # Answers.

    def answer(self, waiting: _Waiting, result: effects.Result) -> None:
        """Answer the client of an append, or let it wait until topologies have processed its records."""
        waiting.meter.answered(waiting.kind, result)
        number = waiting.request
        reply: wire.ToClient
        match result:
            case effects.Acked(offset=offset) if waiting.awaits is not None:
                self._await_processed(waiting, offset, waiting.awaits)
                return
            case effects.Acked(offset=offset):
                reply = wire.Appended(number, offset)
            case effects.Refused(reason=reason, leader=leader, epoch=epoch):
                reply = wire.Refused(number, reason, leader, epoch)
            case effects.Unknown() | effects.ReadServed():
                reply = wire.Unknown(number)
            case _:
                assert_never(result)
        self._worker.transport.reply(waiting.connection, reply)

    def _await_processed(self, waiting: _Waiting, offset: Offset | None, awaits: _Awaits) -> None:
        group, task, depot, count = awaits
        worker = self._worker

        def processed(results: tuple[wire.StreamResult, ...] | None) -> None:
            """Answer the client. ``results`` is None if only the next leader will know them: the client asks
            there."""
            number = waiting.request
            reply: wire.ToClient = wire.Unknown(number)
            if results is not None:
                reply = wire.Appended(number, offset, results)
            worker.transport.reply(waiting.connection, reply)

        start = None if offset is None else group.bases.get(offset)
        end = group.depot_ends.get((task, depot), 0) if start is None else start + count
        where = (group.key, task, depot)
        streams = worker.streams.processed_of(where)
        microbatches = worker.microbatches.processed_of(where, end) if waiting.awaits_microbatches else {}
        if streams is None or microbatches is None:
            processed(None)
        else:
            worker.waiters.add(where, start, end, streams | microbatches, processed)


def _waits_in_vain(group: Group, message: wire.AppendBatch) -> bool:
    """Whether an append would wait for streams in vain: the leader is about to hand over, and finishes only
    for the appends that wait already."""
    leader = group.leader
    if not message.awaits_streams or leader is None or leader.handover is None:
        return False
    return leader.handover.is_finishing


def _fits_a_frame(message: wire.AppendBatch) -> bool:
    """Whether a frame can hold these numbers, also the sequence after the last. In the log, an entry that
    cannot be written would stop every replica again and again."""
    small = 0 <= message.task < 1 << 32 and 0 < message.count < 1 << 32
    return small and message.producer >= 0 and 0 <= message.sequence < (1 << 64) - message.count


def _fits(message: wire.AppendBatch) -> bool:
    """Whether the sequences of a named producer's batch are of one round."""
    last = message.sequence + message.count - 1
    return message.sequence >= 0 and round_of(message.sequence) == round_of(last) < ROUNDS_MAX


def _has_no_place(group: Group, message: wire.AppendBatch, body: memoryview) -> str | None:
    if message.kind not in (Kind.DEPOT, Kind.STATE, Kind.CLAIM):
        return None
    if message.task not in group.plan.tasks:
        return f"task {message.task} is not in group {group.key}"
    if message.kind is not Kind.DEPOT:
        return None
    depot = head(body)[0]
    if not group.has_room_for(message.task, depot):
        return f"task {message.task} has {DEPOTS_MAX} depots, and takes no other: use those that are there"
    return None
