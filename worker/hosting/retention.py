"""What a leader lets go: the oldest records of depots that have a retention, and what updates have deleted.

It looks at the groups that it leads now and then, off the loop, and replicates what is to go as entries
(:mod:`stretto.state.removal`), so that it goes on every replica at the same place of the log. One entry
takes a bounded number of batches; if more are to go, the next follows when it is applied.

Nothing is trimmed that a topology has not processed. What one has processed on a task is in that task's rows;
one that has none there has processed nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from stretto.options import OptionSet, PerDepot
from stretto.replog.core import effects
from stretto.replog.frame import Kind
from stretto.state.removal import Drop, Removal, Trim, encode
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Epoch, TaskId
from stretto.worker.topology import rows as rows_of

if TYPE_CHECKING:
    from stretto.control import ModuleDescription
    from stretto.network.loop import Loop
    from stretto.state.applied import AppliedState
    from stretto.vocabulary.groups import GroupKey
    from stretto.worker.replica.applier import Applier
    from stretto.worker.replica.group import Group
    from stretto.worker.replica.views import Stopped

log = structlog.get_logger()

LOOK_MS = 1_000
BATCHES_MAX = 1_000
"""How many batches one entry of the log deletes at most."""

_number = msgspec.msgpack.Decoder(int).decode


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of all depots of a module; 0 keeps everything."""

    records: PerDepot
    millis: PerDepot

    @classmethod
    def of(cls, options: OptionSet, module: str) -> Retention:
        """Read the retention of a module's depots from its options."""
        records = options.per_depot("depot.retention.records", module)
        return cls(records, options.per_depot("depot.retention.millis", module))

    def is_set_for(self, depot: str) -> bool:
        return bool(self.records.of(depot) or self.millis.of(depot))


class Config(Protocol):
    """What retention needs of a worker's configuration."""

    @property
    def module(self) -> str: ...


class Replicas(Protocol):
    """The replicas of the worker, of which retention needs those that do not run."""

    @property
    def stopped(self) -> Mapping[GroupKey, Stopped]: ...


class Metastore(Protocol):
    """What retention needs of the metastore."""

    def update_registration(self) -> None: ...


class Clients(Protocol):
    """The worker's clients, of which retention needs the append of its own entries."""

    def append_own(
        self,
        group: Group,
        kind: Kind,
        task: TaskId,
        payload: bytes,
        then: Callable[[effects.Result], None],
    ) -> None: ...


class Host(Protocol):
    """The worker, as retention sees it."""

    @property
    def config(self) -> Config: ...

    @property
    def options(self) -> OptionSet: ...

    @property
    def description(self) -> ModuleDescription: ...

    @property
    def is_paused(self) -> bool: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def applier(self) -> Applier: ...

    @property
    def metastore(self) -> Metastore: ...

    @property
    def groups(self) -> Mapping[GroupKey, Group]: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def clients(self) -> Clients: ...


