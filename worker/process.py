"""A worker process: the replicas of its groups, their clients and their peers, on one loop.

Started, it locks its data folder, listens, opens its replicas and registers. Each metastore session is an
incarnation, and begins with a reading of the options; when a session is lost the replicas go on as followers
of nobody until the next one. Stopped with SIGTERM, it hands the groups it leads to other members before it
goes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from stretto.catchup.transfers import Transfers
from stretto.control import ModuleDescription, describe
from stretto.errors import PeerError
from stretto.network.endpoint import advertised
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.network.repeating import Repeating
from stretto.network.transport import Connection, Transport
from stretto.options import Level, OptionSet, settings_of
from stretto.process.folder_lock import lock_folder
from stretto.replog.commit import GroupCommit
from stretto.replog.core import events
from stretto.replog.core.guards import GUARDS
from stretto.replog.core.settings import Settings
from stretto.replog.frame import Frame, decode
from stretto.specs.assignments import Assignment, GroupPlan
from stretto.specs.modules import ModuleSpec, ModuleState, RestoredFrom
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, TaskId, WorkerId
from stretto.wire import messages as wire
from stretto.worker.calls import Calls
from stretto.worker.clients import Clients
from stretto.worker.executors.pool import Code, Executors
from stretto.worker.hosting.hosting import Hosting
from stretto.worker.hosting.regrouping import Regrouping
from stretto.worker.hosting.replicas import REOPEN_MS, Replicas
from stretto.worker.hosting.retention import Removals
from stretto.worker.metadata import Metadata
from stretto.worker.microbatch.microbatches import Microbatches
from stretto.worker.replica.applier import Applier
from stretto.worker.replica.digests import Digests
from stretto.worker.replica.disk import DiskThreads
from stretto.worker.replica.group import Group
from stretto.worker.replica.meter import Meter
from stretto.worker.replica.tickets import Tickets
from stretto.worker.scans.moments import MomentCalls
from stretto.worker.scans.scans import Scans
from stretto.worker.settings import WorkerSettings
from stretto.worker.snapshots import Snapshots, is_snapshot
from stretto.worker.telemetry import Telemetry
from stretto.worker.topology.hold import Holding
from stretto.worker.topology.queries import Queries
from stretto.worker.topology.streams import Streams
from stretto.worker.topology.waiting import Waiters
from stretto.zk.metastore import Metastore
from stretto.zk.sessions.credentials import Credentials
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import WorkerRegistration

log = structlog.get_logger()

COMMIT_THREADS = 8
LEASE_TICK_MS = Millis(500)
LEASE_MARGIN = 0.1
"""The part of the session time-out that a lease leaves for clocks: more than they drift in that time."""


class WorkerConfig(WorkerSettings, frozen=True, kw_only=True):
    """The settings of a worker, with what they led to when it started."""

    key: ClusterKey | None
    credentials: Credentials | None
    """The credentials for the metastore."""
    description: ModuleDescription
    artifact: str
    """Digest of the module's code, as it was at the start."""
    entry: str
    """Where the module's class is in the code: ``module.path:ClassName``."""
    restored: RestoredFrom | None
    """What replicas that are empty begin with."""
    plans: tuple[GroupPlan, ...]
    """The groups of the module of which it holds a replica when it starts."""


