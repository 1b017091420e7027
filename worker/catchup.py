"""A worker's transfers of state: those it serves as a leader and those it receives as a follower.

The driver of :mod:`stretto.catchup`, on the worker's loop. Copying, hashing, reading and writing are done on
threads of its own, and what they found comes back to the loop as an event of the transfer; an answer to a
transfer that is over finds nobody. Messages travel on the connections that replication uses, except blocks:
these are sent by a process of their own, on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, assert_never

import structlog

from stretto import admin, wire
from stretto.catchup import fetch, messages, serve
from stretto.errors import StorageCorrupt, StorageError, StrettoError
from stretto.replog.core import effects, events
from stretto.replog.storage import EpochStart
from stretto.types import Epoch, Millis, Offset, TaskId, WorkerId
from stretto.worker import sender
from stretto.worker.environment import NoSpace
from stretto.worker.images import GrowingImage, SpooledImage, make_image
from stretto.worker.install import Install
from stretto.worker.share import NodeShare
from stretto.worker.staging import Abandoned, Staging
from stretto.zk.paths import GroupKey

if TYPE_CHECKING:
    from stretto.worker.group import Group
    from stretto.worker.process import Worker
    from stretto.worker.storage import ReplicaStorage

log = structlog.get_logger()

THREADS = 6
AGAIN_MS = 1_000
AGAIN_MAX_MS = 30_000
"""From the failure of a transfer to the next one, and from one look at a full disk to the next: twice as long
each time, up to this."""
RATE_MS = 1_000
SHARE = "catchup"
SHARE_MS = 500
"""How often the workers of a node look how many of them send state."""

T = TypeVar("T")


@dataclass(eq=False)
class Receiving:
    """One transfer to a replica of ours."""

    group: Group
    leader: WorkerId
    epoch: Epoch
    attempt: int
    fetch: fetch.Fetch
    staging: Staging
    begun_at: Millis
    #: What it waits for, in a sentence.
    waits: str = ""
    looks: int = 0
    told_at: Millis = Millis(0)
    deadline: Millis | None = None
    end: Offset | None = None
    history: tuple[EpochStart, ...] = ()
    received_bytes: int = 0
    rate_at: Millis = Millis(0)
    rate_bytes: int = 0
    bytes_per_second: int = 0


@dataclass(eq=False)
class Serving:
    """The images of one transfer from us."""

    attempt: int
    images: dict[TaskId, SpooledImage] = field(default_factory=dict)
    growing: dict[TaskId, GrowingImage] = field(default_factory=dict)


class CatchupDesk:
    """All methods are the loop's."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = worker.loop
        self._pool = ThreadPoolExecutor(THREADS, "catchup")
        node_dir = worker.config.node_dir
        self._share = NodeShare(node_dir / SHARE, worker.worker) if node_dir is not None else None
        #: Workers of this node that send, and whether that is being looked at.
        self._senders = 1
        self._is_looking = False
        self._serve = serve.Serve(self._limit(), Millis(self._loop.now))
        self._serve_deadline: Millis | None = None
        self._serving: dict[serve.Key, Serving] = {}
        self._receiving: dict[GroupKey, Receiving] = {}
        #: The latest staging of each group, whose files the next one takes over.
        self._stagings: dict[GroupKey, Staging] = {}
        #: Transfers to each group that failed since the last one that did not.
        self._failures: dict[GroupKey, int] = {}
        self._sender = sender.Sender(self._loop, worker.config.key, self._unread)
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._sender.close()
        self._pool.shutdown(cancel_futures=True)
        for staging in self._stagings.values():
            staging.close()
        if self._share is not None:
            self._share.close()

    def options_changed(self) -> None:
        self._step_serve(self._limit())

    def _limit(self) -> serve.Limit:
        option = self._worker.option
        bytes_per_second = int(option("replication.catchup.max.bytes.per.second"))
        return serve.Limit(
            bytes_per_second=-(-bytes_per_second // self._senders),
            patience_ms=Millis(int(option("replication.far.horizon.timeout.millis"))),
        )

    def _on_thread(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        def run() -> None:
            result: T | Exception
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - told on the loop, which knows what to do about it
                result = error
            self._loop.call_soon(then, result)

        if not self._closed:
            self._pool.submit(run)

    def received(self, sender: WorkerId, wrapped: wire.Catchup, bodies: list[memoryview]) -> None:
        group = self._worker.groups.get(wrapped.group)
        if group is None:
            return
        body = bodies[0] if bodies else memoryview(b"")
        message = wrapped.message
        match message:
            case (
                messages.AskImage()
                | messages.AskHashes()
                | messages.AskBlocks()
                | messages.AskEntries()
                | messages.NoRoom()
                | messages.Finished()
            ):
                leader = group.leader
                if leader is None or leader.epoch != message.epoch:
                    self._step_serve(serve.LeadershipEnded(group=group.key))
                heard = serve.Heard(key=(group.key, sender), message=message, applied=group.replica.applied)
                self._step_serve(heard)
            case _:
                receiving = self._receiving.get(group.key)
                if receiving is not None and sender == receiving.leader:
                    self._heard(receiving, message, body)

    def group_closed(self, key: GroupKey) -> None:
        self._receiving.pop(key, None)
        self._step_serve(serve.LeadershipEnded(group=key))

    # Serving.

    def serve_state(self, group: Group, effect: effects.ServeState) -> None:
        self._step_serve(
            serve.Begin(
                key=(group.key, effect.to),
                epoch=effect.epoch,
                incarnation=effect.incarnation,
                attempt=effect.attempt,
                tasks=group.plan.tasks,
                pinned=effect.pinned,
            )
        )
        if not self._is_looking:
            self._look_at_node()

    def stop_serving(self, group: Group, to: WorkerId) -> None:
        self._step_serve(serve.PinReleased(key=(group.key, to)))

    def _look_at_node(self) -> None:
        """As long as there are transfers."""

        def then(result: int | Exception) -> None:
            if isinstance(result, OSError):
                log.error("allowance_not_shared", why=str(result))
            elif isinstance(result, Exception):
                raise result
            elif result != self._senders:
                self._senders = result
                log.info("senders_of_state", workers=result)
                self._step_serve(self._limit())
            self._is_looking = bool(self._serve.transfers)
            if self._is_looking:
                self._loop.call_after(SHARE_MS, self._look_at_node)

        share = self._share
        if share is not None:
            self._is_looking = True
            sending = self._serve.is_sending(Millis(self._loop.now))
            self._on_thread(lambda: share.look(sending=sending), then)

    def _step_serve(self, event: serve.Event) -> None:
        for effect in self._serve.step(event, Millis(self._loop.now)):
            self._carry_out_serve(effect)
        deadline = self._serve.next_deadline()
        if deadline is not None and (self._serve_deadline is None or deadline < self._serve_deadline):
            self._serve_deadline = deadline
            self._loop.call_at(deadline, self._tick_serve, deadline)

    def _tick_serve(self, deadline: Millis) -> None:
        if self._serve_deadline == deadline:
            self._serve_deadline = None
            self._step_serve(serve.Tick())

    def _carry_out_serve(self, effect: serve.Effect) -> None:
        group_key, to = effect.key
        match effect:
            case serve.Send(message=message):
                self._send(to, group_key, message)
            case serve.MakeImage(key=key, ask=ask):
                self._make(key, ask)
            case serve.SendHashes(key=key, message=message):
                image = self._image(key, message.task, message)
                if isinstance(image, SpooledImage):
                    end = message.position + fetch.PART_BYTES
                    self._send(to, group_key, message, image.listed[message.position : end])
            case serve.SendBlocks(key=key, message=message, runs=runs):
                image = self._image(key, message.task, message)
                if image is not None:
                    self._send_blocks(key, image, message, runs)
            case serve.SendEntries(key=key, ask=ask):
                self._send_entries(key, ask)
            case serve.Drop(key=key):
                self._serving.pop(key, None)
                if not self._serving:
                    self._sender.end()
            case serve.MovePin(epoch=epoch, incarnation=incarnation, start=start):
                group = self._worker.groups.get(group_key)
                if group is not None:
                    group.step(events.PinMoved(to=to, epoch=epoch, incarnation=incarnation, start=start))
            case serve.Note(event=event, fields=fields):
                log.info(event, group=str(group_key), follower=to, **fields)
            case _:
                assert_never(effect)

    def _image(
        self, key: serve.Key, task: TaskId, message: messages.Hashes | messages.Blocks
    ) -> SpooledImage | GrowingImage | None:
        serving = self._serving.get(key)
        if serving is None:
            return None
        for image in (serving.images.get(task), serving.growing.get(task)):
            if image is not None:
                described = image.described
                if (described.attempt, described.round) == (message.attempt, message.round):
                    return image
        return None

    def _make(self, key: serve.Key, ask: messages.AskImage) -> None:
        group = self._worker.groups.get(key[0])
        if group is None:
            self._step_serve(serve.ImageFailed(key=key, attempt=ask.attempt, why="the replica stopped"))
            return
        serving = self._serving.get(key)
        if serving is None or serving.attempt != ask.attempt:
            serving = self._serving[key] = Serving(ask.attempt)
        previous = serving.images.get(ask.task)
        state, folder = group.state, self._worker.replica_path(group.plan)
        log.info("image_begins", group=str(key[0]), follower=key[1], task=ask.task, round=ask.round)

        def grew(image: GrowingImage) -> None:
            self._loop.call_soon(self._grew, key, serving, image)

        self._on_thread(
            lambda: make_image(state, folder, ask, previous, grew),
            lambda result: self._made(key, serving, ask, result),
        )

    def _grew(self, key: serve.Key, serving: Serving, image: GrowingImage) -> None:
        """Only what is large is told to grow, and only that is worth a process."""
        if self._serving.get(key) is serving:
            self._sender.start()
        serving.growing[image.described.task] = image
        self._step_serve(serve.ImageGrew(key=key, growing=image.described))

    def _made(
        self, key: serve.Key, serving: Serving, ask: messages.AskImage, result: SpooledImage | Exception
    ) -> None:
        serving.growing.pop(ask.task, None)
        if isinstance(result, Exception):
            log.error("image_failed", group=str(key[0]), task=ask.task, why=str(result))
            self._step_serve(serve.ImageFailed(key=key, attempt=ask.attempt, why=_sentence(result)))
            return
        described = result.described
        log.info(
            "image_ends",
            group=str(key[0]),
            follower=key[1],
            task=ask.task,
            round=ask.round,
            offset=described.offset,
            size_bytes=described.size_bytes,
        )
        serving.images[ask.task] = result
        self._step_serve(serve.ImageMade(key=key, image=described))

    def _send_blocks(
        self,
        key: serve.Key,
        image: SpooledImage | GrowingImage,
        message: messages.Blocks,
        runs: tuple[messages.Run, ...],
    ) -> None:
        transport, pieces = self._worker.transport, image.pieces(runs)
        part = sender.Part(
            to=key[1],
            address=transport.address_of(key[1]) or "",
            hello=transport.hello(),
            message=wire.Catchup(key[0], message),
            pieces=pieces,
        )
        if part.address and self._sender.send(part, image.spool.fd_for(pieces)):
            return

        def then(result: bytes | Exception) -> None:
            if isinstance(result, Exception):
                self._unread(sender.Unread(part.to, part.message, _sentence(result)))
            else:
                self._send(key[1], key[0], message, result)

        self._on_thread(lambda: image.spool.read(pieces), then)

    def _unread(self, unread: sender.Unread) -> None:
        group, message = unread.message.group, unread.message.message
        log.error("image_cannot_be_read", group=str(group), follower=unread.to, why=unread.why)
        failed = serve.ImageFailed(key=(group, unread.to), attempt=message.attempt, why=unread.why)
        self._step_serve(failed)

    def _send_entries(self, key: serve.Key, ask: messages.AskEntries) -> None:
        """Entries below the apply offset are decided: whoever has them may apply them."""
        group = self._worker.groups.get(key[0])
        if group is None:
            return
        replica, replog = group.replica, group.log
        if not replog.start_offset <= ask.start <= ask.end <= replica.apply_offset:
            why = "the leader's log does not have the entries between the images"
            self._step_serve(serve.ImageFailed(key=key, attempt=ask.attempt, why=why))
            return
        blob, end = b"", ask.start
        if ask.start < ask.end:
            try:
                chunk = replog.read(ask.start, ask.end, fetch.PART_BYTES)
            except (StorageError, StorageCorrupt) as error:
                group.storage_failed(error)
                return
            blob, end = b"".join(chunk.buffers), chunk.end
        answer = messages.Entries(
            ask.epoch,
            ask.incarnation,
            ask.attempt,
            start=ask.start,
            next=end,
            history=tuple(each for each in replica.history if each.start < ask.end),
        )
        self._send(key[1], key[0], answer, blob)
        self._step_serve(serve.EntriesSent(key=key, size_bytes=len(blob)))

    def _send(
        self, to: WorkerId, group: GroupKey, message: messages.AnyMessage, body: bytes | memoryview = b""
    ) -> None:
        self._worker.transport.send(to, wire.Catchup(group, message), (body,) if len(body) else ())

    # Receiving.

    def fetch_state(self, group: Group, effect: effects.FetchState) -> None:
        """A newer attempt takes the place of an older one, and goes on with its files."""
        replica, option = group.replica, self._worker.option
        terms = fetch.Terms(
            epoch=effect.epoch,
            incarnation=replica.registered_as,
            attempt=effect.attempt,
            tasks=group.plan.tasks,
            min_rounds=int(option("replication.far.horizon.min.transfer.rounds")),
            near_lag=replica.settings.max_near_lag,
            retry_ms=replica.settings.retry_ms,
        )
        staging = Staging(
            self._worker.replica_path(group.plan), group.plan.tasks, self._stagings.get(group.key)
        )
        self._stagings[group.key] = staging
        now = Millis(self._loop.now)
        receiving = Receiving(
            group, effect.leader, effect.epoch, effect.attempt, fetch.Fetch(terms), staging, now, rate_at=now
        )
        self._receiving[group.key] = receiving
        log.info(
            "far_horizon_begins",
            group=str(group.key),
            leader=effect.leader,
            epoch=effect.epoch,
            attempt=effect.attempt,
        )
        self._step(receiving, fetch.Begin())

    def _heard(self, receiving: Receiving, message: messages.Answer, body: memoryview) -> None:
        if not receiving.fetch.belongs(message):
            return
        now = Millis(self._loop.now)
        receiving.received_bytes += len(body)
        if now - receiving.rate_at >= RATE_MS:
            elapsed_ms = now - receiving.rate_at
            receiving.bytes_per_second = (
                (receiving.received_bytes - receiving.rate_bytes) * 1000 // elapsed_ms
            )
            receiving.rate_at, receiving.rate_bytes = now, receiving.received_bytes
        patience_ms = receiving.group.replica.settings.state_timeout_ms
        if now - receiving.told_at >= patience_ms // 8 and not isinstance(message, messages.Refused):
            receiving.told_at = now
            progressed = events.TransferProgressed(epoch=receiving.epoch, attempt=receiving.attempt)
            receiving.group.step(progressed)
        self._step(receiving, fetch.Heard(message=message, body=body))

    def _is_current(self, receiving: Receiving) -> bool:
        group = receiving.group
        awaited = not group.closed and group.replica.awaited_state == (receiving.epoch, receiving.attempt)
        return awaited and self._receiving.get(group.key) is receiving

    def _step(self, receiving: Receiving, event: fetch.Event) -> None:
        if not self._is_current(receiving):
            return
        for effect in receiving.fetch.step(event, Millis(self._loop.now)):
            self._carry_out(receiving, effect)
        deadline = receiving.fetch.next_deadline()
        if deadline is not None and (receiving.deadline is None or deadline < receiving.deadline):
            receiving.deadline = deadline
            self._loop.call_at(deadline, self._tick, receiving, deadline)

    def _tick(self, receiving: Receiving, deadline: Millis) -> None:
        if receiving.deadline == deadline:
            receiving.deadline = None
            self._step(receiving, fetch.Tick())

    def _carry_out(self, receiving: Receiving, effect: fetch.Effect) -> None:
        staging = receiving.staging
        match effect:
            case fetch.Send(message=message):
                self._send(receiving.leader, receiving.group.key, message)
            case fetch.Prepare(task=task):
                self._work(
                    receiving,
                    lambda: staging.prepare(task),
                    lambda is_empty: fetch.Prepared(task=task, is_empty=is_empty),
                )
            case fetch.MakeRoom(task=task, size_bytes=size_bytes):
                self._work(
                    receiving,
                    lambda: staging.make_room({task: size_bytes}),
                    lambda _: fetch.RoomMade(task=task),
                )
            case fetch.StoreAhead(ask=ask, task=task, block_bytes=block_bytes, runs=runs, body=body):
                self._work(
                    receiving,
                    lambda: staging.store_ahead(task, block_bytes, runs, body),
                    lambda _: fetch.Stored(ask=ask),
                )
            case fetch.Compare(image=image, parts=parts):
                self._work(
                    receiving,
                    lambda: staging.compare(image, parts),
                    lambda missing: fetch.Compared(task=image.task, round=image.round, missing=missing),
                )
            case fetch.Store(ask=ask, image=image, runs=runs, body=body):
                self._work(
                    receiving,
                    lambda: staging.store(image, runs, body),
                    lambda damaged: fetch.Stored(ask=ask, damaged=damaged),
                )
            case fetch.StoreEntries(start=start, end=end, body=body):
                self._work(
                    receiving,
                    lambda: staging.store_entries(start, body),
                    lambda _: fetch.EntriesStored(end=end),
                )
            case fetch.Assemble(end=end, history=history):
                receiving.end, receiving.history = end, history
                verify = bool(self._worker.option("replication.catchup.verify.structure"))
                self._on_thread(
                    lambda: staging.assemble(end, verify_structure=verify),
                    lambda result: self._assembled(receiving, result),
                )
            case fetch.Fail(why=why):
                self._fail(receiving, why)
            case fetch.AwaitRoom(why=why):
                self._wait_for_room(receiving, why)
            case fetch.Note(event=event, fields=fields):
                if event == "damaged_blocks":
                    receiving.group.meter.counted(event, fields["blocks"])
                log.info(event, group=str(receiving.group.key), leader=receiving.leader, **fields)
            case _:
                assert_never(effect)

    def _work(
        self, receiving: Receiving, work: Callable[[], T], event_of: Callable[[T], fetch.Event]
    ) -> None:
        def then(result: T | Exception) -> None:
            if isinstance(result, Exception):
                self._work_failed(receiving, result)
            else:
                self._step(receiving, event_of(result))

        self._on_thread(work, then)

    def _work_failed(self, receiving: Receiving, error: Exception) -> None:
        if not isinstance(error, OSError | StrettoError):
            raise error
        if isinstance(error, NoSpace):
            self._no_room(receiving, error)
        elif not isinstance(error, Abandoned):
            self._fail(receiving, _sentence(error))

    def _no_room(self, receiving: Receiving, error: NoSpace) -> None:
        """The leader need not keep anything for us meanwhile."""
        if self._is_current(receiving) and receiving.fetch.failed is None:
            log.error("no_room_for_state", group=str(receiving.group.key), why=str(error))
            self._step(receiving, fetch.OutOfRoom(why=str(error)))

    def _look_for_room(self, receiving: Receiving) -> None:
        def then(result: Exception | None) -> None:
            if not self._is_current(receiving):
                return
            if isinstance(result, NoSpace):
                self._wait_for_room(receiving, str(result))
            elif isinstance(result, Exception):
                self._work_failed(receiving, result)
            else:
                log.info("room_for_state", group=str(receiving.group.key))
                self._give_up(receiving)

        sizes = {
            each.task: each.size_bytes
            for each in receiving.fetch.tasks.values()
            if each.size_bytes is not None
        }
        self._on_thread(lambda: receiving.staging.make_room(sizes), then)

    def _wait_for_room(self, receiving: Receiving, why: str) -> None:
        """The core is told that this goes on: it must not ask for a state that has no place to go."""
        group = receiving.group
        receiving.waits, receiving.bytes_per_second = why, 0
        wait_ms = min(_pause_ms(receiving.looks), group.replica.settings.state_timeout_ms // 2)
        receiving.looks += 1
        group.step(events.TransferProgressed(epoch=receiving.epoch, attempt=receiving.attempt))
        self._loop.call_after(wait_ms, self._look_for_room, receiving)

    def _fail(self, receiving: Receiving, why: str) -> None:
        if not self._is_current(receiving):
            return
        key = receiving.group.key
        log.warning("far_horizon_fails", group=str(key), leader=receiving.leader, why=why)
        receiving.waits, receiving.bytes_per_second = f"it begins again: {why}", 0
        receiving.fetch.failed = receiving.fetch.failed or why
        receiving.group.meter.counted("failed_transfers")
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._loop.call_after(_pause_ms(failures), self._give_up, receiving)

    def _give_up(self, receiving: Receiving) -> None:
        if self._is_current(receiving):
            del self._receiving[receiving.group.key]
            receiving.group.step(events.TransferFailed())

    def _assembled(self, receiving: Receiving, result: Exception | None) -> None:
        if isinstance(result, Exception):
            self._work_failed(receiving, result)
        elif self._is_current(receiving) and receiving.end is not None:
            log.info("state_arrived", group=str(receiving.group.key), end=receiving.end)
            receiving.group.step(
                events.StateArrived(epoch=receiving.epoch, attempt=receiving.attempt, end=receiving.end)
            )

    # Installing.

    def install(self, group: Group, end: Offset) -> None:
        """The group waits: nothing of it is applied or written until it hears how this ended."""
        receiving = self._receiving.get(group.key)
        if receiving is None or receiving.end != end:
            group.install_failed()
            return
        folder, identity = self._worker.folder(group.plan), self._worker.identity_of(group.key)
        install = Install(
            storage_id=group.replica.storage,
            end=end,
            before=receiving.history[-1] if receiving.history else None,
        )

        def work() -> ReplicaStorage:
            receiving.staging.close()
            group.state.close()
            group.log.close()
            return folder.install(install, identity)

        def then(result: ReplicaStorage | Exception) -> None:
            self._receiving.pop(group.key, None)
            self._failures.pop(group.key, None)
            if isinstance(result, Exception):
                if not isinstance(result, OSError | StrettoError):
                    raise result
                self._worker.replica_stopped(group, _sentence(result), renew=False)
            else:
                log.info(
                    "far_horizon_ends",
                    group=str(group.key),
                    end=end,
                    rounds=receiving.fetch.round,
                    received_bytes=receiving.received_bytes,
                    damaged_blocks=receiving.fetch.damaged_blocks,
                    took_ms=self._loop.now - receiving.begun_at,
                )
                group.meter.counted("received_states")
                self._worker.replica_replaced(group, result)
                group.installed(result, receiving.history)

        self._worker.applier.after_applied(lambda: self._on_thread(work, then))

    # For people.

    def view(self, key: GroupKey) -> admin.CatchupView | None:
        receiving = self._receiving.get(key)
        if receiving is None or not self._is_current(receiving):
            return None
        fetching = receiving.fetch
        return admin.CatchupView(
            leader=receiving.leader,
            round=fetching.round,
            min_rounds=fetching.terms.min_rounds,
            leader_applied=fetching.leader_applied,
            received_bytes=receiving.received_bytes,
            bytes_per_second=receiving.bytes_per_second,
            damaged_blocks=fetching.damaged_blocks,
            since_ms=self._loop.now - receiving.begun_at,
            waits=receiving.waits,
            tasks=tuple(
                admin.TaskCatchup(
                    task=each.task,
                    phase=each.phase,
                    round=each.round,
                    offset=each.offset,
                    size_bytes=each.size_bytes,
                    left_bytes=each.missing_bytes,
                )
                for each in fetching.tasks.values()
            ),
        )


def _pause_ms(times: int) -> int:
    return min(AGAIN_MS << min(times, 10), AGAIN_MAX_MS)


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, StrettoError) else f"{type(error).__name__}: {error}"
