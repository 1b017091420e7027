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
    epoch: Epoch
    incarnation: Incarnation
    """Of the sender."""


class Hello(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: begin (again) in this epoch. What it claims to hold is no confirmation."""

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
    """The asking storage id is, or may be, in the ISR."""


class Entries(Message, frozen=True, tag=True, gc=False):
    """Leader to follower; frames, if any, travel beside it."""

    to: Incarnation
    apply_offset: Offset
    log_end: Offset
    retain_offset: Offset
    """Keep your log from here on, so that any of us can serve the others."""
    probe: bool
    """Answer even if there is nothing new."""


class Confirm(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: everything below ``end`` is durable here, and equal to your log."""

    attempt: int
    end: Offset
    log_end: Offset
    """End of what it has taken, durable or not."""
    known_apply_offset: Offset
    resume: bool
    """Send from ``log_end`` on: something did not arrive, or this answers a probe."""


class FetchState(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: your log no longer reaches me; keep it from now on and send your state."""

    attempt: int


class Inquire(Message, frozen=True, tag=True, gc=False):
    """Follower to leader: up to where may entries be visible? ``stamp`` is of my clock."""

    stamp: Millis


class Assure(Message, frozen=True, tag=True, gc=False):
    """Leader to follower, the answer: I held my lease after your inquiry came, and nothing from
    ``apply_offset`` on was visible then."""

    to: Incarnation
    stamp: Millis
    apply_offset: Offset


class Reach(Message, frozen=True, tag=True, gc=False):
    """To all, from who would be elected uncleanly: so far reaches my log."""

    last_epoch: Epoch
    end: Offset


class RejectReason(enum.StrEnum):
    STALE_EPOCH = "stale_epoch"
    STALE_INCARNATION = "stale_incarnation"
    NEW_EPOCH = "new_epoch"
    """The leader has just begun, and knows nobody. A Hello that came before that was lost on it."""
    OUT_OF_RANGE = "out_of_range"
    """The leader's log was cut above what the follower has: it must begin again."""


class Reject(Message, frozen=True, tag=True, gc=False):
    """A stale message is answered, not obeyed; and so is whatever came before an epoch began. Never answered
    itself."""

    reason: RejectReason


AnyMessage: TypeAlias = Hello | Lineage | Entries | Confirm | FetchState | Inquire | Assure | Reach | Reject
