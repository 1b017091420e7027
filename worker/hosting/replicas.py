"""The replicas of a worker: opened, begun, stopped, opened again, given up.

Its storage is open from the worker's start on, or from when it was assigned. Its group runs from the next
session on. One that must not go on is *stopped*: closed, and opened again after a while, renewed if its
folder is suspect; it begins in another incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Protocol

import structlog

from stretto.errors import StorageError, StrettoError
from stretto.replog.core import events
from stretto.replog.core.settings import Identity, Settings
from stretto.replog.log import Replog
from stretto.specs.assignments import GroupPlan
from stretto.specs.modules import RestoredFrom
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Incarnation, Offset, StorageId
from stretto.worker.hosting.hosting import Config, folder_of
from stretto.worker.replica import group as driver
from stretto.worker.replica import views
from stretto.worker.replica.fsync import FsyncSwitch
from stretto.worker.replica.group import Group
from stretto.worker.replica.installation import Installation
from stretto.worker.replica.storage import ReplicaFolder, ReplicaStorage

log = structlog.get_logger()

REOPEN_MS = 1_000


class Hosting(Protocol):
    """Which replicas are held here; see :mod:`stretto.worker.hosting.hosting`."""

    @property
    def plans(self) -> Mapping[GroupKey, GroupPlan]: ...


class Regrouping(Protocol):
    """The change of grouping, if there is one; see :mod:`stretto.worker.hosting.regrouping`."""

    def on_begun(self, group: Group) -> None: ...

    def on_lost(self, group: Group) -> None: ...


class Scans(Protocol):
    """What has a group's state open for bulk reads."""

    def forget(self, group: GroupKey, why: str) -> None: ...


class Metadata(Protocol):
    """What answers clients that ask which worker leads."""

    def group_closed(self, key: GroupKey) -> None: ...


class Metastore(driver.Metastore, Protocol):
    """What replicas need of the metastore."""

    def follow(self, group: GroupKey) -> None: ...

    def unfollow(self, group: GroupKey) -> None: ...

    def update_registration(self) -> None: ...

    def reincarnate(self) -> None: ...


class Host(driver.Host, Protocol):
    """The worker, as the part that opens and closes its replicas sees it."""

    @property
    def config(self) -> Config: ...

    @property
    def pool(self) -> Executor: ...

    @property
    def metastore(self) -> Metastore: ...

    @property
    def groups(self) -> dict[GroupKey, Group]: ...

    @property
    def hosting(self) -> Hosting: ...

    @property
    def regrouping(self) -> Regrouping: ...

    @property
    def scans(self) -> Scans: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def restored(self) -> RestoredFrom | None: ...

    @property
    def incarnation(self) -> Incarnation | None: ...

    @property
    def is_stopping(self) -> bool: ...

    def settings(self, plan: GroupPlan) -> Settings: ...

    def option(self, name: str) -> Any: ...

    def lose_session(self) -> None: ...

    def on_replica_closed(self, key: GroupKey, why: str) -> None:
        """React to a replica that is closed, for good or for a while: every part that uses it is notified."""
        ...


