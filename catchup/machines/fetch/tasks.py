"""How far the tasks of a transfer are."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stretto.catchup.machines import blocks
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, TaskId
from stretto.wire import catchup
from stretto.wire.catchup import Run


class Phase(enum.StrEnum):
    """How far a task is in its round."""

    WAITING = "waiting"
    PREPARING = "preparing"
    ASKING = "asking"
    AHEAD = "ahead"
    LISTING = "listing"
    COMPARING = "comparing"
    FETCHING = "fetching"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a transfer: which one it is, and when it is enough."""

    epoch: Epoch
    incarnation: Incarnation
    attempt: int
    tasks: tuple[TaskId, ...]
    min_rounds: int
    near_lag: int
    retry_ms: Millis
    silence_max_ms: Millis
    """Silence after which something is asked again, however slow the link is."""


@dataclass(slots=True)
class TaskFetch:
    """How far one task of a transfer is."""

    task: TaskId
    phase: Phase = Phase.WAITING
    #: The round under way, or the latest that is complete.
    round: int = 0
    #: The latest round whose hashes the driver has, in this transfer.
    listed_round: int = 0
    #: Offset and image of the latest complete round.
    offset: Offset | None = None
    image: catchup.Image | None = None
    #: Whether nothing was here before the first round.
    is_empty: bool = False
    #: How far an image that is fetched while it is made has come; whether it has room; how far it is asked
    #: for.
    growing: catchup.Growing | None = None
    has_room: bool = False
    ahead: int = 0
    parts: list[Any] = field(default_factory=list)
    list_position: int = 0
    #: Blocks to ask for, descending, so that the next ones are at the end.
    missing: list[Run] = field(default_factory=list)
    missing_bytes: int = 0
    """Bytes of this round that are not yet written."""
    first_asked_at: Millis = Millis(0)
    asked_at: Millis = Millis(0)
    """When the question for the image or a part of its list was asked, first (of a part) and last."""
    damaged: int = 0
    fetched_bytes: int = 0
    """Bytes fetched over all rounds."""

    @property
    def size_bytes(self) -> int | None:
        described = self.image or self.growing
        return described.size_bytes if described is not None else None


def asks_for(fetching: TaskFetch, number: int) -> bool:
    """Whether the task waits for the image of that round."""
    return fetching.phase in (Phase.ASKING, Phase.AHEAD) and fetching.round == number


def has_more(fetching: TaskFetch) -> bool:
    """Whether the task has more blocks that can be asked for."""
    if fetching.phase is Phase.AHEAD:
        made = fetching.growing.blocks if fetching.growing is not None else 0
        return fetching.has_room and fetching.ahead < made
    return fetching.phase is Phase.FETCHING and bool(fetching.missing)


def blocks_below(runs: Iterable[Run], end: int) -> int:
    """Number of blocks of these runs that lie below ``end``."""
    return sum(max(0, min(first + count, end) - first) for first, count in runs)


def total(runs: Iterable[Run], image: catchup.Image) -> int:
    """Number of bytes in these runs of the image."""
    return sum(blocks.length_of(run, image.size_bytes, image.block_bytes) for run in runs)
