"""What a reader and the scan process of a worker say to each other, over a connection of their own.

A message is a header (MessagePack, one of the structs below) and bodies beside it, as in
:mod:`stretto.wire.messages`. Every request names a pin and is answered once; none changes anything but the
pin's time, so that a request whose answer was lost can be made again.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stretto.vocabulary.decoding import refusing

OFFSET_END = 1 << 62
"""An offset beyond every offset of a depot."""


class PinnedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a task group as of one apply offset, which a worker keeps readable under the name ``pin``.

    Every partition of a read, and every attempt at one, reads the same: it is a description that can be sent
    anywhere. It lasts while somebody reads it, and a while longer: see ``pin.idle.timeout.millis``.
    """

    pin: str
    module: str
    group: str
    worker: str
    address: str
    """The address at which its rows are asked for."""
    offset: int
    """The apply offset: everything below it is in the pinned state, and nothing else."""
    epoch: int
    version: int
    """Version of the module's code, as :class:`~stretto.control.ModuleDescription` tells it."""
    tasks: tuple[int, ...]
    by_leader: bool = False
    """Whether the group's leader serves it."""
    idle_ms: int = 0
    """How long it lasts when nobody reads or renews it; 0 if that is not known."""
    max_age_ms: int = 0
    """How long it lasts at most; 0 if that is not known."""


class Size(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Size of one PState or depot on one task."""

    rows: int
    """Number of rows; of a depot, of stored batches."""
    bytes: int
    """Bytes of the pages that hold the rows."""


class TaskSizes(msgspec.Struct, frozen=True, gc=False):
    """Sizes of what a task has, by name; what has no rows is left out."""

    pstates: dict[str, Size]
    depots: dict[str, Size]


# Requests.


class ReadPage(msgspec.Struct, frozen=True, tag="read_page", gc=False):
    """Read rows of a PState from ``start`` on, without that itself if ``after``, and below ``end``."""

    request: int
    pin: str
    task: int
    pstate: str
    start: bytes
    end: bytes
    after: bool
    max_bytes: int


class FindSplits(msgspec.Struct, frozen=True, tag="find_splits", gc=False):
    """Find the keys that split the rows of a PState in ``[start, end)`` into parts."""

    request: int
    pin: str
    task: int
    pstate: str
    parts: int
    start: bytes
    end: bytes


class FindSizes(msgspec.Struct, frozen=True, tag="find_sizes", gc=False):
    """Find the sizes of all PStates and depots of a pin."""

    request: int
    pin: str


class ReadBatches(msgspec.Struct, frozen=True, tag="read_batches", gc=False):
    """Read stored batches of a depot, from the one that holds ``offset``; those that begin below ``end``."""

    request: int
    pin: str
    task: int
    depot: str
    offset: int
    end: int
    max_bytes: int


class FindBounds(msgspec.Struct, frozen=True, tag="find_bounds", gc=False):
    """Find the bounds of a depot; and its first offset at or after a time, if one is given."""

    request: int
    pin: str
    task: int
    depot: str
    timestamp_ms: int | None = None


class Renew(msgspec.Struct, frozen=True, tag="renew", gc=False):
    """Keep pins that are read, or will be. Answered with Released, which names those that are gone."""

    request: int
    pins: tuple[str, ...]


class Release(msgspec.Struct, frozen=True, tag="release", gc=False):
    """Drop a pin that nobody reads any more. Answered with Released, whether there was such a pin or not."""

    request: int
    pin: str


class PartRead(msgspec.Struct, frozen=True, tag="part_read", gc=False):
    """One of the parts that a read of the pin consists of is read to its end.

    Once all of them are, the pin is kept for about as long as that took, for those that are read again.
    Answered with Released.
    """

    request: int
    pin: str
    part: int
    parts: int


# Replies.


class PageRead(msgspec.Struct, frozen=True, tag="page_read", gc=False):
    """The bodies are ``keys``, ``key_ends``, ``values`` and ``value_ends`` of a page; none if it is empty."""

    request: int
    count: int
    more: bool


class SplitsFound(msgspec.Struct, frozen=True, tag="splits_found", gc=False):
    request: int
    keys: tuple[bytes, ...]


class SizesFound(msgspec.Struct, frozen=True, tag="sizes_found", gc=False):
    request: int
    tasks: dict[int, TaskSizes]


class BatchesRead(msgspec.Struct, frozen=True, tag="batches_read", gc=False):
    """The bodies are batches. ``next`` is where to go on; None if there is nothing more."""

    request: int
    bases: tuple[int, ...]
    timestamps_ms: tuple[int, ...]
    next: int | None


class BoundsFound(msgspec.Struct, frozen=True, tag="bounds_found", gc=False):
    request: int
    start: int
    end: int
    found: int | None


class Released(msgspec.Struct, frozen=True, tag="released", gc=False):
    request: int
    gone: tuple[str, ...] = ()
    """Pins that were to be renewed and are not there any more."""


class Lost(msgspec.Struct, frozen=True, tag="lost", gc=False):
    """There is no such pin, or no longer."""

    request: int
    why: str


class Refused(msgspec.Struct, frozen=True, tag="refused", gc=False):
    """Such a thing cannot be asked of this pin, or could not be read: one sentence says why."""

    request: int
    why: str


ToScans: TypeAlias = ReadPage | FindSplits | FindSizes | ReadBatches | FindBounds | PartRead | Renew | Release
FromScans: TypeAlias = (
    PageRead | SplitsFound | SizesFound | BatchesRead | BoundsFound | Released | Lost | Refused
)

encode = msgspec.msgpack.Encoder().encode
_to_scans: msgspec.msgpack.Decoder[ToScans] = msgspec.msgpack.Decoder(ToScans)
_from_scans: msgspec.msgpack.Decoder[FromScans] = msgspec.msgpack.Decoder(FromScans)
decode_to_scans = refusing(_to_scans, "message")
decode_from_scans = refusing(_from_scans, "reply")
