"""Pins, under which a group's state is read as of one offset. Asked of workers."""

from __future__ import annotations

import msgspec

from stretto.admin.call import Call
from stretto.scans import PinnedGroup
from stretto.types import Offset, WorkerId
from stretto.zk.paths import GroupKey


class PinView(msgspec.Struct, frozen=True, kw_only=True):
    """A pin that a worker keeps."""

    pin: str
    group: str
    worker: WorkerId
    offset: Offset
    holder: str
    age_ms: int
    idle_ms: int
    """Since it was read."""
    sent_bytes: int
    """To its readers, so far."""


class PinGroup(Call[PinnedGroup], frozen=True, kw_only=True):
    """Keep the state of a group readable as it is now, until nobody has read it for a while."""

    group: GroupKey
    max_staleness_ms: int | None = None
    """A follower may do so if it shows all that was visible so long ago; None: only the leader."""
    holder: str
    """For whom, to be shown to people."""


class Pins(Call[tuple[PinView, ...]], frozen=True, kw_only=True):
    """Those that a worker keeps, oldest first."""