class Removals:
    """Removes what is beyond its retention or was deleted, from the groups led here. The loop owns it."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        #: Groups that are being looked at, or have an entry on its way.
        self._busy: set[GroupKey] = set()
        #: The names that updates deleted, with the version that did.
        self._deleted: dict[str, int] = {}
        #: The latest version whose deletions all replicas of this worker have carried out.
        self.dropped = 0

    def start(self) -> None:
        """Begin to look at the groups each second."""
        self._worker.loop.call_after(LOOK_MS, self._look)

    def on_opening(self) -> None:
        """Note that a replica is about to be opened. What it has carried out is not known until it is, so
        until then nothing counts as carried out by all."""
        self.dropped = 0

    def on_deleted(self, names: dict[str, int]) -> None:
        """Take the names that the module's spec says are deleted: nobody adds to them any more."""
        self._deleted = names
        self._look_at_all()

    def _look(self) -> None:
        self._look_at_all()
        self._worker.loop.call_after(LOOK_MS, self._look)

    def _look_at_all(self) -> None:
        if self._deleted and not self._worker.replicas.stopped:
            self._tell_dropped()
        for group in list(self._worker.groups.values()):
            self._look_at(group)

    def _tell_dropped(self) -> None:
        groups = self._worker.groups.values()
        dropped = min((group.state.dropped(task) for group in groups for task in group.plan.tasks), default=0)
        if dropped != self.dropped:
            self.dropped = dropped
            self._worker.metastore.update_registration()

    def _look_at(self, group: Group) -> None:
        leader, worker = group.leader, self._worker
        if leader is None or not leader.is_serving or group.key in self._busy or group.installing:
            return
        trimming = Trimming(
            Retention.of(worker.options, worker.config.module),
            worker.description,
            time.time_ns() // 1_000_000,
        )
        is_trimmed = not worker.is_paused and trimming.is_wanted
        if not self._deleted and not is_trimmed:
            return
        epoch, state, deleted = leader.epoch, group.state, dict(self._deleted)

        def find() -> list[tuple[TaskId, Removal]]:
            found: list[tuple[TaskId, Removal]] = []
            for task in group.plan.tasks:
                drop = due_drop(state, task, deleted)
                trims = trimming.due(state, task) if is_trimmed else ()
                found += [(task, each) for each in (drop, *trims) if each is not None]
            return found

        self._busy.add(group.key)
        worker.applier.read(find, lambda found: self._append(group, epoch, found))

    def _append(self, group: Group, epoch: Epoch, found: Any) -> None:
        self._busy.discard(group.key)
        if isinstance(found, Exception):
            if not group.closed:
                log.error("retention_failed", group=str(group.key), error=str(found))
            return
        leader = group.leader
        if (
            not found
            or leader is None
            or leader.epoch != epoch
            or self._worker.groups.get(group.key) is not group
        ):
            return
        self._busy.add(group.key)
        left = len(found)

        def done(result: effects.Result) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._busy.discard(group.key)
                if isinstance(result, effects.Acked):
                    self._look_at(group)

        for task, removal in found:
            self._worker.clients.append_own(group, Kind.TRIM, task, encode(removal), done)


def due_drop(state: AppliedState, task: TaskId, deleted: dict[str, int]) -> Drop | None:
    """Return the deletion that a task has not carried out yet, if any."""
    done = state.dropped(task)
    names = tuple(sorted(name for name, version in deleted.items() if version > done))
    return Drop(max(deleted.values()), names) if names else None


@dataclass(frozen=True, slots=True)
class Trimming:
    """Finds the records of a task that are beyond their depot's retention, and processed by every topology
    that reads it."""

    retention: Retention
    description: ModuleDescription
    now_ms: int

    @property
    def is_wanted(self) -> bool:
        """Whether any depot has a retention; also true of a module made by hand, whose depots are not
        known."""
        depots = self.description.depots
        return depots is None or any(self.retention.is_set_for(depot.name) for depot in depots)

    def due(self, state: AppliedState, task: TaskId) -> list[Trim]:
        """Return what is to be trimmed on a task now."""
        depots = [name for name in list(state.depot_names(task)) if self.retention.is_set_for(name)]
        found = [self._due(state, task, depot) for depot in depots]
        return [trim for trim in found if trim is not None]

    def _due(self, state: AppliedState, task: TaskId, depot: str) -> Trim | None:
        start, end = state.depot_bounds(task, depot)
        below = int(start)
        if records := self.retention.records.of(depot):
            below = max(below, end - records)
        if millis := self.retention.millis.of(depot):
            below = max(below, state.offset_at(task, depot, self.now_ms - millis))
        if below <= start:
            return None
        below = min(below, processed(state, task, depot, self.description))
        point = state.trim_point(task, depot, DepotOffset(below), BATCHES_MAX)
        return None if point is None else Trim(depot, point)


def processed(state: AppliedState, task: TaskId, depot: str, description: ModuleDescription) -> int:
    """Return the offset below which every topology is done with the records; the end of the depot if none
    reads it."""
    lowest = int(state.depot_bounds(task, depot)[1])
    for topology in description.topologies:
        if depot not in topology.depots:
            continue
        lowest = min(lowest, rows_of.first_needed(state, task, topology.name, depot))
    return lowest
