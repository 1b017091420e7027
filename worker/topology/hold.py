"""Topologies held off for a moment, so that all groups of a module can be cut while nothing is between them.

Who asks for a hold prolongs it, or it ends by itself: no snapshot that its maker forgot keeps a module
waiting. While it lasts no records and no microbatch are begun; what has begun goes on, and is waited for.

A hold says for which groups and epochs it stands. As long as a group's leader of that epoch leads, nothing
that hops to other groups is counted as done there between the first cut and the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import structlog

from stretto import control

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.vocabulary.groups import GroupKey
    from stretto.vocabulary.types import WorkerId
    from stretto.worker.replica.group import Group

log = structlog.get_logger()

HOLD_MS_MAX = 30_000


class Topologies(Protocol):
    """All streams of a worker, or all its microbatches."""

    @property
    def under_way(self) -> str:
        """Describe what has begun and is not done, for people; empty if there is nothing."""
        ...

    def settings_changed(self) -> None:
        """Look again whether the topologies are held."""
        ...


class Host(Protocol):
    """The worker, as a hold of its topologies sees it."""

    @property
    def worker(self) -> WorkerId: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def groups(self) -> Mapping[GroupKey, Group]: ...

    @property
    def streams(self) -> Topologies: ...

    @property
    def microbatches(self) -> Topologies: ...


class Holding:
    """The holds of a worker's topologies. The loop owns them."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        #: When each hold ends, by its token.
        self._until: dict[str, int] = {}

    @property
    def is_held(self) -> bool:
        """Whether topologies are held off now."""
        return bool(self._until)

    def asked(self, call: control.HoldTopologies) -> control.HoldView:
        """Begin, prolong or end a hold, and describe what it has to wait for."""
        worker = self._worker
        was_held = self.is_held
        was_held_by_it = call.token in self._until
        if call.hold_ms > 0:
            until = worker.loop.now + min(call.hold_ms, HOLD_MS_MAX)
            self._until[call.token] = until
            worker.loop.call_at(until, self._expire, call.token)
        else:
            self._until.pop(call.token, None)
        self._changed(was_held)
        led = tuple(
            (group.key, group.leader.epoch)
            for group in worker.groups.values()
            if group.leader is not None and group.leader.is_serving
        )
        return control.HoldView(
            led=led,
            waits=worker.microbatches.under_way or worker.streams.under_way,
            was_held=was_held_by_it,
        )

    def _expire(self, token: str) -> None:
        until = self._until.get(token)
        if until is not None and until <= self._worker.loop.now:
            log.warning("hold_expired", token=token)
            del self._until[token]
            self._changed(was_held=True)

    def _changed(self, was_held: bool) -> None:
        if self.is_held != was_held:
            log.info("topologies_held" if self.is_held else "topologies_go_on", worker=self._worker.worker)
            self._worker.streams.settings_changed()
            self._worker.microbatches.settings_changed()
