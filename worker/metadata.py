"""Answers to clients that ask which worker leads which group; any worker gives them.

Of its own groups a worker knows by itself. The others it reads from the metastore when somebody asks, keeps
the answer for a moment, and lets everybody who asks meanwhile wait for the same reading.

A client that cannot reach a group's leader asks to be told of the next one: its request is parked until the
group's record says something newer, or its time is over. There is no thread and no timer for each: parked
requests are looked at when a record changes, and by one sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, WorkerId
from stretto.wire import messages as wire
from stretto.zk.watches.survey import GroupSeen

if TYPE_CHECKING:
    from stretto.control import ModuleDescription
    from stretto.network.loop import Loop
    from stretto.network.transport import Connection, Transport
    from stretto.worker.replica.group import Group
    from stretto.zk.metastore import Metastore

WAIT_MS_MAX = 5_000
PARKED_MAX = 10_000
SWEEP_MS = 100
FRESH_MS = 500
READ_MS = 300
AGAIN_MS = 100
WAITING_MAX = 1_000
READINGS_MAX = 100


@dataclass(slots=True, frozen=True)
class _Parked:
    connection: Connection
    request: int
    above: Epoch
    deadline: int


@dataclass(slots=True)
class _Reading:
    """The groups of other workers, as last read from the metastore."""

    views: tuple[wire.GroupView, ...] = ()
    at: int | None = None
    is_under_way: bool = False
    waiting: list[tuple[Connection, wire.GetMetadata]] = field(default_factory=list)

    def is_fresh(self, now: int) -> bool:
        """Whether the reading is recent enough to answer with."""
        return self.at is not None and now - self.at < FRESH_MS


class Host(Protocol):
    """The worker, as its metadata sees it."""

    @property
    def loop(self) -> Loop: ...

    @property
    def transport(self) -> Transport: ...

    @property
    def metastore(self) -> Metastore: ...

    @property
    def groups(self) -> Mapping[GroupKey, Group]: ...

    @property
    def description(self) -> ModuleDescription: ...


class Metadata:
    """Answers questions about who leads which group. The loop owns it."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._parked: dict[GroupKey, list[_Parked]] = {}
        self._parked_count = 0
        #: The latest reading of each module; None stands for all of them.
        self._readings: dict[str | None, _Reading] = {}
        #: The addresses of all workers that are registered.
        self.addresses: dict[WorkerId, str] = {}

    def asked(self, sender: Connection, message: wire.GetMetadata) -> None:
        """Answer a client at once, or park its request until the group's record is newer."""
        if message.awaited is None:
            self._tell_all(sender, message)
            return
        group = self._worker.groups.get(message.awaited)
        if group is None:
            self._answer(sender, message.request, ())
        elif _epoch(group) > message.above or message.wait_ms <= 0 or self._parked_count >= PARKED_MAX:
            self._answer(sender, message.request, (self._view(group),))
        else:
            self._park(sender, message, group.key)

    # Everything.

    def _tell_all(self, sender: Connection, message: wire.GetMetadata) -> None:
        """Answer with all groups of a module. Raises UsageError for what can be no module's name."""
        if message.module is not None:
            self._worker.metastore.paths.module(message.module)
        loop = self._worker.loop
        if message.module not in self._readings and len(self._readings) >= READINGS_MAX:
            self._readings.clear()
        reading = self._readings.setdefault(message.module, _Reading())
        if reading.is_fresh(loop.now):
            self._tell(sender, message, reading)
            return
        reading.waiting.append((sender, message))
        loop.call_after(READ_MS, self._tell_waiting, reading)
        if len(reading.waiting) > WAITING_MAX:
            del reading.waiting[0]
        self._read(message.module, reading)

    def _read(self, module: str | None, reading: _Reading) -> None:
        loop = self._worker.loop

        def surveyed(groups: list[GroupSeen], is_whole: bool) -> None:
            """Take what was read, on a thread of the metastore."""
            loop.call_soon(self._was_read, module, reading, groups, is_whole)

        if reading.waiting and not reading.is_under_way:
            reading.is_under_way = True
            self._worker.metastore.survey(module, self._worker.groups.keys(), surveyed)

    def _was_read(
        self, module: str | None, reading: _Reading, groups: list[GroupSeen], is_whole: bool
    ) -> None:
        reading.is_under_way = False
        if is_whole:
            reading.views = tuple(_view_of_another(each) for each in groups)
            reading.at = self._worker.loop.now
        self._tell_waiting(reading)
        if reading.waiting:
            self._worker.loop.call_after(AGAIN_MS, self._read, module, reading)

    def _tell_waiting(self, reading: _Reading) -> None:
        """Answer those who wait for a reading, at the latest when a metastore that answers would have done
        so: some news are better than none. But a worker that knows of nothing yet must not say that there is
        nothing."""
        if reading.at is not None or self._worker.groups:
            waiting, reading.waiting = reading.waiting, []
            for sender, message in waiting:
                self._tell(sender, message, reading)

    def _tell(self, sender: Connection, message: wire.GetMetadata, reading: _Reading) -> None:
        own = self._worker.groups
        views = [self._view(group) for key, group in own.items() if message.module in (None, key.module)]
        views += [view for view in reading.views if view.key not in own]
        self._answer(sender, message.request, tuple(views))

    # News of one group.

    def record_changed(self, group: Group) -> None:
        """Answer the parked requests that a group's new record is news for."""
        parked = self._parked.get(group.key)
        if parked:
            epoch = _epoch(group)
            self._wake(group.key, [each for each in parked if each.above < epoch])

    def group_closed(self, key: GroupKey) -> None:
        """Answer the parked requests for a group that is here no more: their clients ask other workers."""
        self._wake(key, list(self._parked.get(key, ())))

    def _park(self, sender: Connection, message: wire.GetMetadata, key: GroupKey) -> None:
        loop = self._worker.loop
        if self._parked_count == 0:
            loop.call_after(SWEEP_MS, self._sweep)
        self._parked_count += 1
        deadline = loop.now + min(message.wait_ms, WAIT_MS_MAX)
        parked = _Parked(sender, message.request, message.above, deadline)
        self._parked.setdefault(key, []).append(parked)

    def _sweep(self) -> None:
        loop = self._worker.loop
        for key, parked in list(self._parked.items()):
            self._wake(key, [each for each in parked if each.deadline <= loop.now])
        if self._parked_count > 0:
            loop.call_after(SWEEP_MS, self._sweep)

    def _wake(self, key: GroupKey, parked: list[_Parked]) -> None:
        group = self._worker.groups.get(key)
        views = (self._view(group),) if group is not None else ()
        for each in parked:
            self._parked[key].remove(each)
            self._parked_count -= 1
            self._answer(each.connection, each.request, views)
        if not self._parked.get(key, True):
            del self._parked[key]

    def _view(self, group: Group) -> wire.GroupView:
        """Describe a group to clients, also one whose record this worker has not read yet: nobody leads it
        then."""
        plan, tasks = group.plan, self._worker.description.tasks
        return _view_of_another(GroupSeen(group.key, plan.tasks, plan.replicas, group.replica.record, tasks))

    def _answer(self, to: Connection, request: int, views: tuple[wire.GroupView, ...]) -> None:
        self._worker.transport.reply(to, wire.Metadata(request, self.addresses, views))


def _epoch(group: Group) -> Epoch:
    record = group.replica.record
    return record.epoch if record is not None else Epoch(0)


def _view_of_another(seen: GroupSeen) -> wire.GroupView:
    record = seen.record
    return wire.GroupView(
        seen.key,
        seen.tasks,
        seen.replicas,
        record.epoch if record else Epoch(0),
        record.leader if record else None,
        tuple(member.worker for member in record.isr) if record else (),
        seen.module_tasks,
    )
