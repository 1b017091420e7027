"""Windows: what a worker measured in ten seconds, group by group.

Every worker cuts its time at the same seconds of the clock, so that windows of different workers can be laid
side by side. Whatever is in one can be merged: numbers that count are added, numbers that are looked at every
second keep sum, maximum and how many looks there were, durations are histograms.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import Any

import msgspec
from msgspec.structs import replace

from stretto.telemetry.histogram import Distribution, merged
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, WorkerId

WINDOW_MS = 10_000
LOOK_MS = 1_000
REFUSED_TRANSFERS = "refused_transfers_"
"""How the name of an event begins whose rest is the reason of a refused transfer."""
NOBODY = WorkerId("")
"""Worker whose window has the groups that no worker leads."""


class Looks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Looks at a number that goes up and down: how many there were, their sum, maximum and minimum."""

    count: int = 0
    sum: float = 0
    max: float = 0
    min: float = 0

    @property
    def average(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def with_look(self, value: float) -> Looks:
        """The same looks, and one more."""
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


class ReplogLooks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Looks at the log of a replica, in entries."""

    size: Looks = NO_LOOKS
    unapplied: Looks = NO_LOOKS

    def merged(self, other: ReplogLooks) -> ReplogLooks:
        return ReplogLooks(self.size.merged(other.size), self.unapplied.merged(other.unapplied))


NO_REPLOG = ReplogLooks()
LED, FOLLOWED, BEHIND = "led", "followed", "behind"
"""What a replica was at a look: the leader, another member of the ISR, or outside of it."""


class KindWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured of the entries of one kind."""

    entries: int = 0
    """Entries that were replicated: created by this leader, and held by all of the ISR."""
    bytes: int = 0
    replicate: Distribution | None = None
    """Seconds from creating an entry until all of the ISR holds it."""
    apply: Distribution | None = None
    """Seconds that a transaction with such entries took."""
    failures: dict[str, int] = {}
    """Appends that did not succeed, by reason."""

    def merged(self, other: KindWindow) -> KindWindow:
        return KindWindow(
            entries=self.entries + other.entries,
            bytes=self.bytes + other.bytes,
            replicate=_merged(self.replicate, other.replicate),
            apply=_merged(self.apply, other.apply),
            failures=dict(Counter(self.failures) + Counter(other.failures)),
        )


class TopologyWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured of a topology on the tasks of one group, where that is led."""

    batches: int = 0
    """Batches that ran on the group's tasks; of a microbatch, the parts of the tasks."""
    records: int = 0
    """Records in the batches; one that is tried again counts again."""
    lag: Looks = NO_LOOKS
    """Records that are visible and not processed. A microbatch has those of all tasks with task 0."""
    retrying: Looks = NO_LOOKS
    """Records that failed and are tried again."""
    parked: Looks = NO_LOOKS
    """Records that are not tried again, until a person decides."""

    def merged(self, other: TopologyWindow) -> TopologyWindow:
        return TopologyWindow(
            batches=self.batches + other.batches,
            records=self.records + other.records,
            lag=self.lag.merged(other.lag),
            retrying=self.retrying.merged(other.retrying),
            parked=self.parked.merged(other.parked),
        )


class StoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """A transition of a replica."""

    at_ms: int
    """When it happened, in milliseconds of the Unix epoch."""
    event: str
    fields: dict[str, Any]


class GroupWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured of one replica in one window."""

    group: GroupKey
    role: str
    """Role of the replica, as of the window's end, like all that is no sum.

    One of leader, follower, candidate, near, far and stopped.
    """
    in_isr: bool = False
    epoch: Epoch = Epoch(0)
    led_epoch: Epoch = Epoch(0)
    """Latest epoch in which the replica was seen to lead; 0 if it was not.

    Of two that led in the same window, the later one knows what is.
    """
    replogs: dict[str, ReplogLooks] = {}
    """Looks at the log, by what the replica was then: a long window may have it as leader and as follower."""
    isr: Looks = NO_LOOKS
    """Members of the ISR; of leaders only."""
    min_isr: int = 0
    lease_left_ms: Looks = NO_LOOKS
    stalled: Looks = NO_LOOKS
    """Whether appends are refused: 1 at a look while they are."""
    busy_ms: float = 0.0
    """Milliseconds that the worker's loop spent on this group."""
    kinds: dict[str, KindWindow] = {}
    events: dict[str, int] = {}
    """Events, and how often each happened.

    They are elections, shrinks, expands, stalls; received_states, failed_transfers, damaged_blocks; and at
    leaders REFUSED_TRANSFERS with the reason.
    """
    catchup_left_bytes: int = 0
    """Bytes left of the round under way, while the replica receives its leader's state."""
    catchup_lag: Looks = NO_LOOKS
    """Entries that replicas outside the ISR lack, all together; of leaders only."""
    topologies: dict[str, TopologyWindow] = {}
    functions: dict[str, Distribution] = {}
    """Seconds that a call of a module's function took: of topologies, steps and queries."""
    story: tuple[StoryLine, ...] = ()
    """What the replica went through, oldest first; of the latest only, where windows are merged."""

    @property
    def replog(self) -> ReplogLooks:
        """Looks at the log, whatever the replica was at each."""
        return reduce(ReplogLooks.merged, self.replogs.values(), NO_REPLOG)

    def merged(self, later: GroupWindow) -> GroupWindow:
        """One window of the same replica over both."""
        replogs = dict(self.replogs)
        for name, replog in later.replogs.items():
            replogs[name] = replogs.get(name, NO_REPLOG).merged(replog)
        kinds = dict(self.kinds)
        for name, kind in later.kinds.items():
            kinds[name] = kinds[name].merged(kind) if name in kinds else kind
        topologies = dict(self.topologies)
        for name, topology in later.topologies.items():
            topologies[name] = topologies[name].merged(topology) if name in topologies else topology
        functions = dict(self.functions)
        for name, told in later.functions.items():
            functions[name] = merged((functions[name], told)) if name in functions else told
        return replace(
            later,
            led_epoch=max(self.led_epoch, later.led_epoch),
            replogs=replogs,
            isr=self.isr.merged(later.isr),
            lease_left_ms=self.lease_left_ms.merged(later.lease_left_ms),
            stalled=self.stalled.merged(later.stalled),
            catchup_lag=self.catchup_lag.merged(later.catchup_lag),
            busy_ms=self.busy_ms + later.busy_ms,
            kinds=kinds,
            events=dict(Counter(self.events) + Counter(later.events)),
            topologies=topologies,
            functions=functions,
        )


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker measured in one window."""

    start_ms: int
    """When the window begins, in milliseconds of the Unix epoch; a multiple of :data:`WINDOW_MS`."""
    worker: WorkerId
    groups: tuple[GroupWindow, ...]
    covered_ms: int = WINDOW_MS
    """Milliseconds in which all this happened; rates are per second of this.

    Less than the window is long if the worker began within it, or if the window is a longer one that is not
    over.
    """

    def merged(self, later: Window) -> Window:
        """One longer window of the same worker, from this one's start on."""
        groups = {each.group: each for each in self.groups}
        for each in later.groups:
            groups[each.group] = groups[each.group].merged(each) if each.group in groups else each
        return replace(self, groups=tuple(groups.values()), covered_ms=self.covered_ms + later.covered_ms)


def _merged(first: Distribution | None, second: Distribution | None) -> Distribution | None:
    if first is None or second is None:
        return first or second
    return merged((first, second))
