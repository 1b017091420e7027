"""Point reads of a PState: those that are asked for at the same time are sent together.

What came in from any thread or coroutine since the client's thread last looked becomes one request for each
group. So a lone read waits for no other, and the more are under way, the less each of them costs.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from stretto.client.asking.followers import Followers, Seen
from stretto.client.asking.question import Question
from stretto.errors import RetriableError, StrettoError
from stretto.network.routing import Network
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire

READ_KEYS = 1_000
"""How many keys a request has at most."""

Value: TypeAlias = bytes | None


class _Asked(ABC):
    """Rows of one task that a caller waits for."""

    __slots__ = ("failure", "keys", "task", "values")

    def __init__(self, task: TaskId, keys: Sequence[bytes]) -> None:
        self.task = task
        self.keys = keys
        #: Values of the first keys, as far as they were answered.
        self.values: tuple[Value, ...] = ()
        self.failure: StrettoError | None = None

    @abstractmethod
    def settle(self) -> None:
        """Release the caller, whose values or failure are set. Runs on the client's thread."""


class _Latch:
    """Lets a waiting thread go once a given number of reads is settled.

    A lock costs a fraction of an Event.
    """

    __slots__ = ("_left", "_lock")

    def __init__(self, left: int) -> None:
        self._left = left
        self._lock = threading.Lock()
        self._lock.acquire()

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._lock.release()

    def wait(self) -> None:
        self._lock.acquire()


class _AskedByThread(_Asked):
    """Rows that a thread waits for on a latch."""

    __slots__ = ("_latch",)

    def __init__(self, task: TaskId, keys: Sequence[bytes], latch: _Latch) -> None:
        super().__init__(task, keys)
        self._latch = latch

    def settle(self) -> None:
        self._latch.count()

    def found(self) -> tuple[Value, ...]:
        if self.failure is not None:
            raise self.failure
        return self.values


class _AskedByCoroutine(_Asked):
    """A row that a coroutine waits for; there may be very many at once, so it has no closures."""

    __slots__ = ("_reads", "future")

    def __init__(self, task: TaskId, key: bytes, reads: PointReads, future: asyncio.Future[Value]) -> None:
        # As the base class does: to call that takes longer.
        self.task = task
        self.keys = (key,)
        self.values = ()
        self.failure = None
        self._reads = reads
        self.future = future

    def settle(self) -> None:
        self._reads.settle_later(self)


