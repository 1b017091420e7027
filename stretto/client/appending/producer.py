"""A producer collects records into batches, numbers them, and sends each until its outcome is known.

Per record there is one list append and one small :class:`Ack`; everything else happens per batch. Batches of
one task carry contiguous sequence numbers, several may be under way, and after a failure they go out again in
order, to whoever leads now. A worker that has seen a batch before says so and stores it once, so repeating is
always safe.

What became of a batch that is given up follows from the answers to all the times that it was sent. One that
was refused every time is stored nowhere, and its caller is told so. A time without an answer leaves a doubt
for ever: a leader that refuses the batch later, because it is stalled, does not say what others have stored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal, Self, TypeAlias

import structlog

from stretto.client.appending.acks import SENT, Ack, Batch
from stretto.client.appending.task_queues import DirectAppend, Identity, TaskQueue
from stretto.errors import (
    ModulePaused,
    NotAppended,
    NotEnoughReplicas,
    OutcomeUnknown,
    StrettoError,
    UsageError,
)
from stretto.module.partition import task_of_bytes
from stretto.network.routing import Network, patience_ms
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.specs.modules import DepotSpec
from stretto.vocabulary.clock import boot_time_ms
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import RECORD_BYTES_MAX, pack
from stretto.vocabulary.types import Epoch, TaskId
from stretto.wire import messages as wire

log = structlog.get_logger()
BUSY_MS = 50
"""Minimum back-off after a leader says that it is stalled, overloaded or sealed."""
REQUEST_TIMEOUT_MS = 5_000
"""How long an answer to an append may take that waits for no topology."""
PROCESSING_MS = 60_000
"""How much longer an answer may take that waits for topologies."""
AckLevel: TypeAlias = Literal["all", "streams", "append", "none"]
"""What an acknowledgement waits for; see :class:`Producer`."""
ACK_LEVELS: tuple[AckLevel, ...] = ("all", "streams", "append", "none")
_FORGOTTEN = "the cluster forgot this producer while the batch was under way; it may be applied"


class Producer:
    """Appends records, which are bytes, to one depot in batches. Safe to use from several threads."""

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
        ack: AckLevel = "append",
        declared: DepotSpec | Callable[[], DepotSpec] | None = None,
    ) -> None:
        """Prepare to append; a client's ``producer`` and ``depot`` call this, and pass on the options.

        ``ack`` is what is waited for: that the record is replicated and visible (``append``); that every
        stream of the depot has processed it, too (``streams``); that every topology has, microbatches
        included, so that all that it leads to is visible (``all``); nothing (``none``). ``declared`` is how
        the depot is declared, or a function that returns it, called before the first record that names no
        task.
        """
        check_ack(ack)
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
        self._ack = ack
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._buffered_bytes = 0
        self._tasks = sorted(network.view.tasks.get(module, []))
        if not self._tasks:
            raise UsageError(f"there is no module {module!r} on this cluster")
        self._task_count = network.view.task_counts[module]
        self._queues = {task: TaskQueue(task) for task in self._tasks}
        self._current = 0
        self._identities: dict[GroupKey, Identity] = {}
        self._unsettled = 0
        self._idle = threading.Condition(self._lock)
        self._lingering = False
        #: The append that a caller's own thread sends. Nothing else is sent to its task until it is done.
        self._direct_append: DirectAppend | None = None
        self._closed = False
        self._declared = declared
        #: Whether records without a task go to the tasks in turn; False until the declaration is known.
        self._deals = declared is None

    # Called on the caller's threads.

    def append(self, record: bytes, *, task: int | None = None) -> Ack:
        """Add one record, and return the Ack with its outcome.

        Without a task, whole batches go to the tasks in turn, if the depot allows it.
        """
        size = len(record) if type(record) is bytes else -1
        if not 0 <= size <= RECORD_BYTES_MAX:
            raise _unfit(record)
        if task is None and not self._deals:
            task = self._task_of_bytes()
        lock = self._lock
        with lock:
            if self._closed:
                raise UsageError("the producer is closed")
            if self._buffered_bytes > self._max_buffered_bytes:
                self._wait_for_room()
            queue = self._queues[self._tasks[self._current] if task is None else self._known(task)]
            batch = queue.gathering
            index = len(queue.records)
            queue.records.append(record)
            queue.records_bytes += size
            if len(queue.records) >= self._batch_records or queue.records_bytes >= self._batch_bytes:
                self._seal(queue)
            elif not self._lingering:
                self._lingering = True
                self._network.call(self._linger)
        return Ack(batch if self._ack != "none" else SENT, lock, index)

    def append_batch(self, records: list[bytes], *, task: int | None = None) -> Ack:
        """Add records that stay together as one batch, and return the Ack with their outcome."""
        if not records:
            raise UsageError("a batch has at least one record")
        if set(map(type, records)) != {bytes}:
            raise _unfit(next(record for record in records if type(record) is not bytes))
        if task is None and not self._deals:
            task = self._task_of_bytes()
        with self._lock:
            if self._closed:
                raise UsageError("the producer is closed")
            if self._buffered_bytes > self._max_buffered_bytes:
                self._wait_for_room()
            queue = self._queues[self._tasks[self._current] if task is None else self._known(task)]
            if queue.records:
                self._seal(queue)
            batch = queue.gathering
            queue.records = records
            queue.records_bytes = sum(map(len, records))
            self._seal(queue)
        return Ack(batch if self._ack != "none" else SENT, self._lock)

    def append_and_wait(self, record: bytes, *, task: int | None = None) -> dict[str, Any]:
        """Add one record and wait for what ``ack`` asks for, like ``append(...).result()`` but faster.

        It is faster since no other thread is woken for it, unless something else of this producer is on its
        way.
        """
        if type(record) is not bytes or len(record) > RECORD_BYTES_MAX:
            raise _unfit(record)
        if task is None and not self._deals:
            task = self._task_of_bytes()
        batch = Batch()
        direct: DirectAppend | None = None
        reply: wire.ToClient | None = None
        try:
            # An interrupt may come anywhere from here on.
            direct = self._lend(record, task, batch) if self._ack == "append" else None
            if direct is not None:
                message = direct.message
                reply = wire.Unknown(message.request)
                reply = self._network.direct.ask(message.group, message, (batch.body,))
                if isinstance(reply, wire.Appended):
                    self._acknowledged(direct, reply)
        finally:
            self._leave(direct, batch, reply)
        if direct is None:
            return self.append_batch([record], task=task).result()
        return Ack(batch, self._lock).result()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended so far is settled, well or not."""
        with self._lock:
            for queue in self._queues.values():
                if queue.records:
                    self._seal(queue)
            if not self._idle.wait_for(self._is_idle, timeout):
                left = self._unsettled + (self._direct_append is not None)
                raise TimeoutError(f"{left} batches are still on their way")

    def close(self, timeout: float | None = 30.0) -> None:
        """Flush, and refuse further appends."""
        self.flush(timeout)
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def learn_declaration(self) -> DepotSpec | None:
        """Return how the depot is declared; the first call may have to wait for an answer of the cluster."""
        declared = self._declared
        if callable(declared):
            if self._network.is_own_thread:
                raise UsageError("a callback says task=... with what it appends: it cannot wait to be told")
            # Two threads may both ask at their first append; they get the same answer.
            declared = self._declared = declared()
        return declared

    def _task_of_bytes(self) -> TaskId | None:
        """Return the task of a record that names none; None if it may be any. Raises UsageError otherwise."""
        spec = self.learn_declaration()
        task = None if spec is None else task_of_bytes(spec)
        self._deals = task is None
        return task

    def _known(self, task: int) -> TaskId:
        if task not in self._queues:
            raise UsageError(f"module {self._module} has tasks 0 to {len(self._tasks) - 1}, not {task}")
        return TaskId(task)

    def _wait_for_room(self) -> None:
        self._room.wait_for(lambda: self._buffered_bytes <= self._max_buffered_bytes)

    def _seal(self, queue: TaskQueue) -> None:
        """Close the batch, and let the client's thread send it. The caller has the lock."""
        self._close_batch(queue)
        self._network.call(self._pump, queue)

    def _close_batch(self, queue: TaskQueue) -> None:
        batch, records = queue.gathering, queue.records
        queue.gathering, queue.records, queue.records_bytes = Batch(), [], 0
        batch.body = pack(self._depot, records)
        batch.count = len(records)
        self._buffered_bytes += len(batch.body)
        batch.sealed_at = boot_time_ms()
        self._unsettled += 1
        self._current = (self._current + 1) % len(self._tasks)
        queue.waiting.append(batch)

    def _is_idle(self) -> bool:
        return self._unsettled == 0 and self._direct_append is None

    # Direct appends: the caller's own thread sends a record while its task's queue is idle.

    def _lend(self, record: bytes, task: int | None, batch: Batch) -> DirectAppend | None:
        """Prepare a direct append; None if something is on its way or has to be done first."""
        with self._lock:
            if self._closed:
                raise UsageError("the producer is closed")
            queue = self._queues[self._tasks[self._current] if task is None else self._known(task)]
            view, identity = self._network.view, queue.identity
            group = view.of_task.get((self._module, queue.task))
            if not self._is_idle() or self._lingering or queue.retrying:
                return None
            if identity is None or identity.has_ended or group not in identity.opened:
                return None
            if view.task_counts.get(self._module) != self._task_count:
                return None
            batch.body = pack(self._depot, [record])
            batch.count = 1
            batch.sealed_at = boot_time_ms()
            number, sequence = self._network.next_request(), queue.next_sequence
            self._current = (self._current + 1) % len(self._tasks)
            self._direct_append = DirectAppend(
                queue,
                batch,
                wire.AppendBatch(number, group, Kind.DEPOT, queue.task, identity.number, sequence, 1),
            )
            return self._direct_append

    def _acknowledged(self, direct: DirectAppend, reply: wire.Appended) -> None:
        queue, batch = direct.queue, direct.batch
        batch.offset = reply.offset
        queue.next_sequence = direct.message.sequence + 1
        queue.attempts = 0
        queue.has_gap = False
        with self._lock:
            batch.settle(None)
            self._direct_append = None
            if self._is_idle():
                self._idle.notify_all()

    def _leave(self, direct: DirectAppend | None, batch: Batch, reply: wire.ToClient | None) -> None:
        """End a direct append: the client's thread handles what was not simply acknowledged.

        It also sends what was added meanwhile.
        """
        left = self._direct_append
        if left is not None and left.batch is batch:
            self._network.call(self._take_back, left, reply)
        elif direct is not None and (direct.queue.waiting or direct.queue.has_ended):
            self._network.call(self._go_on, direct.queue)

    # Called on the client's thread.

    def _linger(self) -> None:
        if self._linger_ms:
            self._network.loop.call_after(self._linger_ms, self._linger_over)
        else:
            self._linger_over()

    def _linger_over(self) -> None:
        with self._lock:
            self._lingering = False
            gathered = [queue for queue in self._queues.values() if queue.records]
            for queue in gathered:
                self._close_batch(queue)
        for queue in gathered:
            self._pump(queue)

    def _take_back(self, direct: DirectAppend, reply: wire.ToClient | None) -> None:
        """Take over a direct append that was not acknowledged; without a reply, nothing was sent."""
        queue, batch, message = direct.queue, direct.batch, direct.message
        with self._lock:
            self._direct_append = None
            if not batch.is_settled:
                self._unsettled += 1
                self._buffered_bytes += len(batch.body)
        if batch.is_settled:
            # Its caller was interrupted behind that.
            pass
        elif reply is None:
            queue.waiting.appendleft(batch)
        else:
            batch.sequence, batch.request, batch.times_sent = message.sequence, message.request, 1
            batch.doubts = 1
            queue.next_sequence = message.sequence + 1
            queue.in_flight.append(batch)
            self._network.learn(message.group, reply)
            self._answered(queue, message.group, batch, message.request, reply)
        self._go_on(queue)

    def _go_on(self, queue: TaskQueue) -> None:
        if queue.identity is not None and queue.identity.has_ended:
            self._begin_anew(queue.identity)
        self._pump(queue)

    def _is_appended_directly(self, queue: TaskQueue) -> bool:
        return self._direct_append is not None and self._direct_append.queue is queue

    def _pump(self, queue: TaskQueue) -> None:
        while queue.waiting and not queue.retrying and len(queue.in_flight) < self._max_in_flight:
            if self._is_appended_directly(queue):
                return
            if self._is_over(queue):
                return
            group = self._network.view.of_task[(self._module, queue.task)]
            identity = self._identity(queue, group)
            if identity.has_ended or not self._admitted(group, identity):
                return
            batch = queue.waiting.popleft()
            if self._is_late(batch):
                self._finish(queue, batch, self._too_late(queue, batch))
            elif not self._send(queue, group, identity, batch):
                queue.waiting.appendleft(batch)
                self._again(queue, group)

    def _is_over(self, queue: TaskQueue) -> bool:
        try:
            self._network.view.check_tasks(self._module, self._task_count)
        except UsageError as error:
            self._give_up(queue, None, error)
            return True
        return False

    def _send(self, queue: TaskQueue, group: GroupKey, identity: Identity, batch: Batch) -> bool:
        sequence = queue.next_sequence if batch.sequence is None else batch.sequence
        number = self._network.next_request()
        epoch = self._network.view.epoch(group)
        if queue.epoch != epoch:
            queue.epoch, queue.attempts = epoch, 0
        waits = self._ack in ("all", "streams")
        append = wire.AppendBatch(
            number,
            group,
            Kind.DEPOT,
            queue.task,
            identity.number,
            sequence,
            batch.count,
            awaits_streams=waits,
            awaits_microbatches=self._ack == "all",
        )
        if not self._network.to_leader(
            group,
            number,
            append,
            (batch.body,),
            lambda reply, _: self._answered(queue, group, batch, number, reply),
            timeout_ms=REQUEST_TIMEOUT_MS,
            wait_ms=PROCESSING_MS if waits else 0,
        ):
            return False
        if batch.sequence is None:
            batch.sequence = sequence
            queue.next_sequence += batch.count
        batch.request = number
        batch.times_sent += 1
        batch.doubts += 1
        queue.in_flight.append(batch)
        return True

    def _answered(
        self, queue: TaskQueue, group: GroupKey, batch: Batch, number: int, reply: wire.ToClient | None
    ) -> None:
        match reply:
            # Also if it is sent again by now: that time had no effect.
            case wire.Refused(reason=reason):
                batch.doubts -= 1
                batch.refusal = reason
            case wire.Failed(fault=wire.Fault.USAGE):
                batch.doubts -= 1
            case _:
                pass
        if batch.is_settled or batch.request != number:
            return
        match reply:
            case wire.Appended(offset=offset, streams=streams):
                batch.offset = offset
                if streams:
                    batch.processed(streams)
                queue.attempts = 0
                queue.has_gap = False
                self._finish(queue, batch, None)
                self._pump(queue)
            case wire.Failed(why=why, fault=fault):
                self._give_up(queue, batch, fault.error(why))
            case wire.Refused(reason=Refusal.PAUSED):
                self._paused(queue, batch)
            case wire.Refused(reason=Refusal.UNKNOWN_PRODUCER):
                self._forgotten(queue, batch)
            case wire.Refused(reason=Refusal.SEQUENCE_GAP) if queue.has_gap and queue.in_flight[0] is batch:
                self._forgotten(queue, batch)
            case _ if queue.has_ended:
                self._forgotten(queue, batch)
            case wire.Refused(reason=Refusal.STALLED | Refusal.OVERLOADED | Refusal.SEALED):
                self._again(queue, group, BUSY_MS)
            case _:
                self._again(queue, group)
        if queue.identity is not None and queue.identity.has_ended:
            self._begin_anew(queue.identity)

    def _finish(self, queue: TaskQueue, batch: Batch, error: StrettoError | None) -> None:
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        size = len(batch.body)
        batch.body = b""
        with self._lock:
            self._settle(batch, error)
            self._buffered_bytes -= size
            self._room.notify_all()
        for callback in batch.callbacks:
            try:
                callback()
            except Exception:
                # It is the caller's, and everybody else's records are on this thread.
                log.exception("ack_callback_failed")

    def _settle(self, batch: Batch, error: StrettoError | None) -> None:
        """Settle a batch, and notify those that wait for an idle producer. The caller has the lock."""
        batch.settle(error)
        self._unsettled -= 1
        if self._is_idle():
            self._idle.notify_all()

    def _again(self, queue: TaskQueue, group: GroupKey, least_ms: int = 0) -> None:
        """Send everything under way again, in order, once there is another leader or some time has passed."""
        if queue.retrying:
            return
        queue.retrying = True
        for batch in reversed(queue.in_flight):
            batch.request = 0
            queue.waiting.appendleft(batch)
        queue.in_flight.clear()
        within_ms = max(least_ms, patience_ms(queue.attempts))
        queue.attempts += 1
        self._network.when_led_anew(
            group, lambda: self._resume(queue), above=queue.epoch, within_ms=within_ms
        )

    def _resume(self, queue: TaskQueue) -> None:
        queue.retrying = False
        self._pump(queue)

    def _is_late(self, batch: Batch) -> bool:
        return batch.sealed_at + self._timeout_ms < self._network.loop.now

    def _too_late(self, queue: TaskQueue, batch: Batch) -> StrettoError:
        if batch.times_sent:
            queue.has_gap = True
        if batch.doubts:
            return OutcomeUnknown("no worker confirmed the batch in time; it may be applied")
        seconds, where = self._timeout_ms / 1_000, f"task {queue.task} of {self._module}"
        refusal = batch.refusal if queue.identity is None else batch.refusal or queue.identity.refusal
        match refusal:
            case Refusal.STALLED:
                return NotEnoughReplicas(
                    f"nothing was appended: {where} had too few replicas in sync for {seconds:g} s; see "
                    f"'stretto task-groups-status {self._module}', and append it again when they are back"
                )
            case Refusal.OVERLOADED:
                return NotAppended(
                    f"nothing was appended: the leader of {where} had too much to apply for {seconds:g} s; "
                    "append it again, slower"
                )
            case _:
                return NotAppended(
                    f"nothing was appended: nobody who leads {where} could be reached in {seconds:g} s; "
                    "append it again later"
                )

    def _give_up(self, queue: TaskQueue, first: Batch | None, error: StrettoError) -> None:
        """Fail this batch (None: all), which will never be accepted, and all behind it.

        Its sequence is never used, so no later one is either; those before it go on.
        """
        self._closed = True
        under_way = list(queue.in_flight)
        start = under_way.index(first) if first is not None else 0
        # Its doubts are those of all behind it, and if it has none, none of them can have been stored.
        is_certain = first is not None and not first.doubts
        for batch in [*under_way[start:], *queue.refused, *queue.waiting]:
            told = (
                error if is_certain or not batch.doubts else OutcomeUnknown(f"it may be applied, but {error}")
            )
            self._finish(queue, batch, told)
        queue.refused.clear()
        queue.waiting.clear()

    def _paused(self, queue: TaskQueue, batch: Batch) -> None:
        """Fail this batch and all behind it, since the module is paused.

        The leader has not stored this batch, hence none after it, and does not accept it. Later ones are sent
        under another id: a copy of these that is still on its way must not find its sequence awaited.
        """
        if queue.identity is not None:
            queue.identity.has_ended = True
        under_way = list(queue.in_flight)
        for each in [*under_way[under_way.index(batch) :], *queue.refused]:
            self._finish(queue, each, ModulePaused(self._module))
        queue.refused.clear()
        # One by one: others are added meanwhile.
        while queue.waiting:
            self._finish(queue, queue.waiting.popleft(), ModulePaused(self._module))

    # Identities: admitted by each group once, and forgotten by it after a long silence.

    def _identity(self, queue: TaskQueue, group: GroupKey) -> Identity:
        """Return the identity of a task, which keeps it even when it moves to another group."""
        if queue.identity is None:
            queue.identity = self._identities.setdefault(group, Identity())
            queue.identity.queues.append(queue)
        return queue.identity

    def _admitted(self, group: GroupKey, identity: Identity) -> bool:
        if group in identity.opened:
            return True
        if group not in identity.opening:
            identity.opening.add(group)
            self._open(group, identity)
        return False

    def _open(self, group: GroupKey, identity: Identity) -> None:
        number = self._network.next_request()
        epoch = self._network.view.epoch(group)
        message = wire.AppendBatch(number, group, Kind.PRODUCER_OPEN, TaskId(0), identity.number, 0, 1)
        sent = self._network.to_leader(
            group,
            number,
            message,
            (b"",),
            lambda reply, _: self._open_answered(group, identity, epoch, reply),
            timeout_ms=REQUEST_TIMEOUT_MS,
        )
        if not sent:
            self._open_again(group, identity, epoch)

    def _open_answered(
        self, group: GroupKey, identity: Identity, epoch: Epoch, reply: wire.ToClient | None
    ) -> None:
        match reply:
            case wire.Appended():
                identity.opened.add(group)
                identity.opening.discard(group)
                identity.attempts = 0
                identity.refusal = None
                for queue in identity.queues:
                    self._pump(queue)
            case wire.Refused(reason=Refusal.UNKNOWN_PRODUCER):
                identity.opening.discard(group)
                identity.has_ended = True  # too old by now to be admitted
                self._begin_anew(identity)
            case wire.Refused(reason=Refusal.PAUSED):
                identity.opening.discard(group)
                for queue in identity.queues:
                    while queue.waiting:
                        batch = queue.waiting.popleft()
                        lost = OutcomeUnknown("the module was paused while the batch was under way")
                        self._finish(queue, batch, lost if batch.doubts else ModulePaused(self._module))
            case wire.Failed(why=why, fault=fault):
                for queue in identity.queues:
                    self._give_up(queue, None, fault.error(why))
            case _:
                identity.refusal = reply.reason if isinstance(reply, wire.Refused) else None
                self._open_again(group, identity, epoch)

    def _open_again(self, group: GroupKey, identity: Identity, epoch: Epoch) -> None:
        for queue in identity.queues:
            while queue.waiting and self._is_late(queue.waiting[0]):
                batch = queue.waiting.popleft()
                self._finish(queue, batch, self._too_late(queue, batch))
        within_ms = patience_ms(identity.attempts)
        identity.attempts += 1
        self._network.when_led_anew(
            group, lambda: self._open_where_it_is(group, identity), above=epoch, within_ms=within_ms
        )

    def _open_where_it_is(self, group: GroupKey, identity: Identity) -> None:
        """Open the identity again for tasks still in the group; tasks that moved send to their new one."""
        places = self._network.view.of_task
        moved = [queue for queue in identity.queues if places.get((self._module, queue.task)) != group]
        if len(moved) < len(identity.queues):
            self._open(group, identity)
        else:
            identity.opening.discard(group)
        for queue in moved:
            self._pump(queue)

    def _forgotten(self, queue: TaskQueue, batch: Batch) -> None:
        """Settle or keep a batch whose id the group forgot.

        If every send was refused, it had no effect, and goes out under the next id.
        """
        if queue.identity is not None:
            queue.identity.has_ended = True
        if batch.doubts:
            self._finish(queue, batch, OutcomeUnknown(_FORGOTTEN))
        else:
            queue.in_flight.remove(batch)
            queue.refused.append(batch)

    def _begin_anew(self, identity: Identity) -> None:
        """Give the identity a new id, and send what was refused; once nothing is under way any more."""
        with self._lock:
            if any(queue.in_flight or self._is_appended_directly(queue) for queue in identity.queues):
                return
            identity.begin()
            for queue in identity.queues:
                queue.next_sequence = 0
                queue.has_gap = False
        for queue in identity.queues:
            while queue.waiting and queue.waiting[0].sequence is not None:
                queue.refused.append(queue.waiting.popleft())
            for batch in [each for each in queue.refused if each.doubts]:
                queue.refused.remove(batch)
                self._finish(queue, batch, OutcomeUnknown(_FORGOTTEN))
            for batch in queue.refused:
                batch.sequence = None
                batch.times_sent = 0
            queue.waiting.extendleft(reversed(queue.refused))
            queue.refused.clear()
        for queue in identity.queues:
            self._pump(queue)


def check_ack(ack: object) -> None:
    """Raise UsageError unless ``ack`` is a level of acknowledgement."""
    if ack not in ACK_LEVELS:
        raise UsageError(f"ack is one of {', '.join(ACK_LEVELS)}; {ack!r} is none of them")


def _unfit(record: object) -> UsageError:
    if isinstance(record, bytes):
        return UsageError(f"a record of {len(record)} bytes is beyond the limit of {RECORD_BYTES_MAX}")
    return UsageError(
        f"a record is bytes, not {type(record).__name__}; encode it, for instance with msgspec.json.encode"
    )
