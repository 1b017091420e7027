"""What a transfer to a follower wants done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from stretto.replog.storage import EpochStart
from stretto.vocabulary.types import Offset, TaskId
from stretto.wire import catchup
from stretto.wire.catchup import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send the leader a message."""

    message: catchup.Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Hash what is staged for the task, if anything is; answer with Prepared."""

    task: TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeRoom:
    """Make room for an image of about that size; answer with RoomMade."""

    task: TaskId
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAhead:
    """Write the blocks, whatever they are, and keep their hashes; answer with Stored."""

    ask: int
    task: TaskId
    block_bytes: int
    runs: tuple[Run, ...]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Work out the hashes of the image from the parts of its list, make room for it; answer with Compared.

    The old hashes are those of what is staged.
    """

    image: catchup.Image
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Check the blocks by the image's hashes and write them; answer with Stored."""

    ask: int
    image: catchup.Image
    runs: tuple[Run, ...]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntries:
    """Keep these frames; answer with EntriesStored."""

    start: Offset
    end: Offset
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Assemble:
    """Bring all tasks to ``end`` with the entries: everything is here, and then the state has arrived."""

    start: Offset
    end: Offset
    history: tuple[EpochStart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """End this transfer, which leads nowhere; what is staged stays for the next one."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitRoom:
    """End this transfer like Fail, but the next one needs room first."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Log a transition."""

    event: str
    fields: dict[str, Any]


Effect: TypeAlias = (
    Send
    | Prepare
    | MakeRoom
    | StoreAhead
    | Compare
    | Store
    | StoreEntries
    | Assemble
    | Fail
    | AwaitRoom
    | Note
)
