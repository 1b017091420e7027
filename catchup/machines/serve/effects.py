"""What the leader's side of all transfers wants done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from stretto.catchup.machines.serve.events import Key
from stretto.vocabulary.types import Epoch, Incarnation, Offset
from stretto.wire import catchup
from stretto.wire.catchup import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send the follower a message that has no body."""

    key: Key
    message: catchup.Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeImage:
    """Copy the task's state, hash it, and answer with ImageMade or ImageFailed.

    With ImageDropped, if the transfer ended before that; meanwhile with ImageGrew, if that is worth the
    while. The image of ``base`` is the one before; it need not be kept, but its list of hashes is what the
    new list may be encoded against.
    """

    key: Key
    ask: catchup.AskImage


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHashes:
    """Send the image's list of hashes from ``message.position`` on, PART_BYTES at most."""

    key: Key
    message: catchup.Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBlocks:
    """Send the blocks of these runs, in their order."""

    key: Key
    message: catchup.Blocks
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEntries:
    """Send frames of our log from ``start`` to ``end``, PART_BYTES of them or one, and the history below.

    Answer with EntriesSent; or with ImageFailed, if the log does not have them or they are not committed.
    """

    key: Key
    ask: catchup.AskEntries


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Let go of the images of a transfer, which are no longer needed."""

    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePin:
    """Let the core know that the log is needed for this follower from ``start`` on; None: no longer."""

    key: Key
    epoch: Epoch
    incarnation: Incarnation
    start: Offset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Log a transition."""

    key: Key
    event: str
    fields: dict[str, Any]


Effect: TypeAlias = Send | MakeImage | SendHashes | SendBlocks | SendEntries | Drop | MovePin | Note