class Replicas:
    """The replicas of a worker. The loop owns them, except where it says otherwise."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._storages: dict[GroupKey, ReplicaStorage] = {}
        #: Replicas that do not run. Every plan has its group, or is here.
        self.stopped = {
            plan.key: views.Stopped(plan, worker.worker, worker.loop.now, views.NOT_BEGUN)
            for plan in worker.config.plans
        }
        self._by_log: dict[Replog, Group] = {}
        self._fsync: dict[GroupKey, FsyncSwitch] = {}
        #: The incarnation under which a reopened replica must not begin.
        self._barred: dict[GroupKey, Incarnation] = {}
        #: Stopped replicas whose files are being closed or opened.
        self._busy: set[GroupKey] = set()

    def path(self, plan: GroupPlan) -> Path:
        """Return the folder of a group's replica."""
        return folder_of(self._worker.config.data_dir, plan.key)

    def folder(self, plan: GroupPlan) -> ReplicaFolder:
        worker = self._worker
        return ReplicaFolder(
            self.path(plan), plan, cluster=worker.config.cluster, pool=worker.pool, restored=worker.restored
        )

    def open(self, plan: GroupPlan) -> None:
        """Open the storage of a replica when the worker starts."""
        self._storages[plan.key] = self.folder(plan).open()

    def begin(self, plan: GroupPlan, incarnation: Incarnation) -> None:
        """Begin to run a replica whose storage is open, in this incarnation."""
        worker = self._worker
        storage = self._storages.get(plan.key)
        if storage is None or self._barred.get(plan.key) == incarnation:
            return
        identity = Identity(
            worker=worker.worker,
            storage=storage.storage_id,
            incarnation=incarnation,
            replicas=plan.replicas,
            plan=plan.number,
        )
        # The group's from here on.
        unapplied, storage.unapplied = storage.unapplied, []
        group = Group(
            worker,
            plan,
            identity,
            worker.settings(plan),
            log=storage.log,
            state=storage.state,
            unapplied=unapplied,
        )
        worker.groups[plan.key] = group
        del self.stopped[plan.key]
        self._by_log[storage.log] = group
        self._fsync[plan.key] = switch = FsyncSwitch(worker, group, storage.identity)
        switch.want(worker.option("replication.fsync"))
        group.step(events.Tick())
        worker.regrouping.on_begun(group)

    def stop(self, group: Group, why: str, *, renew: bool) -> None:
        """Close a replica that must not go on, and open it again later, renewed if its folder is suspect."""
        worker = self._worker
        log.error("replica_stopped", group=str(group.key), why=why, renew=renew)
        group.closed = True
        self.stopped[group.key] = views.Stopped(group.plan, worker.worker, worker.loop.now, why, group.view())
        del worker.groups[group.key]
        del self._storages[group.key]
        del self._fsync[group.key]
        worker.on_replica_closed(group.key, f"its replica was stopped ({why})")
        if renew:
            worker.regrouping.on_lost(group)
        if worker.incarnation is not None:
            # Reopened, it has forgotten what it did in this incarnation: which epoch it led, which Hello it
            # sent. So it comes back as another one, and the others need not wait for this one.
            self._barred[group.key] = worker.incarnation
            # The leases of its neighbours end first: once the registration is gone others lead, at once.
            worker.lose_session()
            worker.metastore.reincarnate()
        self._busy.add(group.key)

        def close() -> None:
            self._by_log.pop(group.log, None)
            worker.disk.run(group.close, closed)

        def closed(error: Exception | None) -> None:
            if error is not None:
                log.error("replica_not_closed", group=str(group.key), why=str(error))
            self._reopen(group.plan, why, renew=renew)

        worker.commit.when_quiet(group.log, close)

    def _reopen(self, plan: GroupPlan, why: str, *, renew: bool) -> None:
        """Open a stopped replica again, as often as it takes: what is wrong with its folder may pass."""
        worker = self._worker
        self._busy.discard(plan.key)
        if worker.is_stopping or plan.key not in worker.hosting.plans:
            return
        self._busy.add(plan.key)
        folder = self.folder(plan)

        def work() -> ReplicaStorage:
            folder.check_room()
            return folder.renew(why) if renew else folder.open()

        worker.disk.run(work, lambda result: self._on_reopened(plan, why, result, renew=renew))

    def _on_reopened(
        self, plan: GroupPlan, why: str, result: ReplicaStorage | Exception, *, renew: bool
    ) -> None:
        worker = self._worker
        self._busy.discard(plan.key)
        if isinstance(result, Exception):
            if not isinstance(result, OSError | StrettoError):
                raise result
            self.stopped[plan.key].why = str(result)
            log.error("replica_cannot_be_opened", group=str(plan.key), why=str(result), retry_ms=REOPEN_MS)
            worker.loop.call_after(REOPEN_MS, lambda: self._reopen(plan, why, renew=renew))
            return
        self._storages[plan.key] = result
        worker.metastore.update_registration()
        if worker.incarnation is not None:
            # The assignment may have changed while it was closed.
            self.begin(worker.hosting.plans[plan.key], worker.incarnation)

    def is_busy(self, key: GroupKey) -> bool:
        """Whether a replica was stopped and its files are being closed or opened."""
        return key in self._busy

    def forget_stopped(self, key: GroupKey, then: Callable[[], None]) -> None:
        """Forget a replica that has not begun and that nobody counts on any more; ``then`` is called when its
        files are closed."""
        worker = self._worker
        worker.metastore.unfollow(key)
        self.stopped.pop(key, None)
        storage = self._storages.pop(key, None)
        if storage is None:
            worker.loop.call_soon(then)
        else:
            worker.disk.run(storage.close, lambda _: then())

    def take_on(self, plan: GroupPlan, storage: ReplicaStorage) -> None:
        """Begin a replica that this worker did not have before."""
        worker = self._worker
        self._storages[plan.key] = storage
        worker.metastore.update_registration()
        worker.metastore.follow(plan.key)
        if worker.incarnation is not None:
            self.begin(plan, worker.incarnation)

    def give_up(self, group: Group, why: str, then: Callable[[], None]) -> None:
        """Close a replica that nobody counts on any more; ``then`` is called when its files are closed.
        ``why`` is for those who still read from it."""
        worker = self._worker
        key = group.key
        # Who waits for it is told, and asks elsewhere.
        group.step(events.SessionExpired())
        group.closed = True
        worker.metastore.unfollow(key)
        del worker.groups[key]
        del self._storages[key]
        del self._fsync[key]
        worker.on_replica_closed(key, why)
        worker.metadata.group_closed(key)
        worker.metastore.update_registration()

        def close() -> None:
            self._by_log.pop(group.log, None)
            worker.applier.after_applied(lambda: worker.disk.run(group.close, lambda _: then()))

        worker.commit.when_quiet(group.log, close)

    def has_storage(self, key: GroupKey) -> bool:
        """Whether the storage of a replica is open."""
        return key in self._storages

    def installation(self, key: GroupKey) -> Installation:
        """Return the installation of a state that takes the place of a replica's own."""
        group = self._worker.groups[key]
        return Installation(group, self.folder(group.plan), self._storages[key].identity, self._on_replaced)

    def _on_replaced(self, group: Group, storage: ReplicaStorage) -> None:
        """Use the storage of a leader's state, which has replaced the replica's own; the group has not taken
        over its new log yet."""
        worker = self._worker
        worker.scans.forget(group.key, "a leader's state took the place of its replica's")
        self._by_log.pop(group.log, None)
        self._storages[group.key] = storage
        self._by_log[storage.log] = group

    def on_committed(self, replog: Replog, end: Offset | StorageError) -> None:
        """Hand the result of the committer to the replica that has the log."""
        group = self._by_log.get(replog)
        if group is not None:
            group.on_committed(end)

    def _close_cleanly(self, group: Group, storage: ReplicaStorage) -> None:
        """Close a replica and mark it clean: everything is synced, also what was confirmed before it was."""
        try:
            group.state.checkpoint()
            group.log.sync()
        except StorageError as error:
            log.error("replica_not_closed_cleanly", group=str(group.key), why=str(error))
            group.close()
        else:
            group.close()
            storage.identity.mark_clean()

    def storage_ids(self) -> dict[GroupKey, StorageId]:
        """Return the storage ids of all open replicas. Safe from any thread: replicas may come and go
        meanwhile."""
        return {key: storage.storage_id for key, storage in self._storages.copy().items()}

    def options_changed(self) -> None:
        """Let the replicas follow the options that they depend on."""
        for switch in self._fsync.values():
            switch.want(self._worker.option("replication.fsync"))

    def close(self) -> None:
        """Close all replicas. Nothing of them is in flight."""
        for key, group in self._worker.groups.items():
            if not group.installing:
                self._close_cleanly(group, self._storages[key])
