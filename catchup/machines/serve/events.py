"""What the leader's side of all transfers takes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, TaskId, WorkerId
from stretto.wire import catchup

Key: TypeAlias = tuple[GroupKey, WorkerId]
"""A transfer's identity: its group and the follower that receives it."""


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
    """The follower asks for something, or reports how far it is."""

    key: Key
    message: catchup.Ask
    applied: Offset
    """End of what the leader has applied at present."""


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
    """An image could not be made, or blocks of one could not be read."""

    key: Key
    attempt: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDropped:
    """An image was not made to its end, for its transfer is over."""

    key: Key
    attempt: int
    task: TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesSent:
    """A SendEntries was carried out, and sent so many bytes."""

    key: Key
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinReleased:
    """The core no longer keeps its log for the follower."""

    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipEnded:
    """The group has a newer epoch, or its replica stopped here."""

    group: GroupKey
    leads: Epoch | None = None
    """The epoch that we lead now, if any; its transfers go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much may be sent from now on, and how long a follower may be silent."""

    bytes_per_second: int
    patience_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed: ``next_deadline`` is reached."""


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
