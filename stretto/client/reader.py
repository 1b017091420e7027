"""Reading depots: a slice at an offset or a time, or a tail that follows what becomes visible.

The unit on the wire is the stored batch; records are cut out of it here, where they are asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from stretto import wire
from stretto.client.network import Network, patience_ms
from stretto.errors import RetriableError, UsageError
from stretto.records import RecordBatch
from stretto.types import TaskId
from stretto.zk.paths import GroupKey

READ_BYTES = 1 << 20
REQUEST_TIMEOUT_MS = 3_000
POLL_SECONDS = 0.02


class Record(NamedTuple):
    task: int
    offset: int
    timestamp_ms: int
    data: bytes


class Slice(NamedTuple):
    """Records from one task, and where to go on."""

    records: list[Record]
    next_offset: int


class Reader:
    """Reads one depot of a module. Each call waits for its answer, over leader moves, until its deadline."""

    def __init__(self, network: Network, module: str, depot: str, *, timeout: float = 30.0) -> None:
        self._network = network
        self._module = module
        self._depot = depot
        self._timeout = timeout

    @property
    def tasks(self) -> list[TaskId]:
        return list(self._network.view.tasks.get(self._module, []))

    def read(self, task: int, offset: int, *, max_bytes: int = READ_BYTES, committed: bool = True) -> Slice:
        """What is visible from ``offset`` on, as far as it fits; empty at the end of the depot."""

        def message(number: int, group: GroupKey) -> wire.ToWorker:
            return wire.ReadDepot(number, group, TaskId(task), self._depot, offset, max_bytes, committed)

        reply, bodies = self._ask(task, message)
        if not isinstance(reply, wire.DepotBatches):
            raise RetriableError(f"an unexpected answer came: {type(reply).__name__}")
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
        """First offset and end of the depot on this task."""
        offsets = self._offsets(task, None)
        return offsets.start, offsets.end

    def offset_at(self, task: int, timestamp_ms: int) -> int:
        """The first offset whose batch was appended at or after that time; the end if there is none."""
        offsets = self._offsets(task, timestamp_ms)
        return offsets.end if offsets.found is None else offsets.found

    def tail(
        self,
        *,
        start: Mapping[int, int] | None = None,
        tasks: Iterable[int] | None = None,
        committed: bool = True,
    ) -> Iterator[Record]:
        """Every record from ``start`` (per task; from the beginning if not given) on, for ever."""
        at = {task: (start or {}).get(task, 0) for task in tasks or self.tasks}
        while True:
            seen = False
            for task, offset in list(at.items()):
                records, at[task] = self.read(task, offset, committed=committed)
                seen = seen or bool(records)
                yield from records
            if not seen:
                time.sleep(POLL_SECONDS)

    def read_all(self) -> Iterator[Record]:
        """Everything visible when the call begins."""
        for task in self.tasks:
            offset, end = self.bounds(task)
            while offset < end:
                records, offset = self.read(task, offset)
                yield from (record for record in records if record.offset < end)

    # Asking.

    def _offsets(self, task: int, timestamp_ms: int | None) -> wire.DepotOffsets:
        def message(number: int, group: GroupKey) -> wire.ToWorker:
            return wire.FindOffset(number, group, TaskId(task), self._depot, timestamp_ms)

        reply, _ = self._ask(task, message)
        if not isinstance(reply, wire.DepotOffsets):
            raise RetriableError(f"an unexpected answer came: {type(reply).__name__}")
        return reply

    def _ask(
        self, task: int, message: Callable[[int, GroupKey], wire.ToWorker]
    ) -> tuple[wire.ToClient, list[memoryview]]:
        if (self._module, task) not in self._network.view.of_task:
            raise UsageError(f"module {self._module} has no task {task}")
        question = _Question(self._network, self._module, TaskId(task), message, self._timeout)
        return question.wait()


class _Question:
    """One request, sent again until it is answered or its time is over."""

    def __init__(
        self,
        network: Network,
        module: str,
        task: TaskId,
        message: Callable[[int, GroupKey], wire.ToWorker],
        timeout: float,
    ) -> None:
        self._network = network
        self._module = module
        self._task = task
        self._message = message
        self._deadline = time.monotonic() + timeout
        self._answered = threading.Event()
        self._reply: wire.ToClient | None = None
        self._bodies: list[memoryview] = []
        self._last: Any = None
        self._attempts = 0
        network.call(self._send)

    def wait(self) -> tuple[wire.ToClient, list[memoryview]]:
        self._answered.wait()
        if isinstance(self._reply, wire.Failed):
            raise UsageError(self._reply.why)
        if self._reply is None:
            reason = self._last.reason if isinstance(self._last, wire.Refused) else "no answer"
            raise RetriableError(
                f"task {self._task} of {self._module} cannot be read now ({reason}); try again"
            )
        return self._reply, self._bodies

    def _send(self) -> None:
        if time.monotonic() > self._deadline:
            self._answered.set()
            return
        group = self._network.view.of_task[(self._module, self._task)]
        epoch = self._network.view.epoch(group)
        number = self._network.next_request()

        def heard(reply: wire.ToClient | None, bodies: list[memoryview]) -> None:
            if reply is None or isinstance(reply, wire.Refused | wire.Unknown):
                self._last = reply
                again()
            else:
                self._reply, self._bodies = reply, bodies
                self._answered.set()

        def again() -> None:
            within_ms = patience_ms(self._attempts)
            self._attempts += 1
            self._network.when_led_anew(group, self._send, above=epoch, within_ms=within_ms)

        message = self._message(number, group)
        if not self._network.to_leader(group, number, message, (), heard, timeout_ms=REQUEST_TIMEOUT_MS):
            again()
