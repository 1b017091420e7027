"""A worker's clients: their requests become events of a replica, its answers become replies.

A read is sampled off the loop between the core's Sample and Sampled, so that the lease is checked after the
state was looked at.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

from stretto import wire
from stretto.admin import ModuleDescription
from stretto.errors import PeerError, StrettoError
from stretto.nearest import did_you_mean
from stretto.options import OptionSet
from stretto.pstate.changes import check_payload
from stretto.records import BATCH_BYTES_MAX, DepotOffset, RecordBatch, head
from stretto.replog.core import effects, events
from stretto.replog.core.effects import Refusal
from stretto.replog.core.producers import NO_PRODUCER
from stretto.replog.frame import Kind, payload
from stretto.types import Epoch, Millis, TaskId
from stretto.worker import queries
from stretto.worker.depot import DepotBatch, DepotSlice
from stretto.worker.environment import DEPOTS_MAX
from stretto.worker.parking import WAIT_MS_MAX, ParkedRead, ParkedReads

if TYPE_CHECKING:
    from stretto.worker.group import Group
    from stretto.worker.process import Worker
    from stretto.worker.transport import Connection

READ_RECORDS_MAX = 100_000
MARKER_BYTES_MAX = 64


@dataclass(slots=True)
class _Waiting:
    connection: Connection
    request: int
    message: wire.ReadDepot | wire.FindOffset | queries.Query | None = None
    sampled: Any = None
    deadline: int = 0
    growth: int = 0
    """Of the task, when the state was about to be looked at."""


class Clients:
    """Owned by the loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._waiting: dict[int, _Waiting] = {}
        self._numbers = itertools.count(1)
        self.parked = ParkedReads(worker.loop, self._read_again)
        self._module = worker.config.module
        self.described(worker.description)
        self.options_changed(worker.options, worker.config.module)

    def described(self, description: ModuleDescription) -> None:
        """What the module has; what it has not is refused."""
        depots = description.depots
        #: Names; None: any.
        self._depots = None if depots is None else frozenset(depot.name for depot in depots)
        self._pstates = frozenset(pstate.name for pstate in description.pstates)

    def options_changed(self, options: OptionSet, module: str) -> None:
        self._append_timeout_ms = options.per_depot("replication.append.timeout.millis", module)
        self._read_bytes_max = options.per_depot("depot.max.read.bytes", module)

    def received(self, sender: Connection, message: wire.ToWorker, bodies: list[memoryview]) -> None:
        match message:
            case wire.AppendBatch():
                self._append(sender, message, bodies)
            case wire.ReadDepot() | wire.FindOffset():
                self._read(sender, message)
            case wire.ReadRows() | wire.ScanRows() | wire.ScanKeys():
                self._query(sender, message)
            case wire.GetMetadata():
                self._worker.metadata.asked(sender, message)
            case wire.Ask():
                self._worker.calls.asked(sender, message)
            case wire.Hello() | wire.Replicate() | wire.Catchup():
                raise PeerError("not a request of a client")
            case _:
                assert_never(message)

    # Appends.

    def _append(self, sender: Connection, message: wire.AppendBatch, bodies: list[memoryview]) -> None:
        group = self._group(sender, message)
        body = bodies[0] if bodies else memoryview(b"")
        why = self._wrong(message, body)
        if why is not None:
            self._worker.transport.reply(sender, wire.Failed(message.request, why))
        elif group is not None:
            why = _has_no_place(group, message, body)
            if why is not None:
                self._worker.transport.reply(sender, wire.Failed(message.request, why))
                return
            number = next(self._numbers)
            self._waiting[number] = _Waiting(sender, message.request)
            group.step(
                events.Append(
                    request=number,
                    kind=message.kind,
                    task=message.task,
                    producer=message.producer,
                    sequence=message.sequence,
                    count=message.count,
                    payload=body,
                    timestamp_ms=time.time_ns() // 1_000_000,
                    timeout_ms=self._timeout_ms(message.kind, body),
                )
            )

    def _wrong(self, message: wire.AppendBatch, body: memoryview) -> str | None:
        """Why an append can never be taken, or None."""
        if message.kind is Kind.PRODUCER_OPEN:
            is_good = message.producer > 0 and message.count == 1
            return None if is_good else "a producer's id is a positive number"
        if message.kind is Kind.MARKER:
            is_alone = message.producer == NO_PRODUCER and message.count == 1
            is_good = is_alone and 0 < len(body) <= MARKER_BYTES_MAX
            return None if is_good else f"a marker is a name of 1 to {MARKER_BYTES_MAX} bytes"
        if message.kind not in (Kind.DEPOT, Kind.STATE):
            return f"clients append records, not {message.kind.name}"
        if message.sequence < 0 or message.producer < 0:
            return "sequences and producers are not negative"
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
        return self._undeclared(batch.depot)

    def _wrong_changes(self, message: wire.AppendBatch, body: memoryview) -> str | None:
        if message.count != 1:
            return "changes of PStates are one entry"
        try:
            check_payload(body, self._pstates)
        except StrettoError as error:
            return str(error)
        return None

    def _undeclared(self, depot: str) -> str | None:
        if self._depots is None or depot in self._depots:
            return None
        return f"module {self._module} has no depot {depot}; {did_you_mean(depot, self._depots)}"

    def _timeout_ms(self, kind: Kind, body: memoryview) -> Millis | None:
        """Of a depot that has one of its own; the module's is among the core's settings."""
        own = self._append_timeout_ms.special
        return own.get(head(body)[0]) if own and kind is Kind.DEPOT else None

    def _group(
        self,
        sender: Connection,
        message: wire.AppendBatch | wire.ReadDepot | wire.FindOffset | queries.Query,
    ) -> Group | None:
        group = self._worker.groups.get(message.group)
        if group is None:
            refused = wire.Refused(message.request, Refusal.NOT_LEADER, None, Epoch(0))
            self._worker.transport.reply(sender, refused)
        return group

    # Reads.

    def _read(self, sender: Connection, message: wire.ReadDepot | wire.FindOffset) -> None:
        why = self._undeclared(message.depot)
        if isinstance(message, wire.ReadDepot) and message.offset < 0:
            why = f"{message.offset} is no offset of a depot; they are from 0 on"
        if why is not None:
            self._worker.transport.reply(sender, wire.Failed(message.request, why))
            return
        wait_ms = min(message.wait_ms, WAIT_MS_MAX) if isinstance(message, wire.ReadDepot) else 0
        self._begin_read(sender, message, self._worker.loop.now + wait_ms)

    def _query(self, sender: Connection, message: queries.Query) -> None:
        why = queries.wrong(message, self._module, self._pstates)
        if why is not None:
            self._worker.transport.reply(sender, wire.Failed(message.request, why))
        else:
            self._begin_read(sender, message, 0)

    def _read_again(self, parked: ParkedRead) -> None:
        self._begin_read(parked.connection, parked.message, parked.deadline)

    def _begin_read(
        self,
        sender: Connection,
        message: wire.ReadDepot | wire.FindOffset | queries.Query,
        deadline: int,
    ) -> None:
        group = self._group(sender, message)
        if group is not None:
            number = next(self._numbers)
            growth = group.growth.get(message.task, 0)
            self._waiting[number] = _Waiting(
                sender, message.request, message, deadline=deadline, growth=growth
            )
            group.step(events.Read(request=number))

    def _parks(self, waiting: _Waiting) -> bool:
        """Whether the answer is worth waiting for, and is waited for."""
        message, found = waiting.message, waiting.sampled
        if not isinstance(message, wire.ReadDepot) or not isinstance(found, DepotSlice) or found.batches:
            return False
        if not message.committed or waiting.deadline <= self._worker.loop.now:
            return False
        parked = ParkedRead(waiting.connection, message, waiting.deadline)
        group = self._worker.groups.get(message.group)
        if group is None or group.growth.get(message.task, 0) != waiting.growth:
            self._worker.loop.call_soon(self._read_again, parked)
            return True
        return self.parked.park(parked)

    def sample(self, group: Group, request: int) -> None:
        message = self._waiting[request].message

        def then(found: Any) -> None:
            self._sampled(group, request, found)

        if isinstance(message, wire.FindOffset):
            self._worker.applier.read(lambda: _find(group, message), then)
        elif isinstance(message, wire.ReadDepot):
            bytes_max = self._read_bytes_max.of(message.depot)
            self._worker.applier.read(lambda: _slice(group, message, bytes_max), then)
        elif message is not None:
            self._worker.applier.read(lambda: queries.answer(group.state, message), then)

    def _sampled(self, group: Group, request: int, found: Any) -> None:
        waiting = self._waiting.get(request)
        if waiting is None:
            return
        message = waiting.message
        if isinstance(found, DepotSlice) and isinstance(message, wire.ReadDepot) and not message.committed:
            found = _with_uncommitted(group, message, found)
        waiting.sampled = found
        group.step(events.Sampled(request=request))

    # Answers.

    def replied(self, request: int, result: effects.Result) -> None:
        waiting = self._waiting.pop(request, None)
        if waiting is None:
            return
        number = waiting.request
        reply: wire.ToClient
        bodies: tuple[bytes, ...] = ()
        match result:
            case effects.Acked(offset=offset):
                reply = wire.Appended(number, offset)
            case effects.Refused(reason=reason, leader=leader, epoch=epoch):
                reply = wire.Refused(number, reason, leader, epoch)
            case effects.Unknown():
                reply = wire.Unknown(number)
            case effects.ReadServed() if self._parks(waiting):
                return
            case effects.ReadServed():
                reply, bodies = _served(number, waiting.sampled)
            case _:
                assert_never(result)
        self._worker.transport.reply(waiting.connection, reply, bodies)


