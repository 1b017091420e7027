"""Snapshots: noted by the conductor, cut and copied by workers.

To make one, topologies are held, a marker goes through each group's log, and the state of its tasks at the
marker (the *cut*) is copied; :mod:`stretto.snapshot.creating` tells the order.
"""

from __future__ import annotations

import msgspec

from stretto.control.call import Call
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId


class SnapshotView(msgspec.Struct, frozen=True, kw_only=True):
    module: str
    name: str
    folder: str
    """``DIR/<module>/<name>``, as the nodes and the process that asked for it see it."""
    state: str
    """State of the snapshot: creating, or complete."""
    at_ms: int
    tasks: int
    size_bytes: int


class Snapshots(Call[tuple[SnapshotView, ...]], frozen=True, kw_only=True):
    """The snapshots that are noted, oldest first; also of modules that are gone."""

    module: str | None = None


class BeginSnapshot(Call[None], frozen=True, kw_only=True):
    """Note that a snapshot is being made. Refused if there is one of that name."""

    module: str
    name: str
    folder: str


class FinishSnapshot(Call[int], frozen=True, kw_only=True):
    """Note that a snapshot is whole; returns how many complete ones of the module to keep, 0 for all."""

    module: str
    name: str
    size_bytes: int


class ForgetSnapshot(Call[None], frozen=True, kw_only=True):
    """Forget a snapshot whose files are gone, or nobody's business any more."""

    module: str
    name: str
    failed: str = ""
    """Why it could not be made, if that is the reason."""


class SeesSnapshot(Call[str], frozen=True, kw_only=True):
    """Why a node cannot take the files of a snapshot from a folder; empty if it can."""

    folder: str
    checksum: str
    """Checksum of its manifest."""


class HoldView(msgspec.Struct, frozen=True, kw_only=True):
    """How far a worker's topologies are held."""

    led: tuple[tuple[GroupKey, Epoch], ...]
    """Groups that this worker leads, and whose topologies it holds, each with its epoch."""
    waits: str
    """What has begun and is not done yet, in words; empty when nothing is."""
    was_held: bool = False
    """Whether the worker was held by this token already before this call.

    What a worker that was not says of itself is about to change: what was on its way to a topology when the
    call came may be begun behind the answer.
    """


class HoldTopologies(Call[HoldView], frozen=True, kw_only=True):
    """Begin no records and no microbatch for a while; what has begun goes on. To ask again prolongs it."""

    token: str
    """Random word of the caller, which tells whose hold it is."""
    hold_ms: int
    """How long to hold from now; 0 ends it."""


class MicrobatchCut(msgspec.Struct, frozen=True, kw_only=True):
    """How far a microbatch topology is, by the rows of one task."""

    id: int
    """The latest microbatch on record, which task 0 has; 0 if there is none."""
    tasks: tuple[TaskId, ...] | None
    """Tasks that have a part in it; None if it is not committed."""
    rolled: int
    """The latest microbatch that took effect on this task."""


class CutTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a cut."""

    microbatches: dict[str, MicrobatchCut]
    digest: str | None = None
    """Digest of its state; None until it is computed."""
    size_bytes: int | None = None
    """Size of its copy, once that is whole; None until then."""
    sha256: str = ""


class CutView(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica holds of the marker of a snapshot."""

    offset: Offset
    epoch: Epoch
    cluster: str
    tasks: dict[TaskId, CutTask]
    copied_bytes: int
    problem: str
    """Why it will not be copied here; empty as long as all is well."""


class Cut(Call[CutView | None], frozen=True, kw_only=True):
    """What a replica holds of a marker; None as long as that is not applied, and once it is let go.

    Asking keeps it for a while more.
    """

    group: GroupKey
    marker: str


class CopyCut(Call[bool], frozen=True, kw_only=True):
    """Begin to write the tasks of a group to a folder; :class:`Cut` tells how it goes on.

    False: there is nothing to copy any more.
    """

    group: GroupKey
    marker: str
    folder: str
    token: str
    """Content of the file ``creating`` in that folder: by it a worker knows that it sees the right one."""


class DropCut(Call[None], frozen=True, kw_only=True):
    """Let a cut go that nobody wants any more."""

    group: GroupKey
    marker: str