class PointReads:
    """The point reads of one PState, sent together where they coincide."""

    def __init__(
        self,
        network: Network,
        module: str,
        pstate: str,
        timeout: float,
        *,
        seen: Seen,
        followers: Followers | None = None,
    ) -> None:
        self._network = network
        self._module = module
        self._pstate = pstate
        self._timeout = timeout
        self._seen = seen
        self._followers = followers
        self._asked: deque[_Asked] = deque()
        #: Whether a call of :meth:`_send` on the client's thread is pending.
        self._called = False
        #: Reads of coroutines that were answered in this turn of the loop, by their event loop.
        self._settled: dict[asyncio.AbstractEventLoop, list[_AskedByCoroutine]] = {}

    # Called on any thread.

    def get(self, task: TaskId, key: bytes) -> Value:
        """Read one row of a task, and wait for its value; None if there is none."""
        group = self._network.view.of_task.get((self._module, task))
        values = None if group is None else self._straight(group, (task,), (key,))
        if values is not None:
            return values[0]
        latch = _Latch(1)
        asked = _AskedByThread(task, (key,), latch)
        self._ask((asked,))
        latch.wait()
        return asked.found()[0]

    def get_many(self, keys: Mapping[TaskId, Sequence[bytes]]) -> dict[TaskId, tuple[Value, ...]]:
        """Read rows of several tasks, and wait for all values; every group is asked at once."""
        of_task = self._network.view.of_task
        groups = {of_task.get((self._module, task)) for task in keys}
        group = groups.pop() if len(groups) == 1 else None
        if group is not None:
            tasks: list[TaskId] = []
            rows: list[bytes] = []
            for task, wanted in keys.items():
                tasks += [task] * len(wanted)
                rows += wanted
            values = self._straight(group, tuple(tasks), tuple(rows))
            if values is not None:
                left_values = iter(values)
                return {task: tuple(islice(left_values, len(wanted))) for task, wanted in keys.items()}
        latch = _Latch(len(keys))
        its = [_AskedByThread(task, wanted, latch) for task, wanted in keys.items()]
        if its:
            self._ask(its)
            latch.wait()
        return {asked.task: asked.found() for asked in its}

    def begin(self, task: TaskId, key: bytes) -> asyncio.Future[Value]:
        """Begin to read one row of a task; a coroutine awaits the future that this returns."""
        future: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        self._ask((_AskedByCoroutine(task, key, self, future),))
        return future

    def _ask(self, its: Sequence[_Asked]) -> None:
        for asked in its:
            if (self._module, asked.task) not in self._network.view.of_task:
                raise self._not_found(asked)
        self._asked.extend(its)
        if not self._called:
            self._called = True
            self._network.call(self._send)

    def _not_found(self, asked: _Asked) -> StrettoError:
        return RetriableError(f"task {asked.task} of {self._module} cannot be found now; try again")

    def _straight(
        self, group: GroupKey, tasks: tuple[TaskId, ...], keys: tuple[bytes, ...]
    ) -> Sequence[Value] | None:
        """Read on the caller's own thread if one answer of the leader holds all rows; None otherwise."""
        if self._followers is not None or not 0 < len(keys) <= READ_KEYS:
            return None
        message = wire.ReadRows(self._network.next_request(), group, self._pstate, tasks, keys)
        reply = self._network.direct.ask(group, message)
        if not isinstance(reply, wire.RowValues) or len(reply.values) < len(keys):
            return None
        self._seen.saw(group, reply.epoch, reply.offset)
        return reply.values

    # Called on the client's thread.

    def _send(self) -> None:
        self._called = False
        of_task: dict[TaskId, list[_Asked]] = {}
        while self._asked:
            asked = self._asked.popleft()
            its = of_task.get(asked.task)
            if its is None:
                of_task[asked.task] = [asked]
            else:
                its.append(asked)
        gathered: dict[GroupKey, list[_Asked]] = {}
        # Task by task: a worker looks up consecutive keys of one task at once.
        for task, its in sorted(of_task.items()):
            group = self._network.view.of_task.get((self._module, task))
            if group is not None:
                gathered.setdefault(group, []).extend(its)
                continue
            for asked in its:
                asked.failure = self._not_found(asked)
                asked.settle()
        for group, its in gathered.items():
            for chunk in _chunks(its):
                self._send_to(group, chunk)

    def _send_to(self, group: GroupKey, its: Sequence[_Asked]) -> None:
        """Send a request with as many keys as it holds; the rest follows when they are answered."""
        wanted: list[bytes] = []
        of: list[TaskId] = []
        for asked in its:
            lacked = asked.keys[len(asked.values) :] if asked.values else asked.keys
            wanted += lacked
            of += [asked.task] * len(lacked)
        tasks, keys = tuple(of[:READ_KEYS]), tuple(wanted[:READ_KEYS])
        stale = self._followers.stale(group) if self._followers is not None else None

        def message(number: int, at: GroupKey) -> wire.ToWorker | None:
            return wire.ReadRows(number, group, self._pstate, tasks, keys, stale) if at == group else None

        def then(question: Question) -> None:
            if not question.has_moved:
                self._take(group, its, question)
            for asked in its:
                if asked.failure is None and len(asked.values) < len(asked.keys):
                    self._asked.append(asked)
                else:
                    asked.settle()
            if self._asked:
                self._send()

        Question(
            self._network,
            self._module,
            tasks[0],
            message,
            self._timeout,
            then=then,
            followers=self._followers,
        ).send()

    def _take(self, group: GroupKey, its: Sequence[_Asked], question: Question) -> None:
        try:
            reply, _ = question.answer()
            if not isinstance(reply, wire.RowValues) or not reply.values:
                raise RetriableError(f"an unexpected answer came: {type(reply).__name__}")
        except StrettoError as error:
            for asked in its:
                asked.failure = error
            return
        self._seen.saw(group, reply.epoch, reply.offset)
        at = 0
        for asked in its:
            lacks = len(asked.keys) - len(asked.values)
            asked.values += reply.values[at : at + lacks]
            at += lacks

    def settle_later(self, asked: _AskedByCoroutine) -> None:
        """Settle the read of a coroutine at the end of this turn, together with others of its event loop."""
        if not self._settled:
            self._network.loop.at_turn_end(self._tell)
        self._settled.setdefault(asked.future.get_loop(), []).append(asked)

    def _tell(self) -> None:
        settled, self._settled = self._settled, {}
        for loop, answers in settled.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_set_results, answers)


def _chunks(its: list[_Asked]) -> Iterator[list[_Asked]]:
    """Cut reads into lists, each of which fills a request."""
    chunk: list[_Asked] = []
    keys = 0
    for asked in its:
        chunk.append(asked)
        keys += len(asked.keys) - len(asked.values)
        if keys >= READ_KEYS:
            yield chunk
            chunk, keys = [], 0
    if chunk:
        yield chunk


def _set_results(answers: Sequence[_AskedByCoroutine]) -> None:
    for asked in answers:
        if asked.future.done():
            continue
        if asked.failure is not None:
            asked.future.set_exception(asked.failure)
        else:
            asked.future.set_result(asked.values[0])
