"""Which replicas a worker holds: those that the assignment gives it, taken on and given up while it runs.

A replica that the assignment names is opened, empty if it is new, registered, and begun; the leader does the
rest. One that is not named any more goes on as long as its group needs it. When the group's record follows
that assignment and does not list it, nobody will ever count on it again (``may_delete`` in
:mod:`stretto.replog.core.guards`): it is closed and its folder deleted. The folder is renamed first, so that
a crash leaves nothing that looks like a replica.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from stretto.errors import StrettoError
from stretto.replog.core import events
from stretto.replog.core.guards import GUARDS
from stretto.specs.assignments import Assignment, GroupPlan, plans_of
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import WorkerId
from stretto.worker.replica import views
from stretto.worker.replica.storage import ReplicaFolder, ReplicaStorage
from stretto.worker.replica.takeover import PREPARING

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.replog.core.settings import Settings
    from stretto.worker.replica.disk import DiskThreads
    from stretto.worker.replica.group import Group

log = structlog.get_logger()

RETRY_MS = 1_000
DELETING = "deleting-"


def folder_of(data_dir: Path, key: GroupKey) -> Path:
    """Return the folder of a group's replica."""
    return data_dir / "groups" / f"{key.module}-{key.generation}-{key.group}"


def hosted(data_dir: Path, worker: WorkerId, plans: tuple[GroupPlan, ...]) -> tuple[GroupPlan, ...]:
    """Return the plans that a worker opens when it starts: those that it is assigned, and those of other
    groups that it still has."""
    return tuple(plan for plan in plans if worker in plan.replicas or folder_of(data_dir, plan.key).exists())


class Config(Protocol):
    """The part of a worker's configuration that its replicas use."""

    @property
    def module(self) -> str: ...

    @property
    def cluster(self) -> str: ...

    @property
    def data_dir(self) -> Path: ...

    @property
    def plans(self) -> tuple[GroupPlan, ...]: ...


class Replicas(Protocol):
    """The replicas that are open; see :mod:`stretto.worker.hosting.replicas`."""

    @property
    def stopped(self) -> dict[GroupKey, views.Stopped]: ...

    def folder(self, plan: GroupPlan) -> ReplicaFolder: ...

    def take_on(self, plan: GroupPlan, storage: ReplicaStorage) -> None: ...

    def give_up(self, group: Group, why: str, then: Callable[[], None]) -> None: ...


class Regrouping(Protocol):
    """The change of grouping, if there is one; see :mod:`stretto.worker.hosting.regrouping`."""

    def on_assignment(self, assignment: Assignment) -> None: ...

    def switch(self, assignment: Assignment) -> bool: ...

    def on_opened(self) -> None: ...


class Retention(Protocol):
    """What removes old records; see :mod:`stretto.worker.hosting.retention`."""

    def on_opening(self) -> None: ...


class Host(Protocol):
    """The worker, as the choice of its replicas sees it."""

    @property
    def worker(self) -> WorkerId: ...

    @property
    def config(self) -> Config: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def disk(self) -> DiskThreads: ...

    @property
    def groups(self) -> Mapping[GroupKey, Group]: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def regrouping(self) -> Regrouping: ...

    @property
    def retention(self) -> Retention: ...

    def settings(self, plan: GroupPlan) -> Settings: ...

    def on_peers_changed(self) -> None:
        """React to a change of the workers that our replicas have to do with."""
        ...


