"""Reads of clients: sampled between the core's Read and Sampled, or just before a Read that says so. The
lease is checked after the state was looked at.

Most point reads take a shorter way: :mod:`stretto.worker.reads.point_reads`. Everything else is read on the
reading thread, and alone, so that nobody waits for another's long answer. A read at the end of a depot may
wait there: see :mod:`stretto.worker.reads.parked_reads`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, assert_never

import msgspec

from stretto.control import ModuleDescription
from stretto.options import OptionSet
from stretto.replog.core import effects, events
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import payload
from stretto.state.depot import DepotBatch, DepotSlice
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.suggest import did_you_mean
from stretto.vocabulary.types import Epoch, Millis, Offset, TaskId
from stretto.wire import messages as wire
from stretto.worker.reads import point_reads, row_queries
from stretto.worker.reads.parked_reads import WAIT_MS_MAX, ParkedRead, ParkedReads
from stretto.worker.reads.point_reads import Asked, Found, PointReads, failed, look_up, served
from stretto.worker.replica.tickets import Ticket, Tickets

if TYPE_CHECKING:
    from stretto.network.transport import Connection
    from stretto.worker.replica.applier import Applier
    from stretto.worker.replica.group import Group

READ_RECORDS_MAX = 100_000

Message: TypeAlias = wire.ReadDepot | wire.FindOffset | row_queries.Query


@dataclass(slots=True, eq=False)
class _Read:
    connection: Connection
    message: Message
    deadline: int = 0
    growth: int = 0
    """How often the task had grown when the state was about to be looked at."""
    found: Any = None
    applied: Offset = Offset(0)
    """The offset below which everything was applied when the state was about to be looked at."""


@dataclass(slots=True, eq=False)
class _Together(Ticket):
    """Reads of one group that are one read to the core."""

    reads: list[_Read]
    owner: Reads

    @property
    def points(self) -> list[wire.ReadRows]:
        """The messages of all these reads, if they are point reads; else nothing."""
        return [read.message for read in self.reads if isinstance(read.message, wire.ReadRows)]

    def found(self, found: list[Found]) -> None:
        """Keep what was found, one result for each read."""
        for read, each in zip(self.reads, found, strict=True):
            read.found = each

    def fail(self, error: Exception) -> None:
        """Let all of these reads fail with an error."""
        for read in self.reads:
            read.found = error

    def on_sample(self, group: Group, number: int) -> None:
        self.owner.sample(group, number, self)

    def on_reply(self, result: effects.Result) -> None:
        for read in self.reads:
            self.owner.answer(read, result)

    def event(self, number: int) -> events.Read:
        """Return the event that asks the core for all of these reads: as fresh as the strictest of them
        wants."""
        message = self.reads[0].message
        if message.stale is None:
            return events.Read(request=number)
        wanted = [read.message.stale for read in self.reads]
        return events.Read(
            request=number,
            max_staleness_ms=Millis(message.stale.max_staleness_ms),
            after=max((each.after for each in wanted if each is not None), default=Offset(0)),
            after_epoch=max((each.after_epoch for each in wanted if each is not None), default=Epoch(0)),
        )


@dataclass(slots=True, eq=False)
class _Elsewhere(Ticket):
    """A read that another part of the worker makes: ``look`` begins it, and calls the function that it is
    given once it has looked."""

    look: Callable[[Callable[[], None]], None]
    then: Callable[[effects.Result], None]

    def on_sample(self, group: Group, number: int) -> None:
        self.look(lambda: group.step(events.Sampled(request=number)))

    def on_reply(self, result: effects.Result) -> None:
        self.then(result)


class Config(Protocol):
    """What reads need of a worker's configuration."""

    @property
    def module(self) -> str: ...


class Host(point_reads.Host, Protocol):
    """The worker, as its reads see it."""

    @property
    def config(self) -> Config: ...

    @property
    def description(self) -> ModuleDescription: ...

    @property
    def options(self) -> OptionSet: ...

    @property
    def applier(self) -> Applier: ...


