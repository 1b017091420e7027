"""A producer: gathers records into batches, numbers them, and sends each until it knows.

Per record there is one list append and one small :class:`Ack`; everything else happens per batch. Batches of
one task carry contiguous sequence numbers, several may be under way, and after a failure they go out again in
order, to whoever leads now. A worker that has seen a batch before says so and stores it once, so repeating is
always safe.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Self

from stretto import wire
from stretto.client.network import Network
from stretto.clock import boot_time_ms
from stretto.errors import OutcomeUnknown, RetriableError, StrettoError, UsageError
from stretto.records import RECORD_BYTES_MAX, pack
from stretto.replog.core.effects import Refusal
from stretto.replog.core.producers import new_producer_id
from stretto.replog.frame import Kind
from stretto.types import ProducerId, TaskId
from stretto.zk.paths import GroupKey

RETRY_MS = 50
REQUEST_TIMEOUT_MS = 5_000


class _Batch:
    """Records of one task on their way, and who waits for them."""

    __slots__ = (
        "body",
        "callbacks",
        "count",
        "error",
        "event",
        "first_sent_at",
        "is_settled",
        "offset",
        "request",
        "sealed_at",
        "sequence",
    )

    def __init__(self) -> None:
        self.body = b""
        self.count = 0
        self.sequence = 0
        self.request = 0
        self.sealed_at = 0
        self.first_sent_at: int | None = None
        self.offset: int | None = None
        self.error: StrettoError | None = None
        self.is_settled = False
        self.event: threading.Event | None = None
        #: Run when the outcome is known, on the client's thread.
        self.callbacks: list[Callable[[], object]] = []

    def settle(self, error: StrettoError | None) -> None:
        self.error = error
        self.is_settled = True
        if self.event is not None:
            self.event.set()
        for callback in self.callbacks:
            callback()


class Ack:
    """What became of one record. Cheap: the batch does the work for all its records."""

    __slots__ = ("_batch", "_lock")

    def __init__(self, batch: _Batch, lock: threading.Lock) -> None:
        self._batch = batch
        self._lock = lock

    def done(self) -> bool:
        return self._batch.is_settled

    def result(self, timeout: float | None = None) -> None:
        """Return once the record is applied, hence visible.

        Raises OutcomeUnknown if that cannot be known, another StrettoError if it was refused for
        good, TimeoutError if it is still under way.
        """
        batch = self._batch
        if not batch.is_settled and not self._event().wait(timeout):
            raise TimeoutError("the record is still on its way")
        if batch.error is not None:
            raise batch.error

    def _event(self) -> threading.Event:
        """Made for who waits, once per batch; most records are never waited for."""
        batch = self._batch
        with self._lock:
            if batch.event is None:
                batch.event = threading.Event()
            if batch.is_settled:
                batch.event.set()
            return batch.event

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Run ``callback`` on the client's thread once the outcome is known."""
        self._batch.callbacks.append(callback)
        if self._batch.is_settled:
            callback()

    def __await__(self) -> Generator[Any, None, None]:
        from stretto.client.api import await_ack  # noqa: PLC0415 - asyncio only for who awaits

        return await_ack(self).__await__()


class _Lane:
    """One task: what gathers, what waits to be sent, what is under way, in order of sequence."""

    __slots__ = (
        "gathering",
        "in_flight",
        "next_sequence",
        "records",
        "records_bytes",
        "retrying",
        "task",
        "waiting",
    )

    def __init__(self, task: TaskId) -> None:
        self.task = task
        self.records: list[bytes] = []
        self.records_bytes = 0
        self.gathering = _Batch()
        self.waiting: deque[_Batch] = deque()
        self.in_flight: deque[_Batch] = deque()
        self.next_sequence = 0
        self.retrying = False


