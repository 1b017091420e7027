"""How far streams and microbatches are, and which records they did not manage. Asked of leaders."""

from __future__ import annotations

import msgspec

from stretto.control.call import Call
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import TaskId


class MicrobatchView(msgspec.Struct, frozen=True, kw_only=True):
    """How far a microbatch topology is, by the leader of task 0."""

    topology: str
    id: int
    """Id of the latest microbatch; 0 before the first."""
    version: int
    """How often the latest microbatch was begun anew."""
    phase: str
    lag: int | None
    """Records that no committed microbatch has; None if that is not known yet."""
    why: str
    """Why its latest version came to nothing, if it did."""
    ends: dict[str, dict[TaskId, int]] = {}
    """Where its depots end on each task, by what the leader of task 0 has heard; lag is reckoned from it."""


class Microbatches(Call[tuple[MicrobatchView, ...]], frozen=True, kw_only=True):
    """How far the microbatch topologies are; asked of the leader of task 0: another knows of none."""

    module: str


class FailureKey(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a topology did not manage."""

    topology: str
    depot: str
    task: TaskId
    offset: int


class FailureView(FailureKey, frozen=True, kw_only=True):
    at_ms: int
    attempts: int
    error: str
    traceback: str
    record: str
    """The beginning of the record."""


class TopologyView(msgspec.Struct, frozen=True, kw_only=True):
    """A stream on one task."""

    topology: str
    task: TaskId
    lag: int
    """Records that are visible and not processed."""
    retrying: int
    """Records that failed, and are tried again."""


class FailuresView(msgspec.Struct, frozen=True, kw_only=True):
    parked: tuple[FailureView, ...] = ()
    """Records that are not tried again: by task, then topology, depot and offset."""
    more: bool = False
    """Whether there are other parked records behind these."""
    streams: tuple[TopologyView, ...] = ()
    problems: tuple[str, ...] = ()
    """Why nothing runs at all; one sentence each."""


class Failures(Call[FailuresView], frozen=True, kw_only=True):
    """What the module's code did not manage in a group; asked of its leader."""

    group: GroupKey
    after: FailureKey | None = None
    """Only records behind this one."""


class SettleFailures(Call[int], frozen=True, kw_only=True):
    """Try parked records of a group again, or forget them; asked of its leader.

    The answer is how many of them were parked and are not any more, which is replicated and applied by then.
    """

    group: GroupKey
    keys: tuple[FailureKey, ...]
    again: bool
