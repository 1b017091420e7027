"""What a follower and its leader say to each other during a transfer.

Each message names the transfer it belongs to: the epoch, the follower's incarnation and the attempt of the
core's FetchState. What belongs to another one is refused by the leader and ignored by the follower. Delivery
is never trusted; a question that stays unanswered is asked again.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from stretto.replog.storage import EpochStart
from stretto.vocabulary.types import Epoch, Incarnation, Offset, TaskId

FORMAT = 5
"""Of images, lists and blocks. Changes when either side could misunderstand the other."""

Run: TypeAlias = tuple[int, int]
"""Consecutive blocks: the first one, and how many."""


class Message(msgspec.Struct, frozen=True, tag=True, gc=False):
    epoch: Epoch
    incarnation: Incarnation
    """Of the follower, whoever sends."""
    attempt: int


class AskImage(Message, frozen=True, tag=True, gc=False):
    """Make an image of the task. Asking for a round tells that the one before it is complete."""

    task: TaskId
    round: int
    base: int
    """The round whose list of hashes is here: only what differs from it need be told; 0 for none."""
    format: int = FORMAT


class Image(Message, frozen=True, tag=True, gc=False):
    task: TaskId
    round: int
    offset: Offset
    """What the image is the state of."""
    size_bytes: int
    block_bytes: int
    digest: bytes
    """Over the hashes of all blocks, in order."""
    base: int
    list_bytes: int
    """Of the list of hashes, complete or against ``base``."""
    applied: Offset
    """How far the leader is by now."""


class Growing(Message, frozen=True, tag=True, gc=False):
    """The image is being made; its first blocks can be had already."""

    task: TaskId
    round: int
    size_bytes: int
    """About what it will have."""
    block_bytes: int
    blocks: int
    applied: Offset


class AskHashes(Message, frozen=True, tag=True, gc=False):
    task: TaskId
    round: int
    position: int


class Hashes(Message, frozen=True, tag=True, gc=False):
    """The body is the list from ``position`` on, as much as fits a message."""

    task: TaskId
    round: int
    position: int
    applied: Offset


class AskBlocks(Message, frozen=True, tag=True, gc=False):
    ask: int
    task: TaskId
    round: int
    runs: tuple[Run, ...]


class Blocks(Message, frozen=True, tag=True, gc=False):
    """The body is the blocks, in the order in which they were asked for."""

    ask: int
    task: TaskId
    round: int
    applied: Offset


class AskEntries(Message, frozen=True, tag=True, gc=False):
    start: Offset
    end: Offset


class Entries(Message, frozen=True, tag=True, gc=False):
    """The body is frames from ``start`` to ``next``."""

    start: Offset
    next: Offset
    history: tuple[EpochStart, ...]
    """Of the epochs that began below the end that was asked for."""


class Waiting(Message, frozen=True, tag=True, gc=False):
    """Heard, and still at it: an image is being made, or others are served first."""

    applied: Offset


class Reason(enum.StrEnum):
    UNKNOWN = "unknown"
    """There is no such transfer here: it was never begun, or given up in a silence."""
    PIN_RELEASED = "pin_released"
    """The log was kept for it as long as allowed."""
    FORMAT = "format"
    FAILED = "failed"
    """The leader could not make or read an image."""


class Refused(Message, frozen=True, tag=True, gc=False):
    reason: Reason
    why: str = ""


class Working(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: there is nothing to ask for now, and this goes on."""


class NoRoom(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: there is no space for the images here; another transfer is begun when there is."""


class Finished(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: the images are no longer needed."""


Ask: TypeAlias = AskImage | AskHashes | AskBlocks | AskEntries | Working | NoRoom | Finished
Answer: TypeAlias = Image | Growing | Hashes | Blocks | Entries | Waiting | Refused
AnyMessage: TypeAlias = Ask | Answer
