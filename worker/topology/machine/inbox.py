"""The inbox of a stream on a task: which hops of other tasks have run here, and how they failed.

Of each sender, the number of its latest hop that has run is a row, which changes in the entry of what the hop
did. A hop that one entry does not hold runs in parts; then the row tells how many of its calls have run. How
calls failed is a row until the sender says that it will not ask again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from stretto.vocabulary.types import Epoch, TaskId
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.topology.machine.effects import Entry
from stretto.worker.topology.machine.guards import Guards
from stretto.worker.topology.machine.stored import HopKey, Incoming

NOTES_BYTES_MAX = 256 * 1024
"""The size limit of the errors and tracebacks that an entry stores."""
BRIEF = "it failed"
ASKED_MAX = 4
"""How many tickets of one hop are remembered; earlier callers are gone."""
_NOTHING = (0, Epoch(0))


@dataclass(slots=True, eq=False)
class Arrived:
    """A hop of another task that is not done."""

    key: HopKey
    waiting: list[int] = field(default_factory=list)
    """Tickets of the callers that wait for it."""
    parts: int = 0
    """How many batches of it are not applied, or have hops that are not answered."""
    is_whole: bool = False
    """Whether all of it is here; of one that has run in part before this epoch, the rest is sent again."""
    failures: list[FailureNote] = field(default_factory=list)

    def ask(self, ticket: int) -> None:
        """Add a caller, and forget the earliest if there are too many."""
        self.waiting = [*self.waiting[1 - ASKED_MAX :], ticket]


class Inbox:
    """The hops of other tasks that have run here, or are about to."""

    def __init__(
        self,
        rows: Mapping[TaskId, Incoming],
        failed: Mapping[HopKey, tuple[FailureNote, ...]],
        guards: Guards,
    ) -> None:
        self._guards = guards
        #: The number of the latest hop from each task that was taken, run or not.
        self._latest = {
            source: row.number if row.calls is None else row.number - 1 for source, row in rows.items()
        }
        #: How many calls have run, of hops of which not all have.
        self._begun = {
            (source, row.number): row.calls for source, row in rows.items() if row.calls is not None
        }
        self._failed = dict(failed)
        #: The number below which the hops of a task are settled, and the epoch in which its leader said so.
        self._settled = {source: (row.settled, row.settled_in) for source, row in rows.items()}
        #: How far the hops of each task have run, as the log has it.
        self._logged = dict(rows)
        self.open: dict[HopKey, Arrived] = {}

    def __bool__(self) -> bool:
        return bool(self.open)

    def may_ask(self, key: HopKey, epoch: Epoch) -> bool:
        """Whether the leader of this epoch may ask for a hop."""
        settled, settled_in = self._settled.get(key[0], _NOTHING)
        return self._guards.may_ask(key[1], settled, epoch, settled_in)

    def has_run(self, key: HopKey) -> bool:
        """Whether a hop has been taken, and is not run again."""
        return self._guards.has_run(key[1], self._latest.get(key[0], 0))

    def may_take(self, key: HopKey, after: int) -> bool:
        """Whether a hop may be taken after the one that its sender made before it."""
        return self._guards.may_follow(after, self._latest.get(key[0], 0))

    def take(self, key: HopKey, ticket: int) -> tuple[Arrived, int]:
        """Take a hop; return it, and how many of its calls have run already."""
        self._latest[key[0]] = key[1]
        arrived = self.reopen(key)
        arrived.is_whole = True
        arrived.ask(ticket)
        return arrived, self._begun.pop(key, 0)

    def reopen(self, key: HopKey) -> Arrived:
        """Return a hop of which something is not done, as it was or anew."""
        arrived = self.open.get(key)
        if arrived is None:
            arrived = self.open[key] = Arrived(key, failures=list(self._failed.get(key, ())))
            arrived.is_whole = key not in self._begun
        return arrived

    def failures_of(self, key: HopKey) -> tuple[FailureNote, ...]:
        """Return how the calls of a hop failed."""
        return self._failed.get(key, ())

    def ran(self, key: HopKey, calls: int | None) -> Incoming:
        """Return the row of a hop of which all calls have run, or so many."""
        return Incoming(key[1], calls, *self._settled.get(key[0], _NOTHING))

    def with_settled(self, source: TaskId) -> Incoming:
        """Return the row of a sender with the number below which its hops are settled."""
        logged = self._logged.get(source, Incoming(0))
        settled, settled_in = self._settled[source]
        return msgspec.structs.replace(logged, settled=settled, settled_in=settled_in)

    def accepted(self, entry: Entry) -> None:
        """Take over what an entry says of hops: it is in the log."""
        self._logged |= entry.run
        self.remember(entry.failed)

    def remember(self, failed: Mapping[HopKey, tuple[FailureNote, ...]]) -> None:
        """Remember how calls failed, for senders that ask again."""
        self._failed |= failed

    def forget(self, source: TaskId, below: int, epoch: Epoch) -> list[HopKey]:
        """Forget the failures that a sender does not ask for any more, as its leader of that epoch says;
        return their hops."""
        self._settled[source] = max((below, epoch), self._settled.get(source, _NOTHING))
        if not self._failed:
            return []
        gone = [key for key in self._failed if key[0] == source and key[1] < below and key not in self.open]
        for key in gone:
            del self._failed[key]
        return gone


def bounded(notes: Iterable[FailureNote], hops: int = 0) -> tuple[FailureNote, ...]:
    """Return notes as they are stored: the first ones whole, then without tracebacks, then without words; the
    shorter, the more ``hops`` there are beside them in an entry."""
    kept: list[FailureNote] = []
    left = NOTES_BYTES_MAX // (1 + hops)
    for note in notes:
        whole, error = 4 * (len(note.error) + len(note.traceback)), 4 * len(note.error)
        if whole <= left // 2:
            kept.append(msgspec.structs.replace(note, beginning=b""))
            left -= whole
        elif error <= left:
            kept.append(FailureNote(note.index, note.error))
            left -= error
        else:
            kept.append(FailureNote(note.index, BRIEF))
    return tuple(kept)
