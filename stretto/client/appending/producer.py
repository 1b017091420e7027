"""A producer: gathers records into batches, numbers them, and sends each until it knows.

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
from stretto.client.appending.task_queues import Identity, Lane, Lent
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
"""What asks for patience at least: a leader that has too few replicas, or too much to do."""
REQUEST_TIMEOUT_MS = 5_000
PROCESSING_MS = 60_000
"""How long an answer may take that waits for topologies."""
AckLevel: TypeAlias = Literal["all", "streams", "append", "none"]
ACK_LEVELS: tuple[AckLevel, ...] = ("all", "streams", "append", "none")
_FORGOTTEN = "the cluster forgot this producer while the batch was under way; it may be applied"


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
        ack: AckLevel = "append",
        declared: DepotSpec | Callable[[], DepotSpec] | None = None,
    ) -> None:
        """``ack`` is what is waited for: that the record is replicated and visible (``append``); that every
        stream of the depot has processed it, too (``streams``); that every topology has, microbatches
        included, so that all that it leads to is visible (``all``); nothing (``none``). ``declared`` is
        how the depot is declared, or tells it, before the first record that names no task."""
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
        self._lanes = {task: Lane(task) for task in self._tasks}
        self._current = 0
        self._identities: dict[GroupKey, Identity] = {}
        self._unsettled = 0
        self._idle = threading.Condition(self._lock)
        self._lingering = False
        #: Of the caller who appends by its own hands. Nothing else goes out to its task until it is done.
        self._lent: Lent | None = None
        self._closed = False
        self._declared = declared
        #: Records without a task go to the tasks in turn. Of most depots that is to be found out.
        self._deals = declared is None

    # From the caller's threads.

    def append(self, record: bytes, *, task: int | None = None) -> Ack:
        """Add one record; without a task, whole batches go to the tasks in turn, if the depot allows it."""
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
            lane = self._lanes[self._tasks[self._current] if task is None else self._known(task)]
            batch = lane.gathering
            index = len(lane.records)
            lane.records.append(record)
            lane.records_bytes += size
            if len(lane.records) >= self._batch_records or lane.records_bytes >= self._batch_bytes:
                self._seal(lane)
            elif not self._lingering:
                self._lingering = True
                self._network.call(self._linger)
        return Ack(batch if self._ack != "none" else SENT, lock, index)

    def append_batch(self, records: list[bytes], *, task: int | None = None) -> Ack:
        """Add records that stay together, as one batch."""
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
            lane = self._lanes[self._tasks[self._current] if task is None else self._known(task)]
            if lane.records:
                self._seal(lane)
            batch = lane.gathering
            lane.records = records
            lane.records_bytes = sum(map(len, records))
            self._seal(lane)
        return Ack(batch if self._ack != "none" else SENT, self._lock)

    def append_and_wait(self, record: bytes, *, task: int | None = None) -> dict[str, Any]:
        """Add one record and return once it is what ``ack`` asks for, like ``append(...).result()``: sooner,
        since no other thread is woken for it, unless something else of this producer is on its way."""
        if type(record) is not bytes or len(record) > RECORD_BYTES_MAX:
            raise _unfit(record)
        if task is None and not self._deals:
            task = self._task_of_bytes()
        batch = Batch()
        lent: Lent | None = None
        reply: wire.ToClient | None = None
        try:
            # An interrupt may come anywhere from here on.
            lent = self._lend(record, task, batch) if self._ack == "append" else None
            if lent is not None:
                message = lent.message
                reply = wire.Unknown(message.request)
                reply = self._network.lane.ask(message.group, message, (batch.body,))
                if isinstance(reply, wire.Appended):
                    self._acknowledged(lent, reply)
        finally:
            self._leave(lent, batch, reply)
        if lent is None:
            return self.append_batch([record], task=task).result()
        return Ack(batch, self._lock).result()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended so far is settled, well or not."""
        with self._lock:
            for lane in self._lanes.values():
                if lane.records:
                    self._seal(lane)
            if not self._idle.wait_for(self._is_idle, timeout):
                left = self._unsettled + (self._lent is not None)
                raise TimeoutError(f"{left} batches are still on their way")

    def close(self, timeout: float | None = 30.0) -> None:
        self.flush(timeout)
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def learn_declaration(self) -> DepotSpec | None:
        """Find out, once, how the depot is declared; this may have to wait for an answer of the cluster."""
        declared = self._declared
        if callable(declared):
            if self._network.is_own_thread:
                raise UsageError("a callback says task=... with what it appends: it cannot wait to be told")
            # Two threads may both ask at their first append; they are told the same.
            declared = self._declared = declared()
        return declared

    def _task_of_bytes(self) -> TaskId | None:
        """Return the task of a record that names none; None if it may be any. Raises UsageError otherwise."""
        spec = self.learn_declaration()
        task = None if spec is None else task_of_bytes(spec)
        self._deals = task is None
        return task

    def _known(self, task: int) -> TaskId:
        if task not in self._lanes:
            raise UsageError(f"module {self._module} has tasks 0 to {len(self._tasks) - 1}, not {task}")
        return TaskId(task)

    def _wait_for_room(self) -> None:
        self._room.wait_for(lambda: self._buffered_bytes <= self._max_buffered_bytes)

    def _seal(self, lane: Lane) -> None:
        """With the lock: close the batch, and let the client's thread send it."""
        self._close_batch(lane)
        self._network.call(self._pump, lane)

    def _close_batch(self, lane: Lane) -> None:
        batch, records = lane.gathering, lane.records
        lane.gathering, lane.records, lane.records_bytes = Batch(), [], 0
        batch.body = pack(self._depot, records)
        batch.count = len(records)
        self._buffered_bytes += len(batch.body)
        batch.sealed_at = boot_time_ms()
        self._unsettled += 1
        self._current = (self._current + 1) % len(self._tasks)
        lane.waiting.append(batch)

    def _is_idle(self) -> bool:
        return self._unsettled == 0 and self._lent is None

    # A record by the caller's own hands, who has an idle lane to itself.

    def _lend(self, record: bytes, task: int | None, batch: Batch) -> Lent | None:
        """None if something is on its way, or has to be done first."""
        with self._lock:
            if self._closed:
                raise UsageError("the producer is closed")
            lane = self._lanes[self._tasks[self._current] if task is None else self._known(task)]
            view, identity = self._network.view, lane.identity
            group = view.of_task.get((self._module, lane.task))
            if not self._is_idle() or self._lingering or lane.retrying:
                return None
            if identity is None or identity.has_ended or group not in identity.opened:
                return None
            if view.task_counts.get(self._module) != self._task_count:
                return None
            batch.body = pack(self._depot, [record])
            batch.count = 1
            batch.sealed_at = boot_time_ms()
            number, sequence = self._network.next_request(), lane.next_sequence
            self._current = (self._current + 1) % len(self._tasks)
            self._lent = Lent(
                lane,
                batch,
                wire.AppendBatch(number, group, Kind.DEPOT, lane.task, identity.number, sequence, 1),
            )
            return self._lent

    def _acknowledged(self, lent: Lent, reply: wire.Appended) -> None:
        lane, batch = lent.lane, lent.batch
        batch.offset = reply.offset
        lane.next_sequence = lent.message.sequence + 1
        lane.attempts = 0
        lane.has_gap = False
        with self._lock:
            batch.settle(None)
            self._lent = None
            if self._is_idle():
                self._idle.notify_all()

    def _leave(self, lent: Lent | None, batch: Batch, reply: wire.ToClient | None) -> None:
        """Whatever was not simply acknowledged is for the client's thread, which knows what to do about it.
        So is what came meanwhile."""
        left = self._lent
        if left is not None and left.batch is batch:
            self._network.call(self._take_back, left, reply)
        elif lent is not None and (lent.lane.waiting or lent.lane.has_ended):
            self._network.call(self._go_on, lent.lane)

    # On the client's thread.

    def _linger(self) -> None:
        if self._linger_ms:
            self._network.loop.call_after(self._linger_ms, self._linger_over)
        else:
            self._linger_over()

    def _linger_over(self) -> None:
        with self._lock:
            self._lingering = False
            gathered = [lane for lane in self._lanes.values() if lane.records]
            for lane in gathered:
                self._close_batch(lane)
        for lane in gathered:
            self._pump(lane)

    def _take_back(self, lent: Lent, reply: wire.ToClient | None) -> None:
        """From who appended by its own hands; without a reply, nothing was sent."""
        lane, batch, message = lent.lane, lent.batch, lent.message
        with self._lock:
            self._lent = None
            if not batch.is_settled:
                self._unsettled += 1
                self._buffered_bytes += len(batch.body)
        if batch.is_settled:
            # Its caller was interrupted behind that.
            pass
        elif reply is None:
            lane.waiting.appendleft(batch)
        else:
            batch.sequence, batch.request, batch.times_sent = message.sequence, message.request, 1
            batch.doubts = 1
            lane.next_sequence = message.sequence + 1
            lane.in_flight.append(batch)
            self._network.learn(message.group, reply)
            self._answered(lane, message.group, batch, message.request, reply)
        self._go_on(lane)

    def _go_on(self, lane: Lane) -> None:
        if lane.identity is not None and lane.identity.has_ended:
            self._begin_anew(lane.identity)
        self._pump(lane)

    def _is_lent(self, lane: Lane) -> bool:
        return self._lent is not None and self._lent.lane is lane

    def _pump(self, lane: Lane) -> None:
        while lane.waiting and not lane.retrying and len(lane.in_flight) < self._max_in_flight:
            if self._is_lent(lane):
                return
            if self._is_over(lane):
                return
            group = self._network.view.of_task[(self._module, lane.task)]
            identity = self._identity(lane, group)
            if identity.has_ended or not self._admitted(group, identity):
                return
            batch = lane.waiting.popleft()
            if self._is_late(batch):
                self._finish(lane, batch, self._too_late(lane, batch))
            elif not self._send(lane, group, identity, batch):
                lane.waiting.appendleft(batch)
                self._again(lane, group)

    def _is_over(self, lane: Lane) -> bool:
        try:
            self._network.view.check_tasks(self._module, self._task_count)
        except UsageError as error:
            self._give_up(lane, None, error)
            return True
        return False

    def _send(self, lane: Lane, group: GroupKey, identity: Identity, batch: Batch) -> bool:
        sequence = lane.next_sequence if batch.sequence is None else batch.sequence
        number = self._network.next_request()
        epoch = self._network.view.epoch(group)
        if lane.epoch != epoch:
            lane.epoch, lane.attempts = epoch, 0
        waits = self._ack in ("all", "streams")
        append = wire.AppendBatch(
            number,
            group,
            Kind.DEPOT,
            lane.task,
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
            lambda reply, _: self._answered(lane, group, batch, number, reply),
            timeout_ms=REQUEST_TIMEOUT_MS,
            wait_ms=PROCESSING_MS if waits else 0,
        ):
            return False
        if batch.sequence is None:
            batch.sequence = sequence
            lane.next_sequence += batch.count
        batch.request = number
        batch.times_sent += 1
        batch.doubts += 1
        lane.in_flight.append(batch)
        return True

    def _answered(
        self, lane: Lane, group: GroupKey, batch: Batch, number: int, reply: wire.ToClient | None
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
                lane.attempts = 0
                lane.has_gap = False
                self._finish(lane, batch, None)
                self._pump(lane)
            case wire.Failed(why=why, fault=fault):
                self._give_up(lane, batch, fault.error(why))
            case wire.Refused(reason=Refusal.PAUSED):
                self._paused(lane, batch)
            case wire.Refused(reason=Refusal.UNKNOWN_PRODUCER):
                self._forgotten(lane, batch)
            case wire.Refused(reason=Refusal.SEQUENCE_GAP) if lane.has_gap and lane.in_flight[0] is batch:
                self._forgotten(lane, batch)
            case _ if lane.has_ended:
                self._forgotten(lane, batch)
            case wire.Refused(reason=Refusal.STALLED | Refusal.OVERLOADED | Refusal.SEALED):
                self._again(lane, group, BUSY_MS)
            case _:
                self._again(lane, group)
        if lane.identity is not None and lane.identity.has_ended:
            self._begin_anew(lane.identity)

    def _finish(self, lane: Lane, batch: Batch, error: StrettoError | None) -> None:
        if batch in lane.in_flight:
            lane.in_flight.remove(batch)
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
        """With the lock."""
        batch.settle(error)
        self._unsettled -= 1
        if self._is_idle():
            self._idle.notify_all()

    def _again(self, lane: Lane, group: GroupKey, least_ms: int = 0) -> None:
        """Everything under way goes out again, in order, once somebody else leads or some time has passed."""
        if lane.retrying:
            return
        lane.retrying = True
        for batch in reversed(lane.in_flight):
            batch.request = 0
            lane.waiting.appendleft(batch)
        lane.in_flight.clear()
        within_ms = max(least_ms, patience_ms(lane.attempts))
        lane.attempts += 1
        self._network.when_led_anew(group, lambda: self._resume(lane), above=lane.epoch, within_ms=within_ms)

    def _resume(self, lane: Lane) -> None:
        lane.retrying = False
        self._pump(lane)

    def _is_late(self, batch: Batch) -> bool:
        return batch.sealed_at + self._timeout_ms < self._network.loop.now

    def _too_late(self, lane: Lane, batch: Batch) -> StrettoError:
        if batch.times_sent:
            lane.has_gap = True
        if batch.doubts:
            return OutcomeUnknown("no worker confirmed the batch in time; it may be applied")
        seconds, where = self._timeout_ms / 1_000, f"task {lane.task} of {self._module}"
        refusal = batch.refusal if lane.identity is None else batch.refusal or lane.identity.refusal
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

    def _give_up(self, lane: Lane, first: Batch | None, error: StrettoError) -> None:
        """This batch (None: all) will never be taken. Its sequence is never used, so no later one is either;
        those before it go on."""
        self._closed = True
        under_way = list(lane.in_flight)
        start = under_way.index(first) if first is not None else 0
        # Its doubts are those of all behind it, and if it has none, none of them can have been stored.
        is_certain = first is not None and not first.doubts
        for batch in [*under_way[start:], *lane.refused, *lane.waiting]:
            told = (
                error if is_certain or not batch.doubts else OutcomeUnknown(f"it may be applied, but {error}")
            )
            self._finish(lane, batch, told)
        lane.refused.clear()
        lane.waiting.clear()

    def _paused(self, lane: Lane, batch: Batch) -> None:
        """The leader has not stored this batch, hence none after it, and does not take it. Later ones go out
        under another id: a copy of these that is still on its way must not find its sequence awaited."""
        if lane.identity is not None:
            lane.identity.has_ended = True
        under_way = list(lane.in_flight)
        for each in [*under_way[under_way.index(batch) :], *lane.refused]:
            self._finish(lane, each, ModulePaused(self._module))
        lane.refused.clear()
        # One by one: others are added meanwhile.
        while lane.waiting:
            self._finish(lane, lane.waiting.popleft(), ModulePaused(self._module))

    # Identities: admitted by each group once, and forgotten by it after a long silence.

    def _identity(self, lane: Lane, group: GroupKey) -> Identity:
        """The task keeps it, whatever group it is in later."""
        if lane.identity is None:
            lane.identity = self._identities.setdefault(group, Identity())
            lane.identity.lanes.append(lane)
        return lane.identity

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
                for lane in identity.lanes:
                    self._pump(lane)
            case wire.Refused(reason=Refusal.UNKNOWN_PRODUCER):
                identity.opening.discard(group)
                identity.has_ended = True  # too old by now to be admitted
                self._begin_anew(identity)
            case wire.Refused(reason=Refusal.PAUSED):
                identity.opening.discard(group)
                for lane in identity.lanes:
                    while lane.waiting:
                        batch = lane.waiting.popleft()
                        lost = OutcomeUnknown("the module was paused while the batch was under way")
                        self._finish(lane, batch, lost if batch.doubts else ModulePaused(self._module))
            case wire.Failed(why=why, fault=fault):
                for lane in identity.lanes:
                    self._give_up(lane, None, fault.error(why))
            case _:
                identity.refusal = reply.reason if isinstance(reply, wire.Refused) else None
                self._open_again(group, identity, epoch)

    def _open_again(self, group: GroupKey, identity: Identity, epoch: Epoch) -> None:
        for lane in identity.lanes:
            while lane.waiting and self._is_late(lane.waiting[0]):
                batch = lane.waiting.popleft()
                self._finish(lane, batch, self._too_late(lane, batch))
        within_ms = patience_ms(identity.attempts)
        identity.attempts += 1
        self._network.when_led_anew(
            group, lambda: self._open_where_it_is(group, identity), above=epoch, within_ms=within_ms
        )

    def _open_where_it_is(self, group: GroupKey, identity: Identity) -> None:
        """Tasks that are in another group by now need not wait for this one, which may be over."""
        places = self._network.view.of_task
        moved = [lane for lane in identity.lanes if places.get((self._module, lane.task)) != group]
        if len(moved) < len(identity.lanes):
            self._open(group, identity)
        else:
            identity.opening.discard(group)
        for lane in moved:
            self._pump(lane)

    def _forgotten(self, lane: Lane, batch: Batch) -> None:
        """What was refused every time had no effect, and goes out under the next id."""
        if lane.identity is not None:
            lane.identity.has_ended = True
        if batch.doubts:
            self._finish(lane, batch, OutcomeUnknown(_FORGOTTEN))
        else:
            lane.in_flight.remove(batch)
            lane.refused.append(batch)

    def _begin_anew(self, identity: Identity) -> None:
        """Once nothing is under way any more."""
        with self._lock:
            if any(lane.in_flight or self._is_lent(lane) for lane in identity.lanes):
                return
            identity.begin()
            for lane in identity.lanes:
                lane.next_sequence = 0
                lane.has_gap = False
        for lane in identity.lanes:
            while lane.waiting and lane.waiting[0].sequence is not None:
                lane.refused.append(lane.waiting.popleft())
            for batch in [each for each in lane.refused if each.doubts]:
                lane.refused.remove(batch)
                self._finish(lane, batch, OutcomeUnknown(_FORGOTTEN))
            for batch in lane.refused:
                batch.sequence = None
                batch.times_sent = 0
            lane.waiting.extendleft(reversed(lane.refused))
            lane.refused.clear()
        for lane in identity.lanes:
            self._pump(lane)


def check_ack(ack: object) -> None:
    """Raise UsageError for what is no level of acknowledgement."""
    if ack not in ACK_LEVELS:
        raise UsageError(f"ack is one of {', '.join(ACK_LEVELS)}; {ack!r} is none of them")


def _unfit(record: object) -> UsageError:
    if isinstance(record, bytes):
        return UsageError(f"a record of {len(record)} bytes is beyond the limit of {RECORD_BYTES_MAX}")
    return UsageError(
        f"a record is bytes, not {type(record).__name__}; encode it, for instance with msgspec.json.encode"
    )