class Reads:
    """The reads of a worker's clients. The loop owns them."""

    def __init__(self, worker: Host, tickets: Tickets) -> None:
        self._worker = worker
        self._tickets = tickets
        self._points = PointReads(worker, tickets.next_number, self._begin_points)
        self.parked = ParkedReads(worker.loop, self._read_again)
        self._module = worker.config.module
        self.described(worker.description)
        self.options_changed(worker.options, worker.config.module)

    def described(self, description: ModuleDescription) -> None:
        """Take the module's description: a read of something that the module does not have is refused."""
        depots = description.depots
        #: Names of the module's depots; None if any is allowed.
        self._depots = None if depots is None else frozenset(depot.name for depot in depots)
        self._pstates = frozenset(pstate.name for pstate in description.pstates)

    def options_changed(self, options: OptionSet, module: str) -> None:
        """Take the options that reads depend on."""
        self._read_bytes_max = options.per_depot("depot.max.read.bytes", module)

    def undeclared(self, depot: str) -> str | None:
        """Say why a depot cannot be read if the module does not declare it, or None."""
        if self._depots is None or depot in self._depots:
            return None
        return f"module {self._module} has no depot {depot}; {did_you_mean(depot, self._depots)}"

    # Requests.

    def received(self, sender: Connection, message: Message) -> None:
        """Begin a read."""
        why = self._wrong(message)
        if why is not None:
            self._worker.transport.reply(sender, wire.Failed(message.request, why, wire.Fault.USAGE))
        elif message.group not in self._worker.groups:
            self._refuse_unknown(sender, message)
        elif isinstance(message, wire.ReadRows):
            self._points.received(sender, message)
        else:
            wait_ms = min(message.wait_ms, WAIT_MS_MAX) if isinstance(message, wire.ReadDepot) else 0
            self._begin_one(_Read(sender, message, self._worker.loop.now + wait_ms))

    def _wrong(self, message: Message) -> str | None:
        if isinstance(message, wire.ReadDepot | wire.FindOffset):
            if isinstance(message, wire.ReadDepot) and message.offset < 0:
                return f"{message.offset} is no offset of a depot; they are from 0 on"
            if isinstance(message, wire.ReadDepot) and message.stale is not None and not message.committed:
                return "what is not committed is known to the leader alone; do without a staleness"
            return row_queries.wrong_age(message.stale) or self.undeclared(message.depot)
        return row_queries.wrong(message, self._module, self._pstates)

    def _refuse_unknown(self, sender: Connection, message: Message) -> None:
        refused = wire.Refused(message.request, Refusal.NOT_LEADER, None, Epoch(0))
        self._worker.transport.reply(sender, refused)

    def _read_again(self, parked: ParkedRead) -> None:
        if parked.message.group in self._worker.groups:
            self._begin_one(_Read(parked.connection, parked.message, parked.deadline))
        else:
            self._refuse_unknown(parked.connection, parked.message)

    def _begin_points(self, key: GroupKey, asked: list[Asked]) -> None:
        self._begin(key, _Together([_Read(sender, message) for sender, message in asked], self))

    def _begin_one(self, read: _Read) -> None:
        self._begin(read.message.group, _Together([read], self))

    def _begin(self, key: GroupKey, together: _Together) -> None:
        group = self._worker.groups.get(key)
        if group is None:
            for read in together.reads:
                self._refuse_unknown(read.connection, read.message)
            return
        group.step(together.event(self._tickets.take(together)))

    def elsewhere(
        self,
        group: Group,
        look: Callable[[Callable[[], None]], None],
        then: Callable[[effects.Result], None],
        *,
        max_staleness_ms: Millis | None = None,
    ) -> None:
        """Let another part of the worker look at the applied state of a group, under the rules for reads: of
        one that is led here, or of any whose state is not older than that. A follower asks the leader first:
        what was acknowledged before is seen."""
        number = self._tickets.take(_Elsewhere(look, then))
        group.step(events.Read(request=number, max_staleness_ms=max_staleness_ms, asks_first=True))

    # Looking.

    def sample(self, group: Group, request: int, together: _Together) -> None:
        """Look at the applied state for reads, on the loop or on the reading thread. The latter is woken at
        the end of the turn, when it finds the interpreter free."""
        points = together.points
        found = self._points.glance(group, points) if points else None
        if found is not None:
            together.found(found)
            self._worker.loop.look_at_clock()
            self._sampled(group, request, together)
            return

        def look() -> None:
            self._look(group, together)

        def then(failure: Any) -> None:
            if isinstance(failure, Exception):
                together.fail(failure)
            self._sampled(group, request, together)

        self._worker.loop.at_turn_end(lambda: self._worker.applier.read(look, then))

    def _look(self, group: Group, together: _Together) -> None:
        """Look at the applied state. Runs on the reading thread."""
        reads = together.reads
        message = reads[0].message
        reads[0].applied = group.state.applied
        match message:
            case wire.ReadRows():
                points = together.points
                with self._points.residence.looking_up(sum(len(each.keys) for each in points)):
                    together.found([look_up(group, each) for each in points])
            case wire.FindOffset():
                reads[0].found = _find(group, message)
            case wire.ReadDepot():
                reads[0].growth = group.growth.get(message.task, 0)
                reads[0].found = _slice(group, message, self._read_bytes_max.of(message.depot))
            case wire.ScanRows() | wire.ScanKeys():
                reads[0].found = row_queries.answer(group.state, message)
            case _:
                assert_never(message)

    def _sampled(self, group: Group, request: int, together: _Together) -> None:
        if not self._tickets.is_open(request):
            return
        for read in together.reads:
            message, found = read.message, read.found
            if isinstance(message, wire.ReadDepot) and not message.committed:
                read.found = _with_uncommitted(group, message, found)
        group.step(events.Sampled(request=request))

    # Answers.

    def answer(self, read: _Read, result: effects.Result) -> None:
        """Answer a read, or park it."""
        number = read.message.request
        reply: wire.ToClient
        bodies: tuple[bytes, ...] = ()
        match result:
            case effects.ReadServed(epoch=epoch):
                if self._parks(read):
                    return
                reply, bodies = _served(read, epoch)
            case effects.Refused(reason=reason, leader=leader, epoch=epoch):
                reply = wire.Refused(number, reason, leader, epoch)
            case effects.Unknown() | effects.Acked():
                reply = wire.Unknown(number)
            case _:
                assert_never(result)
        self._worker.transport.reply(read.connection, reply, bodies)

    def _parks(self, read: _Read) -> bool:
        """Whether a read waits for its depot to grow: it may, and its answer would be empty now."""
        message, found = read.message, read.found
        if not isinstance(message, wire.ReadDepot) or not isinstance(found, DepotSlice) or found.batches:
            return False
        if not message.committed or read.deadline <= self._worker.loop.now:
            return False
        parked = ParkedRead(read.connection, message, read.deadline)
        group = self._worker.groups.get(message.group)
        if group is None or group.growth.get(message.task, 0) != read.growth:
            self._worker.loop.call_soon(self._read_again, parked)
            return True
        return self.parked.park(parked)


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