class Hosting:
    """The replicas that this worker holds, by the assignment. The loop owns it."""

    def __init__(self, worker: Host, plans: tuple[GroupPlan, ...]) -> None:
        self._worker = worker
        self.plans = {plan.key: plan for plan in plans}
        #: Groups whose replica is being opened.
        self._opening: set[GroupKey] = set()
        for begun in (DELETING, PREPARING):
            for left in (worker.config.data_dir / "groups").glob(f"{begun}*"):
                shutil.rmtree(left, ignore_errors=True)

    def is_opening(self, key: GroupKey) -> bool:
        return key in self._opening

    def host(self, plan: GroupPlan) -> None:
        """Take on a replica if the plan gives this worker one that it has not got."""
        if plan.key not in self.plans and self._worker.worker in plan.replicas:
            self.plans[plan.key] = plan
            self._take_on(plan.key)

    def peers_of(self, key: GroupKey) -> set[WorkerId]:
        """Return the workers that our replica of a group has to do with: the assigned, and those that the
        record knows."""
        plan, group = self.plans.get(key), self._worker.groups.get(key)
        found = set(plan.replicas) if plan is not None else set()
        if group is not None and group.replica.record is not None:
            found.update(group.replica.record.workers)
        return found

    def on_assignment(self, assignment: Assignment) -> None:
        """Follow a new assignment: take replicas on, give others up, or switch to another grouping."""
        self._worker.regrouping.on_assignment(assignment)
        if self._worker.regrouping.switch(assignment):
            return
        for plan in plans_of(self._worker.config.module, assignment):
            known = self.plans.get(plan.key)
            if known is None:
                self.host(plan)
            elif plan.number >= known.number and plan != known:
                self.plans[plan.key] = plan
                self._replan(plan)
        self._worker.on_peers_changed()

    def _replan(self, plan: GroupPlan) -> None:
        group = self._worker.groups.get(plan.key)
        if group is not None:
            group.plan = plan
            group.step(events.OptionsChanged(settings=self._worker.settings(plan)))
            group.step(events.ReplicasChanged(plan=plan.number, replicas=plan.replicas))
        stopped = self._worker.replicas.stopped.get(plan.key)
        if stopped is not None:
            stopped.plan = plan
        self.consider(plan.key)

    # A replica more.

    def _take_on(self, key: GroupKey) -> None:
        if key in self._opening or key not in self.plans:
            return
        plan = self.plans[key]
        self._opening.add(key)
        worker = self._worker
        worker.replicas.stopped[key] = views.Stopped(plan, worker.worker, worker.loop.now, views.NOT_BEGUN)
        worker.retention.on_opening()
        worker.disk.run(worker.replicas.folder(plan).open, lambda result: self._on_opened(key, result))

    def _on_opened(self, key: GroupKey, result: ReplicaStorage | Exception) -> None:
        self._opening.discard(key)
        worker = self._worker
        if isinstance(result, Exception):
            if not isinstance(result, OSError | StrettoError):
                raise result
            worker.replicas.stopped[key].why = str(result)
            log.error("replica_cannot_be_opened", group=str(key), why=str(result), retry_ms=RETRY_MS)
            worker.loop.call_after(RETRY_MS, self._take_on, key)
            return
        log.info("replica_taken_on", group=str(key), worker=worker.worker)
        worker.replicas.take_on(self.plans[key], result)
        worker.regrouping.on_opened()

    # A replica less.

    def consider(self, key: GroupKey) -> None:
        """Give a replica up if that is due. To be called when its group's record or plan has changed."""
        group, plan = self._worker.groups.get(key), self.plans.get(key)
        if group is None or plan is None or self._worker.worker in plan.replicas:
            return
        record = group.replica.record
        if record is None or not GUARDS.may_delete(record, self._worker.worker, plan.number):
            return
        if group.installing:
            self._worker.loop.call_after(RETRY_MS, self.consider, key)
            return
        log.info("replica_given_up", group=str(key), worker=self._worker.worker, plan=record.plan)
        del self.plans[key]
        self._worker.replicas.give_up(
            group, "its replica moved to another worker", lambda: self._delete(group)
        )

    def _delete(self, group: Group) -> None:
        folder = folder_of(self._worker.config.data_dir, group.key)

        def work() -> None:
            doomed = folder.with_name(f"{DELETING}{folder.name}-{secrets.token_hex(4)}")
            folder.rename(doomed)
            shutil.rmtree(doomed)

        def then(error: Exception | None) -> None:
            if error is not None:
                log.error("replica_not_deleted", folder=str(folder), why=str(error))

        self._worker.disk.run(work, then)
