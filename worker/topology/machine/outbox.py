"""The outbox of a stream on a task: hops that are not known to be done.

A hop is a row from the entry that made it until an entry behind its answer, so whoever leads next sends it
again, under the same number. Numbers ascend over all hops of the stream on its task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stretto.vocabulary.types import TaskId
from stretto.worker.topology.machine.effects import Hop
from stretto.worker.topology.machine.stored import Origin, Outgoing


class Outbox:
    """The hops of a stream that are not known to be done."""

    def __init__(self, rows: Mapping[int, Outgoing], latest: int) -> None:
        #: The number of the hop that was made last.
        self.latest = latest
        #: Rows that the applied state may still have, by number.
        self._rows: dict[int, Outgoing] = {}
        #: The numbers of the rows by task, ascending.
        self._to: dict[TaskId, dict[int, None]] = {}
        self.accepted(dict(sorted(rows.items())))

    def __bool__(self) -> bool:
        return bool(self._rows)

    def made(self, origin: Origin, hops: Iterable[tuple[TaskId, bytes]]) -> dict[int, Outgoing]:
        """Return rows for hops of one run, each to another task; they count when their entry is accepted."""
        return {
            number: Outgoing(task, origin, calls)
            for number, (task, calls) in enumerate(hops, self.latest + 1)
        }

    def accepted(self, rows: Mapping[int, Outgoing]) -> None:
        """Add rows whose entry is in the log."""
        for number, row in rows.items():
            self.latest = max(self.latest, number)
            self._rows[number] = row
            self._to.setdefault(row.task, {})[number] = None

    def cleared(self, numbers: Iterable[int]) -> None:
        """Remove rows that are gone from the applied state."""
        for number in numbers:
            row = self._rows.pop(number, None)
            if row is not None:
                del self._to[row.task][number]

    def hop(self, number: int) -> Hop:
        """Return a hop as it is to be sent."""
        row = self._rows[number]
        settled = next(iter(self._to[row.task]))
        return Hop(number, row.task, settled, row.calls)