def _with_uncommitted(group: Group, message: wire.ReadDepot, found: Any) -> Any:
    """Add what is in the log and not applied, if the slice reaches the end of what is.

    It is read from memory: what follows the end that was reported to the loop is there, and the loop does not
    wait for the state.
    """
    if not isinstance(found, DepotSlice):
        return found
    end = group.depot_ends.get((TaskId(message.task), message.depot), DepotOffset(0))
    if found.end < end:
        return found
    batches = list(found.batches)
    at = int(found.end if found.batches else end)
    for base, frame in group.unapplied_batches(TaskId(message.task), message.depot):
        # Others are in the state by now, though nobody here has heard so.
        if base >= at:
            batches.append(DepotBatch(base, frame.header.timestamp_ms, bytes(payload(frame))))
            at = base + frame.header.count
    return DepotSlice(found.start, DepotOffset(at), tuple(batches))


def _served(read: _Read, epoch: Epoch) -> tuple[wire.ToClient, tuple[bytes, ...]]:
    request, found = read.message.request, read.found
    match found:
        case tuple(), int():
            return served(request, found, epoch), ()
        case wire.RowPage() as page, int(offset):
            return msgspec.structs.replace(page, epoch=epoch, offset=Offset(offset)), ()
        case DepotSlice(start=start, end=end, batches=batches):
            reply = wire.DepotBatches(
                request,
                start,
                end,
                tuple(batch.base for batch in batches),
                tuple(batch.timestamp_ms for batch in batches),
                epoch,
                read.applied,
            )
            return reply, tuple(batch.payload for batch in batches)
        case wire.DepotOffsets():
            return msgspec.structs.replace(found, epoch=epoch, offset=read.applied), ()
        case Exception():
            return failed(request, found), ()
        case _:
            return wire.Failed(request, "nothing was read"), ()
