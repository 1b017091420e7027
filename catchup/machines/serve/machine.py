"""All transfers that a worker serves, as a machine: events in, effects out."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias, assert_never

import msgspec

from stretto.catchup.machines import blocks
from stretto.catchup.machines.serve.effects import (
    Drop,
    Effect,
    MakeImage,
    MovePin,
    Note,
    Send,
    SendBlocks,
    SendEntries,
    SendHashes,
)
from stretto.catchup.machines.serve.events import (
    Begin,
    EntriesSent,
    Event,
    Heard,
    ImageDropped,
    ImageFailed,
    ImageGrew,
    ImageMade,
    Key,
    LeadershipEnded,
    Limit,
    PinReleased,
    Tick,
)
from stretto.catchup.machines.serve.transfers import TaskServe, Transfer, are_within
from stretto.replog.core.guards import GUARDS, Guards
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.throttle import Throttle
from stretto.vocabulary.types import Epoch, Millis, Offset, TaskId
from stretto.wire import catchup
from stretto.wire.catchup import Reason

IMAGES_AT_ONCE = 2
SENDING_MS = 2_000
"""Pause after which a worker no longer counts as sending, in milliseconds."""

_Sendable: TypeAlias = catchup.AskHashes | catchup.AskBlocks | catchup.AskEntries


class Serve:
    """All transfers that a worker serves; :meth:`step` is the only entry point."""

    def __init__(self, limit: Limit, now: Millis, guards: Guards = GUARDS) -> None:
        self._guards = guards
        self._patience_ms = limit.patience_ms
        self._throttle = Throttle(limit.bytes_per_second, now)
        self.transfers: dict[Key, Transfer] = {}
        self._queue: deque[tuple[Transfer, _Sendable]] = deque()
        self._to_make: deque[tuple[Transfer, catchup.AskImage]] = deque()
        self._making: set[tuple[Key, int, TaskId]] = set()
        self._sent_at: Millis | None = None
        self._now = now
        self._out: list[Effect] = []

    # The door.

    def step(self, event: Event, now: Millis) -> list[Effect]:
        """Take in one event; return what to do, in order."""
        self._now = now
        out: list[Effect] = []
        self._out = out
        self._dispatch(event)
        self._make_next()
        self._send_next()
        return out

    def _dispatch(self, event: Event) -> None:
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
                self._image_failed(key, attempt, why)
            case ImageDropped(key=key, attempt=attempt, task=task):
                self._making.discard((key, attempt, task))
            case EntriesSent(key=key, size_bytes=size_bytes):
                self._entries_sent(key, size_bytes)
            case PinReleased(key=key):
                transfer = self.transfers.get(key)
                if transfer is not None:
                    self._refuse_transfer(transfer, Reason.PIN_RELEASED, "")
            case LeadershipEnded(group=group, leads=leads):
                self._end_all_of(group, leads)
            case Limit(bytes_per_second=bytes_per_second, patience_ms=patience_ms):
                self._patience_ms = patience_ms
                self._throttle.change(bytes_per_second, self._now)
            case Tick():
                self._expire()
            case _:
                assert_never(event)

    def is_sending(self, now: Millis) -> bool:
        """Whether something waits to be sent, or was sent a moment ago."""
        lately = self._sent_at is not None and now - self._sent_at < SENDING_MS
        return bool(self.transfers) and (bool(self._queue) or lately)

    def next_deadline(self) -> Millis | None:
        """When to step a Tick at the latest."""
        deadlines = [transfer.heard_at + self._patience_ms for transfer in self.transfers.values()]
        if self._queue:
            deadlines.append(self._throttle.ready_at(self._now))
        return Millis(min(deadlines)) if deadlines else None

    # Life of a transfer.

    def _begin(self, event: Begin) -> None:
        self._end(event.key)
        tasks = {task: TaskServe() for task in event.tasks}
        self.transfers[event.key] = Transfer(event, self._now, event.pinned, tasks)

    def _end(self, key: Key) -> None:
        transfer = self.transfers.pop(key, None)
        if transfer is not None:
            self._queue = deque(each for each in self._queue if each[0] is not transfer)
            self._to_make = deque(each for each in self._to_make if each[0] is not transfer)
            self._out.append(Drop(key=key))

    def _end_all_of(self, group: GroupKey, leads: Epoch | None) -> None:
        """End the transfers of a group, except those of the epoch that it leads now."""
        for key, transfer in list(self.transfers.items()):
            if key[0] == group and transfer.begun.epoch != leads:
                self._end(key)

    def _release(self, transfer: Transfer) -> None:
        self._end(transfer.begun.key)
        self._move_pin(transfer, None)

    def _refuse_transfer(self, transfer: Transfer, reason: Reason, why: str) -> None:
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
        if transfer is None or not transfer.owns(message):
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
                image = transfer.image_of(task, number)
                if image is not None and 0 <= position < image.list_bytes:
                    self._enqueue(transfer, message, (task, number, position))
            case catchup.AskBlocks(ask=ask, task=task, round=number, runs=runs):
                readable = transfer.readable(task, number)
                if readable is not None and are_within(runs, *readable):
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

    def _ask_image(self, transfer: Transfer, ask: catchup.AskImage) -> None:
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

    def _complete(self, transfer: Transfer) -> None:
        """Let go of the log below the lowest of the images that the follower has, if it has all."""
        offsets = transfer.complete_offsets()
        if offsets is not None:
            start = self._guards.pin_start(offsets)
            if start > transfer.pinned:
                transfer.pinned = start
                self._move_pin(transfer, start)

    def _move_pin(self, transfer: Transfer, start: Offset | None) -> None:
        begun = transfer.begun
        self._out.append(
            MovePin(key=begun.key, epoch=begun.epoch, incarnation=begun.incarnation, start=start)
        )

    # Images.

    def _make_next(self) -> None:
        while self._to_make and len(self._making) < IMAGES_AT_ONCE:
            transfer, ask = self._to_make.popleft()
            self._making.add((transfer.begun.key, ask.attempt, ask.task))
            self._out.append(MakeImage(key=transfer.begun.key, ask=ask))

    def _grew(self, key: Key, growing: catchup.Growing) -> None:
        transfer = self.transfers.get(key)
        if transfer is None or not transfer.owns(growing):
            return
        served = transfer.tasks[growing.task]
        if served.round == growing.round and served.image is None:
            served.growing = growing
            self._send_growing(transfer, growing)

    def _send_growing(self, transfer: Transfer, growing: catchup.Growing) -> None:
        answer = msgspec.structs.replace(growing, applied=transfer.applied)
        self._out.append(Send(key=transfer.begun.key, message=answer))

    def _made(self, key: Key, image: catchup.Image) -> None:
        self._making.discard((key, image.attempt, image.task))
        transfer = self.transfers.get(key)
        if transfer is None or not transfer.owns(image):
            return
        served = transfer.tasks[image.task]
        if served.round == image.round:
            served.image = image
            self._send_image(transfer, image)

    def _image_failed(self, key: Key, attempt: int, why: str) -> None:
        self._making = {each for each in self._making if each[:2] != (key, attempt)}
        transfer = self.transfers.get(key)
        if transfer is not None and transfer.begun.attempt == attempt:
            self._refuse_transfer(transfer, Reason.FAILED, why)

    def _send_image(self, transfer: Transfer, image: catchup.Image) -> None:
        answer = msgspec.structs.replace(image, applied=max(image.offset, transfer.applied))
        self._out.append(Send(key=transfer.begun.key, message=answer))

    # Sending.

    def _enqueue(self, transfer: Transfer, ask: _Sendable, what: tuple[Any, ...]) -> None:
        if what in transfer.queued:
            self._wait(transfer)
        else:
            transfer.queued.add(what)
            self._queue.append((transfer, ask))

    def _wait(self, transfer: Transfer) -> None:
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

    def _entries_sent(self, key: Key, size_bytes: int) -> None:
        self._throttle.take(size_bytes)
        if key in self.transfers:
            self.transfers[key].sent_bytes += size_bytes

    def _send_one(self, transfer: Transfer, ask: _Sendable) -> int:
        key, applied = transfer.begun.key, transfer.applied
        named = (ask.epoch, ask.incarnation, ask.attempt)
        match ask:
            case catchup.AskHashes(task=task, round=number, position=position):
                transfer.queued.discard((task, number, position))
                image = transfer.image_of(task, number)
                if image is None:
                    return 0
                hashes = catchup.Hashes(*named, task=task, round=number, position=position, applied=applied)
                self._out.append(SendHashes(key=key, message=hashes))
                return min(blocks.PART_BYTES, image.list_bytes - position)
            case catchup.AskBlocks(ask=number_of_ask, task=task, round=number, runs=runs):
                transfer.queued.discard((number_of_ask,))
                readable = transfer.readable(task, number)
                if readable is None:
                    return 0
                answer = catchup.Blocks(*named, ask=number_of_ask, task=task, round=number, applied=applied)
                self._out.append(SendBlocks(key=key, message=answer, runs=runs))
                return sum(blocks.length_of(run, *readable) for run in runs)
            case catchup.AskEntries(start=start):
                transfer.queued.discard(("entries", start))
                self._out.append(SendEntries(key=key, ask=ask))
                return 0
            case _:
                assert_never(ask)

    def _note(self, transfer: Transfer, event: str, **fields: Any) -> None:
        self._out.append(Note(key=transfer.begun.key, event=event, fields=fields))
