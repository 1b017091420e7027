"""The leader's side of all transfers of a worker: which images exist, what is sent next, what is kept.

A transfer begins when the core says so (ServeState), and is one of an epoch, a follower's incarnation and an
attempt; a newer one of the same follower takes its place. It ends when the follower says that it has
everything, when it is silent for ``patience_ms``, when the leader's log could no longer be kept for it, or
with the epoch. Its images end with it.

Asking for a round tells that the one before it is complete. So the log need be kept only from the lowest
offset of the images that are complete: :class:`MovePin` tells the core.

What is sent passes one queue with one allowance of bytes per second. Images are made a few at a time. The
blocks of one that is still being made are served as far as it has come.

Open ``machine`` first: ``Serve.step(event, now)`` is the one door, and what it returns is carried out by
:mod:`stretto.catchup.serving`, or by the simulator. ``events`` and ``effects`` are what it speaks of,
``transfers`` is what it remembers. Pure, and imports nothing of the follower's machine.
"""

from stretto.catchup.machines.serve.effects import (
    Drop,
    Effect,
    MakeImage,
    MovePin,
    Note,
    Send,
    SendBlocks,
    SendEntries,
    SendHashes,
)
from stretto.catchup.machines.serve.events import (
    Begin,
    EntriesSent,
    Event,
    Heard,
    ImageDropped,
    ImageFailed,
    ImageGrew,
    ImageMade,
    Key,
    LeadershipEnded,
    Limit,
    PinReleased,
    Tick,
)
from stretto.catchup.machines.serve.machine import IMAGES_AT_ONCE, SENDING_MS, Serve
from stretto.catchup.machines.serve.transfers import TaskServe, Transfer

__all__ = [
    "IMAGES_AT_ONCE",
    "SENDING_MS",
    "Begin",
    "Drop",
    "Effect",
    "EntriesSent",
    "Event",
    "Heard",
    "ImageDropped",
    "ImageFailed",
    "ImageGrew",
    "ImageMade",
    "Key",
    "LeadershipEnded",
    "Limit",
    "MakeImage",
    "MovePin",
    "Note",
    "PinReleased",
    "Send",
    "SendBlocks",
    "SendEntries",
    "SendHashes",
    "Serve",
    "TaskServe",
    "Tick",
    "Transfer",
]
