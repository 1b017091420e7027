"""Reads that wait at the end of a depot until it grows, or their time is over.

A parked read costs no thread and no timer of its own. When it wakes it is made anew, from the beginning: so
what it answers, records or none, was looked at under the lease like any other read. It also wakes when its
group may be led by another, and is refused then. Only what is applied wakes a read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stretto.network.loop import Loop
from stretto.network.transport import Connection
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire

PARKED_MAX = 10_000
WAIT_MS_MAX = 10_000
SWEEP_MS = 100


@dataclass(slots=True, eq=False)
class ParkedRead:
    """A read that waits at the end of a depot."""

    connection: Connection
    message: wire.ReadDepot
    deadline: int


class ParkedReads:
    """The parked reads of a worker. The loop owns them."""

    def __init__(self, loop: Loop, read: Callable[[ParkedRead], None]) -> None:
        self._loop = loop
        self._read = read
        self._parked: dict[GroupKey, dict[TaskId, list[ParkedRead]]] = {}
        self._count = 0

    def park(self, parked: ParkedRead) -> bool:
        """Park a read; False if there is no room, and it must be answered as it is."""
        if self._count >= PARKED_MAX:
            return False
        if self._count == 0:
            self._loop.call_after(SWEEP_MS, self._sweep)
        self._count += 1
        tasks = self._parked.setdefault(parked.message.group, {})
        tasks.setdefault(parked.message.task, []).append(parked)
        return True

    def holds(self, group: GroupKey) -> bool:
        """Whether a read waits for the group."""
        return bool(self._parked.get(group))

    def grown(self, group: GroupKey, tasks: Iterable[TaskId]) -> None:
        """Wake the reads that wait for these tasks, which have grown."""
        parked = self._parked.get(group)
        if parked:
            for task in tasks:
                self._wake(parked.pop(task, []))

    def group_changed(self, group: GroupKey) -> None:
        """Wake all reads of a group, which may be led by another worker now."""
        for parked in self._parked.pop(group, {}).values():
            self._wake(parked)

    def _sweep(self) -> None:
        now = self._loop.now
        for tasks in list(self._parked.values()):
            for task, parked in list(tasks.items()):
                late = [each for each in parked if each.deadline <= now]
                if late:
                    tasks[task] = [each for each in parked if each.deadline > now]
                    self._wake(late)
        if self._count > 0:
            self._loop.call_after(SWEEP_MS, self._sweep)

    def _wake(self, parked: list[ParkedRead]) -> None:
        self._count -= len(parked)
        for each in parked:
            self._read(each)
