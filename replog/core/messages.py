"""What replicas of one group send each other. Each message carries its epoch and its sender's incarnation.

Delivery is never trusted: messages may be lost, doubled, reordered and late; all are idempotent.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from stretto.replog.storage import EpochStart
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, StorageId


class Message(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What all messages between replicas have in common."""

    epoch: Epoch
    incarnation: Incarnation
    """The sender's incarnation."""


class Hello(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: I begin (again) in this epoch. What it claims to hold is no confirmation."""

    storage: StorageId
    attempt: int
    end: Offset


class Lineage(Message, frozen=True, tag=True, gc=False):
    """Leader to follower, the answer to a Hello: where my epochs begin, and what I can still stream."""

    to: Incarnation
    attempt: int
    history: tuple[EpochStart, ...]
    start: Offset
    end: Offset
    apply_offset: Offset
    near_lag: int
    listed: bool
    """Whether the storage id that asked is, or may be, in the ISR."""


class Entries(Message, frozen=True, tag=True, gc=False):
    """Leader to follower: entries and the leader's offsets; frames, if any, travel beside it."""

    to: Incarnation
    apply_offset: Offset
    log_end: Offset
    retain_offset: Offset
    """The follower keeps its log from here on, so that any replica can serve the others."""
    probe: bool
    """Whether the follower answers even if there is nothing new."""


class Confirm(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: everything below ``end`` is durable here, and equal to your log."""

    attempt: int
    end: Offset
    log_end: Offset
    """End of what the follower has taken, durable or not."""
    known_apply_offset: Offset
    resume: bool
    """Whether to send from ``log_end`` on: something did not arrive, or this answers a probe."""


class FetchState(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: your log no longer reaches me; keep it from now on and send your state."""

    attempt: int


class Inquire(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: up to where may entries be visible? ``stamp`` is a time of the follower's clock."""

    stamp: Millis


class Assure(Message, frozen=True, tag=True, gc=False):
    """Leader to follower, the answer to an Inquire: nothing from ``apply_offset`` on was visible then.

    The leader held its lease after the inquiry came.
    """

    to: Incarnation
    stamp: Millis
    apply_offset: Offset


class Reach(Message, frozen=True, tag=True, gc=False):
    """Candidate of an unclean election to all others: my log reaches this far."""

    last_epoch: Epoch
    end: Offset


class RejectReason(enum.StrEnum):
    """Why a message was rejected."""

    STALE_EPOCH = "stale_epoch"
    STALE_INCARNATION = "stale_incarnation"
    NEW_EPOCH = "new_epoch"
    """The leader has just begun and knows no follower; a Hello that came before was lost on it."""
    OUT_OF_RANGE = "out_of_range"
    """The leader's log was cut above what the follower has: the follower must begin again."""


class Reject(Message, frozen=True, tag=True, gc=False):
    """Answer to a message that is stale, or that came before an epoch began. It is never answered itself."""

    reason: RejectReason


AnyMessage: TypeAlias = Hello | Lineage | Entries | Confirm | FetchState | Inquire | Assure | Reach | Reject
