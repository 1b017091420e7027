"""The leader's side of all transfers of a worker: which images exist, who is served next, what is kept.

A transfer begins when the core says so (ServeState), and is one of an epoch, a follower's incarnation and an
attempt; a newer one of the same follower takes its place. It ends when the follower says that it has
everything, when it is silent for ``patience_ms``, when the leader's log could no longer be kept for it, or
with the epoch. Its images end with it.

Asking for a round tells that the one before it is complete. So the log need be kept only from the lowest
offset of the images that are complete: :class:`MovePin` tells the core.

What is sent passes one queue with one allowance of bytes per second. Images are made a few at a time. The
blocks of one that is still being made are served as far as it has come.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never

import msgspec

from stretto.catchup.machines import blocks
from stretto.replog.core.guards import GUARDS, Guards
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.throttle import Throttle
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, TaskId, WorkerId
from stretto.wire import catchup
from stretto.wire.catchup import Reason, Run

IMAGES_AT_ONCE = 2
SENDING_MS = 2_000
"""A pause that is longer ends the sending."""

Key: TypeAlias = tuple[GroupKey, WorkerId]
"""Of a transfer: the group, and the follower that receives it."""


# Events.


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The core serves a follower from now on, and keeps its log from ``pinned``."""

    key: Key
    epoch: Epoch
    incarnation: Incarnation
    attempt: int
    tasks: tuple[TaskId, ...]
    pinned: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    key: Key
    message: catchup.Ask
    applied: Offset
    """Ours, now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGrew:
    """So many blocks of an image that is being made can be read."""

    key: Key
    growing: catchup.Growing


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMade:
    """``image`` answers the AskImage of its round; its ``applied`` does not count."""

    key: Key
    image: catchup.Image


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFailed:
    """Also when blocks of one could not be read."""

    key: Key
    attempt: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDropped:
    """It was not made to its end, for its transfer is over."""

    key: Key
    attempt: int
    task: TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesSent:
    """For a SendEntries: how much that was."""

    key: Key
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinReleased:
    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipEnded:
    """Of the group: by a newer epoch, or because the replica stopped."""

    group: GroupKey
    leads: Epoch | None = None
    """The epoch that we lead now, if any; its transfers go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    bytes_per_second: int
    patience_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    pass


Event: TypeAlias = (
    Begin
    | Heard
    | ImageGrew
    | ImageMade
    | ImageFailed
    | ImageDropped
    | EntriesSent
    | PinReleased
    | LeadershipEnded
    | Limit
    | Tick
)


