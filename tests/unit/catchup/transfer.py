"""Both sides of a transfer with images that are bytes, and a network that loses, doubles and delays."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from stretto.catchup.machines import blocks, fetch, serve
from stretto.replog.storage import EpochStart
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, TaskId, WorkerId
from stretto.wire import catchup
from stretto.wire.catchup import Run

GROUP = GroupKey("m", 0, 0)
FOLLOWER = WorkerId("w1")
KEY = (GROUP, FOLLOWER)
EPOCH = Epoch(3)
ME = Incarnation("w1.1")
BLOCK_BYTES = 16
PATIENCE_MS = Millis(5_000)


def terms(tasks: tuple[int, ...] = (0, 1), **changes: Any) -> fetch.Terms:
    values: dict[str, Any] = {
        "epoch": EPOCH,
        "incarnation": ME,
        "attempt": 1,
        "tasks": tuple(TaskId(task) for task in tasks),
        "min_rounds": 2,
        "near_lag": 10,
        "retry_ms": Millis(100),
        "silence_max_ms": Millis(1_000),
    }
    return fetch.Terms(**(values | changes))


def begin(of: fetch.Terms, pinned: int = 0) -> serve.Begin:
    return serve.Begin(
        key=KEY,
        epoch=of.epoch,
        incarnation=of.incarnation,
        attempt=of.attempt,
        tasks=of.tasks,
        pinned=Offset(pinned),
    )


def hashes_of(content: bytes) -> bytes:
    return b"".join(
        blocks.hash_of(content[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES)
    )


class Leader:
    """Serves the state that ``content`` tells; its log never ends below ``applied``."""

    def __init__(
        self, content: dict[TaskId, bytes], *, bytes_per_second: int = 0, patience_ms: Millis = PATIENCE_MS
    ) -> None:
        limit = serve.Limit(bytes_per_second=bytes_per_second, patience_ms=patience_ms)
        self.serve = serve.Serve(limit, Millis(0))
        self.content = content
        self.applied = Offset(100)
        self.pin: Offset | None = None
        self.pins: list[Offset | None] = []
        self.images: dict[TaskId, tuple[bytes, bytes, catchup.Image]] = {}
        self.sent_bytes = 0
        self.dropped = 0
        self.notes: list[str] = []
        #: In blocks; 0: an image is told when it is made.
        self.grows_by = 0

    def step(self, event: serve.Event, now: int) -> list[tuple[catchup.Answer, bytes]]:
        out: list[tuple[catchup.Answer, bytes]] = []
        for effect in self.serve.step(event, Millis(now)):
            match effect:
                case serve.Send(message=message):
                    out.append((message, b""))
                case serve.MakeImage(ask=ask):
                    image = self._make(ask)
                    out += self._grow(ask, image, now)
                    out += self.step(serve.ImageMade(key=KEY, image=image), now)
                case serve.SendHashes(message=hashes):
                    listed = self.images[hashes.task][1]
                    out.append((hashes, listed[hashes.position : hashes.position + blocks.PART_BYTES]))
                case serve.SendBlocks(message=answer, runs=runs):
                    content = self.images[answer.task][0]
                    body = b"".join(_of(content, run) for run in runs)
                    self.sent_bytes += len(body)
                    out.append((answer, body))
                case serve.SendEntries(ask=ask):
                    assert self.pin is not None
                    assert ask.start >= self.pin, "the log was not kept"
                    end = Offset(min(ask.start + 7, ask.end))
                    history = (EpochStart(Epoch(1), Offset(0)),)
                    named = (ask.epoch, ask.incarnation, ask.attempt)
                    answered = catchup.Entries(*named, start=ask.start, next=end, history=history)
                    out.append((answered, bytes(range(ask.start % 200, ask.start % 200 + end - ask.start))))
                case serve.Drop():
                    self.dropped += 1
                    self.images.clear()
                case serve.MovePin(start=start):
                    self.pin = start
                    self.pins.append(start)
                case serve.Note(event=event_name):
                    self.notes.append(event_name)
        return out

    def _grow(
        self, ask: catchup.AskImage, image: catchup.Image, now: int
    ) -> list[tuple[catchup.Answer, bytes]]:
        """Some of it can be had before all of it is made."""
        out: list[tuple[catchup.Answer, bytes]] = []
        if self.grows_by == 0:
            return out
        for count in range(self.grows_by, image.size_bytes // BLOCK_BYTES, self.grows_by):
            growing = catchup.Growing(
                ask.epoch,
                ask.incarnation,
                ask.attempt,
                task=ask.task,
                round=ask.round,
                size_bytes=image.size_bytes,
                block_bytes=BLOCK_BYTES,
                blocks=count,
                applied=Offset(0),
            )
            out += self.step(serve.ImageGrew(key=KEY, growing=growing), now)
        return out

    def _make(self, ask: catchup.AskImage) -> catchup.Image:
        content = self.content[ask.task]
        before = self.images.get(ask.task)
        hashes = hashes_of(content)
        against = before if before is not None and before[2].round == ask.base else None
        listed = hashes if against is None else blocks.encode_changes(hashes_of(against[0]), hashes)
        image = catchup.Image(
            ask.epoch,
            ask.incarnation,
            ask.attempt,
            task=ask.task,
            round=ask.round,
            offset=Offset(self.applied - ask.task),
            size_bytes=len(content),
            block_bytes=BLOCK_BYTES,
            digest=blocks.digest_of(hashes),
            base=0 if against is None else ask.base,
            list_bytes=len(listed),
            applied=self.applied,
        )
        self.images[ask.task] = (content, listed, image)
        return image


class Follower:
    def __init__(self, of: fetch.Terms, staged: dict[TaskId, bytearray] | None = None) -> None:
        self.fetch = fetch.Fetch(of)
        self.staged = staged if staged is not None else {}
        self.hashes: dict[TaskId, bytes] = {}
        self.entries = bytearray()
        self.assembled: fetch.Assemble | None = None
        self.failed: str | None = None
        self.stored_bytes = 0
        self.ahead_bytes = 0
        #: What the disk can take.
        self.room_bytes = 1 << 40

    def step(self, event: fetch.Event, now: int) -> list[catchup.Ask]:
        out: list[catchup.Ask] = []
        for effect in self.fetch.step(event, Millis(now)):
            match effect:
                case fetch.Send(message=message):
                    out.append(message)
                case fetch.Prepare(task=task):
                    self.hashes[task] = hashes_of(bytes(self.staged.setdefault(task, bytearray())))
                    prepared = fetch.Prepared(task=task, is_empty=not self.staged[task])
                    out += self.step(prepared, now)
                case fetch.MakeRoom(task=task, size_bytes=size_bytes):
                    made = fetch.RoomMade(task=task)
                    full = fetch.OutOfRoom(why="the disk is full")
                    out += self.step(made if size_bytes <= self.room_bytes else full, now)
                case fetch.StoreAhead(ask=ask, task=task, runs=runs, body=body):
                    self._store_ahead(task, runs[0][0] * BLOCK_BYTES, body)
                    out += self.step(fetch.Stored(ask=ask), now)
                case fetch.AwaitRoom(why=why):
                    self.failed = why
                case fetch.Compare(image=image) if image.size_bytes > self.room_bytes:
                    out += self.step(fetch.OutOfRoom(why="the disk is full"), now)
                case fetch.Compare(image=image, parts=parts):
                    missing = self._compare(image, b"".join(parts))
                    compared = fetch.Compared(task=image.task, round=image.round, missing=missing)
                    out += self.step(compared, now)
                case fetch.Store(ask=ask, image=image, runs=runs, body=body):
                    out += self.step(fetch.Stored(ask=ask, damaged=self._store(image, runs, body)), now)
                case fetch.StoreEntries(end=end, body=body):
                    self.entries += body
                    out += self.step(fetch.EntriesStored(end=end), now)
                case fetch.Assemble():
                    self.assembled = effect
                case fetch.Fail(why=why):
                    self.failed = why
                case fetch.Note():
                    pass
        return out

    def _store_ahead(self, task: TaskId, start: int, body: bytes) -> None:
        staged = self.staged[task]
        staged.extend(bytes(max(0, start + len(body) - len(staged))))
        staged[start : start + len(body)] = body
        self.hashes[task] = hashes_of(bytes(staged))
        self.ahead_bytes += len(body)

    def _compare(self, image: catchup.Image, listed: bytes) -> list[Run] | None:
        count = blocks.blocks_in(image.size_bytes, image.block_bytes)
        old = self.hashes[image.task]
        hashes = blocks.apply_changes(old, listed, count) if image.base else listed
        if blocks.digest_of(hashes) != image.digest:
            return None
        staged = self.staged[image.task]
        staged[:] = staged[: image.size_bytes].ljust(image.size_bytes, b"\0")
        self.hashes[image.task] = hashes
        return blocks.missing_runs(old, hashes)

    def _store(self, image: catchup.Image, runs: tuple[Run, ...], body: bytes) -> tuple[Run, ...]:
        damaged = []
        position = 0
        for run in runs:
            length = blocks.length_of(run, image.size_bytes, image.block_bytes)
            part = body[position : position + length]
            position += length
            place = slice(run[0] * blocks.HASH_BYTES, (run[0] + run[1]) * blocks.HASH_BYTES)
            if hashes_of(part) == self.hashes[image.task][place]:
                start = run[0] * image.block_bytes
                self.staged[image.task][start : start + length] = part
                self.stored_bytes += length
            else:
                damaged.append(run)
        return tuple(damaged)


def _of(content: bytes, run: Run) -> bytes:
    return content[run[0] * BLOCK_BYTES : (run[0] + run[1]) * BLOCK_BYTES]


class Transfer:
    """Runs until the follower has everything, has failed, or nothing happens any more."""

    def __init__(self, leader: Leader, follower: Follower, random: Random | None = None) -> None:
        self.leader = leader
        self.follower = follower
        self.now = 0
        self._random = random
        self._wire: list[tuple[int, int, Any]] = []
        self._count = 0
        #: Of the way to the follower; 0: any number.
        self.bytes_per_second = 0
        self._link_free_at = 0.0
        self.sent_bytes = 0
        #: What was on its way to the follower at once, at most.
        self.backlog_bytes = 0.0
        #: Called before each delivery.
        self.between: Callable[[], None] = lambda: None
        #: What becomes of a body on its way.
        self.mangle: Callable[[bytes], bytes] = lambda body: body

    def run(self, until_ms: int = 60_000) -> None:
        leader, follower = self.leader, self.follower
        if self.now == 0:
            self._asked(follower.step(fetch.Begin(), self.now))
        while follower.assembled is None and follower.failed is None and self.now < until_ms:
            due = [
                each
                for each in (
                    follower.fetch.next_deadline(),
                    leader.serve.next_deadline(),
                    min(self._wire)[0] if self._wire else None,
                )
                if each is not None
            ]
            assert due, "both sides wait for each other"
            self.now = max(self.now, min(due))
            self._deliver()
            if (deadline := follower.fetch.next_deadline()) is not None and deadline <= self.now:
                self._asked(follower.step(fetch.Tick(), self.now))
            if (deadline := leader.serve.next_deadline()) is not None and deadline <= self.now:
                self._answered(leader.step(serve.Tick(), self.now))

    def settle(self) -> None:
        """What is on its way arrives."""
        while self._wire:
            self.now = max(self.now, min(self._wire)[0])
            self._deliver()

    def _deliver(self) -> None:
        while self._wire and (first := min(self._wire))[0] <= self.now:
            self._wire.remove(first)
            self.between()
            message = first[2]
            if isinstance(message, tuple):
                answer, body = message
                heard = fetch.Heard(message=answer, body=self.mangle(body))
                self._asked(self.follower.step(heard, self.now))
            else:
                heard_ask = serve.Heard(key=KEY, message=message, applied=self.leader.applied)
                self._answered(self.leader.step(heard_ask, self.now))

    def _asked(self, asks: list[catchup.Ask]) -> None:
        for ask in asks:
            self._put(ask)

    def _answered(self, answers: list[tuple[catchup.Answer, bytes]]) -> None:
        for answer in answers:
            self._put(answer)

    def _put(self, message: Any) -> None:
        random = self._random
        copies = 1 if random is None else random.choices((0, 1, 2), (10, 85, 5))[0]
        for _ in range(copies):
            self._count += 1
            delay = 1 if random is None else random.randrange(1, 150)
            if isinstance(message, tuple):
                delay += self._link_ms(len(message[1]))
            self._wire.append((self.now + delay, self._count, message))

    def _link_ms(self, size_bytes: int) -> int:
        """How long until the link has carried all that was sent before and this."""
        self.sent_bytes += size_bytes
        if not self.bytes_per_second:
            return 0
        begins = max(self._link_free_at, self.now)
        self._link_free_at = begins + size_bytes * 1_000 / self.bytes_per_second
        waits_ms = self._link_free_at - self.now
        self.backlog_bytes = max(self.backlog_bytes, waits_ms * self.bytes_per_second / 1_000)
        return int(waits_ms)
