"""What a transfer to a follower takes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from stretto.vocabulary.types import Offset, TaskId
from stretto.wire import catchup
from stretto.wire.catchup import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The transfer begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The leader answered."""

    message: catchup.Answer
    body: Any = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is staged for the task is hashed."""

    task: TaskId
    is_empty: bool = False
    """Whether nothing was staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomMade:
    """There is room for the image of a task, for a MakeRoom."""

    task: TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRoom:
    """The disk is full, instead of RoomMade, Compared or Stored. This transfer ends."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The image's list of hashes was compared with what is staged.

    ``missing`` is None if the list did not match its digest.
    """

    task: TaskId
    round: int
    missing: list[Run] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Blocks are written, except the damaged ones."""

    ask: int
    damaged: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesStored:
    """Entries are written, for a StoreEntries."""

    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """Work that was asked for is still going on, such as hashing or writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed: ``next_deadline`` is reached."""


Event: TypeAlias = (
    Begin | Heard | Prepared | RoomMade | OutOfRoom | Compared | Stored | EntriesStored | Working | Tick
)