class Producer:
    """Appends to one depot. Safe to use from several threads."""

    def __init__(
        self,
        network: Network,
        module: str,
        depot: str,
        *,
        linger_ms: int = 5,
        batch_records: int = 1_000,
        batch_bytes: int = 256 * 1024,
        max_in_flight: int = 5,
        max_buffered_bytes: int = 64 * 1024 * 1024,
        timeout_ms: int = 120_000,
    ) -> None:
        if not 1 <= max_in_flight <= 5:
            raise UsageError(
                "max_in_flight is between 1 and 5: a worker remembers five batches of a producer"
            )
        self._network = network
        self._module = module
        self._depot = depot
        self._linger_ms = linger_ms
        self._batch_records = batch_records
        self._batch_bytes = batch_bytes
        self._max_in_flight = max_in_flight
        self._max_buffered_bytes = max_buffered_bytes
        self._timeout_ms = timeout_ms
        self._id = _new_id()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._buffered_bytes = 0
        self._tasks = sorted(network.view.tasks.get(module, []))
        if not self._tasks:
            raise UsageError(f"there is no module {module!r} on this cluster")
        self._lanes = {task: _Lane(task) for task in self._tasks}
        self._current = 0
        self._opened: set[GroupKey] = set()
        self._opening: set[GroupKey] = set()
        self._unsettled = 0
        self._idle = threading.Condition(self._lock)
        self._lingering = False
        self._closed = False

    # From the caller's threads.

    def append(self, record: bytes, *, task: int | None = None) -> Ack:
        """Add one record; without a task, whole batches go to the tasks in turn."""
        size = len(record)
        if size > RECORD_BYTES_MAX:
            raise UsageError(f"a record of {size} bytes is beyond the limit of {RECORD_BYTES_MAX}")
        lock = self._lock
        with lock:
            if self._closed:
                raise UsageError("the producer is closed")
            if self._buffered_bytes > self._max_buffered_bytes:
                self._wait_for_room()
            lane = self._lanes[self._tasks[self._current] if task is None else self._known(task)]
            batch = lane.gathering
            lane.records.append(record)
            lane.records_bytes += size
            if len(lane.records) >= self._batch_records or lane.records_bytes >= self._batch_bytes:
                self._seal(lane)
            elif not self._lingering:
                self._lingering = True
                self._network.call(self._linger)
        return Ack(batch, lock)

    def append_batch(self, records: list[bytes], *, task: int | None = None) -> Ack:
        """Add records that stay together, as one batch."""
        if not records:
            raise UsageError("a batch has at least one record")
        with self._lock:
            if self._closed:
                raise UsageError("the producer is closed")
            if self._buffered_bytes > self._max_buffered_bytes:
                self._wait_for_room()
            lane = self._lanes[self._tasks[self._current] if task is None else self._known(task)]
            if lane.records:
                self._seal(lane)
            batch = lane.gathering
            lane.records = records
            lane.records_bytes = sum(map(len, records))
            self._seal(lane)
        return Ack(batch, self._lock)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended so far is settled, well or not."""
        with self._lock:
            for lane in self._lanes.values():
                if lane.records:
                    self._seal(lane)
            if not self._idle.wait_for(lambda: self._unsettled == 0, timeout):
                raise TimeoutError(f"{self._unsettled} batches are still on their way")

    def close(self, timeout: float | None = 30.0) -> None:
        self.flush(timeout)
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _known(self, task: int) -> TaskId:
        if task not in self._lanes:
            raise UsageError(f"module {self._module} has tasks 0 to {len(self._tasks) - 1}, not {task}")
        return TaskId(task)

    def _wait_for_room(self) -> None:
        self._room.wait_for(lambda: self._buffered_bytes <= self._max_buffered_bytes)

    def _seal(self, lane: _Lane) -> None:
        """With the lock: number the batch, and let the client's thread send it."""
        batch, records = lane.gathering, lane.records
        lane.gathering, lane.records, lane.records_bytes = _Batch(), [], 0
        batch.body = pack(self._depot, records)
        batch.count = len(records)
        self._buffered_bytes += len(batch.body)
        batch.sequence = lane.next_sequence
        lane.next_sequence += batch.count
        batch.sealed_at = boot_time_ms()
        self._unsettled += 1
        self._current = (self._current + 1) % len(self._tasks)
        lane.waiting.append(batch)
        self._network.call(self._pump, lane)

    # On the client's thread.

    def _linger(self) -> None:
        self._network.loop.call_after(self._linger_ms, self._linger_over)

    def _linger_over(self) -> None:
        with self._lock:
            self._lingering = False
            for lane in self._lanes.values():
                if lane.records:
                    self._seal(lane)

    def _pump(self, lane: _Lane) -> None:
        while lane.waiting and not lane.retrying and len(lane.in_flight) < self._max_in_flight:
            group = self._network.view.of_task.get((self._module, lane.task))
            if group is None or not self._admitted(group, lane):
                return
            batch = lane.waiting.popleft()
            lane.in_flight.append(batch)
            if not self._send(lane, group, batch):
                return

    def _send(self, lane: _Lane, group: GroupKey, batch: _Batch) -> bool:
        now = self._network.loop.now
        if batch.first_sent_at is None:
            batch.first_sent_at = now
        elif now - batch.first_sent_at > self._timeout_ms:
            self._finish(
                lane, batch, OutcomeUnknown("no worker confirmed the batch in time; it may be applied")
            )
            return True
        batch.request = number = self._network.next_request()
        message = wire.AppendBatch(
            number, group, Kind.DEPOT, lane.task, self._id, batch.sequence, batch.count
        )
        sent = self._network.to_leader(
            group,
            number,
            message,
            (batch.body,),
            lambda reply, _: self._answered(lane, batch, number, reply),
            timeout_ms=REQUEST_TIMEOUT_MS,
        )
        if not sent:
            self._again(lane)
        return sent

    def _answered(self, lane: _Lane, batch: _Batch, number: int, reply: wire.ToClient | None) -> None:
        if batch.is_settled or batch.request != number:
            return
        match reply:
            case wire.Appended(offset=offset):
                batch.offset = offset
                self._finish(lane, batch, None)
                self._pump(lane)
            case wire.Failed(why=why):
                # Its sequence numbers will never be used, so none of the later ones can be either.
                self._give_up(lane, UsageError(why))
            case wire.Refused(reason=Refusal.UNKNOWN_PRODUCER):
                self._lost_identity(lane)
            case _:
                self._again(lane)

    def _finish(self, lane: _Lane, batch: _Batch, error: StrettoError | None) -> None:
        if batch in lane.in_flight:
            lane.in_flight.remove(batch)
        size = len(batch.body)
        batch.body = b""
        with self._lock:
            batch.settle(error)
            self._unsettled -= 1
            self._buffered_bytes -= size
            self._room.notify_all()
            if self._unsettled == 0:
                self._idle.notify_all()

    def _again(self, lane: _Lane) -> None:
        """Everything under way goes out again, in order, once it is known who leads."""
        if lane.retrying:
            return
        lane.retrying = True
        for batch in reversed(lane.in_flight):
            batch.request = 0
            lane.waiting.appendleft(batch)
        lane.in_flight.clear()
        self._network.loop.call_after(RETRY_MS, self._network.refresh, lambda: self._resume(lane))

    def _resume(self, lane: _Lane) -> None:
        lane.retrying = False
        self._pump(lane)

    def _lost_identity(self, lane: _Lane) -> None:
        """The cluster has forgotten this producer: whether these batches were applied cannot be known."""
        why = "this producer was silent so long that the cluster forgot it; open another"
        self._give_up(lane, OutcomeUnknown(why))

    def _give_up(self, lane: _Lane, error: StrettoError) -> None:
        self._closed = True
        for batch in [*lane.in_flight, *lane.waiting]:
            self._finish(lane, batch, error)
        lane.waiting.clear()

    # Admission, once per group.

    def _admitted(self, group: GroupKey, lane: _Lane) -> bool:
        if group in self._opened:
            return True
        if group not in self._opening:
            self._opening.add(group)
            self._open(group)
        lane.retrying = False
        return False

    def _open(self, group: GroupKey) -> None:
        number = self._network.next_request()
        message = wire.AppendBatch(number, group, Kind.PRODUCER_OPEN, TaskId(0), self._id, 0, 1)
        sent = self._network.to_leader(
            group,
            number,
            message,
            (b"",),
            lambda reply, _: self._open_answered(group, reply),
            timeout_ms=REQUEST_TIMEOUT_MS,
        )
        if not sent:
            self._open_again(group)

    def _open_answered(self, group: GroupKey, reply: wire.ToClient | None) -> None:
        if isinstance(reply, wire.Appended):
            self._opened.add(group)
            self._opening.discard(group)
            for lane in self._lanes.values():
                self._pump(lane)
        else:
            if (
                isinstance(reply, wire.Refused)
                and reply.reason is Refusal.UNKNOWN_PRODUCER
                and not self._opened
            ):
                self._id = _new_id()  # too old by now to be admitted, and nothing was sent under it
            self._open_again(group)

    def _open_again(self, group: GroupKey) -> None:
        self._expire_waiting(group)
        self._network.loop.call_after(RETRY_MS, self._network.refresh, lambda: self._open(group))

    def _expire_waiting(self, group: GroupKey) -> None:
        """What has waited too long to be sent for the first time certainly has had no effect."""
        now = self._network.loop.now
        for lane in self._lanes.values():
            if self._network.view.of_task.get((self._module, lane.task)) != group:
                continue
            while lane.waiting and lane.waiting[0].sealed_at + self._timeout_ms < now:
                why = f"nobody who leads group {group} could be reached in time; nothing was appended"
                self._finish(lane, lane.waiting.popleft(), RetriableError(why))


def _new_id() -> ProducerId:
    return new_producer_id(time.time_ns() // 1_000_000, secrets.randbits(32))