class Worker:
    """A worker process with all its parts. Everything runs on the loop's thread, except where it says
    otherwise."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.worker = config.worker
        self._lock = lock_folder(config.data_dir)
        self.pool = ThreadPoolExecutor(COMMIT_THREADS, "commit")
        self.loop = Loop()
        self.disk = DiskThreads(self.loop)
        self.replicas = Replicas(self)
        self.commit = GroupCommit(
            self.replicas.on_committed, deliver=self.loop.call_in_passing, wake=self.loop.wake
        )
        self.digests = Digests(self.loop)
        self.tickets: Tickets = Tickets()
        self.snapshots = Snapshots(self)
        self.applier = Applier(self.loop, self._on_marker)
        self.transport = Transport(
            self.loop,
            address=config.address,
            cluster=config.cluster,
            worker=config.worker,
            key=config.key,
            on_message=self._on_message,
        )
        #: The options in force. Read before any group begins, and again before each session.
        self.options: OptionSet = OptionSet()
        #: What the module is, and whether it takes records, as its spec says. Read when the options are.
        self.description: ModuleDescription = config.description
        self.is_paused = False
        self.restored = config.restored
        self._artifact = config.artifact
        self._entry = config.entry
        self._spec: ModuleSpec | None = None
        self.catchup = Transfers(self, node_dir=config.node_dir, key=config.key)
        self.clients = Clients(self)
        self.metadata = Metadata(self)
        self.calls = Calls(self)
        self.executors = Executors(self)
        self.holding = Holding(self)
        self.waiters = Waiters()
        self.streams = Streams(self)
        self.microbatches = Microbatches(self)
        self.retention = Removals(self)
        self.queries = Queries(self)
        self.scans = Scans(self)
        self.moments = MomentCalls(self)
        self.groups: dict[GroupKey, Group] = {}
        self.telemetry = Telemetry(
            self.loop,
            config.worker,
            self.groups,
            streams=self.streams,
            microbatches=self.microbatches,
        )
        self.hosting = Hosting(self, config.plans)
        self.regrouping = Regrouping(self)
        self._registrations: dict[WorkerId, WorkerRegistration] = {}
        #: The incarnation of the present session; None between two sessions.
        self.incarnation: Incarnation | None = None
        self._checkpoints = self._repeating("replication.checkpoint.interval.millis", self._checkpoint)
        self._flushes = self._repeating("replication.fsync.interval.millis", self._flush)
        #: The session time-out that the ensemble granted last; before that, the one that we ask for.
        self._session_ms = Millis(config.session_timeout_ms)
        self._stopping_at: int | None = None
        for plan in config.plans:
            self.replicas.open(plan)
        self.metastore = Metastore(
            config.zookeeper,
            paths=Paths(config.root),
            worker=config.worker,
            session_timeout_ms=config.session_timeout_ms,
            registration=self._registration,
            listener=self,
            options_of=config.module,
            credentials=config.credentials,
            on_failure=self.loop.end_with,
        )

    @property
    def is_stopping(self) -> bool:
        return self._stopping_at is not None

    @property
    def address(self) -> str:
        """The address where the worker listens."""
        return self.transport.address

    def run(self) -> None:
        """Run until :meth:`stop` has done its work."""
        self.metastore.start()
        for key in self.hosting.plans:
            self.metastore.follow(key)
        self._retime()
        self.telemetry.start()
        self.metastore.follow_assignment(self.config.module, self._on_assignment_read)
        self.metastore.watch_workers(self._on_workers_found)
        self.retention.start()
        self.regrouping.delete_old()
        self.executors.start(self._code(self.config.artifact, self.config.entry, self.description))
        log.info("worker_started", worker=self.worker, address=self.address, groups=len(self.hosting.plans))
        self.loop.run()
        self._close()

    def handle_signals(self) -> None:
        """Let SIGTERM and Ctrl-C stop the worker."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.loop.call_soon(self.stop))

    def _repeating(self, option: str, action: Callable[[], None]) -> Repeating:
        return Repeating(self.loop, lambda: int(self.option(option)), action)

    # Storage.

    def _registration(self, incarnation: Incarnation) -> WorkerRegistration:
        """Return what this worker registers. Called from the metastore's threads."""
        return WorkerRegistration(
            worker=self.worker,
            incarnation=incarnation,
            node=self.config.node,
            address=advertised(self.transport.address, self.config.advertise),
            launch=self.config.launch,
            members={
                str(key): storage_id
                for key, storage_id in (self.regrouping.prepared | self.replicas.storage_ids()).items()
            },
            artifact=self._artifact,
            paused=self.is_paused,
            dropped=self.retention.dropped,
            closed=self.regrouping.closed,
        )

    def _on_assignment_read(self, assignment: Assignment) -> None:
        """Hand an assignment over to the loop. Called from the metastore's threads."""
        self.loop.call_soon(self._on_assignment, assignment)

    def _on_assignment(self, assignment: Assignment) -> None:
        if not self.is_stopping:
            self.hosting.on_assignment(assignment)

    def on_regrouped(self) -> None:
        """React to a change of grouping: all replicas are of another one than before."""
        self.metastore.update_registration()
        if self.executors.count not in (0, self.executors.wanted):
            self.code_changed(self._code(self._artifact, self._entry, self.description))

    def clear_readers(self) -> None:
        """Free what a process that died in the middle of a read still occupies, so that no page freed since
        is lost."""
        for group in self.groups.values():
            self.applier.read(group.state.clear_readers, lambda _: None)

    def _on_marker(self, group: Group, frame: Frame) -> None:
        """Keep or digest the state at a marker. Called on the applying thread."""
        (self.snapshots if is_snapshot(frame) else self.digests).marked(group, frame)

    def _checkpoint(self) -> None:
        for group in self.groups.values():
            if not group.installing:
                self.applier.checkpoint(group)

    def _flush(self) -> None:
        for group in self.groups.values():
            if not group.fsync_always and not group.installing:
                self.commit.submit(group.log)

    # The metastore's listener: called from its threads, so it only hands over.

    def session_started(self, incarnation: Incarnation) -> None:
        self.loop.call_soon(self._session_started, incarnation)

    def session_expired(self) -> None:
        self.loop.call_soon(self.lose_session)

    def lease_renewed(self, sent_at_ms: Millis) -> None:
        self.loop.call_soon(self._lease_renewed, sent_at_ms)

    def group_event(self, group: GroupKey, event: events.Event) -> None:
        self.loop.call_soon(self._group_event, group, event)

    def options_changed(self, options: OptionSet) -> None:
        self.loop.call_soon(self._options_changed, options)

    def spec_changed(self, spec: ModuleSpec | None) -> None:
        self.loop.call_soon(self._spec_changed, spec)

    def _options_changed(self, options: OptionSet) -> None:
        self.options = options
        self._retime()
        self.clients.options_changed(options, self.config.module)
        self.catchup.serving.on_options_changed()
        self.streams.settings_changed()
        self.microbatches.settings_changed()
        set_here = {str(level): dict(values) for level, values in options.levels.items()}
        log.info("options_in_force", worker=self.worker, options=set_here)
        self.replicas.options_changed()
        for group in list(self.groups.values()):
            group.step(events.OptionsChanged(settings=self.settings(group.plan)))

    def _spec_changed(self, spec: ModuleSpec | None) -> None:
        """Take the module's new spec; there is nothing to do if the module was made by hand, or is gone."""
        if spec is None or spec.state is ModuleState.DESTROYING:
            return
        if self.is_paused != spec.is_paused:
            self.is_paused = spec.is_paused
            log.info("module_paused" if self.is_paused else "module_resumed", worker=self.worker)
            for group in list(self.groups.values()):
                group.step(events.OptionsChanged(settings=self.settings(group.plan)))
            self.streams.settings_changed()
            self.microbatches.settings_changed()
            self.metastore.update_registration()
        self._spec = spec
        self.restored = spec.restored
        self._take_code(spec)
        self.retention.on_deleted(spec.deleted)

    def _take_code(self, spec: ModuleSpec) -> None:
        """Take up the code of an update without a restart: leaders, leases and readers notice nothing."""
        if spec is not self._spec or spec.artifact == self._artifact:
            return
        described = describe(spec)
        code = self._code(spec.artifact, spec.entry, described)
        if code is not None and not code.folder.is_dir():
            # The supervisor unpacks it before it lets an update go on, and before it starts us.
            log.warning("module_code_missing", worker=self.worker, folder=str(code.folder))
            self.loop.call_after(REOPEN_MS, self._take_code, spec)
            return
        self.description = described
        self._artifact, self._entry = spec.artifact, spec.entry
        self.code_changed(code)
        log.info("module_updated", worker=self.worker, version=spec.version, artifact=spec.artifact)
        self.metastore.update_registration()

    def code_changed(self, code: Code | None) -> None:
        """Restart executors and topologies with other code: what runs of the old is lost, and done again."""
        self.clients.described(self.description)
        self.executors.start(code)
        self.streams.restart()
        self.microbatches.restart()
        for group in self.groups.values():
            group.reconsider()

    @property
    def artifact(self) -> str:
        """Digest of the module's code that this worker runs."""
        return self._artifact

    def _code(self, artifact: str, entry: str, described: ModuleDescription) -> Code | None:
        """Return the code that executors are to run; None for a module without functions, which needs
        none."""
        folder = self.config.artifacts
        if folder is None or not artifact or not (described.topologies or described.queries):
            return None
        return Code(
            folder.absolute() / artifact,
            entry,
            described.tasks,
            has_topologies=bool(described.topologies),
            has_queries=bool(described.queries),
        )

    def _retime(self) -> None:
        self._checkpoints.retime()
        self._flushes.retime()

    def option(self, name: str) -> Any:
        """Return the value of an option that is in force for the module."""
        return self.options.value(name, Level.of(self.config.module))

    def _session_started(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        self.transport.incarnation = incarnation
        for key, plan in self.hosting.plans.items():
            group = self.groups.get(key)
            if group is None:
                self.replicas.begin(plan, incarnation)
            else:
                group.session_started(incarnation)
                group.step(events.OptionsChanged(settings=self.settings(group.plan)))

    def settings(self, plan: GroupPlan) -> Settings:
        """Return the core's settings for a group."""
        self._session_ms = self.metastore.negotiated_timeout_ms or self._session_ms
        margin_ms = Millis(int(self._session_ms * LEASE_MARGIN))
        lease_ms = GUARDS.lease_duration(self._session_ms, LEASE_TICK_MS, margin_ms)
        settings = settings_of(self.options, self.config.module)
        settings = settings.with_lease(lease_ms).with_paused(self.is_paused)
        return settings.with_unclean_election() if plan.is_given_up else settings

    def lose_session(self) -> None:
        """Let all replicas go on as followers of nobody, until the next session."""
        if self.incarnation is None:
            return
        self.incarnation = None
        for group in list(self.groups.values()):
            group.step(events.SessionExpired())
            self.clients.reads.parked.group_changed(group.key)

    def _lease_renewed(self, sent_at_ms: Millis) -> None:
        for group in list(self.groups.values()):
            group.step(events.LeaseRenewed(sent_at=sent_at_ms))

    def _group_event(self, key: GroupKey, event: events.Event) -> None:
        group = self.groups.get(key)
        if group is not None:
            group.step(event)
            if isinstance(event, events.RecordRead | events.CasReply):
                self.metadata.record_changed(group)
                self.clients.reads.parked.group_changed(key)
                self._meet_again(self.hosting.peers_of(key))
                self.hosting.consider(key)

    def _on_workers_found(self, registrations: dict[WorkerId, WorkerRegistration]) -> None:
        """Hand the registered workers over to the loop. Called from the metastore's threads."""
        self.loop.call_soon(self._meet, registrations)

    def _meet(self, registrations: dict[WorkerId, WorkerRegistration]) -> None:
        self._registrations = registrations
        self.metadata.addresses = {worker: each.address for worker, each in registrations.items()}
        self.on_peers_changed()

    def on_peers_changed(self) -> None:
        """Tell the transport again which workers are peers of our replicas, and where they are."""
        self._meet_again({worker for key in self.hosting.plans for worker in self.hosting.peers_of(key)})

    def _meet_again(self, workers: Collection[WorkerId]) -> None:
        for worker in workers:
            registration = self._registrations.get(worker)
            if registration is None:
                self.transport.forget(worker)
            else:
                self.transport.know(worker, registration.address, registration.incarnation)

    # The network.

    def _on_message(
        self, sender: Connection, worker: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        if isinstance(message, wire.ReadRows | wire.AppendBatch):
            # The most frequent ones, with what follows.
            self.clients.received(sender, message, bodies, is_worker=worker is not None)
        elif isinstance(message, wire.Replicate):
            group = self.groups.get(message.group)
            if worker is None:
                raise PeerError("a client sent a message of the replication protocol")
            if group is not None:
                frames = decode(bodies[0]) if bodies and len(bodies[0]) else ()
                group.step(events.Received(sender=worker, message=message.message, frames=frames))
        elif isinstance(message, wire.Catchup):
            if worker is None:
                raise PeerError("a client sent a message of a transfer of state")
            self.catchup.on_message(worker, message, bodies)
        elif isinstance(message, wire.RunSteps):
            if worker is None:
                raise PeerError("a client sent a hop of a topology")
            self.streams.hops.received(sender, message, bodies)
        elif isinstance(message, wire.Microbatch):
            if worker is None:
                raise PeerError("a client sent a message of a microbatch")
            self.microbatches.received(sender, message, bodies)
        else:
            self.clients.received(sender, message, bodies, is_worker=worker is not None)

    # What the replicas' drivers ask, and tell.

    def replica_stopped(self, group: Group, why: str, *, renew: bool) -> None:
        """Stop a replica because a state that arrived cannot be put in its place."""
        self.replicas.stop(group, why, renew=renew)

    def meter(self, group: GroupKey) -> Meter:
        """Return the meter of a group."""
        return self.telemetry.meter(group)

    def finish_work(self, group: Group, epoch: Epoch) -> None:
        """Step WorkFinished once no appender waits for topologies of the group."""
        finished = events.WorkFinished(epoch=epoch)
        self.waiters.when_none(group.key, lambda: self.loop.call_soon(group.step, finished))

    def awaits_growth(self, group: Group) -> bool:
        """Whether a topology, a change of grouping or a parked read waits for the group to grow."""
        return (
            (group.replica.leading is not None and bool(self.description.topologies))
            or self.regrouping.awaits_seals
            or self.clients.reads.parked.holds(group.key)
        )

    def on_growth(
        self,
        group: Group,
        tasks: Collection[TaskId],
        depots: Mapping[tuple[TaskId, str], DepotOffset],
        end: Offset,
    ) -> None:
        """Wake parked reads, and let topologies go on with what was applied."""
        self.clients.reads.parked.grown(group.key, tasks)
        self.streams.grown(group, depots, end)
        self.microbatches.grown(group, depots)
        if self.regrouping.awaits_seals:
            self.regrouping.consider()

    def on_replica_closed(self, key: GroupKey, why: str) -> None:
        """End everything that uses the group's replica, which is closed."""
        self.scans.forget(key, why)
        self.catchup.on_group_closed(key)
        self.streams.closed(key)
        self.microbatches.closed(key)
        self.clients.reads.parked.group_changed(key)

    def on_role_change(self, group: Group) -> None:
        """Let topologies and catch-up follow a change of the replica's role."""
        self.streams.looked(group)
        self.microbatches.looked(group)
        self.catchup.receiving.on_replica_changed(group)

    # Stopping.

    def stop(self) -> None:
        """Hand over the groups that we lead, then end; at the latest when
        ``leadership.shutdown.timeout.millis`` is over."""
        if self._stopping_at is None:
            self._stopping_at = self.loop.now + self.option("leadership.shutdown.timeout.millis")
            log.info("worker_stopping", worker=self.worker)
            self._hand_over()

    def _hand_over(self) -> None:
        leading = [group for group in self.groups.values() if group.leader is not None]
        waiting = False
        for group in leading:
            waiting = self._resign(group) or waiting
        if not waiting or self.loop.now >= (self._stopping_at or 0):
            self.loop.stop()
        else:
            self.loop.call_after(50, self._hand_over)

    def _resign(self, group: Group) -> bool:
        """Let the leader hand over to the member that it chooses; True while it is worth waiting."""
        leader = group.leader
        if leader is None:
            return False
        if leader.handover is None:
            group.step(events.Resign(epoch=leader.epoch))
        return leader.handover is not None

    def _close(self) -> None:
        self.metastore.close()
        self.microbatches.close()
        self.streams.close()
        self.executors.close()
        self.catchup.close()
        self.scans.close()
        self.moments.close()
        self.applier.close()
        self.digests.close()
        self.snapshots.close()
        self.commit.close()
        self.disk.close()
        self.replicas.close()
        self.pool.shutdown()
        self.transport.close()
        self.loop.close()
        os.close(self._lock)
        log.info("worker_stopped", worker=self.worker)
