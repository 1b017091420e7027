"""Queries: a module's functions that read, run by executors of leaders and answered under their leases.

A query with a key runs on one task. Any other is asked of one worker, which asks the leaders of all tasks for
their parts and has its own executor combine them. A part is a read like any other: its function runs between
the core's Read and Sampled, on the task's file as of one moment, and what it found is told only if the lease
still holds then. Parts are asked for again when leaders move, until the time of the query is over; then
nobody waits for them, and what they bring is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from stretto import wire
from stretto.client.network import patience_ms
from stretto.nearest import did_you_mean
from stretto.replog.core import effects
from stretto.replog.core.effects import Refusal
from stretto.types import Epoch, TaskId
from stretto.worker.executors import protocol
from stretto.worker.executors.pool import Lost, Reply, Why

if TYPE_CHECKING:
    from stretto.worker.group import Group
    from stretto.worker.process import Worker
    from stretto.worker.transport import Connection

GIVEN_BYTES_MAX = 1024 * 1024
PARTS_BYTES_MAX = 64 * 1024 * 1024
"""Of all tasks together."""
TIMEOUT_MS_MAX = 600_000
FANS_MAX = 1_000

_Answered: TypeAlias = tuple[wire.ToClient, Sequence[bytes]]


@dataclass(slots=True, eq=False)
class _Fan:
    """A query on all tasks: who asked, and what came back so far."""

    sender: Connection
    message: wire.RunQuery
    given: bytes
    deadline: int
    parts: list[bytes | None]
    is_over: bool = False


class QueryDesk:
    """Owned by the loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._fans: set[_Fan] = set()

    def received(self, sender: Connection, message: wire.RunQuery, bodies: list[memoryview]) -> None:
        given = bytes(bodies[0]) if bodies else b""
        why = self._wrong(message, given)
        if why is not None:
            self._worker.transport.reply(sender, wire.Failed(message.request, why, wire.Fault.USAGE))
        elif message.task is None:
            self._begin(sender, message, given)
        else:
            self._run(sender, message, message.task, given)

    def _wrong(self, message: wire.RunQuery, given: bytes) -> str | None:
        known = {query.name for query in self._worker.description.queries}
        if message.query not in known:
            module = self._worker.config.module
            return f"module {module} has no query {message.query}; {did_you_mean(message.query, known)}"
        if len(given) > GIVEN_BYTES_MAX:
            return f"arguments of {len(given)} bytes are beyond the limit of {GIVEN_BYTES_MAX}; give less"
        return None

    def _refuse(self, sender: Connection, request: int, reason: Refusal) -> None:
        self._worker.transport.reply(sender, wire.Refused(request, reason, None, Epoch(0)))

    # On one task.

    def _run(self, sender: Connection, message: wire.RunQuery, task: TaskId, given: bytes) -> None:
        group = self._worker.groups.get(message.group)
        if group is None or task not in group.plan.tasks:
            self._refuse(sender, message.request, Refusal.NOT_LEADER)
            return
        answered: list[_Answered] = []

        def look(then: Callable[[], None]) -> None:
            def ran(reply: Reply, bodies: list[bytes]) -> None:
                answered.append(_answer(message.request, reply, bodies, f"on task {task}"))
                then()

            self._execute(group, message, task, given, ran)

        def replied(result: effects.Result) -> None:
            if isinstance(result, effects.Refused):
                refused = wire.Refused(message.request, result.reason, result.leader, result.epoch)
                self._worker.transport.reply(sender, refused)
            elif answered:
                reply, bodies = answered[0]
                self._worker.transport.reply(sender, reply, bodies)

        self._worker.clients.reads.elsewhere(group, look, replied)

    def _execute(
        self,
        group: Group,
        message: wire.RunQuery,
        task: TaskId,
        given: bytes,
        then: Callable[[Reply, list[bytes]], None],
    ) -> None:
        epoch = group.leader.epoch if group.leader is not None else Epoch(0)
        file = str(group.state.folder(task).absolute())
        request = protocol.RunQuery(0, message.query, task, epoch, file)
        timeout_ms = min(self._worker.option("executor.timeout.millis"), max(1, message.timeout_ms))
        self._worker.executors.run(group.key, request, then, bodies=(given,), timeout_ms=timeout_ms)

    # On all of them.

    def _begin(self, sender: Connection, message: wire.RunQuery, given: bytes) -> None:
        if len(self._fans) >= FANS_MAX:
            self._refuse(sender, message.request, Refusal.OVERLOADED)
            return
        tasks = self._worker.description.tasks
        timeout_ms = min(max(1, message.timeout_ms), TIMEOUT_MS_MAX)
        fan = _Fan(sender, message, given, self._worker.loop.now + timeout_ms, [None] * tasks)
        self._fans.add(fan)
        self._worker.loop.call_at(fan.deadline, self._end, fan)
        for task in range(tasks):
            self._ask(fan, TaskId(task))

    def _ask(self, fan: _Fan, task: TaskId, attempt: int = 0) -> None:
        if fan.is_over:
            return
        network = self._worker.streams.hops.network
        group = network.view.of_task.get((self._worker.config.module, task))
        if group is None:
            network.refresh(
                lambda: self._worker.loop.call_after(patience_ms(attempt), self._ask, fan, task, attempt + 1)
            )
            return
        epoch = network.view.epoch(group)
        left_ms = max(1, fan.deadline - self._worker.loop.now)

        def again() -> None:
            network.when_led_anew(
                group,
                lambda: self._ask(fan, task, attempt + 1),
                above=epoch,
                within_ms=patience_ms(attempt),
            )

        def heard(reply: wire.ToClient | None, bodies: list[memoryview]) -> None:
            match reply:
                case wire.QueryAnswered():
                    self._take(fan, task, bytes(bodies[0]))
                case wire.QueryFailed() | wire.Failed():
                    self._answer(fan, msgspec.structs.replace(reply, request=fan.message.request))
                case _:
                    again()

        number = network.next_request()
        message = wire.RunQuery(number, group, fan.message.query, task, left_ms)
        if not network.to_leader(group, number, message, (fan.given,), heard, timeout_ms=left_ms):
            again()

    def _take(self, fan: _Fan, task: TaskId, part: bytes) -> None:
        if fan.is_over:
            return
        fan.parts[task] = part
        parts = [each for each in fan.parts if each is not None]
        size = sum(map(len, parts))
        if size > PARTS_BYTES_MAX:
            error = f"its parts are more than {PARTS_BYTES_MAX} bytes together; let each return less"
            self._answer(fan, wire.QueryFailed(fan.message.request, error))
        elif len(parts) == len(fan.parts):
            self._combine(fan, parts)

    def _combine(self, fan: _Fan, parts: list[bytes]) -> None:
        def then(reply: Reply, bodies: list[bytes]) -> None:
            answer, beside = _answer(fan.message.request, reply, bodies, "where its parts are combined")
            self._answer(fan, answer, beside)

        request = protocol.CombineQuery(0, fan.message.query)
        left_ms = max(1, fan.deadline - self._worker.loop.now)
        timeout_ms = min(self._worker.option("executor.timeout.millis"), left_ms)
        bodies = (fan.given, *parts)
        self._worker.executors.run(fan.message.group, request, then, bodies=bodies, timeout_ms=timeout_ms)

    def _answer(self, fan: _Fan, reply: wire.ToClient, bodies: Sequence[bytes] = ()) -> None:
        if not fan.is_over:
            self._end(fan)
            self._worker.transport.reply(fan.sender, reply, bodies)

    def _end(self, fan: _Fan) -> None:
        """Who asked is not told when its time is over: it knows."""
        fan.is_over = True
        self._fans.discard(fan)


def _answer(request: int, reply: Reply, bodies: list[bytes], where: str) -> _Answered:
    match reply:
        case protocol.QueryRan(failure=None):
            return wire.QueryAnswered(request), bodies
        case protocol.QueryRan(failure=protocol.FailureNote(error=error, traceback=traceback)):
            return wire.QueryFailed(request, f"{error} ({where})", traceback), ()
        case Lost(why=Why.TIME_OUT | Why.CRASH, sentence=sentence):
            return wire.QueryFailed(request, f"it {sentence} ({where})"), ()
        case Lost(why=Why.NOT_LOADED, sentence=sentence):
            return wire.Failed(request, sentence, wire.Fault.PASSING), ()
        case _:
            # Something else ended the executor, or the task's file is being replaced.
            return wire.Refused(request, Refusal.NOT_READY, None, Epoch(0)), ()
