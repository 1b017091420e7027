"""Queries: a module's functions that read, run by executors of leaders and answered under their leases.

A query with a key runs on one task. Any other is asked of one worker, which asks the leaders of all tasks for
their parts and has its own executor combine them. A part is a read like any other: its function runs between
the core's Read and Sampled, on the task's file as of one moment, and what it found is told only if the lease
still holds then. Parts are asked for again when leaders move, until the time of the query is over, or who
asked has gone; then nobody waits for them, and those that run are cancelled. Who asked says so if it can; one
that is gone without a word is noticed by a word to it every second, which does not get through.

An executor has one query of a group at a time: those that wait here can be cancelled without any harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from stretto.module.work import Timed
from stretto.network.routing import patience_ms
from stretto.replog.core import effects
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.suggest import did_you_mean
from stretto.vocabulary.types import Epoch, TaskId
from stretto.wire import messages as wire
from stretto.worker.executors import protocol
from stretto.worker.executors.replies import Lost, Reply, Why

if TYPE_CHECKING:
    from stretto.control import ModuleDescription
    from stretto.network.loop import Loop
    from stretto.network.transport import Connection, Transport
    from stretto.vocabulary.groups import GroupKey
    from stretto.worker.executors.pool import Executors
    from stretto.worker.replica.group import Group
    from stretto.worker.topology.host import Config
    from stretto.worker.topology.streams import Streams

GIVEN_BYTES_MAX = 1024 * 1024
PARTS_BYTES_MAX = 64 * 1024 * 1024
"""The size limit of the parts of all tasks together."""
TIMEOUT_MS_MAX = 600_000
FANS_MAX = 1_000
PROBE_MS = 1_000

_Answered: TypeAlias = tuple[wire.ToClient, Sequence[bytes]]


class Reads(Protocol):
    """Reads of the applied state under the lease of its leader."""

    def elsewhere(
        self,
        group: Group,
        look: Callable[[Callable[[], None]], None],
        replied: Callable[[effects.Result], None],
    ) -> None:
        """Let ``look`` look at the state of a group that is led here, and call back when it is done;
        ``replied`` gets whether what it saw may be shown."""
        ...


class Clients(Protocol):
    """The worker's clients, of which queries need the reads alone."""

    @property
    def reads(self) -> Reads: ...


class Host(Protocol):
    """The worker, as its queries see it."""

    @property
    def config(self) -> Config: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def transport(self) -> Transport: ...

    @property
    def groups(self) -> Mapping[GroupKey, Group]: ...

    @property
    def executors(self) -> Executors: ...

    @property
    def clients(self) -> Clients: ...

    @property
    def streams(self) -> Streams:
        """The worker's streams, whose network reaches the leaders of all tasks."""
        ...

    @property
    def description(self) -> ModuleDescription:
        """The description of the module."""
        ...

    def option(self, name: str) -> Any:
        """Return the value of an option that is in force for the module."""
        ...


@dataclass(slots=True, eq=False)
class _Job:
    """A query on one task: it waits for its turn, or runs."""

    group: Group
    message: wire.RunQuery
    task: TaskId
    given: bytes
    then: Callable[[Reply, list[bytes]], None]
    deadline: int
    number: int | None = None
    """The number by which its executor knows it, while it runs."""
    is_over: bool = False
    """Whether nobody waits for it any more."""


@dataclass(slots=True, eq=False)
class _Fan:
    """A query on all tasks: the client that asked, and what came back so far."""

    sender: Connection
    message: wire.RunQuery
    given: bytes
    deadline: int
    parts: list[bytes | None]
    asked: dict[TaskId, int] = field(default_factory=dict)
    """Numbers of the latest requests for parts."""
    combining: int | None = None
    """The number by which its executor knows it, while the parts are combined."""
    is_over: bool = False