def _has_no_place(group: Group, message: wire.AppendBatch, body: memoryview) -> str | None:
    if message.kind not in (Kind.DEPOT, Kind.STATE):
        return None
    if message.task not in group.plan.tasks:
        return f"task {message.task} is not in group {group.key}"
    if message.kind is Kind.STATE:
        return None
    depot = head(body)[0]
    if not group.has_room_for(message.task, depot):
        return f"task {message.task} has {DEPOTS_MAX} depots, and takes no other: use those that are there"
    return None


def _find(group: Group, message: wire.FindOffset) -> wire.DepotOffsets:
    start, end = group.state.depot_bounds(message.task, message.depot)
    found = None
    if message.timestamp_ms is not None:
        found = group.state.offset_at(message.task, message.depot, message.timestamp_ms)
    return wire.DepotOffsets(message.request, start, end, found)


def _slice(group: Group, message: wire.ReadDepot, bytes_max: int) -> DepotSlice:
    return group.state.read_depot(
        message.task,
        message.depot,
        DepotOffset(message.offset),
        max_bytes=min(message.max_bytes, bytes_max),
        max_records=READ_RECORDS_MAX,
    )


def _with_uncommitted(group: Group, message: wire.ReadDepot, slice_: DepotSlice) -> DepotSlice:
    """Add what is in the log and not applied, if the slice reaches the end of what is."""
    _, end = group.state.depot_bounds(TaskId(message.task), message.depot)
    if slice_.end < end:
        return slice_
    batches = list(slice_.batches)
    at = int(slice_.end if slice_.batches else end)
    for frame in group.unapplied_frames():
        header = frame.header
        if header.kind is Kind.DEPOT and header.task == message.task:
            body = bytes(payload(frame))
            if head(body)[0] == message.depot:
                batches.append(DepotBatch(DepotOffset(at), header.timestamp_ms, body))
                at += header.count
    return DepotSlice(slice_.start, DepotOffset(at), tuple(batches))


def _served(request: int, sampled: Any) -> tuple[wire.ToClient, tuple[bytes, ...]]:
    match sampled:
        case DepotSlice(start=start, end=end, batches=batches):
            reply = wire.DepotBatches(
                request,
                start,
                end,
                tuple(batch.base for batch in batches),
                tuple(batch.timestamp_ms for batch in batches),
            )
            return reply, tuple(batch.payload for batch in batches)
        case wire.DepotOffsets() | wire.RowValues() | wire.RowPage():
            return sampled, ()
        case Exception():
            return wire.Failed(request, str(sampled)), ()
        case _:
            return wire.Failed(request, "nothing was read"), ()
