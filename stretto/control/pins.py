"""Pins, under which a group's state is read as of one offset. Asked of workers."""

from __future__ import annotations

import msgspec

from stretto.control.call import Call
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Offset, WorkerId
from stretto.wire.scans import PinnedGroup


class PinView(msgspec.Struct, frozen=True, kw_only=True):
    """A pin that a worker keeps."""

    pin: str
    group: str
    worker: WorkerId
    offset: Offset
    holder: str
    age_ms: int
    idle_ms: int
    """How long ago it was read."""
    sent_bytes: int
    """Bytes sent to its readers so far."""


class PinGroup(Call[PinnedGroup], frozen=True, kw_only=True):
    """Keep the state of a group readable as it is now, until nobody has read it for a while."""

    group: GroupKey
    max_staleness_ms: int | None = None
    """A follower may pin if it shows all that was visible so long ago; None: only the leader may."""
    holder: str
    """Name of the reader that the pin is for, to be shown to people."""
    idle_ms: int | None = None
    """End the pin when nobody has read it for so long; None: as ``pin.idle.timeout.millis`` says."""
    hold_ms: int = 0
    """Keep the pin for at least so long after it was read, although all of it was; never beyond
    ``pin.max.age.millis``."""


class ReadMoment(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets that all tasks of one query read at: the pins of every group of the module."""

    query: int
    """The query's number in the application that runs it."""
    planned_ms: int
    """When the groups were pinned, in milliseconds since 1970, by the clock of the process that did."""
    pinned: tuple[PinnedGroup, ...]
    is_earlier: bool = False
    """Whether it is an earlier query's: the task that decided took the beginning of the read for cached."""

    @property
    def generation(self) -> str:
        """Name of these pins: queries that read at the same moment have the same ones."""
        return self.pinned[0].pin


class MomentFound(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker knows of a query's moment."""

    moment: ReadMoment | None = None
    """The query's own moment; None if it was not decided yet."""
    latest: ReadMoment | None = None
    """The moment of the newest query of the same plan, if the query has none."""
    is_begun: bool = False
    """Whether a task announced that it is about to decide, and has not yet."""


class FindMoment(Call[MomentFound], frozen=True, kw_only=True):
    """Find the moment that was decided for one query of a plan."""

    module: str
    plan: str
    query: int


class AnnounceMoment(Call[MomentFound], frozen=True, kw_only=True):
    """Tell the other tasks of a query that its moment is about to be decided, however long that takes."""

    module: str
    plan: str
    query: int


class FindMoments(Call[tuple[ReadMoment, ...]], frozen=True, kw_only=True):
    """Find the moments of all queries of a plan that are still known."""

    module: str
    plan: str


class DecideMoment(Call[ReadMoment], frozen=True, kw_only=True):
    """Decide at which moment a query reads. The first offer stands, and is what everybody gets."""

    module: str
    plan: str
    offer: ReadMoment


class Pins(Call[tuple[PinView, ...]], frozen=True, kw_only=True):
    """The pins that a worker keeps, oldest first."""
