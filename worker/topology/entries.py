"""Entries that the worker itself appends, to groups it leads.

An append is refused at once or not at all: an entry that is in the log of a leader is applied sooner or
later, or the leader's epoch ends, and then whoever waits has no more say. So nothing here times out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.replog.core import effects, events
from stretto.replog.core.producers import NO_PRODUCER
from stretto.replog.frame import Kind
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Buffer, Epoch, Offset, TaskId
from stretto.worker.replica.tickets import Ticket, Tickets

if TYPE_CHECKING:
    from stretto.worker.replica.group import Group
    from stretto.worker.replica.meter import Meter


@dataclass(slots=True, eq=False)
class _Asked(Ticket):
    """The ticket of an entry. What becomes of one that was not refused is found by
    :meth:`Entries.applied`."""

    meter: Meter
    kind: Kind
    """The kind of entry that a failure is counted under."""
    is_refused: bool = False

    def on_reply(self, result: effects.Result) -> None:
        self.meter.answered(self.kind, result)
        self.is_refused = isinstance(result, effects.Refused)


class Entries:
    """The entries that a worker itself appends. The loop owns them."""

    def __init__(self, tickets: Tickets) -> None:
        self._tickets = tickets
        #: Entries that are in the log and not applied.
        self._waiting: dict[GroupKey, deque[tuple[Offset, Epoch, Callable[[], None]]]] = {}

    def append(
        self,
        group: Group,
        task: TaskId,
        payload: Buffer,
        then: Callable[[], None],
        *,
        kind: Kind = Kind.STATE,
    ) -> bool:
        """Append an entry; False if it is refused, and has no effect. Else ``then`` is called once it is
        applied, unless the epoch ends before. Not to be called while the group carries out its effects."""
        leader = group.leader
        if leader is None or group.closed:
            return False
        asked = _Asked(group.meter, kind)
        group.step(
            events.Append(
                request=self._tickets.take(asked),
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
        if asked.is_refused:
            return False
        waiting = self._waiting.setdefault(group.key, deque())
        waiting.append((group.replica.log_end, leader.epoch, then))
        return True

    def applied(self, group: Group, end: Offset) -> None:
        """Call back for the entries below ``end``, which are applied."""
        waiting = self._waiting.get(group.key)
        epoch = group.leader.epoch if group.leader is not None else None
        while waiting and (waiting[0][0] <= end or waiting[0][1] != epoch):
            _, of, then = waiting.popleft()
            if of == epoch:
                then()
