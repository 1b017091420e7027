"""What workers tell of their replicas: state, digests, measurements and story."""

from __future__ import annotations

import msgspec

from stretto.control.call import Call
from stretto.telemetry.windows import StoryLine, Window
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, Offset, TaskId, WorkerId


class FollowerView(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as its leader knows it."""

    worker: WorkerId
    incarnation: Incarnation
    """The incarnation that counts in this epoch; the worker may have another by now."""
    confirmed: Offset | None
    in_isr: bool


class TaskCatchup(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a transfer of state."""

    task: TaskId
    phase: str
    """waiting, preparing, asking, listing, comparing, fetching or complete."""
    round: int
    offset: Offset | None
    """Offset of the latest image that is complete here."""
    size_bytes: int | None
    """Size of the image under way; None before the first is known."""
    left_bytes: int
    """Bytes left of this round; known from fetching on."""
    bytes_per_second: int = 0
    """Bytes written per second."""


class CatchupView(msgspec.Struct, frozen=True, kw_only=True):
    """How a replica receives its leader's state."""

    leader: WorkerId
    round: int
    min_rounds: int
    leader_applied: Offset
    received_bytes: int
    """Bytes received in this transfer, over all rounds."""
    bytes_per_second: int
    damaged_blocks: int
    """Number of damaged blocks, which were refused and asked for again."""
    since_ms: int
    waits: str
    """What keeps it waiting, in a sentence: a full disk, a leader that refuses."""
    tasks: tuple[TaskCatchup, ...]


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as it knows itself."""

    group: GroupKey
    worker: WorkerId
    incarnation: Incarnation | None
    role: str
    """leader, follower, candidate, near, far or stopped."""
    epoch: Epoch
    leader: WorkerId | None
    isr: tuple[WorkerId, ...]
    osr: tuple[WorkerId, ...]
    min_isr: int
    start: Offset
    end: Offset
    apply: Offset
    """The apply offset: everything below it is committed; :attr:`applied` follows it."""
    applied: Offset
    stalled: bool
    serving: bool
    paused: bool = False
    """Whether it refuses records, as its module demands."""
    leaderless: bool = False
    """Whether it found the leader of its epoch gone, and none has followed."""
    since_ms: int
    """How long its role, its epoch and its state have been what they are."""
    why: str = ""
    """What keeps it from its work, in words: why it is stopped, or does not serve."""
    followers: tuple[FollowerView, ...] = ()
    catchup: CatchupView | None = None
    """How it receives its leader's state; None if it does not."""


class Replicas(Call[tuple[ReplicaView, ...]], frozen=True, kw_only=True):
    """The replicas of a worker."""

    module: str | None = None


class DigestView(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica held at a marker."""

    offset: Offset
    digests: dict[TaskId, str]


class Digests(Call[DigestView | None], frozen=True, kw_only=True):
    """Digests of a replica at a marker of its group's log; None as long as it has none (yet)."""

    group: GroupKey
    marker: str


class Windows(Call[tuple[Window, ...]], frozen=True, kw_only=True):
    """The windows in which a worker measured, as far as it still has them, from a time on."""

    since_ms: int = 0


class Story(Call[tuple[StoryLine, ...]], frozen=True, kw_only=True):
    """What a worker's replica of a group went through lately, oldest first."""

    group: GroupKey


class EpochView(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch of a group, by the log of a replica."""

    epoch: Epoch
    start: Offset
    """Offset of its first entry."""


class Epochs(Call[tuple[EpochView, ...]], frozen=True, kw_only=True):
    """The epochs that a worker's replica of a group still has entries of, oldest first."""

    group: GroupKey