class Queries:
    """The queries of a worker. The loop owns them."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._fans: dict[tuple[Connection, int], _Fan] = {}
        self._jobs: dict[tuple[Connection, int], _Job] = {}
        #: Queries on one task, by group; the first of each runs.
        self._queues: dict[GroupKey, deque[_Job]] = {}
        self._is_probing = False

    def received(self, sender: Connection, message: wire.RunQuery, bodies: list[memoryview]) -> None:
        """Begin a query, on one task or on all."""
        if not self._is_probing:
            self._is_probing = True
            self._worker.loop.call_after(PROBE_MS, self._probe)
        given = bytes(bodies[0]) if bodies else b""
        why = self._wrong(message, given)
        if why is not None:
            self._worker.transport.reply(sender, wire.Failed(message.request, why, wire.Fault.USAGE))
        elif message.task is None:
            self._begin(sender, message, given)
        else:
            self._run(sender, message, message.task, given)

    def cancelled(self, sender: Connection, request: int) -> None:
        """Give up a query that its client does not wait for any more."""
        job, fan = self._jobs.get((sender, request)), self._fans.get((sender, request))
        if job is not None:
            job.is_over = True
            if job.number is not None:
                self._worker.executors.cancel(job.number)
        if fan is not None:
            self._end(fan)

    def _probe(self) -> None:
        """Cancel the queries of clients that are gone."""
        for sender, request in [*self._jobs, *self._fans]:
            if not self._worker.transport.reply(sender, wire.QueryGoesOn(request)):
                self.cancelled(sender, request)
        self._is_probing = bool(self._jobs or self._fans)
        if self._is_probing:
            self._worker.loop.call_after(PROBE_MS, self._probe)

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
        deadline = self._worker.loop.now + max(1, message.timeout_ms)
        job = _Job(group, message, task, given, lambda *_: None, deadline)
        self._jobs[sender, message.request] = job

        def look(then: Callable[[], None]) -> None:
            def ran(reply: Reply, bodies: list[bytes]) -> None:
                if not job.is_over:
                    _measure(group, message.query, reply)
                answered.append(_answer(message.request, reply, bodies, f"on task {task}"))
                then()

            job.then = ran
            queue = self._queues.setdefault(group.key, deque())
            queue.append(job)
            if len(queue) == 1:
                self._execute(job)

        def replied(result: effects.Result) -> None:
            self._jobs.pop((sender, message.request), None)
            if isinstance(result, effects.Refused):
                refused = wire.Refused(message.request, result.reason, result.leader, result.epoch)
                self._worker.transport.reply(sender, refused)
            elif answered:
                reply, bodies = answered[0]
                self._worker.transport.reply(sender, reply, bodies)

        self._worker.clients.reads.elsewhere(group, look, replied)

    def _execute(self, job: _Job) -> None:
        """Run the first query of a queue; the next follows when it is done."""
        group, left_ms = job.group, job.deadline - self._worker.loop.now

        def then(reply: Reply, bodies: list[bytes]) -> None:
            job.number = None
            queue = self._queues[group.key]
            queue.popleft()
            if queue:
                self._execute(queue[0])
            else:
                del self._queues[group.key]
            job.then(reply, bodies)

        if job.is_over or left_ms <= 0:
            self._worker.loop.call_soon(then, Lost(Why.BYSTANDER, "nobody waits for it"), [])
            return
        epoch = group.leader.epoch if group.leader is not None else Epoch(0)
        file = str(group.state.folder(job.task).absolute())
        request = protocol.RunQuery(0, job.message.query, job.task, epoch, file)
        timeout_ms = min(self._worker.option("executor.timeout.millis"), left_ms)
        job.number = self._worker.executors.run(
            group.key, request, then, bodies=(job.given,), timeout_ms=timeout_ms
        )

    # On all of them.

    def _begin(self, sender: Connection, message: wire.RunQuery, given: bytes) -> None:
        if len(self._fans) >= FANS_MAX:
            self._refuse(sender, message.request, Refusal.OVERLOADED)
            return
        tasks = self._worker.description.tasks
        timeout_ms = min(max(1, message.timeout_ms), TIMEOUT_MS_MAX)
        fan = _Fan(sender, message, given, self._worker.loop.now + timeout_ms, [None] * tasks)
        self._fans[sender, message.request] = fan
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

        number = fan.asked[task] = network.next_request()
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
            fan.combining = None
            answer, beside = _answer(fan.message.request, reply, bodies, "where its parts are combined")
            self._answer(fan, answer, beside)

        request = protocol.CombineQuery(0, fan.message.query)
        left_ms = max(1, fan.deadline - self._worker.loop.now)
        timeout_ms = min(self._worker.option("executor.timeout.millis"), left_ms)
        bodies = (fan.given, *parts)
        fan.combining = self._worker.executors.run(
            fan.message.group, request, then, bodies=bodies, timeout_ms=timeout_ms
        )

    def _answer(self, fan: _Fan, reply: wire.ToClient, bodies: Sequence[bytes] = ()) -> None:
        if not fan.is_over:
            self._end(fan)
            self._worker.transport.reply(fan.sender, reply, bodies)

    def _end(self, fan: _Fan) -> None:
        """End a query on all tasks. Its client is not notified when its time is over: it knows."""
        if not fan.is_over:
            fan.is_over = True
            self._fans.pop((fan.sender, fan.message.request), None)
            for number in fan.asked.values():
                self._worker.streams.hops.network.cancel(number)
            if fan.combining is not None:
                self._worker.executors.cancel(fan.combining)


def _measure(group: Group, query: str, reply: Reply) -> None:
    match reply:
        case protocol.QueryRan(elapsed_us=elapsed_us):
            group.meter.called((Timed(query, 0, 0, (elapsed_us * 1_000,)),))
        case Lost(why=Why.TIME_OUT, ran_ms=ran_ms):
            group.meter.called((Timed(query, 0, 0, (ran_ms * 1_000_000,)),))
        case _:
            pass


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
