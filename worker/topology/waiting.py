"""Appends that are answered when the topologies of their depot have processed them, with what these returned.

What a topology made of records is known to the leader that ran them, and to nobody else. Where that was
another one, or an earlier life of this one, the answer says that it is lost, and never that it is empty. Who
waits when the leader's epoch ends, or its topologies begin anew, is told to ask again.

What was returned lately is remembered: an appender whose connection broke asks again a moment after it could
have been told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire

Where: TypeAlias = tuple[GroupKey, TaskId, str]
"""A depot on a task of a group."""
Reply: TypeAlias = Callable[[tuple[wire.StreamResult, ...] | None], None]
"""Callback that gets what the topologies made of records; None if only the next leader can say."""


RECENT_BYTES = 256 * 1024
"""The size limit of what is remembered of a topology's results on a task, for appenders that ask again."""
RECENT_RUNS = 100
ROW_BYTES = 150
"""The memory that a result takes beside its own bytes, about."""


class Processed(Protocol):
    """A report that records ``[start, end)`` of a depot are processed, with all that they led to."""

    @property
    def depot(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def results(self) -> tuple[tuple[int, bytes], ...] | None:
        """What functions returned, by offset; None if that is not known."""
        ...

    @property
    def failures(self) -> tuple[tuple[int, str], ...]:
        """How records failed, by offset."""
        ...


class _Run:
    """What came of records, by offset, for any number of appenders."""

    __slots__ = ("end", "failures", "results", "size", "start")

    def __init__(self, processed: Processed) -> None:
        self.start = processed.start
        self.end = processed.end
        self.results = None if processed.results is None else dict(processed.results)
        self.failures = dict(processed.failures)
        told = [*(self.results or {}).values(), *self.failures.values()]
        #: The memory that it takes, about.
        self.size = ROW_BYTES * (1 + len(told)) + sum(map(len, told))


@dataclass(slots=True, eq=False)
class _Waiting:
    start: int | None
    """The first offset; None if it is not known where the records begin, so that no result can be said to be
    theirs."""
    end: int
    left: set[str]
    """Topologies that have not processed all of them."""
    lost: set[str]
    """Topologies whose results, or some of them, are not known."""
    reply: Reply
    results: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    failures: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def take(self, topology: str, run: _Run) -> None:
        """Take what a run of a topology made of these records."""
        start = self.start
        if start is None or run.end <= start or run.start >= self.end:
            return
        if run.results is None:
            self.lost.add(topology)
            return
        results = self.results.setdefault(topology, [])
        failures = self.failures.setdefault(topology, [])
        for offset in range(max(start, run.start), min(self.end, run.end)):
            if (result := run.results.get(offset)) is not None:
                results.append((offset - start, result))
            if (error := run.failures.get(offset)) is not None:
                failures.append((offset - start, error))

    def told(self) -> tuple[wire.StreamResult, ...]:
        """Return the results for the appender."""
        return tuple(
            wire.StreamResult(topology, (), (), is_lost=True)
            if topology in self.lost
            else wire.StreamResult(topology, tuple(self.results[topology]), tuple(self.failures[topology]))
            for topology in sorted(self.lost | self.results.keys())
        )


class _Recent:
    """The latest runs of a topology, one behind the other."""

    __slots__ = ("_size", "runs")

    def __init__(self) -> None:
        self.runs: deque[_Run] = deque()
        self._size = 0

    def add(self, run: _Run) -> None:
        """Add a run, and forget the oldest if there are too many."""
        if run.results is None:
            self.runs.clear()
            self._size = 0
            return
        self.runs.append(run)
        self._size += run.size
        while self.runs and (self._size > RECENT_BYTES or len(self.runs) > RECENT_RUNS):
            self._size -= self.runs.popleft().size


class Waiters:
    """The appenders that wait for topologies. The loop owns them."""

    def __init__(self) -> None:
        self._waiting: dict[Where, list[_Waiting]] = {}
        #: What each topology returned lately, one run behind the other, without a gap up to the latest.
        self._recent: dict[Where, dict[str, _Recent]] = {}
        #: Callbacks for when nobody waits for anything of a group any more.
        self._when_none: dict[GroupKey, list[Callable[[], None]]] = {}

    def add(
        self, where: Where, start: int | None, end: int, processed: Mapping[str, int], reply: Reply
    ) -> None:
        """Reply when all topologies have processed records ``[start, end)``; with None for ``start``, all
        below ``end``. ``processed`` says how far each is; what it processed of them a while ago is lost."""
        left = {topology for topology, at in processed.items() if at < end}
        waiting = _Waiting(start, end, left, set(), reply)
        for topology, at in processed.items():
            known = self._recent.get(where, {}).get(topology)
            recent = known.runs if known is not None else ()
            if start is None or (at > start and not (recent and recent[0].start <= start)):
                waiting.lost.add(topology)
            for each in recent:
                waiting.take(topology, each)
        if left:
            self._waiting.setdefault(where, []).append(waiting)
        else:
            reply(waiting.told())

    def processed(self, group: GroupKey, task: TaskId, topology: str, processed: Processed) -> None:
        """Report that a topology has processed records, and answer the appenders that waited for it last."""
        where = (group, task, processed.depot)
        run = _Run(processed)
        self._recent.setdefault(where, {}).setdefault(topology, _Recent()).add(run)
        waiting = self._waiting.get(where)
        if waiting is None:
            return
        done = []
        for each in waiting:
            if topology in each.left:
                each.take(topology, run)
                if processed.end >= each.end:
                    each.left.discard(topology)
                    if not each.left:
                        done.append(each)
        waiting[:] = [each for each in waiting if each.left]
        if not waiting:
            del self._waiting[where]
        for each in done:
            each.reply(each.told())
        if done:
            self._look_for_none(group)

    def ended(self, group: GroupKey) -> None:
        """Answer all appenders that wait for a group, of which nothing runs here any more: they ask again."""
        for where in [where for where in self._recent if where[0] == group]:
            del self._recent[where]
        for where in [where for where in self._waiting if where[0] == group]:
            for each in self._waiting.pop(where):
                each.reply(None)
        self._look_for_none(group)

    def when_none(self, group: GroupKey, then: Callable[[], None]) -> None:
        """Call ``then`` as soon as nobody waits for anything of a group."""
        self._when_none.setdefault(group, []).append(then)
        self._look_for_none(group)

    def _look_for_none(self, group: GroupKey) -> None:
        if group in self._when_none and not any(where[0] == group for where in self._waiting):
            for then in self._when_none.pop(group):
                then()
