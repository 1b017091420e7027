"""Point reads of a PState: those that are asked for at the same time travel together.

What came in from any thread or coroutine since the client's thread last looked becomes one request for each
group. So a lone read waits for nobody, and the more are under way, the less each of them costs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from stretto import wire
from stretto.client.followers import Followers, Seen
from stretto.client.network import Network
from stretto.client.reader import Question
from stretto.errors import RetriableError, StrettoError
from stretto.types import TaskId
from stretto.zk.paths import GroupKey

READ_KEYS = 1_000

Value: TypeAlias = bytes | None


class _Asked:
    """Rows of one task that somebody waits for."""

    __slots__ = ("failure", "keys", "settle", "task", "values")

    def __init__(self, task: TaskId, keys: Sequence[bytes], settle: Callable[[_Asked], None]) -> None:
        self.task = task
        self.keys = keys
        #: Of the first so many.
        self.values: list[Value] = []
        self.failure: StrettoError | None = None
        self.settle = settle

    def found(self) -> list[Value]:
        if self.failure is not None:
            raise self.failure
        return self.values


class PointReads:
    """Of one PState."""

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
        #: The client's thread has been called, and has not come yet.
        self._called = False
        #: Answered in this turn, and waited for by coroutines.
        self._settled: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Value], _Asked]]] = {}

    # From any thread.

    def get(self, task: TaskId, key: bytes) -> Value:
        """Waits for it."""
        values = self._straight((task,), (key,))
        if values is not None:
            return values[0]
        # A lock costs a fraction of an Event.
        unanswered = threading.Lock()
        unanswered.acquire()
        asked = _Asked(task, (key,), lambda _: unanswered.release())
        self._ask([asked])
        unanswered.acquire()
        return asked.found()[0]

    def get_many(self, keys: Mapping[TaskId, Sequence[bytes]]) -> dict[TaskId, list[Value]]:
        """Waits for all; every group is asked at once."""
        values = self._straight(
            tuple(task for task, wanted in keys.items() for _ in wanted),
            tuple(key for wanted in keys.values() for key in wanted),
        )
        if values is not None:
            left_values = iter(values)
            return {task: list(islice(left_values, len(wanted))) for task, wanted in keys.items()}
        left = len(keys)
        unanswered = threading.Lock()
        unanswered.acquire()

        def settle(_: _Asked) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                unanswered.release()

        its = [_Asked(task, wanted, settle) for task, wanted in keys.items()]
        if its:
            self._ask(its)
            unanswered.acquire()
        return {asked.task: asked.found() for asked in its}

    def begin(self, task: TaskId, key: bytes) -> asyncio.Future[Value]:
        """For a coroutine."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Value] = loop.create_future()
        self._ask([_Asked(task, (key,), lambda asked: self._settle_later(loop, future, asked))])
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

    def _straight(self, tasks: tuple[TaskId, ...], keys: tuple[bytes, ...]) -> Sequence[Value] | None:
        """By the caller's own hands, if one answer of one leader holds them all; None otherwise."""
        if self._followers is not None or not 0 < len(keys) <= READ_KEYS:
            return None
        of_task = self._network.view.of_task
        groups = {of_task.get((self._module, task)) for task in set(tasks)}
        group = groups.pop()
        if groups or group is None:
            return None
        message = wire.ReadRows(self._network.next_request(), group, self._pstate, tasks, keys)
        reply = self._network.lane.ask(group, message)
        if not isinstance(reply, wire.RowValues) or len(reply.values) < len(keys):
            return None
        self._seen.saw(group, reply.epoch, reply.offset)
        return reply.values

    # On the client's thread.

    def _send(self) -> None:
        self._called = False
        gathered: dict[GroupKey, list[_Asked]] = {}
        keys: dict[GroupKey, int] = {}
        while self._asked:
            asked = self._asked.popleft()
            group = self._network.view.of_task.get((self._module, asked.task))
            if group is None:
                asked.failure = self._not_found(asked)
                self._settles(asked)
                continue
            keys[group] = keys.get(group, 0) + len(asked.keys) - len(asked.values)
            gathered.setdefault(group, []).append(asked)
            if keys[group] >= READ_KEYS:
                self._send_to(group, gathered.pop(group))
                keys[group] = 0
        for group, its in gathered.items():
            self._send_to(group, its)

    def _send_to(self, group: GroupKey, its: Sequence[_Asked]) -> None:
        """As many as a request holds; the rest follows when they are answered. Task by task: what a worker is
        asked for of one in a row, it looks up at once."""
        its = sorted(its, key=lambda asked: asked.task)
        rows = [(asked.task, key) for asked in its for key in asked.keys[len(asked.values) :]][:READ_KEYS]
        tasks, keys = tuple(task for task, _ in rows), tuple(key for _, key in rows)

        stale = self._followers.stale(group) if self._followers is not None else None

        def message(number: int, at: GroupKey) -> wire.ToWorker | None:
            return wire.ReadRows(number, group, self._pstate, tasks, keys, stale) if at == group else None

        def then(question: Question) -> None:
            if not question.has_moved:
                self._take(group, its, question)
            self._asked.extend(asked for asked in its if not self._settles(asked))
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

    def _settles(self, asked: _Asked) -> bool:
        if asked.failure is None and len(asked.values) < len(asked.keys):
            return False
        asked.settle(asked)
        return True

    def _settle_later(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Value], asked: _Asked
    ) -> None:
        """All that were answered in one turn are told at once."""
        if not self._settled:
            self._network.loop.at_turn_end(self._tell)
        self._settled.setdefault(loop, []).append((future, asked))

    def _tell(self) -> None:
        settled, self._settled = self._settled, {}
        for loop, answers in settled.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_set_results, answers)


def _set_results(answers: Sequence[tuple[asyncio.Future[Value], _Asked]]) -> None:
    for future, asked in answers:
        if future.done():
            continue
        if asked.failure is not None:
            future.set_exception(asked.failure)
        else:
            future.set_result(asked.values[0])
