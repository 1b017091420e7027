"""The far horizon in the virtual world: the driver of both sides of a transfer, over abstract images.

The state of a task is a function of its offset. Its image is a few blocks, each of which names the offset at
which it was last changed, and one that names a producer table; so an image that mixes two offsets, or a block
that was damaged on its way, is seen. What was staged stays on the machine; a power loss spoils some of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_never

from stretto.catchup.machines import blocks, fetch, serve
from stretto.errors import PeerError
from stretto.replog.core import effects, events
from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.producers import ProducerTable
from stretto.replog.core.replica import Replica
from stretto.replog.frame import Frame, decode
from stretto.sim.replication.machine import Snapshot
from stretto.sim.virtual.world import Violation
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Millis, Offset, TaskId, WorkerId
from stretto.wire import catchup
from stretto.wire.catchup import Run

if TYPE_CHECKING:
    from stretto.sim.replication.node import Node

GROUP = GroupKey("sim", 0, 0)
TASKS = (TaskId(0), TaskId(1))
BLOCKS = 5
_BLOCK = struct.Struct(">qq")
PATIENCE_MS = Millis(900)
SECONDS_OF_IMAGE_MS = (1, 30)
WORK_MS = (1, 8)
LONG_WORK_MS = (1_000, 2_000)
"""Duration of a step of work that is longer than a replica may be silent."""


def content_of(task: TaskId, offset: Offset, table: int) -> bytes:
    """Return the image of a task at an offset.

    Block ``i`` changes with every entry whose offset is ``i`` modulo the number of blocks.
    """
    versions = [offset - (offset - index) % BLOCKS for index in range(BLOCKS)]
    return b"".join(_BLOCK.pack(task, version) for version in versions) + _BLOCK.pack(task, table)


def hashes_of(content: bytes) -> bytes:
    return b"".join(
        blocks.hash_of(content[at : at + _BLOCK.size]) for at in range(0, len(content), _BLOCK.size)
    )


class Transfers:
    """Both sides of transfers in one process: images that it serves, and the one that it fetches."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.simulation = node.simulation
        self.world = node.world
        self.life = node.life
        self.guards = node.simulation.guards
        limit = serve.Limit(bytes_per_second=node.simulation.plan.catchup_bytes, patience_ms=PATIENCE_MS)
        self.serve = serve.Serve(limit, node.clock(), self.guards)
        self.images: dict[tuple[serve.Key, TaskId], tuple[bytes, bytes, catchup.Image]] = {}
        #: The content of images that are still being made.
        self.growing: dict[tuple[serve.Key, TaskId], tuple[int, bytes]] = {}
        self.fetch: fetch.Fetch | None = None
        self._leader: WorkerId | None = None
        self._hashes: dict[TaskId, bytes] = {}
        self._entries: list[Frame] = []
        self._told_at = Millis(0)
        #: How many pieces of work are being done for the fetch.
        self._working = 0

    # Between the two.

    def on_message(self, sender: WorkerId, message: catchup.AnyMessage, body: bytes) -> None:
        replica = self.node.replica
        if self.node.life != self.life or self.node.paused or replica is None:
            return
        match message:
            case (
                catchup.Image()
                | catchup.Growing()
                | catchup.Hashes()
                | catchup.Blocks()
                | catchup.Entries()
                | catchup.Waiting()
                | catchup.Refused()
            ):
                if self.fetch is not None and sender == self._leader and self.fetch.belongs(message):
                    self._progressed(self.fetch, replica)
                    self._step(self.fetch, fetch.Heard(message=message, body=body))
            case (
                catchup.AskImage()
                | catchup.AskHashes()
                | catchup.AskBlocks()
                | catchup.AskEntries()
                | catchup.Working()
                | catchup.NoRoom()
                | catchup.Finished()
            ):
                leads = replica.role.epoch if isinstance(replica.role, Leader) else None
                if leads != message.epoch:
                    self._step_serve(serve.LeadershipEnded(group=GROUP, leads=leads))
                heard = serve.Heard(key=(GROUP, sender), message=message, applied=replica.applied)
                self._step_serve(heard)
            case _:
                assert_never(message)

    def _send(self, to: WorkerId, message: catchup.AnyMessage, body: bytes = b"") -> None:
        if body and self.world.chance(self.simulation.plan.damage):
            at = self.world.random.randrange(len(body))
            if isinstance(message, catchup.Blocks | catchup.Hashes):
                self.simulation.totals["damaged on the way"] += 1
                body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        self.simulation.send_catchup(self.node.worker, to, message, body)

    def _later(self, delay: tuple[int, int], action: Callable[..., None], *args: Any) -> None:
        self.world.after(self.world.random.randint(*delay), self._in_life, action, args)

    def _in_life(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.node.life != self.life or not self.node.up:
            return
        if self.node.paused:
            self.world.after(20, self._in_life, action, args)
        else:
            action(*args)

    # Serving.

    def begin(self, effect: effects.ServeState) -> None:
        self._step_serve(
            serve.Begin(
                key=(GROUP, effect.to),
                epoch=effect.epoch,
                incarnation=effect.incarnation,
                attempt=effect.attempt,
                tasks=TASKS,
                pinned=effect.pinned,
            )
        )

    def stop_serving(self, to: WorkerId) -> None:
        self._step_serve(serve.PinReleased(key=(GROUP, to)))

    def _step_serve(self, event: serve.Event) -> None:
        for effect in self.serve.step(event, self.node.clock()):
            self._carry_out_serve(effect)
        deadline = self.serve.next_deadline()
        if deadline is not None:
            delay = self.node.real_delay(deadline - self.node.clock())
            self._later((delay, delay), self._tick_serve, deadline)

    def _tick_serve(self, deadline: Millis) -> None:
        if self.serve.next_deadline() == deadline and deadline <= self.node.clock():
            self._step_serve(serve.Tick())

    def _carry_out_serve(self, effect: serve.Effect) -> None:
        to = effect.key[1]
        match effect:
            case serve.Send(message=message):
                self._send(to, message)
            case serve.MakeImage(key=key, ask=ask):
                self._later(SECONDS_OF_IMAGE_MS, self._begin_image, key, ask)
            case serve.SendHashes(key=key, message=hashes):
                image = self.images.get((key, hashes.task))
                if image is not None:
                    self._send(to, hashes, image[1][hashes.position :])
            case serve.SendBlocks(key=key, message=answer, runs=runs):
                content = self._content(key, answer)
                if content is not None:
                    self._send(to, answer, b"".join(_part(content, run) for run in runs))
            case serve.SendEntries(key=key, ask=ask):
                self._send_entries(key, ask)
            case serve.Drop(key=key):
                for task in TASKS:
                    self.images.pop((key, task), None)
                    self.growing.pop((key, task), None)
            case serve.MovePin(epoch=epoch, incarnation=incarnation, start=start):
                self._check_moved(effect.key, start)
                moved = events.PinMoved(to=to, epoch=epoch, incarnation=incarnation, start=start)
                self._later((0, 0), self.node.deliver, moved)
            case serve.Note(event=event):
                self.simulation.totals[event.replace("_", " ")] += 1
            case _:
                assert_never(effect)

    def _check_moved(self, key: serve.Key, start: Offset | None) -> None:
        transfer = self.serve.transfers.get(key)
        if transfer is None or start is None:
            return
        beyond = [task for task, served in transfer.tasks.items() if (served.offset or start) < start]
        if beyond:
            raise Violation(f"{self.node.worker} lets go of entries below {start} that tasks {beyond} need")

    def _content(self, key: serve.Key, answer: catchup.Blocks) -> bytes | None:
        image = self.images.get((key, answer.task))
        if image is not None and image[2].round == answer.round:
            return image[0]
        growing = self.growing.get((key, answer.task))
        return growing[1] if growing is not None and growing[0] == answer.attempt else None

    def _begin_image(self, key: serve.Key, ask: catchup.AskImage) -> None:
        """Begin an image; its content is that of now, and it takes a while until it is made."""
        state = self.node.state
        content = content_of(ask.task, state.applied, self.simulation.keep_table(state.producers))
        if ask.round == 1 and self.world.chance(0.5):
            self.growing[key, ask.task] = (ask.attempt, content)
            for count in range(1, self.world.random.randint(1, BLOCKS)):
                self._later(SECONDS_OF_IMAGE_MS, self._grow, key, ask, count, len(content))
        self._later((30, 60), self._make, key, ask, content, state.applied)

    def _grow(self, key: serve.Key, ask: catchup.AskImage, count: int, size_bytes: int) -> None:
        growing = catchup.Growing(
            ask.epoch,
            ask.incarnation,
            ask.attempt,
            task=ask.task,
            round=ask.round,
            size_bytes=size_bytes,
            block_bytes=_BLOCK.size,
            blocks=count,
            applied=Offset(0),
        )
        self._step_serve(serve.ImageGrew(key=key, growing=growing))

    def _make(self, key: serve.Key, ask: catchup.AskImage, content: bytes, offset: Offset) -> None:
        hashes = hashes_of(content)
        before = self.images.get((key, ask.task))
        against = before if before is not None and before[2].round == ask.base else None
        listed = hashes if against is None else blocks.encode_changes(hashes_of(against[0]), hashes)
        image = catchup.Image(
            ask.epoch,
            ask.incarnation,
            ask.attempt,
            task=ask.task,
            round=ask.round,
            offset=offset,
            size_bytes=len(content),
            block_bytes=_BLOCK.size,
            digest=blocks.digest_of(hashes),
            base=0 if against is None else ask.base,
            list_bytes=len(listed),
            applied=offset,
        )
        self.images[key, ask.task] = (content, listed, image)
        self._step_serve(serve.ImageMade(key=key, image=image))

    def _send_entries(self, key: serve.Key, ask: catchup.AskEntries) -> None:
        replica, log = self.node.replica, self.node.opened_log()
        if replica is None:
            return
        if not log.start_offset <= ask.start <= ask.end <= replica.apply_offset:
            self._check_pin(replica, key[1], ask)
            self._step_serve(serve.ImageFailed(key=key, attempt=ask.attempt, why="no such entries"))
            return
        blob, end = b"", ask.start
        if ask.start < ask.end:
            chunk = log.read(ask.start, ask.end, 300)
            blob, end = b"".join(chunk.buffers), chunk.end
        answer = catchup.Entries(
            ask.epoch,
            ask.incarnation,
            ask.attempt,
            start=ask.start,
            next=end,
            history=tuple(each for each in replica.history if each.start < ask.end),
        )
        self._send(key[1], answer, blob)
        self._step_serve(serve.EntriesSent(key=key, size_bytes=len(blob)))

    def _check_pin(self, replica: Replica, to: WorkerId, ask: catchup.AskEntries) -> None:
        progress = replica.role.followers.get(to) if isinstance(replica.role, Leader) else None
        if progress is None or progress.gone or progress.incarnation != ask.incarnation:
            return
        raise Violation(
            f"{self.node.worker} no longer has the entries [{ask.start}, {ask.end}) that a transfer to {to} "
            f"needs; its log begins at {self.node.opened_log().start_offset}"
        )

    # Receiving.

    def fetch_state(self, effect: effects.FetchState, replica: Replica) -> None:
        plan = self.simulation.plan
        terms = fetch.Terms(
            epoch=effect.epoch,
            incarnation=replica.registered_as,
            attempt=effect.attempt,
            tasks=TASKS,
            min_rounds=plan.min_rounds,
            near_lag=replica.settings.max_near_lag,
            retry_ms=replica.settings.retry_ms,
            silence_max_ms=Millis(replica.settings.state_timeout_ms // 4),
        )
        self.fetch = fetch.Fetch(terms, self.guards)
        self._leader = effect.leader
        self._entries = []
        self._hashes = {}
        self._working = 0
        self._step(self.fetch, fetch.Begin())
        self._keep_alive_later(self.fetch, replica)

    def _keep_alive_later(self, fetching: fetch.Fetch, replica: Replica) -> None:
        delay = self.node.real_delay(Millis(replica.settings.state_timeout_ms // 8))
        self.world.after(delay, self._in_life, self._keep_alive, (fetching,))

    def _keep_alive(self, fetching: fetch.Fetch) -> None:
        replica = self.node.replica
        if fetching is not self.fetch or replica is None:
            return
        if self._working:
            self._progressed(fetching, replica)
            self._step(fetching, fetch.Working())
        self._keep_alive_later(fetching, replica)

    def _work(
        self, fetching: fetch.Fetch, action: Callable[..., None], *args: Any, may_be_long: bool = False
    ) -> None:
        is_long = may_be_long and self.world.chance(self.simulation.plan.long_work)
        self._working += 1
        self._later(LONG_WORK_MS if is_long else WORK_MS, self._worked, fetching, action, args)

    def _worked(self, fetching: fetch.Fetch, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if fetching is self.fetch:
            self._working -= 1
            action(fetching, *args)

    def _progressed(self, fetching: fetch.Fetch, replica: Replica) -> None:
        now = self.node.clock()
        if now - self._told_at >= replica.settings.state_timeout_ms // 8:
            self._told_at = now
            terms = fetching.terms
            progressed = events.TransferProgressed(epoch=terms.epoch, attempt=terms.attempt)
            self._later((0, 0), self.node.deliver, progressed)

    def _is_full(self) -> bool:
        """Whether the disk has no room for a write, which happens until all is healed."""
        return self.simulation.faults.active and self.world.chance(self.simulation.plan.full_disk)

    def _step(self, fetching: fetch.Fetch, event: fetch.Event) -> None:
        replica = self.node.replica
        terms = fetching.terms
        if fetching is not self.fetch or replica is None:
            return
        if replica.awaited_state != (terms.epoch, terms.attempt):
            self.fetch = None
            return
        for effect in fetching.step(event, self.node.clock()):
            self._carry_out(fetching, effect)
        deadline = fetching.next_deadline()
        if deadline is not None:
            delay = self.node.real_delay(deadline - self.node.clock())
            self._later((delay, delay), self._tick, fetching, deadline)

    def _tick(self, fetching: fetch.Fetch, deadline: Millis) -> None:
        if fetching.next_deadline() == deadline and deadline <= self.node.clock():
            self._step(fetching, fetch.Tick())

    def _carry_out(self, fetching: fetch.Fetch, effect: fetch.Effect) -> None:
        match effect:
            case fetch.Send(message=message):
                if self._leader is not None:
                    self._send(self._leader, message)
            case fetch.Prepare(task=task):
                self._work(fetching, self._prepare, task, may_be_long=True)
            case fetch.MakeRoom(task=task):
                self._work(fetching, self._make_room, task)
            case fetch.StoreAhead(ask=ask, task=task, runs=runs, body=body):
                self._work(fetching, self._store_ahead, ask, task, runs, body)
            case fetch.Compare(image=image, parts=parts):
                self._work(fetching, self._compare, image, b"".join(parts))
            case fetch.Store(ask=ask, image=image, runs=runs, body=body):
                self._work(fetching, self._store, ask, image, runs, body)
            case fetch.StoreEntries(end=end, body=body):
                self._work(fetching, self._store_entries, end, body)
            case fetch.Assemble():
                self._work(fetching, self._assemble, effect, may_be_long=True)
            case fetch.Fail():
                self.simulation.totals["failed transfers"] += 1
                self._later((60, 60), self._give_up, fetching)
            case fetch.AwaitRoom():
                self.simulation.totals["full disks"] += 1
                self._later((60, 400), self._give_up, fetching)
            case fetch.Note(event=event):
                self.simulation.totals["transfer rounds"] += event == "round_ends"
            case _:
                assert_never(effect)

    def _give_up(self, fetching: fetch.Fetch) -> None:
        if fetching is self.fetch:
            self.fetch = None
            self.node.deliver(events.TransferFailed())

    def _prepare(self, fetching: fetch.Fetch, task: TaskId) -> None:
        staged = self.node.incoming.setdefault(task, bytearray())
        self._hashes[task] = hashes_of(bytes(staged))
        self._step(fetching, fetch.Prepared(task=task, is_empty=not staged))

    def _make_room(self, fetching: fetch.Fetch, task: TaskId) -> None:
        full = self._is_full()
        made = fetch.RoomMade(task=task)
        self._step(fetching, fetch.OutOfRoom(why="the disk is full") if full else made)

    def _store_ahead(
        self, fetching: fetch.Fetch, ask: int, task: TaskId, runs: tuple[Run, ...], body: bytes
    ) -> None:
        ((first, _),) = runs
        start = first * _BLOCK.size
        staged = self.node.incoming[task]
        staged.extend(bytes(max(0, start + len(body) - len(staged))))
        staged[start : start + len(body)] = body
        self._hashes[task] = hashes_of(bytes(staged))
        self.simulation.totals["blocks ahead"] += len(body) // _BLOCK.size
        self._step(fetching, fetch.Stored(ask=ask))

    def _compare(self, fetching: fetch.Fetch, image: catchup.Image, listed: bytes) -> None:
        if self._is_full():
            self._step(fetching, fetch.OutOfRoom(why="the disk is full"))
            return
        old = self._hashes[image.task]
        count = blocks.blocks_in(image.size_bytes, image.block_bytes)
        try:
            hashes = blocks.apply_changes(old, listed, count) if image.base else listed
        except PeerError:
            hashes = b""
        missing: list[Run] | None = None
        if blocks.digest_of(hashes) == image.digest:
            staged = self.node.incoming[image.task]
            staged[:] = staged[: image.size_bytes].ljust(image.size_bytes, b"\0")
            missing = blocks.missing_runs(old, hashes)
            self._hashes[image.task] = hashes
        self._step(fetching, fetch.Compared(task=image.task, round=image.round, missing=missing))

    def _store(
        self, fetching: fetch.Fetch, ask: int, image: catchup.Image, runs: tuple[Run, ...], body: bytes
    ) -> None:
        damaged: list[Run] = []
        position = 0
        for first, count in runs:
            for index in range(first, first + count):
                block = body[position : position + _BLOCK.size]
                position += _BLOCK.size
                place = index * blocks.HASH_BYTES
                listed = self._hashes[image.task][place : place + blocks.HASH_BYTES]
                if self.guards.is_block_of(blocks.hash_of(block), listed):
                    start = index * _BLOCK.size
                    self.node.incoming[image.task][start : start + _BLOCK.size] = block
                else:
                    damaged.append((index, 1))
        self._step(fetching, fetch.Stored(ask=ask, damaged=tuple(damaged)))

    def _store_entries(self, fetching: fetch.Fetch, end: Offset, body: bytes) -> None:
        if self._is_full():
            self._step(fetching, fetch.OutOfRoom(why="the disk is full"))
            return
        self._entries.extend(decode(body))
        self._step(fetching, fetch.EntriesStored(end=end))

    def _assemble(self, fetching: fetch.Fetch, effect: fetch.Assemble) -> None:
        """Assemble a fetched state as a worker does with LMDB and its recovery, and check the result."""
        if self._is_full():
            self.simulation.totals["full disks"] += 1
            self._work(fetching, self._assemble, effect, may_be_long=True)
            return
        producers: dict[Any, Any] = {}
        sealed: set[int] = set()
        for task, fetched in fetching.tasks.items():
            offset = fetched.offset or Offset(0)
            staged = bytes(self.node.incoming[task])
            table_number = _BLOCK.unpack(staged[-_BLOCK.size :])[1]
            if staged != content_of(task, offset, table_number):
                raise Violation(f"{self.node.worker} took an image of task {task} that is none of {offset}")
            table = self.simulation.table(table_number)
            for frame in self._entries:
                if frame.header.offset == offset:
                    table.apply(frame.header)
                    offset = frame.end_offset
            if offset != effect.end:
                raise Violation(f"{self.node.worker} has task {task} at {offset} in a state at {effect.end}")
            sealed.add(table.sealed)
            for producer, rows in table.producers.items():
                mine = {each: row for each, row in rows.items() if each == task}
                producers.setdefault(producer, {}).update(mine)
        self.simulation.totals["state transfers"] += 1
        terms = fetching.terms
        if len(sealed) > 1:
            raise Violation(f"{self.node.worker} has tasks that are sealed for {sorted(sealed)}")
        table = ProducerTable(producers, sealed.pop())
        snapshot = Snapshot(terms.epoch, terms.attempt, effect.end, effect.history, table)
        self.node.receive_state(snapshot)


def _part(content: bytes, run: Run) -> bytes:
    return content[run[0] * _BLOCK.size : (run[0] + run[1]) * _BLOCK.size]
