"""Windows: what a worker measured in ten seconds, group by group.

Every worker cuts its time at the same seconds of the clock, so that windows of different workers can be laid
side by side. Whatever is in one can be merged: numbers that count are added, numbers that are looked at every
second keep sum, maximum and how many looks there were, durations are histograms.
"""

from __future__ import annotations

import msgspec

from stretto.telemetry.histogram import Distribution
from stretto.types import Epoch, WorkerId
from stretto.zk.paths import GroupKey

WINDOW_MS = 10_000
LOOK_MS = 1_000


class Looks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """At a number that goes up and down."""

    count: int = 0
    sum: float = 0
    max: float = 0
    min: float = 0

    @property
    def average(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def with_look(self, value: float) -> Looks:
        if not self.count:
            return Looks(1, value, value, value)
        return Looks(self.count + 1, self.sum + value, max(self.max, value), min(self.min, value))

    def merged(self, other: Looks) -> Looks:
        if not self.count or not other.count:
            return other if other.count else self
        return Looks(
            self.count + other.count,
            self.sum + other.sum,
            max(self.max, other.max),
            min(self.min, other.min),
        )


NO_LOOKS = Looks()


class KindWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Entries of one kind."""

    entries: int = 0
    """Replicated: created by this leader, and applied by it."""
    bytes: int = 0
    replicate: Distribution | None = None
    """Seconds from creating an entry to its application, at the leader."""
    apply: Distribution | None = None
    """Seconds that a transaction with such entries took."""
    failures: dict[str, int] = {}
    """Appends that did not succeed, by reason."""


class GroupWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replica in one window."""

    group: GroupKey
    role: str
    """leader, follower, candidate, near, far or stopped: as of the window's end, like all that is no sum."""
    in_isr: bool = False
    epoch: Epoch = Epoch(0)
    replog_entries: Looks = NO_LOOKS
    unapplied: Looks = NO_LOOKS
    isr: Looks = NO_LOOKS
    """Members; of leaders only."""
    min_isr: int = 0
    lease_left_ms: Looks = NO_LOOKS
    stalled: Looks = NO_LOOKS
    """1 at a look while appends are refused."""
    busy_ms: float = 0.0
    """Spent on this group by the worker's loop."""
    kinds: dict[str, KindWindow] = {}
    events: dict[str, int] = {}
    """What happened, and how often: elections, shrinks, expands, stalls."""
    catchup_left_bytes: int = 0
    """Of the round under way, while it receives its leader's state."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    start_ms: int
    """Of the Unix epoch; a multiple of :data:`WINDOW_MS`."""
    worker: WorkerId
    groups: tuple[GroupWindow, ...]