# Effects.


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    key: Key
    message: catchup.Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeImage:
    """Copy the task's state, hash it, and answer with ImageMade or ImageFailed; with ImageDropped, if the
    transfer ended before that; meanwhile with ImageGrew, if
    that is worth the while. The image of ``base`` is the one before; it need not be kept, but its list of
    hashes is what the new list may be told against."""

    key: Key
    ask: catchup.AskImage


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHashes:
    """With the list from ``message.position`` on, PART_BYTES at most."""

    key: Key
    message: catchup.Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBlocks:
    key: Key
    message: catchup.Blocks
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEntries:
    """Frames of our log from ``start`` to ``end``, PART_BYTES of them or one; and the history below ``end``.
    Answer with EntriesSent; or with ImageFailed, if the log does not have them or they are not decided."""

    key: Key
    ask: catchup.AskEntries


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The images of a transfer are no longer needed."""

    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePin:
    """The log is needed for this follower from ``start`` on; None: no longer."""

    key: Key
    epoch: Epoch
    incarnation: Incarnation
    start: Offset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    key: Key
    event: str
    fields: dict[str, Any]


Effect: TypeAlias = Send | MakeImage | SendHashes | SendBlocks | SendEntries | Drop | MovePin | Note


@dataclass(slots=True)
class _Task:
    #: The round whose image exists or is being made; 0 before the first.
    round: int = 0
    image: catchup.Image | None = None
    #: How far it has come, while it is being made.
    growing: catchup.Growing | None = None
    #: Of the latest image that the follower has.
    offset: Offset | None = None


@dataclass(slots=True)
class _Transfer:
    begun: Begin
    heard_at: Millis
    pinned: Offset
    tasks: dict[TaskId, _Task]
    applied: Offset = Offset(0)
    #: Questions in the queue, so that asking again does not send twice.
    queued: set[tuple[Any, ...]] = field(default_factory=set)
    sent_bytes: int = 0


_Sendable: TypeAlias = catchup.AskHashes | catchup.AskBlocks | catchup.AskEntries


class Serve:
    """:meth:`step` is the one door."""

    def __init__(self, limit: Limit, now: Millis, guards: Guards = GUARDS) -> None:
        self._guards = guards
        self._patience_ms = limit.patience_ms
        self._throttle = Throttle(limit.bytes_per_second, now)
        self.transfers: dict[Key, _Transfer] = {}
        self._queue: deque[tuple[_Transfer, _Sendable]] = deque()
        self._to_make: deque[tuple[_Transfer, catchup.AskImage]] = deque()
        self._making: set[tuple[Key, int, TaskId]] = set()
        self._sent_at: Millis | None = None
        self._now = now
        self._out: list[Effect] = []

    # The door.

    def step(self, event: Event, now: Millis) -> list[Effect]:
        self._now = now
        out: list[Effect] = []
        self._out = out
        match event:
            case Begin():
                self._begin(event)
            case Heard(key=key, message=message, applied=applied):
                self._heard(key, message, applied)
            case ImageGrew(key=key, growing=growing):
                self._grew(key, growing)
            case ImageMade(key=key, image=image):
                self._made(key, image)
            case ImageFailed(key=key, attempt=attempt, why=why):
                self._making = {each for each in self._making if each[:2] != (key, attempt)}
                transfer = self.transfers.get(key)
                if transfer is not None and transfer.begun.attempt == attempt:
                    self._refuse_transfer(transfer, Reason.FAILED, why)
            case ImageDropped(key=key, attempt=attempt, task=task):
                self._making.discard((key, attempt, task))
            case EntriesSent(key=key, size_bytes=size_bytes):
                self._throttle.take(size_bytes)
                if key in self.transfers:
                    self.transfers[key].sent_bytes += size_bytes
            case PinReleased(key=key):
                transfer = self.transfers.get(key)
                if transfer is not None:
                    self._refuse_transfer(transfer, Reason.PIN_RELEASED, "")
            case LeadershipEnded(group=group, leads=leads):
                for key, transfer in list(self.transfers.items()):
                    if key[0] == group and transfer.begun.epoch != leads:
                        self._end(key)
            case Limit(bytes_per_second=bytes_per_second, patience_ms=patience_ms):
                self._patience_ms = patience_ms
                self._throttle.change(bytes_per_second, now)
            case Tick():
                self._expire()
            case _:
                assert_never(event)
        self._make_next()
        self._send_next()
        return out

    def is_sending(self, now: Millis) -> bool:
        """Something waits to be sent, or was sent a moment ago."""
        lately = self._sent_at is not None and now - self._sent_at < SENDING_MS
        return bool(self.transfers) and (bool(self._queue) or lately)

    def next_deadline(self) -> Millis | None:
        deadlines = [transfer.heard_at + self._patience_ms for transfer in self.transfers.values()]
        if self._queue:
            deadlines.append(self._throttle.ready_at(self._now))
        return Millis(min(deadlines)) if deadlines else None

    # Life of a transfer.

    def _begin(self, event: Begin) -> None:
        self._end(event.key)
        tasks = {task: _Task() for task in event.tasks}
        self.transfers[event.key] = _Transfer(event, self._now, event.pinned, tasks)

    def _end(self, key: Key) -> None:
        transfer = self.transfers.pop(key, None)
        if transfer is not None:
            self._queue = deque(each for each in self._queue if each[0] is not transfer)
            self._to_make = deque(each for each in self._to_make if each[0] is not transfer)
            self._out.append(Drop(key=key))

    def _release(self, transfer: _Transfer) -> None:
        self._end(transfer.begun.key)
        self._move_pin(transfer, None)

    def _refuse_transfer(self, transfer: _Transfer, reason: Reason, why: str) -> None:
        begun = transfer.begun
        self._note(transfer, "transfer_refused", reason=reason.value, why=why)
        self._release(transfer)
        refused = catchup.Refused(begun.epoch, begun.incarnation, begun.attempt, reason=reason, why=why)
        self._out.append(Send(key=begun.key, message=refused))

    def _expire(self) -> None:
        for transfer in list(self.transfers.values()):
            if self._now - transfer.heard_at >= self._patience_ms:
                self._note(transfer, "transfer_given_up", silent_ms=self._now - transfer.heard_at)
                self._release(transfer)

    # Questions.

    def _heard(self, key: Key, message: catchup.Ask, applied: Offset) -> None:
        transfer = self.transfers.get(key)
        if transfer is None or not _belongs(message, transfer.begun):
            if not isinstance(message, catchup.Finished | catchup.NoRoom):
                refused = catchup.Refused(
                    message.epoch, message.incarnation, message.attempt, reason=Reason.UNKNOWN
                )
                self._out.append(Send(key=key, message=refused))
            return
        transfer.heard_at = self._now
        transfer.applied = applied
        match message:
            case catchup.AskImage():
                self._ask_image(transfer, message)
            case catchup.AskHashes(task=task, round=number, position=position):
                image = self._image_of(transfer, task, number)
                if image is not None and 0 <= position < image.list_bytes:
                    self._enqueue(transfer, message, (task, number, position))
            case catchup.AskBlocks(ask=ask, task=task, round=number, runs=runs):
                there = self._there(transfer, task, number)
                if there is not None and _are_within(runs, *there):
                    self._enqueue(transfer, message, (ask,))
            case catchup.AskEntries(start=start):
                self._enqueue(transfer, message, ("entries", start))
            case catchup.Working():
                pass
            case catchup.NoRoom():
                self._note(transfer, "follower_has_no_room", sent_bytes=transfer.sent_bytes)
                self._release(transfer)
            case catchup.Finished():
                self._note(transfer, "transfer_finished", sent_bytes=transfer.sent_bytes)
                # The pin stays: the core lets go of it when the follower has caught up from the log.
                self._end(key)
            case _:
                assert_never(message)

    def _ask_image(self, transfer: _Transfer, ask: catchup.AskImage) -> None:
        served = transfer.tasks.get(ask.task)
        if served is None or ask.format != catchup.FORMAT:
            self._refuse_transfer(transfer, Reason.FORMAT, "")
        elif ask.round == served.round:
            if served.image is not None:
                self._send_image(transfer, served.image)
            elif served.growing is not None:
                self._send_growing(transfer, served.growing)
            else:
                self._wait(transfer)
        elif ask.round == served.round + 1 and (served.image is not None or served.round == 0):
            if served.image is not None:
                served.offset = served.image.offset
                self._complete(transfer)
            served.round = ask.round
            served.image = served.growing = None
            self._to_make.append((transfer, ask))

    def _complete(self, transfer: _Transfer) -> None:
        offsets = [task.offset for task in transfer.tasks.values()]
        known = [offset for offset in offsets if offset is not None]
        if len(known) == len(offsets):
            start = self._guards.pin_start(known)
            if start > transfer.pinned:
                transfer.pinned = start
                self._move_pin(transfer, start)

    def _move_pin(self, transfer: _Transfer, start: Offset | None) -> None:
        begun = transfer.begun
        self._out.append(
            MovePin(key=begun.key, epoch=begun.epoch, incarnation=begun.incarnation, start=start)
        )

    def _image_of(self, transfer: _Transfer, task: TaskId, number: int) -> catchup.Image | None:
        served = transfer.tasks.get(task)
        return served.image if served is not None and served.round == number else None

    def _there(self, transfer: _Transfer, task: TaskId, number: int) -> tuple[int, int] | None:
        """Bytes that can be read of an image, made or being made, and the size of its blocks."""
        served = transfer.tasks.get(task)
        if served is None or served.round != number:
            return None
        if served.image is not None:
            return served.image.size_bytes, served.image.block_bytes
        if served.growing is not None:
            return served.growing.blocks * served.growing.block_bytes, served.growing.block_bytes
        return None

    # Images.

    def _make_next(self) -> None:
        while self._to_make and len(self._making) < IMAGES_AT_ONCE:
            transfer, ask = self._to_make.popleft()
            self._making.add((transfer.begun.key, ask.attempt, ask.task))
            self._out.append(MakeImage(key=transfer.begun.key, ask=ask))

    def _grew(self, key: Key, growing: catchup.Growing) -> None:
        transfer = self.transfers.get(key)
        if transfer is None or not _belongs(growing, transfer.begun):
            return
        served = transfer.tasks[growing.task]
        if served.round == growing.round and served.image is None:
            served.growing = growing
            self._send_growing(transfer, growing)

    def _send_growing(self, transfer: _Transfer, growing: catchup.Growing) -> None:
        answer = msgspec.structs.replace(growing, applied=transfer.applied)
        self._out.append(Send(key=transfer.begun.key, message=answer))

    def _made(self, key: Key, image: catchup.Image) -> None:
        self._making.discard((key, image.attempt, image.task))
        transfer = self.transfers.get(key)
        if transfer is None or not _belongs(image, transfer.begun):
            return
        served = transfer.tasks[image.task]
        if served.round == image.round:
            served.image = image
            self._send_image(transfer, image)

    def _send_image(self, transfer: _Transfer, image: catchup.Image) -> None:
        answer = msgspec.structs.replace(image, applied=max(image.offset, transfer.applied))
        self._out.append(Send(key=transfer.begun.key, message=answer))

    # Sending.

    def _enqueue(self, transfer: _Transfer, ask: _Sendable, what: tuple[Any, ...]) -> None:
        if what in transfer.queued:
            self._wait(transfer)
        else:
            transfer.queued.add(what)
            self._queue.append((transfer, ask))

    def _wait(self, transfer: _Transfer) -> None:
        begun = transfer.begun
        waiting = catchup.Waiting(begun.epoch, begun.incarnation, begun.attempt, applied=transfer.applied)
        self._out.append(Send(key=begun.key, message=waiting))

    def _send_next(self) -> None:
        while self._queue and self._throttle.ready_at(self._now) <= self._now:
            transfer, ask = self._queue.popleft()
            self._sent_at = self._now
            size_bytes = self._send_one(transfer, ask)
            transfer.sent_bytes += size_bytes
            self._throttle.take(size_bytes)

    def _send_one(self, transfer: _Transfer, ask: _Sendable) -> int:
        key, applied = transfer.begun.key, transfer.applied
        named = (ask.epoch, ask.incarnation, ask.attempt)
        match ask:
            case catchup.AskHashes(task=task, round=number, position=position):
                transfer.queued.discard((task, number, position))
                image = self._image_of(transfer, task, number)
                if image is None:
                    return 0
                hashes = catchup.Hashes(*named, task=task, round=number, position=position, applied=applied)
                self._out.append(SendHashes(key=key, message=hashes))
                return min(blocks.PART_BYTES, image.list_bytes - position)
            case catchup.AskBlocks(ask=number_of_ask, task=task, round=number, runs=runs):
                transfer.queued.discard((number_of_ask,))
                there = self._there(transfer, task, number)
                if there is None:
                    return 0
                answer = catchup.Blocks(*named, ask=number_of_ask, task=task, round=number, applied=applied)
                self._out.append(SendBlocks(key=key, message=answer, runs=runs))
                return sum(blocks.length_of(run, *there) for run in runs)
            case catchup.AskEntries(start=start):
                transfer.queued.discard(("entries", start))
                self._out.append(SendEntries(key=key, ask=ask))
                return 0
            case _:
                assert_never(ask)

    def _note(self, transfer: _Transfer, event: str, **fields: Any) -> None:
        self._out.append(Note(key=transfer.begun.key, event=event, fields=fields))


def _belongs(message: catchup.Message, begun: Begin) -> bool:
    return (message.epoch, message.incarnation, message.attempt) == (
        begun.epoch,
        begun.incarnation,
        begun.attempt,
    )


def _are_within(runs: tuple[Run, ...], size_bytes: int, block_bytes: int) -> bool:
    """And no more of them than a message may carry."""
    end = blocks.blocks_in(size_bytes, block_bytes)
    total = sum(count for _, count in runs)
    return all(
        first >= 0 and count > 0 and first + count <= end for first, count in runs
    ) and total * block_bytes <= max(blocks.PART_BYTES, block_bytes)
