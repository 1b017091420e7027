"""A worker's executors: which of them runs what, until when, and what becomes of it if it does not end.

A group belongs to one executor, so its requests are run in the order in which they are made. Each is
answered once: by the executor, or with :class:`Lost`. Only the first of those that wait there is running, so
only its time runs; when it is over, the process is killed, and all that waited is lost with it. Who asked
decides what to do: the first in the queue is the suspect, the others may be asked again as they are.

Queries have executors of their own, so that one that hangs takes nothing with it but other queries. They may
be cancelled: what runs is let go on for a moment, in which most end by themselves, and killed then.

They are started with the worker, whether it leads or not, so that a fail-over finds them warm.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from stretto.vocabulary.backoff import Backoff
from stretto.vocabulary.types import Buffer, TaskId
from stretto.worker.executors import protocol
from stretto.worker.executors.process import ExecutorProcess
from stretto.worker.executors.replies import Lost, Then, Why

if TYPE_CHECKING:
    from collections.abc import Sized

    from stretto.network.loop import Loop
    from stretto.vocabulary.groups import GroupKey
    from stretto.vocabulary.types import WorkerId

LOAD_MS = 60_000
RESTART = Backoff(first_ms=200, most_ms=10_000, at_once=1)
CANCEL_MS = 250
"""How long a query may go on that nobody waits for: a new process costs more than most queries do."""
CALM_MS = 30_000
"""The age at which the death of an executor counts as an accident and not as a habit; its back-off begins
anew."""

log = structlog.get_logger()


class Hosting(Protocol):
    """The groups of which a worker holds a replica."""

    @property
    def plans(self) -> Sized: ...


class Host(Protocol):
    """The worker, as its executors see it."""

    @property
    def worker(self) -> WorkerId: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def hosting(self) -> Hosting: ...

    def option(self, name: str) -> Any:
        """Return the value of an option that is in force for the module."""
        ...

    def clear_readers(self) -> None:
        """Free what an executor that died, perhaps in the middle of a read, still occupies in the state's
        files."""
        ...


@dataclass(frozen=True, slots=True)
class Code:
    """The code that executors run."""

    folder: Path
    entry: str
    tasks: int
    has_topologies: bool = True
    has_queries: bool = False


@dataclass(slots=True)
class _Waiting:
    request: protocol.Request
    bodies: Sequence[Buffer]
    then: Then
    timeout_ms: int
    done: int = 0


class Executors:
    """A worker's executors. All methods are to be called on the loop."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._numbers = itertools.count(1)
        self._slots: list[_Slot] = []
        self._for_queries: list[_Slot] = []

    def start(self, code: Code | None) -> None:
        """Start the executors, or start them again with other code; what runs then is lost."""
        self.close()
        if code is not None:
            count = self.wanted
            if code.has_topologies:
                self._slots = [_Slot(self._worker, f"{number}", code) for number in range(count)]
            if code.has_queries:
                count = max(1, count // 2) if code.has_topologies else count
                self._for_queries = [_Slot(self._worker, f"q{number}", code) for number in range(count)]

    @property
    def count(self) -> int:
        """How many executors were wanted when they were started; 0 if there are none."""
        return len(self._slots or self._for_queries)

    @property
    def wanted(self) -> int:
        """How many executors there are to be, for the groups that the worker has now."""
        groups = len(self._worker.hosting.plans)
        return self._worker.option("executor.processes") or max(1, min(groups, os.cpu_count() or 1))

    @property
    def problems(self) -> list[str]:
        """Why some executors do not run; one sentence each."""
        return [slot.problem for slot in (*self._slots, *self._for_queries) if slot.problem]

    def run(
        self,
        group: GroupKey,
        request: protocol.Request,
        then: Then,
        *,
        bodies: Sequence[Buffer] = (),
        timeout_ms: int | None = None,
    ) -> int:
        """Run a request on the executor of a group, and return the number that it got. ``then`` is called
        with the answer, later."""
        request = msgspec.structs.replace(request, number=next(self._numbers))
        timeout_ms = timeout_ms or self._worker.option("executor.timeout.millis")
        is_query = isinstance(request, protocol.RunQuery | protocol.CombineQuery)
        slot = _chosen(self._for_queries if is_query else self._slots, group)
        if slot is None:
            lost = Lost(Why.NOT_LOADED, "this worker runs no executors")
            self._worker.loop.call_soon(then, lost, [])
        else:
            slot.run(_Waiting(request, bodies, then, timeout_ms))
        return request.number

    def cancel(self, number: int) -> None:
        """Cancel a query that nobody waits for any more."""
        for slot in self._for_queries:
            slot.cancel(number)

    def forget(self, group: GroupKey, task: TaskId, topology: str | None = None) -> None:
        """Let executors forget what batches did that are not applied; without a topology, also the task's
        file."""
        for slots in (self._slots, self._for_queries):
            slot = _chosen(slots, group)
            if slot is not None:
                slot.tell(protocol.Forget(task, topology))

    def close(self) -> None:
        """Kill all executors; what runs is lost."""
        for slot in (*self._slots, *self._for_queries):
            slot.close()
        self._slots.clear()
        self._for_queries.clear()


def _chosen(slots: Sequence[_Slot], group: GroupKey) -> _Slot | None:
    return slots[group.group % len(slots)] if slots else None


class _Slot:
    """The place of one executor, over all the processes that fill it in turn."""

    def __init__(self, worker: Host, number: str, code: Code) -> None:
        self._worker = worker
        self._loop = worker.loop
        self._name = f"{worker.worker}/{number}"
        self._code = code
        self._process: ExecutorProcess | None = None
        self._is_loaded = False
        self._is_closed = False
        #: Requests that were sent and not answered, in order; before the module is loaded, to be sent.
        self._queue: deque[_Waiting] = deque()
        #: When the time of the request that runs now is over.
        self._deadline: int | None = None
        self._timer: int | None = None
        self._has_timed_out = False
        self._began_at = 0
        self._backoff = RESTART
        self.problem = ""
        self._start()

    # From the pool.

    def run(self, waiting: _Waiting) -> None:
        """Queue a request, and send it if the module is loaded."""
        if self.problem:
            self._loop.call_soon(waiting.then, Lost(Why.NOT_LOADED, self.problem), [])
            return
        self._queue.append(waiting)
        if self._is_loaded and self._process is not None:
            self._process.send(waiting.request, waiting.bodies)
            if len(self._queue) == 1:
                self._time()

    def cancel(self, number: int) -> None:
        """Shorten the time of a query that nobody waits for any more."""
        for at, waiting in enumerate(self._queue):
            if waiting.request.number == number:
                waiting.timeout_ms = min(waiting.timeout_ms, CANCEL_MS)
                if at == 0 and self._is_loaded:
                    self._time()

    def tell(self, message: protocol.Forget) -> None:
        """Send a message that has no answer."""
        if self._is_loaded and self._process is not None:
            self._process.send(message)

    def close(self) -> None:
        """Kill the process; all requests are lost."""
        self._is_closed = True
        if self._process is not None:
            self._process.close()
            self._process = None
        self._lose(Lost(Why.BYSTANDER, "its executor was stopped"))

    # Its life.

    def _start(self) -> None:
        if self._is_closed:
            return
        self._began_at = self._loop.now
        self._is_loaded = self._has_timed_out = False
        try:
            self._process = ExecutorProcess(self._loop, self._name, heard=self._heard, died=self._died)
        except OSError as error:
            self._not_loaded(f"an executor cannot be started: {error.strerror}")
            self._again()
            return
        code = self._code
        self._process.send(protocol.Load(str(code.folder), code.entry, code.tasks))
        self._allow(LOAD_MS)

    def _died(self, how: str) -> None:
        self._process = None
        self._deadline = None
        if self._is_closed:
            return
        seconds = (self._loop.now - self._began_at) / 1_000
        if self._is_loaded:
            log.warning("executor_died", executor=self._name, how=how, lived_seconds=round(seconds, 1))
            self._blame(how)
        elif not self.problem:
            self._not_loaded(f"the module cannot be imported: its process ended with {how}")
        self._worker.clear_readers()
        self._again()

    def _again(self) -> None:
        if self._loop.now - self._began_at > CALM_MS or (self._is_loaded and self._has_timed_out):
            self._backoff = self._backoff.reset()
        self._loop.call_after(self._backoff.delay_ms, self._start)
        self._backoff = self._backoff.next()

    def _blame(self, how: str) -> None:
        """Answer all requests as lost: the first of the queue, which was running, is to blame, the others are
        bystanders."""
        if self._queue:
            first = self._queue.popleft()
            if self._has_timed_out:
                sentence = f"ran longer than {first.timeout_ms / 1_000:g} s, and was killed"
                lost = Lost(Why.TIME_OUT, sentence, first.done, first.timeout_ms)
            else:
                lost = Lost(Why.CRASH, f"ended the process that ran it ({how})", first.done)
            first.then(lost, [])
        self._lose(Lost(Why.BYSTANDER, "what ran before it ended its executor"))

    def _not_loaded(self, why: str, traceback: str = "") -> None:
        log.error("module_not_loaded", executor=self._name, why=why, traceback=traceback)
        self.problem = why
        self._lose(Lost(Why.NOT_LOADED, why))

    def _lose(self, lost: Lost) -> None:
        queue, self._queue = self._queue, deque()
        for waiting in queue:
            waiting.then(lost, [])

    # What it says.

    def _heard(self, message: protocol.FromChild, bodies: list[bytes]) -> None:
        match message:
            case protocol.Loaded():
                self._loaded()
            case protocol.NotLoaded(why=why, traceback=traceback):
                self._not_loaded(why, traceback)
                if self._process is not None:
                    self._process.kill()
            case protocol.Alive(number=number, done=done):
                if self._queue and self._queue[0].request.number == number:
                    self._queue[0].done = done
                    self._time()
            case _:
                if self._queue and self._queue[0].request.number == message.number:
                    waiting = self._queue.popleft()
                    self._time()
                    waiting.then(message, bodies)

    def _loaded(self) -> None:
        self._is_loaded = True
        self.problem = ""
        self._deadline = None
        log.info("executor_ready", executor=self._name, after_ms=self._loop.now - self._began_at)
        for waiting in self._queue:
            if self._process is not None:
                self._process.send(waiting.request, waiting.bodies)
        self._time()

    # Its time.

    def _time(self) -> None:
        """Begin the time of the first of the queue, which runs from now on."""
        self._allow(self._queue[0].timeout_ms if self._queue else None)

    def _allow(self, time_ms: int | None) -> None:
        """Set the deadline. One timer is enough: it looks again when it was too early."""
        self._deadline = None if time_ms is None else self._loop.now + time_ms
        if self._deadline is not None and (self._timer is None or self._deadline < self._timer):
            self._timer = self._deadline
            self._loop.call_at(self._timer, self._look, self._timer)

    def _look(self, timer: int) -> None:
        if timer != self._timer:
            return
        self._timer = None
        if self._deadline is None or self._process is None:
            return
        if self._loop.now < self._deadline:
            self._allow(self._deadline - self._loop.now)
            return
        self._has_timed_out = True
        if not self._is_loaded:
            self._not_loaded(f"importing the module took longer than {LOAD_MS // 1_000} s")
        log.warning("executor_killed", executor=self._name, pid=self._process.pid, why="its time is over")
        self._process.kill()
