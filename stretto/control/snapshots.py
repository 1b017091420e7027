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
    """``DIR/<module>/<name>``, as the nodes and who asked for it see it."""
    state: str
    """creating, or complete."""
    at_ms: int
    tasks: int
    size_bytes: int


class Snapshots(Call[tuple[SnapshotView, ...]], frozen=True, kw_only=True):
    """Those that are noted, oldest first; also of modules that are gone."""

    module: str | None = None


class BeginSnapshot(Call[None], frozen=True, kw_only=True):
    """Note that it is being made. Refused if there is one of that name."""

    module: str
    name: str
    folder: str


class FinishSnapshot(Call[int], frozen=True, kw_only=True):
    """Note that it is whole; returns how many complete ones of the module are to be kept, 0 for all."""

    module: str
    name: str
    size_bytes: int


class ForgetSnapshot(Call[None], frozen=True, kw_only=True):
    """Its files are gone, or nobody's business any more."""

    module: str
    name: str
    failed: str = ""
    """Why it could not be made, if that is the reason."""


class SeesSnapshot(Call[str], frozen=True, kw_only=True):
    """Why a node cannot take the files of a snapshot from a folder; empty if it can."""

    folder: str
    checksum: str
    """Of its manifest."""


class HoldView(msgspec.Struct, frozen=True, kw_only=True):
    led: tuple[tuple[GroupKey, Epoch], ...]
    """What this worker leads, and holds."""
    waits: str
    """What has begun and is not done yet, in words; empty when nothing is."""
    was_held: bool = False
    """By this token, already before this call. What a worker that was not says of itself is about to change:
    what was on its way to a topology when the call came may be begun behind the answer."""


class HoldTopologies(Call[HoldView], frozen=True, kw_only=True):
    """Begin no records and no microbatch for a while; what has begun goes on. Asked again, it lasts on."""

    token: str
    """Whose hold it is."""
    hold_ms: int
    """From now; 0 ends it."""


class MicrobatchCut(msgspec.Struct, frozen=True, kw_only=True):
    """A microbatch topology as the rows of one task tell."""

    id: int
    """The latest on record, which task 0 has; 0 if there is none."""
    tasks: tuple[TaskId, ...] | None
    """Who has a part in it; None if it is not committed."""
    rolled: int
    """The latest that took effect on this task."""


class CutTask(msgspec.Struct, frozen=True, kw_only=True):
    microbatches: dict[str, MicrobatchCut]
    digest: str | None = None
    """None until it is computed."""
    size_bytes: int | None = None
    """Of its copy, which is whole; None until then."""
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
    """None as long as the marker is not applied, and once it is let go. Asking keeps it for a while more."""

    group: GroupKey
    marker: str


class CopyCut(Call[bool], frozen=True, kw_only=True):
    """Begin to write the tasks of a group to a folder; :class:`Cut` tells how it goes on. False: there is
    nothing to copy any more."""

    group: GroupKey
    marker: str
    folder: str
    token: str
    """What is in the file ``creating`` of that folder: by it a worker knows that it sees the right one."""


class DropCut(Call[None], frozen=True, kw_only=True):
    """Nobody wants it any more."""

    group: GroupKey
    marker: str
