"""How far a transfer is, as its leader knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stretto.catchup.machines import blocks
from stretto.catchup.machines.serve.events import Begin
from stretto.vocabulary.types import Millis, Offset, TaskId
from stretto.wire import catchup
from stretto.wire.catchup import Run


@dataclass(slots=True)
class TaskServe:
    """The images of one task in a transfer."""

    #: The round whose image exists or is being made; 0 before the first.
    round: int = 0
    image: catchup.Image | None = None
    #: How far the image has come, while it is being made.
    growing: catchup.Growing | None = None
    #: Offset of the latest image that the follower has.
    offset: Offset | None = None

    def image_of(self, number: int) -> catchup.Image | None:
        """The image of that round, if it is made."""
        return self.image if self.round == number else None

    def readable(self, number: int) -> tuple[int, int] | None:
        """Bytes that can be read of that round's image, made or being made, and the size of its blocks."""
        if self.round != number:
            return None
        if self.image is not None:
            return self.image.size_bytes, self.image.block_bytes
        if self.growing is not None:
            return self.growing.blocks * self.growing.block_bytes, self.growing.block_bytes
        return None


@dataclass(slots=True)
class Transfer:
    """One transfer to a follower, as its leader knows it."""

    begun: Begin
    heard_at: Millis
    pinned: Offset
    tasks: dict[TaskId, TaskServe]
    applied: Offset = Offset(0)
    #: Questions in the queue, so that asking again does not send twice.
    queued: set[tuple[Any, ...]] = field(default_factory=set)
    sent_bytes: int = 0

    def owns(self, message: catchup.Message) -> bool:
        """Whether the message is of this transfer, and not of an earlier one to the same follower."""
        begun = self.begun
        return (message.epoch, message.incarnation, message.attempt) == (
            begun.epoch,
            begun.incarnation,
            begun.attempt,
        )

    def image_of(self, task: TaskId, number: int) -> catchup.Image | None:
        """The image of a task in that round, if it is made."""
        served = self.tasks.get(task)
        return served.image_of(number) if served is not None else None

    def readable(self, task: TaskId, number: int) -> tuple[int, int] | None:
        """Bytes that can be read of a task's image, and the size of its blocks; see TaskServe.readable.

        None also for a task that the group does not have.
        """
        served = self.tasks.get(task)
        return served.readable(number) if served is not None else None

    def complete_offsets(self) -> list[Offset] | None:
        """Offsets of the latest images that the follower has; None until it has one of every task."""
        offsets = [task.offset for task in self.tasks.values()]
        known = [offset for offset in offsets if offset is not None]
        return known if len(known) == len(offsets) else None


def are_within(runs: tuple[Run, ...], size_bytes: int, block_bytes: int) -> bool:
    """Whether an image has these blocks, and they are no more than a message may carry."""
    end = blocks.blocks_in(size_bytes, block_bytes)
    total = sum(count for _, count in runs)
    return all(
        first >= 0 and count > 0 and first + count <= end for first, count in runs
    ) and total * block_bytes <= max(blocks.PART_BYTES, block_bytes)
