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
"""Format of images, lists and blocks; it changes when either side could misunderstand the other."""

Run: TypeAlias = tuple[int, int]
"""Consecutive blocks: the first one, and how many."""


class Message(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What every message says of the transfer that it belongs to."""

    epoch: Epoch
    incarnation: Incarnation
    """The follower's incarnation, in both directions."""
    attempt: int


class AskImage(Message, frozen=True, tag=True, gc=False):
    """Ask for an image of a task; to ask for a round says that the one before it is complete."""

    task: TaskId
    round: int
    base: int
    """The round whose list of hashes the follower has: only what differs need be sent; 0 for none."""
    format: int = FORMAT


class Image(Message, frozen=True, tag=True, gc=False):
    """The image is made; its hashes and blocks can be asked for."""

    task: TaskId
    round: int
    offset: Offset
    """The offset that the image is the state of."""
    size_bytes: int
    block_bytes: int
    digest: bytes
    """Digest over the hashes of all blocks, in order."""
    base: int
    list_bytes: int
    """Size of the list of hashes, complete or against ``base``."""
    applied: Offset
    """How far the leader has applied by now."""


class Growing(Message, frozen=True, tag=True, gc=False):
    """The image is being made; its first blocks can be had already."""

    task: TaskId
    round: int
    size_bytes: int
    """The size that the image will have, about."""
    block_bytes: int
    blocks: int
    applied: Offset


class AskHashes(Message, frozen=True, tag=True, gc=False):
    """Ask for the list of hashes from ``position`` on."""

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
    """Ask for runs of blocks of an image."""

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
    """Ask for entries of the leader's log, from ``start`` to below ``end``."""

    start: Offset
    end: Offset


class Entries(Message, frozen=True, tag=True, gc=False):
    """The body is frames from ``start`` to ``next``."""

    start: Offset
    next: Offset
    history: tuple[EpochStart, ...]
    """The epochs that began below the end that was asked for."""


class Waiting(Message, frozen=True, tag=True, gc=False):
    """The leader is still at it: an image is being made, or others are served first."""

    applied: Offset


class Reason(enum.StrEnum):
    """Why a leader refuses a message of a transfer."""

    UNKNOWN = "unknown"
    """There is no such transfer here: it was never begun, or given up in a silence."""
    PIN_RELEASED = "pin_released"
    """The log was kept for the transfer for as long as is allowed."""
    FORMAT = "format"
    FAILED = "failed"
    """The leader could not make or read an image."""


class Refused(Message, frozen=True, tag=True, gc=False):
    """The leader refuses a message of a transfer; ``why`` may say more."""

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
