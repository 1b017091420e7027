"""Reading depots: a slice at an offset or a time, or a tail that follows what becomes visible.

The unit on the wire is the stored batch; records are cut out of it here, where they are asked for.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from stretto.client.asking.followers import Followers, Seen
from stretto.client.asking.question import Question
from stretto.errors import OffsetTrimmed, RetriableError, UsageError
from stretto.network.routing import Network
from stretto.state.depot import DepotBatch
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import DepotOffset, RecordBatch
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire

READ_BYTES = 1 << 20
"""About how many bytes of records an answer holds."""
TAIL_WAIT_MS = 1_000
"""How long a worker holds back the answer to a tail while there are no new records."""
POLL_MS = 20
"""Pause before a tail asks again for uncommitted records, which a worker cannot wait for."""


class Record(NamedTuple):
    """One record of a depot, with its task, its offset there, and the time at which it was appended."""

    task: int
    offset: int
    timestamp_ms: int
    data: bytes


class Slice(NamedTuple):
    """Records of one task, and the offset at which to read on."""

    records: list[Record]
    next_offset: int


class Reader:
    """Reads one depot of a module. Each call waits for its answer, over leader moves, until its deadline."""

    def __init__(
        self,
        network: Network,
        module: str,
        depot: str,
        *,
        timeout: float = 30.0,
        max_staleness: float | None = None,
        token: str = "",
    ) -> None:
        """Prepare to read; a client's ``reader`` calls this, and passes on the options.

        With ``max_staleness``, in seconds, followers answer too, with what is at most so old. A reader never
        sees less than it has seen before, nor less than the one whose ``token`` it is given.
        """
        self._network = network
        self._module = module
        self._depot = depot
        self._timeout = timeout
        self._seen = Seen(token)
        self._followers = None if max_staleness is None else Followers(network, max_staleness, self._seen)

    @property
    def token(self) -> str:
        """What this reader has seen so far, as text; another reader that is given it sees as much."""
        return str(self._seen)

    @property
    def tasks(self) -> list[TaskId]:
        """The tasks of the module, all of which hold a part of the depot."""
        return list(self._network.view.tasks.get(self._module, []))

    def read(self, task: int, offset: int, *, max_bytes: int = READ_BYTES, committed: bool = True) -> Slice:
        """Return the visible records of a task from ``offset`` on, as far as they fit; none at the end.

        Raises OffsetTrimmed, which has the depot's first offset now, if it no longer has that offset.
        """
        return self._slice(task, offset, self._reading(task, offset, max_bytes, committed))

    def batches(self, task: int, start: int, end: int) -> Iterator[DepotBatch]:
        """Iterate over the stored batches that hold the visible records ``[start, end)`` of a task.

        The first and the last may hold more. No object is made for a record, and the next answer is on its
        way while this one is used. The leader is asked for what a follower does not have yet. Raises
        OffsetTrimmed as :meth:`read` does, and UsageError if the depot ends before ``end``.
        """
        question = self._reading(task, start, READ_BYTES, committed=True)
        at = start
        while at < end:
            reply, bodies = self._stored(task, at, question)
            if reply.end <= at and self._followers is not None:
                question = self._reading(task, at, READ_BYTES, committed=True, by_leader=True)
                reply, bodies = self._stored(task, at, question)
            if reply.end <= at:
                raise UsageError(
                    f"depot {self._depot} of {self._module} ends at offset {at} on task {task}, before {end}"
                )
            at = reply.end
            if at < end:
                question = self._reading(task, at, READ_BYTES, committed=True)
            for base, timestamp_ms, body in zip(reply.bases, reply.timestamps_ms, bodies, strict=True):
                if base < end:
                    yield DepotBatch(DepotOffset(base), timestamp_ms, bytes(body))

    def _reading(
        self,
        task: int,
        offset: int,
        max_bytes: int,
        committed: bool,
        wait_ms: int = 0,
        *,
        by_leader: bool = False,
        **options: Any,
    ) -> Question:
        if offset < 0:
            raise UsageError(f"{offset} is no offset of a depot; they are from 0 on")
        # What is not committed is known to the leader alone.
        followers = self._followers if committed and not by_leader else None

        def message(number: int, group: GroupKey) -> wire.ToWorker:
            stale = followers.stale(group) if followers is not None else None
            return wire.ReadDepot(
                number, group, TaskId(task), self._depot, offset, max_bytes, committed, wait_ms, stale
            )

        return self._ask(task, message, followers=followers, wait_ms=wait_ms, **options)

    def _stored(
        self, task: int, offset: int, question: Question
    ) -> tuple[wire.DepotBatches, list[memoryview]]:
        reply, bodies = question.wait()
        if not isinstance(reply, wire.DepotBatches):
            raise RetriableError(f"an unexpected answer came: {type(reply).__name__}")
        if reply.start > offset:
            raise OffsetTrimmed(self._depot, task, offset, reply.start)
        return reply, bodies

    def _slice(self, task: int, offset: int, question: Question) -> Slice:
        reply, bodies = self._stored(task, offset, question)
        records = []
        for base, timestamp_ms, body in zip(reply.bases, reply.timestamps_ms, bodies, strict=True):
            batch = RecordBatch.parse(body)
            skip = max(0, offset - base)
            records += [
                Record(task, at, timestamp_ms, data)
                for at, data in enumerate(batch.records()[skip:], base + skip)
            ]
        return Slice(records, reply.end)

    def bounds(self, task: int) -> tuple[int, int]:
        """Return the first offset and the end of the depot on this task."""
        offsets = self._offsets(task, None)
        return offsets.start, offsets.end

    def all_bounds(self) -> dict[int, tuple[int, int]]:
        """Return the bounds of all tasks, which are asked at once."""
        questions = {int(task): self._asking_offsets(task, None) for task in self.tasks}
        return {task: (found.start, found.end) for task, found in _waited(questions)}

    def offset_at(self, task: int, timestamp_ms: int) -> int:
        """Return the first offset appended at or after that time; the end of the depot if there is none."""
        offsets = self._offsets(task, timestamp_ms)
        return offsets.end if offsets.found is None else offsets.found

    def tail(
        self,
        *,
        start: Mapping[int, int] | None = None,
        tasks: Iterable[int] | None = None,
        committed: bool = True,
    ) -> Iterator[Record]:
        """Iterate over every record from ``start`` (per task; from the beginning if not given) on, for ever.

        Raises OffsetTrimmed if the depot's retention has overtaken it.
        """
        at = {task: (start or {}).get(task, 0) for task in tasks or self.tasks}
        answered: queue.SimpleQueue[int] = queue.SimpleQueue()
        questions: dict[int, Question] = {}

        def ask(task: int, delay_ms: int = 0) -> None:
            questions[task] = self._reading(
                task,
                at[task],
                READ_BYTES,
                committed,
                TAIL_WAIT_MS,
                then=lambda _: answered.put(task),
                delay_ms=delay_ms,
            )

        for task in at:
            ask(task)
        while True:
            task = answered.get()
            question = questions[task]
            try:
                records, at[task] = self._slice(task, at[task], question)
            except OffsetTrimmed as trimmed:
                if task in (start or {}) or at[task] > 0:
                    raise
                records, at[task] = [], trimmed.start
            yield from records
            ask(task, 0 if records or question.took_ms > POLL_MS else POLL_MS)

    def read_all(self) -> Iterator[Record]:
        """Iterate over all records visible at the start, except those that are trimmed before being read."""
        for task in self.tasks:
            offset, end = self.bounds(task)
            while offset < end:
                try:
                    records, offset = self.read(task, offset)
                except OffsetTrimmed as trimmed:
                    records, offset = [], trimmed.start
                yield from (record for record in records if record.offset < end)

    # Asking.

    def _offsets(self, task: int, timestamp_ms: int | None) -> wire.DepotOffsets:
        ((_, found),) = _waited({task: self._asking_offsets(task, timestamp_ms)})
        return found

    def _asking_offsets(self, task: int, timestamp_ms: int | None) -> Question:
        followers = self._followers

        def message(number: int, group: GroupKey) -> wire.ToWorker:
            stale = followers.stale(group) if followers is not None else None
            return wire.FindOffset(number, group, TaskId(task), self._depot, timestamp_ms, stale)

        return self._ask(task, message, followers=followers)

    def _ask(
        self,
        task: int,
        message: Callable[[int, GroupKey], wire.ToWorker],
        *,
        then: Callable[[Question], None] | None = None,
        **options: Any,
    ) -> Question:
        if (self._module, task) not in self._network.view.of_task:
            raise UsageError(f"module {self._module} has no task {task}")
        asked: list[GroupKey] = []

        def noting(number: int, group: GroupKey) -> wire.ToWorker:
            asked.append(group)
            return message(number, group)

        def answered(question: Question) -> None:
            reply = question.reply
            if isinstance(reply, wire.DepotBatches | wire.DepotOffsets):
                self._seen.saw(asked[-1], reply.epoch, reply.offset)
            if then is not None:
                then(question)

        return Question(
            self._network, self._module, TaskId(task), noting, self._timeout, then=answered, **options
        ).begin()


def _waited(questions: Mapping[int, Question]) -> Iterator[tuple[int, wire.DepotOffsets]]:
    for task, question in questions.items():
        reply, _ = question.wait()
        if not isinstance(reply, wire.DepotOffsets):
            raise RetriableError(f"an unexpected answer came: {type(reply).__name__}")
        yield task, reply
