"""What a transfer to a follower is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from stretto.vocabulary.types import Offset, TaskId
from stretto.wire import catchup
from stretto.wire.catchup import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    message: catchup.Answer
    body: Any = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is staged for the task is hashed."""

    task: TaskId
    is_empty: bool = False
    """Nothing was staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomMade:
    task: TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRoom:
    """Instead of RoomMade, Compared or Stored: the disk is full. This transfer ends."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The list is complete and matches its digest; None: it does not."""

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
    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """What was wanted takes its time: hashing, writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    pass


Event: TypeAlias = (
    Begin | Heard | Prepared | RoomMade | OutOfRoom | Compared | Stored | EntriesStored | Working | Tick
)
