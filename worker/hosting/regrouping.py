"""A worker's part in a change of its module's grouping: seal, prepare, close, switch.

The assignment names the grouping to follow. Leaders seal their logs, which is the core's
(:class:`~stretto.replog.core.events.Regrouping`). Where all groups that a next group takes tasks from are
applied up to their seals, its replica is prepared (:mod:`stretto.worker.replica.takeover`) and registered.
When all of them are, the assignment asks to *close*: no replica here shows anything more to readers, and the
registration says so. Then the assignment has the next grouping in force: the old replicas are closed, the new
ones opened with their files, and what is left of the old ones is deleted.

A grouping that is abandoned before that leaves nothing but the entries that sealed and unsealed the logs.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from stretto.process.folder_lock import boot_id
from stretto.replog.core import events
from stretto.specs.assignments import Assignment, GroupPlan, plans_of
from stretto.state.task_meta import Seal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import StorageId, TaskId, WorkerId
from stretto.worker.hosting.hosting import DELETING, Config
from stretto.worker.replica import takeover

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.worker.replica.disk import DiskThreads
    from stretto.worker.replica.group import Group

log = structlog.get_logger()

AGAIN_MS = 20
RETRY_MS = 1_000


class Replicas(Protocol):
    """The replicas that are open; see :mod:`stretto.worker.hosting.replicas`."""

    def path(self, plan: GroupPlan) -> Path: ...

    def is_busy(self, key: GroupKey) -> bool: ...

    def has_storage(self, key: GroupKey) -> bool: ...

    def give_up(self, group: Group, why: str, then: Callable[[], None]) -> None: ...

    def forget_stopped(self, key: GroupKey, then: Callable[[], None]) -> None: ...


class Hosting(Protocol):
    """Which replicas are held here; see :mod:`stretto.worker.hosting.hosting`."""

    @property
    def plans(self) -> dict[GroupKey, GroupPlan]: ...

    def is_opening(self, key: GroupKey) -> bool: ...

    def host(self, plan: GroupPlan) -> None: ...


class Metastore(Protocol):
    """What a change of grouping needs of the metastore."""

    def update_registration(self) -> None: ...


class Host(Protocol):
    """The worker, as a change of grouping sees it."""

    @property
    def worker(self) -> WorkerId: ...

    @property
    def config(self) -> Config: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def disk(self) -> DiskThreads: ...

    @property
    def metastore(self) -> Metastore: ...

    @property
    def groups(self) -> Mapping[GroupKey, Group]: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def hosting(self) -> Hosting: ...

    def on_peers_changed(self) -> None:
        """React to a change of the workers that our replicas have to do with."""
        ...

    def on_regrouped(self) -> None:
        """React to a change of grouping: all replicas are of another one than before."""
        ...


class Regrouping:
    """The worker's part in a change of grouping. The loop owns it."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self.heard = events.Regrouping(present=0)
        #: The grouping for which nothing is shown to readers any more; 0 if there is none.
        self.closed = 0
        #: Storage ids of the prepared replicas of the next grouping; replaced as a whole, because the
        #: metastore's threads look at it.
        self.prepared: dict[GroupKey, StorageId] = {}
        self._next: tuple[GroupPlan, ...] = ()
        self._preparing: set[GroupKey] = set()
        #: The grouping that is being switched to, until all its replicas are open.
        self._switching: Assignment | None = None
        self._closing: set[GroupKey] = set()

    # What the assignment says.

    def on_assignment(self, assignment: Assignment) -> None:
        """Follow what an assignment says of the grouping."""
        following, module = assignment.following, self._worker.config.module
        self._next = () if following is None else plans_of(module, following)
        number = 0 if following is None else following.generation
        heard = events.Regrouping(
            present=assignment.generation,
            next=number,
            closing=number if assignment.next is not None and assignment.next.closing else 0,
            abandoned=assignment.abandoned,
        )
        if heard != self.heard:
            self.heard = heard
            for group in list(self._worker.groups.values()):
                group.step(heard)
            self._forget_abandoned()
            self._close_or_reopen()
            self.consider()

    def on_begun(self, group: Group) -> None:
        """Report the state of the change to a replica that has begun."""
        group.step(self.heard)

    def _close_or_reopen(self) -> None:
        """Register whether this worker is closed. To be called when all replicas have stepped the change:
        from here on they keep the promise."""
        closed = self.heard.closing or (self.closed if self.closed > self.heard.abandoned else 0)
        if closed != self.closed:
            self.closed = closed
            self._worker.metastore.update_registration()

    def _forget_abandoned(self) -> None:
        kept = {key: each for key, each in self.prepared.items() if key.generation > self.heard.abandoned}
        if kept != self.prepared:
            self.prepared = kept
            self._worker.metastore.update_registration()
        if self.heard.next == 0:
            self._delete(lambda generation: self.heard.present < generation <= self.heard.abandoned)

    # Preparing.

    @property
    def awaits_seals(self) -> bool:
        """Whether replicas of a next grouping are to be prepared."""
        return bool(self._next)

    def consider(self) -> None:
        """Prepare what can be. To be called when a replica has applied something."""
        for plan in self._next:
            key = plan.key
            if self._worker.worker in plan.replicas and key not in self.prepared.keys() | self._preparing:
                sources = self._sources(plan)
                if sources:
                    self._preparing.add(key)
                    work = partial(self._prepare, plan, sources)
                    self._worker.disk.run(work, partial(self._on_prepared, key))

    def _sources(self, plan: GroupPlan) -> list[Group]:
        """The replicas here of all groups that the plan takes tasks from, if all are sealed; else none."""
        found = [group for group in self._worker.groups.values() if set(group.plan.tasks) & set(plan.tasks)]
        is_sealed = all(
            not group.installing and group.replica.producers.table.sealed == plan.key.generation
            for group in found
        )
        has_all = {task for group in found for task in group.plan.tasks} >= set(plan.tasks)
        return found if is_sealed and has_all else []

    def _prepare(self, plan: GroupPlan, sources: list[Group]) -> StorageId | None:
        """Prepare a replica of the next grouping, on another thread. None if a seal was taken back
        meanwhile."""
        seals: dict[TaskId, tuple[str, Seal]] = {}
        for group in sources:
            group.state.checkpoint()
            seal = group.state.seal()
            if seal is None or seal.grouping != plan.key.generation:
                return None
            folder = self._worker.replicas.path(group.plan).name
            seals.update({task: (folder, seal) for task in plan.tasks if task in group.plan.tasks})
        return takeover.prepare(
            self._worker.replicas.path(plan),
            takeover.planned(plan.key.generation, seals),
            cluster=self._worker.config.cluster,
            group=str(plan.key),
            boot_id=boot_id(),
        )

    def _on_prepared(self, key: GroupKey, result: StorageId | Exception | None) -> None:
        self._preparing.discard(key)
        if isinstance(result, Exception):
            log.error("replica_not_prepared", group=str(key), why=str(result), retry_ms=RETRY_MS)
        if not isinstance(result, str):
            self._worker.loop.call_after(RETRY_MS, self.consider)
        elif key.generation > self.heard.abandoned:
            log.info("replica_prepared", group=str(key), worker=self._worker.worker)
            self.prepared = {**self.prepared, key: result}
            self._worker.metastore.update_registration()

    def on_lost(self, group: Group) -> None:
        """Take back what was promised of a replica whose files are set aside; it is promised anew once it has
        caught up."""
        tasks = set(group.plan.tasks)
        broken = {plan.key for plan in self._next if tasks & set(plan.tasks)}
        self.prepared = {key: each for key, each in self.prepared.items() if key not in broken}

    # Switching.

    def switch(self, assignment: Assignment) -> bool:
        """Close the replicas of an earlier grouping if there are any, then open those of this one. True as
        long as some are left."""
        if not self._closing and not self._old():
            return False
        begins = self._switching is None
        self._switching = assignment
        if begins:
            log.info("regrouping", worker=self._worker.worker, grouping=assignment.generation)
            self._close_all()
        return True

    def _old(self) -> list[GroupKey]:
        return [key for key in self._worker.hosting.plans if key.generation < self.heard.present]

    def _close_all(self) -> None:
        """Close every replica of the old grouping, each as soon as nothing else is being done with its
        files."""
        worker, hosting = self._worker, self._worker.hosting
        for key in self._old():
            group = worker.groups.get(key)
            if (
                hosting.is_opening(key)
                or worker.replicas.is_busy(key)
                or (group is not None and group.installing)
            ):
                continue
            del hosting.plans[key]
            self._closing.add(key)
            if group is None:
                worker.replicas.forget_stopped(key, partial(self._on_closed, key))
            else:
                worker.replicas.give_up(group, "its tasks were regrouped", partial(self._on_closed, key))
        if self._old():
            worker.loop.call_after(AGAIN_MS, self._close_all)

    def _on_closed(self, key: GroupKey) -> None:
        self._closing.discard(key)
        assignment = self._switching
        if assignment is None or self._closing or self._old():
            return
        for plan in plans_of(self._worker.config.module, assignment):
            self._worker.hosting.host(plan)
        self._worker.on_peers_changed()

    def on_opened(self) -> None:
        """Finish the switch if all replicas are open: then nothing of the old grouping is needed any more."""
        worker = self._worker
        is_whole = all(worker.replicas.has_storage(key) for key in worker.hosting.plans)
        if self._switching is None or self._closing or not is_whole:
            return
        self._switching = None
        self.closed = 0
        self.prepared = {}
        worker.on_regrouped()
        self.delete_old()

    # Deleting.

    def delete_old(self) -> None:
        """Delete what is left of groupings that are over. All replicas of the present one are open."""
        generations = [key.generation for key in self._worker.hosting.plans]
        if generations:
            self._delete(lambda generation: generation < min(generations))

    def _delete(self, is_over: Callable[[int], bool]) -> None:
        doomed = [folder for generation, folder in self._folders() if is_over(generation)]

        def work() -> None:
            for folder in doomed:
                renamed = folder.with_name(f"{DELETING}{folder.name}-{secrets.token_hex(4)}")
                folder.rename(renamed)
                shutil.rmtree(renamed)

        def then(error: Exception | None) -> None:
            if error is not None:
                log.error("replica_not_deleted", folders=[str(each) for each in doomed], why=str(error))

        if doomed:
            self._worker.disk.run(work, then)

    def _folders(self) -> list[tuple[int, Path]]:
        """Return the folders of the module's replicas, with the grouping of each."""
        config = self._worker.config
        name = re.compile(rf"{re.escape(config.module)}-(\d+)-\d+")
        found = [(name.fullmatch(folder.name), folder) for folder in (config.data_dir / "groups").glob("*")]
        return [(int(match[1]), folder) for match, folder in found if match is not None]
