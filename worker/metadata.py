"""Who leads what, told to clients.

A client that cannot reach a group's leader asks to be told of the next one: its request is parked until the
group's record says something newer, or its time is over. There is no thread and no timer for each: parked
requests are looked at when a record changes, and by one sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto import wire
from stretto.types import Epoch, WorkerId
from stretto.zk.paths import GroupKey

if TYPE_CHECKING:
    from stretto.worker.group import Group
    from stretto.worker.process import Worker
    from stretto.worker.transport import Connection

WAIT_MS_MAX = 5_000
PARKED_MAX = 10_000
SWEEP_MS = 100


@dataclass(slots=True, frozen=True)
class _Parked:
    connection: Connection
    request: int
    above: Epoch
    deadline: int


class MetadataDesk:
    """Owned by the loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._parked: dict[GroupKey, list[_Parked]] = {}
        self._parked_count = 0
        #: Of all workers that are registered.
        self.addresses: dict[WorkerId, str] = {}

    def asked(self, sender: Connection, message: wire.GetMetadata) -> None:
        if message.awaited is None:
            views = tuple(_view(group) for group in self._worker.groups.values())
            self._answer(sender, message.request, views)
            return
        group = self._worker.groups.get(message.awaited)
        if group is None:
            self._answer(sender, message.request, ())
        elif _epoch(group) > message.above or message.wait_ms <= 0 or self._parked_count >= PARKED_MAX:
            self._answer(sender, message.request, (_view(group),))
        else:
            self._park(sender, message, group.key)

    def record_changed(self, group: Group) -> None:
        parked = self._parked.get(group.key)
        if parked:
            epoch = _epoch(group)
            self._wake(group.key, [each for each in parked if each.above < epoch])

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
        views = (_view(group),) if group is not None else ()
        for each in parked:
            self._parked[key].remove(each)
            self._parked_count -= 1
            self._answer(each.connection, each.request, views)
        if not self._parked[key]:
            del self._parked[key]

    def _answer(self, to: Connection, request: int, views: tuple[wire.GroupView, ...]) -> None:
        self._worker.transport.reply(to, wire.Metadata(request, self.addresses, views))


def _epoch(group: Group) -> Epoch:
    record = group.replica.record
    return record.epoch if record is not None else Epoch(0)


def _view(group: Group) -> wire.GroupView:
    """Also of a group whose record this worker has not read yet: nobody leads it then."""
    record = group.replica.record
    return wire.GroupView(
        group.key,
        group.plan.tasks,
        group.plan.replicas,
        record.epoch if record else Epoch(0),
        record.leader if record else None,
        tuple(member.worker for member in record.isr) if record else (),
    )
