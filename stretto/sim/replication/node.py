"""One worker process with one replica: the driver of the core in the virtual world.

It carries out the effects of each step over a disk, a network and a metastore that are not to be trusted, and
hands back what they did, sometimes late. :mod:`stretto.sim.replication.machine` is what outlives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from stretto.errors import StorageCorrupt, StorageError
from stretto.replog.core import effects, events
from stretto.replog.core.effects import Effect
from stretto.replog.core.events import Event
from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.messages import AnyMessage
from stretto.replog.core.record import Member
from stretto.replog.core.replica import Recovered, Replica
from stretto.replog.core.settings import Identity, Settings
from stretto.replog.frame import Frame, decode
from stretto.sim.replication.machine import Machine, Snapshot
from stretto.sim.replication.metastore import Link, Session
from stretto.sim.replication.transfer import Transfers
from stretto.vocabulary.types import Incarnation, Millis, Offset, WorkerId
from stretto.wire import catchup

if TYPE_CHECKING:
    from stretto.sim.replication.simulation import Simulation

SESSION_TIMEOUT_MS = 3_000
TICK_MS = 150
LEASE_MARGIN_MS = 350
HEARTBEAT_MS = 700
STATE_SYNC_MS = 150
FLUSH_MS = 400


class Node(Machine):
    """One process with one replica, on a machine that outlives it."""

    def __init__(self, simulation: Simulation, worker: WorkerId, plan: int = 0) -> None:
        super().__init__(simulation, worker)
        self.up = False
        self.dead_for_good = False
        #: Whether it left the group, and its data is deleted.
        self.retired = False
        #: The assignment that it was started for, and the newest that this process has heard of.
        self.first_plan = plan
        self.plan = plan
        #: The newest grouping that this process has heard of; 0 if none.
        self.grouping = 0
        #: Whether it hears of no assignment.
        self.deaf = False
        self.replica: Replica | None = None
        self._arrived: Snapshot | None = None
        self.session: Session | None = None
        self.link = Link.UP
        self.life = 0
        self.incarnations = 0
        self.paused = False
        self._backlog: deque[tuple[Event, bool]] = deque()
        self._stale_now: Millis | None = None
        self._then: events.Persisted | None = None
        self._applying = False
        self._tick_at: int | None = None
        self.transfers = Transfers(self)

    # Life and death.

    def start(self) -> None:
        """Start a new process on this machine."""
        if self.up or self.dead_for_good or self.retired:
            return
        self.up = True
        self.life += 1
        self._read_plan()
        self._read_grouping()
        self.open_storage()
        self._register()

    def _register(self) -> None:
        """Connect to the metastore, where the replica exists from then on."""
        if self.link is not Link.UP:
            self.world.after(100, self._if_alive, self.life, self._register)
            return
        self.incarnations += 1
        incarnation = Incarnation(f"{self.worker}.{self.life}.{self.incarnations}")
        member = Member(self.worker, self.storage)
        self.session = self.simulation.metastore.connect(self, incarnation, member, SESSION_TIMEOUT_MS)
        self._heartbeat(self.session)
        if self.replica is None:
            self._boot(incarnation)
        else:
            self.deliver(events.SessionStarted(incarnation=incarnation))

    def _boot(self, incarnation: Incarnation) -> None:
        log, state = self.opened_log(), self.state
        identity = Identity(
            worker=self.worker,
            storage=self.storage,
            incarnation=incarnation,
            replicas=self.simulation.plans[self.plan],
            plan=self.plan,
        )
        recovered = Recovered(
            log_start=log.start_offset,
            log_end=log.end_offset,
            history=log.history,
            applied=state.applied,
            producers=state.producers.copy(),
            unapplied=self.unapplied,
        )
        self.replica = Replica(identity, recovered, self._settings(), self.simulation.guards)
        self.transfers = Transfers(self)
        self.simulation.checkers.booted(self)
        self.world.after(STATE_SYNC_MS, self._sync_state, self.life)
        if self.syncs_later:
            self.world.after(FLUSH_MS, self._flush, self.life)
        self.deliver(events.Tick())
        if self.grouping:
            self.deliver(self.simulation.groupings[self.grouping])

    def _settings(self) -> Settings:
        guards = self.simulation.guards
        lease_ms = guards.lease_duration(Millis(SESSION_TIMEOUT_MS), Millis(TICK_MS), Millis(LEASE_MARGIN_MS))
        return replace(self.simulation.settings, lease_ms=lease_ms)

    def options_changed(self) -> None:
        if self.replica is not None:
            self.deliver(events.OptionsChanged(settings=self._settings()))

    # The assignment.

    def _read_plan(self) -> None:
        """Read the assignment, perhaps from a server that has not heard of the latest change."""
        newest = len(self.simulation.plans) - 1
        if newest == 0:
            return
        behind = self.deaf or self.world.chance(0.3)
        self.plan = max(self.first_plan, newest - 1 if behind else newest)
        self.tell_plan()

    def tell_plan(self) -> None:
        """Deliver the newest assignment by a watch, in its own time; versions in between are skipped."""
        late = self.world.chance(self.simulation.metastore.manners.late_watch)
        delay = self.simulation.metastore.manners.late_ms if late else 20
        self.world.after(1 + self.world.random.randrange(delay), self._hear_plan, self.life)

    def _hear_plan(self, life: int) -> None:
        if self.life != life or self.deaf or self.paused or self.link is not Link.UP:
            if self.up and self.life == life:
                self.world.after(50, self._hear_plan, life)
            return
        newest = len(self.simulation.plans) - 1
        if newest > self.plan:
            self.plan = newest
            self.deliver(events.ReplicasChanged(plan=newest, replicas=self.simulation.plans[newest]))
            self._retire_if_due()

    def _read_grouping(self) -> None:
        """Read the grouping, which is in the same znode as the assignment and may be as old."""
        newest = len(self.simulation.groupings) - 1
        self.grouping = 0
        if newest:
            behind = self.deaf or self.world.chance(0.3)
            self.grouping = newest - 1 if behind else newest
            self.tell_grouping()

    def tell_grouping(self) -> None:
        """Deliver the newest grouping by a watch, in its own time."""
        late = self.world.chance(self.simulation.metastore.manners.late_watch)
        delay = self.simulation.metastore.manners.late_ms if late else 20
        self.world.after(1 + self.world.random.randrange(delay), self._hear_grouping, self.life)

    def _hear_grouping(self, life: int) -> None:
        if self.life != life or self.deaf or self.paused or self.link is not Link.UP or self.replica is None:
            if self.up and self.life == life:
                self.world.after(50, self._hear_grouping, life)
            return
        newest = len(self.simulation.groupings) - 1
        if newest > self.grouping:
            self.grouping = newest
            self.deliver(self.simulation.groupings[newest])

    @property
    def is_assigned(self) -> bool:
        return self.worker in self.simulation.assigned

    def _retire_if_due(self) -> None:
        replica = self.replica
        if replica is None or replica.record is None or self.worker in self.simulation.plans[self.plan]:
            return
        if self.simulation.guards.may_delete(replica.record, self.worker, self.plan):
            self.world.after(self.world.random.randrange(200), self._if_alive, self.life, self._retire)

    def _retire(self) -> None:
        """Delete the replica's data; once that is allowed it stays allowed, and nothing looks again."""
        self.world.trace(self.worker, "retires")
        self.simulation.totals["retirements"] += 1
        self.simulation.checkers.retired(self)
        self.retired = True
        self.crash()
        self.replace_disk()

    def crash(self, *, power_loss: bool = False) -> None:
        """End the process at once; its session lives on."""
        if not self.up:
            return
        self.world.trace(self.worker, "crashes", "power" if power_loss else "process")
        self.simulation.checkers.crashed(self)
        self.up = False
        self.paused = False
        self.life += 1
        self.replica = None
        self.log = None
        self._backlog.clear()
        self._stale_now = None
        self._then = None
        self._arrived = None
        self._applying = False
        self._tick_at = None
        self.folder.breaks = None
        if self.session is not None:
            self.session.closed = True
        if power_loss:
            self.lose_power()

    def stop(self, why: str, *, renew: bool) -> None:
        """End the process because its replica must not go on; its supervisor starts another."""
        self.world.trace(self.worker, "stops", why)
        self.simulation.totals["stops"] += 1
        if renew:
            self.must_renew = why
        registration = self.session.registration if self.session else None
        self.crash()
        if registration is not None:
            self.simulation.metastore.unregister(registration)
        self.world.after(100 + self.world.random.randrange(400), self.start)

    def resigns(self) -> bool:
        """Let a leader hand over as a worker does that stops; returns True while the worker has to wait."""
        leader = self.replica.leading if self.replica is not None else None
        if leader is None:
            return False
        if leader.handover is None:
            self.deliver(events.Resign(epoch=leader.epoch))
        return leader.handover is not None

    def pause(self) -> None:
        if self.up and not self.paused:
            self.paused = True
            self._stale_now = self.clock()

    def resume(self) -> None:
        """Go on with the clock as it was read before the pause, until the waiting events are handled."""
        if not self.paused:
            return
        self.paused = False
        backlog, self._backlog = self._backlog, deque()
        for event, fresh in backlog:
            if not self.up or self.paused:
                break
            self._step(event, None if fresh else self._stale_now)
        self._stale_now = None
        if self.up:
            self._schedule_tick()

    def _if_alive(self, life: int, action: Callable[..., None], *args: Any) -> None:
        if self.up and self.life == life:
            action(*args)

    # Metastore.

    def set_link(self, link: Link) -> None:
        self.link = link
        if self.session is not None:
            self.simulation.metastore.set_link(self.session, link)

    def _heartbeat(self, session: Session) -> None:
        if session.closed or session is not self.session:
            return
        if not self.paused:
            self.simulation.metastore.heartbeat(session, self.clock())
        self.world.after(self.real_delay(HEARTBEAT_MS), self._heartbeat, session)

    def lease_answered(self, session: Session, sent_at: int, *, is_write: bool) -> None:
        if session is self.session and self.simulation.guards.renews_lease(is_write):
            self.deliver(events.LeaseRenewed(sent_at=Millis(sent_at)))

    def session_is_over(self, session: Session) -> None:
        if session is not self.session or session.closed or not self.up:
            return
        if self.paused:
            self.world.after(50, self.session_is_over, session)
            return
        session.closed = True
        self.session = None
        self.deliver(events.SessionExpired())
        self.world.after(1 + self.world.random.randrange(200), self._if_alive, self.life, self._register)

    # The loop: an event, the step, the effects.

    def deliver(self, event: Event, *, fresh: bool = False) -> None:
        """Hand an event to the replica, or keep it while the process is paused.

        ``fresh``: the clock is read after this event came in, even if the process was paused.
        """
        if not self.up or self.replica is None:
            return
        if self.paused:
            self._backlog.append((event, fresh))
        else:
            self._step(event, None)

    def receive(self, sender: WorkerId, message: AnyMessage, blob: bytes) -> None:
        frames = decode(blob) if blob else ()
        self.deliver(events.Received(sender=sender, message=message, frames=frames))

    def _step(self, event: Event, now: Millis | None) -> None:
        replica = self.replica
        if replica is None:
            return
        self.simulation.steps += 1
        if self.world.is_traced:
            self.world.trace(self.worker, "event", event)
        checkers = self.simulation.checkers
        checkers.before(replica, event)
        if isinstance(event, events.Read) and event.is_sampled:
            self.simulation.workload.sampled(event.request, self.state.applied)
        life = self.life
        for effect in replica.step(event, self.clock() if now is None else now):
            if self.world.is_traced:
                self.world.trace(self.worker, "effect", effect)
            try:
                self._carry_out(effect, replica)
            except StorageError as error:
                self._storage_failed(error)
                break
            if self.life != life:
                return
        checkers.after(self, replica)
        self._schedule_tick()
        self._retire_if_due()

    def _schedule_tick(self) -> None:
        replica = self.replica
        deadline = replica.next_deadline() if replica is not None else None
        if deadline is None:
            return
        due = self.world.now + self.real_delay(deadline - self.clock())
        if self._tick_at is None or due < self._tick_at or self._tick_at <= self.world.now:
            self._tick_at = due
            self.world.at(due, self._tick, self.life, due)

    def _tick(self, life: int, due: int) -> None:
        if self.up and self.life == life and self._tick_at == due and self.replica is not None:
            self._tick_at = None
            deadline = self.replica.next_deadline()
            if deadline is not None and deadline <= self.clock():
                self.deliver(events.Tick())
            else:
                self._schedule_tick()

    def _carry_out(self, effect: Effect, replica: Replica) -> None:
        simulation = self.simulation
        match effect:
            case effects.Persist(frames=frames, then=then):
                self._persist(frames, then)
            case effects.Send(to=to, message=message):
                simulation.send(self.worker, to, message, b"")
            case effects.SendEntries():
                self._send_entries(effect)
            case effects.Apply(end=end):
                simulation.checkers.decided(self, replica, end)
                self._schedule_apply()
            case effects.Reply(request=request, result=result):
                simulation.workload.replied(self, request, result)
            case effects.Note(event=event, fields=fields):
                simulation.noted(self, event, fields)
            case effects.Truncate(end=end, then=then):
                self._truncate(end, then)
            case effects.Cut(start=start):
                self._cut(start)
            case effects.CompareAndSet(token=token, version=version, record=record, must_exist=must_exist):
                simulation.checkers.proposed(self, replica, record)
                if self.session is not None:
                    simulation.metastore.compare_and_set(self.session, token, version, record, must_exist)
            case effects.ReadRecord(token=token, sync=sync):
                if self.session is not None:
                    simulation.metastore.read(self.session, token, sync=sync)
            case effects.CheckRegistration(registration=registration):
                if self.session is not None:
                    simulation.metastore.check(self.session, registration)
            case effects.LookForMembers(token=token):
                if self.session is not None:
                    simulation.metastore.look_for_members(self.session, token)
            case effects.Sample(request=request):
                simulation.workload.sampled(request, self.state.applied)
                self._soon(events.Sampled(request=request))
            case effects.ReadClock():
                self._soon(events.ClockRead())
            case effects.ServeState():
                self.transfers.begin(effect)
            case effects.StopServing(to=to):
                self.transfers.stop_serving(to)
            case effects.FetchState():
                self.transfers.fetch_state(effect, replica)
            case effects.InstallState(end=end):
                self.world.after(self.world.random.randint(1, 120), self._install, self.life, end)
            case effects.SetAside(why=why):
                self.stop(why, renew=True)
            case effects.Stop(why=why, renew=renew):
                self.stop(why, renew=renew)
            case effects.ForgetResign():
                pass
            case effects.FinishWork(epoch=epoch):
                self._finish_work(events.WorkFinished(epoch=epoch))
            case _:
                assert_never(effect)

    def _finish_work(self, finished: events.WorkFinished) -> None:
        """Report finished work of topologies, which may take longer than the leader waits for it."""
        if self.world.chance(self.simulation.plan.slow_driver):
            self.world.after(self.world.random.randrange(2_000), self._deliver_in_life, self.life, finished)
        else:
            self._soon(finished)

    def _soon(self, event: Event) -> None:
        """Hand an event of the driver back at once, or after its threads have found the time."""
        slow = self.world.chance(self.simulation.plan.slow_driver)
        delay = self.hand_back_ms + (self.world.random.randrange(40) if slow else 0)
        self.world.after(delay, self._deliver_in_life, self.life, event)

    def _deliver_in_life(self, life: int, event: Event) -> None:
        if self.life == life:
            self.deliver(event, fresh=True)

    # Disk.

    def _persist(self, frames: tuple[Frame, ...], then: events.Persisted) -> None:
        self.opened_log().append(frames)
        self._sync_soon(then)

    def _sync_soon(self, then: events.Persisted) -> None:
        if self._then is None:
            self.world.after(self.world.random.randint(*self.sync_ms), self._sync, self.life)
        self._then = then

    def _sync(self, life: int) -> None:
        """Sync everything that was written meanwhile, in one group commit."""
        if self.life != life or self._then is None:
            return
        if self.paused:
            self.world.after(20, self._sync, life)
            return
        then, self._then = self._then, None
        try:
            end = self.write_log()
        except StorageError as error:
            self._storage_failed(error)
            return
        self.simulation.checkers.synced(self, end)
        self._soon(then)

    def _storage_failed(self, error: StorageError | StorageCorrupt) -> None:
        corrupt = isinstance(error, StorageCorrupt)
        self.simulation.totals["corruptions" if corrupt else "disk failures"] += 1
        self._soon(events.StorageFailed(why=str(error), suspect=True))

    def _truncate(self, end: Offset, then: events.Persisted) -> None:
        self.opened_log().truncate(end)
        self.simulation.checkers.truncated(self, end)
        self._sync_soon(then)

    def _cut(self, start: Offset) -> None:
        self._soon(events.LogCut(start=self.opened_log().cut(start)))

    def _send_entries(self, effect: effects.SendEntries) -> None:
        log = self.opened_log()
        if effect.start < log.start_offset:
            # Cut since the core last heard of it; it probes what was not sent.
            return
        try:
            chunk = log.read(effect.start, log.end_offset, effect.max_bytes)
        except StorageCorrupt as corrupt:
            self._storage_failed(corrupt)
            return
        self.simulation.send(self.worker, effect.to, effect.message, b"".join(chunk.buffers))
        self._soon(
            events.Sent(to=effect.to, incarnation=effect.message.to, attempt=effect.attempt, end=chunk.end)
        )

    def _schedule_apply(self) -> None:
        if not self._applying:
            self._applying = True
            self.world.after(self.world.random.randint(*self.apply_ms), self._apply, self.life)

    def _apply(self, life: int) -> None:
        if self.life != life or self.replica is None:
            return
        if self.paused:
            self.world.after(20, self._apply, life)
            return
        self._applying = False
        end = self.replica.apply_offset
        log, state = self.opened_log(), self.state
        while state.applied < end:
            try:
                chunk = log.read(state.applied, end, 1 << 20)
            except (StorageCorrupt, StorageError) as error:
                self._storage_failed(error)
                return
            for frame in decode(b"".join(chunk.buffers)):
                self.simulation.checkers.applied(self, frame)
                state.producers.apply(frame.header)
                state.applied = frame.end_offset
        self._soon(events.Applied(end=end))

    def _sync_state(self, life: int) -> None:
        if self.life == life and self.up:
            if not self.paused and self.state.durable_applied < self.state.applied:
                self.state.sync()
                self.deliver(events.StateSynced(end=self.state.durable_applied))
            self.world.after(STATE_SYNC_MS, self._sync_state, life)

    def _flush(self, life: int) -> None:
        if self.life == life and self.up:
            if not self.paused:
                self._flush_log()
            self.world.after(FLUSH_MS, self._flush, life)

    def _flush_log(self) -> None:
        try:
            self.opened_log().sync()
        except StorageError as error:
            self._storage_failed(error)

    # Far horizon.

    def receive_catchup(self, sender: WorkerId, message: catchup.AnyMessage, body: bytes) -> None:
        if self.up:
            self.transfers.on_message(sender, message, body)

    def receive_state(self, snapshot: Snapshot) -> None:
        self._arrived = snapshot
        self.deliver(events.StateArrived(epoch=snapshot.epoch, attempt=snapshot.attempt, end=snapshot.end))

    def _install(self, life: int, end: Offset) -> None:
        """Install a received state atomically: a crash leaves the old state or the new one."""
        snapshot = self._arrived
        if self.life != life or snapshot is None:
            return
        if self.paused:
            self.world.after(20, self._install, life, end)
            return
        before, after = self._fate(), self._fate()
        if before is not None:
            self._interrupted(power_loss=before)
            return
        if snapshot.end != end:
            self.deliver(events.TransferFailed())
            return
        self._then = None
        try:
            self.opened_log().reset(snapshot.end, snapshot.history)
        except StorageError as error:
            self._storage_failed(error)
            return
        self.state.install(snapshot.end, snapshot.producers.copy())
        self.incoming.clear()
        self.simulation.checkers.installed(self, snapshot.end)
        if after is not None:
            self._interrupted(power_loss=after)
            return
        self.deliver(
            events.StateInstalled(
                end=snapshot.end, history=snapshot.history, producers=snapshot.producers.copy()
            )
        )

    def _fate(self) -> bool | None:
        """Draw whether the process ends here: None if not, else whether by a power loss."""
        is_faulty = self.simulation.faults.active
        if not is_faulty or not self.world.chance(self.simulation.plan.interrupted_install):
            return None
        return self.world.chance(0.5)

    def _interrupted(self, *, power_loss: bool) -> None:
        self.simulation.totals["interrupted installs"] += 1
        self.crash(power_loss=power_loss)
        self.world.after(200, self.start)

    # For workload, faults and checkers.

    @property
    def is_leader(self) -> bool:
        return self.up and self.replica is not None and isinstance(self.replica.role, Leader)
