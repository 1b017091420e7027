"""One replica of a task group in a worker: the thin driver of the replication core.

It receives, steps, and carries out the effects, in their order. What takes time is done elsewhere and comes
back as an event: the committer thread writes the log, others shorten it, the applier thread writes the
applied state and reads it, the metastore's threads talk to ZooKeeper. A truncation makes effects wait: it
must not meet a write in flight, and what follows it must not overtake it. Entries for followers wait for the
end of the loop's turn, so that all that a turn appended travels in one message; then the committer is told,
once, and the next deadline is looked up.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, assert_never

import structlog

from stretto import control
from stretto.errors import StorageCorrupt, StorageError
from stretto.replog.commit import GroupCommit
from stretto.replog.core import effects, events
from stretto.replog.core.effects import Effect
from stretto.replog.core.events import Event
from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.record import Registration
from stretto.replog.core.replica import Recovered, Replica
from stretto.replog.core.settings import Identity, Settings
from stretto.replog.frame import Frame, Kind, payload
from stretto.replog.log import Replog
from stretto.replog.storage import EpochStart
from stretto.specs.assignments import GroupPlan
from stretto.state.environment import DEPOTS_MAX
from stretto.state.removal import Drop
from stretto.state.removal import parse as parse_removal
from stretto.vocabulary import records
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Epoch, Incarnation, Offset, TaskId, WorkerId
from stretto.wire import messages as wire
from stretto.worker.replica.apply_batching import Gathering
from stretto.worker.replica.outbox import Outbox
from stretto.worker.replica.shortening import Shortening
from stretto.worker.replica.views import Since, replica_view

if TYPE_CHECKING:
    from stretto.catchup.transfers import Transfers
    from stretto.network.loop import Loop
    from stretto.network.transport import Transport
    from stretto.state.applied import AppliedState
    from stretto.worker.replica.applier import Applier
    from stretto.worker.replica.disk import DiskThreads
    from stretto.worker.replica.meter import Meter
    from stretto.worker.replica.storage import ReplicaStorage
    from stretto.worker.replica.tickets import Tickets

BASES_KEPT = 1_000
"""How many applied depot entries a replica remembers the places of. An append that is sent again, also to the
next leader, is answered with where its records are."""
NO_BLOB = (Offset(-1), Offset(-1), b"")
SOON_MS = 20
"""How late a deadline may be noticed, in milliseconds: while a timer is due so soon, no earlier one is looked
for."""
#: Frequent events that need no look at the role: whatever they change beside offsets comes with a note.
BUSY = frozenset(
    {
        events.Received,
        events.Append,
        events.Persisted,
        events.Sent,
        events.Applied,
        events.Tick,
        events.Read,
        events.Sampled,
        events.ClockRead,
        events.LeaseRenewed,
    }
)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class Metastore(Protocol):
    """What a replica needs of the metastore; answers come back as events."""

    def compare_and_set(self, group: GroupKey, effect: effects.CompareAndSet) -> None: ...

    def read(self, group: GroupKey, effect: effects.ReadRecord) -> None: ...

    def check(self, group: GroupKey, registration: Registration) -> None: ...

    def look_for_members(self, group: GroupKey, token: int) -> None: ...

    def forget_resign(self, group: GroupKey, epoch: Epoch) -> None: ...


class Replicas(Protocol):
    """What opened the replica, and closes it."""

    def stop(self, group: Group, why: str, *, renew: bool) -> None:
        """Stop a replica that must not go on. It is opened again later, renewed if its folder is suspect."""
        ...


class Host(Protocol):
    """The worker, as its replicas see it."""

    loop: Loop
    commit: GroupCommit
    applier: Applier
    disk: DiskThreads
    tickets: Tickets

    @property
    def transport(self) -> Transport: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def metastore(self) -> Metastore: ...

    worker: WorkerId

    def finish_work(self, group: Group, epoch: Epoch) -> None:
        """Finish the work that a client waits for, begin no more of it, and then step WorkFinished."""
        ...

    def meter(self, group: GroupKey) -> Meter:
        """Return the meter of the group's replicas here, which also counts for those before this one."""
        ...

    def on_growth(
        self,
        group: Group,
        tasks: Collection[TaskId],
        depots: Mapping[tuple[TaskId, str], DepotOffset],
        end: Offset,
    ) -> None:
        """React to entries of these tasks that were applied, all below ``end``. ``depots`` has the new ends
        of those depots that have grown."""
        ...

    def awaits_growth(self, group: Group) -> bool:
        """Whether anybody waits for the group to grow."""
        ...

    def on_role_change(self, group: Group) -> None:
        """React to a change of the replica's role, of its epoch, or of whether it serves."""
        ...

    @property
    def catchup(self) -> Transfers: ...


class Group:
    """The driver of one replica: steps the core and carries out its effects. The loop owns it, like its
    log."""

    def __init__(
        self,
        host: Host,
        plan: GroupPlan,
        identity: Identity,
        settings: Settings,
        *,
        log: Replog,
        state: AppliedState,
        unapplied: Sequence[Frame],
    ) -> None:
        """Make the driver of an opened replica; ``unapplied`` is what the log holds from where the state
        ends."""
        self.host = host
        self.plan = plan
        self.key = plan.key
        self.log = log
        self.state = state
        self.closed = False
        self.meter = host.meter(plan.key)
        #: Whether a write counts only once it is synced; changed by FsyncSwitch.
        self.fsync_always = True
        #: Set by the applier: what comes after a failed batch must not be applied.
        self.apply_failed = False
        #: Looked at by the applier: whether the loop is to be woken for what is applied.
        self.awaits_applied = True
        self._log = structlog.get_logger().bind(group=str(plan.key), worker=host.worker)
        #: Frames that are in the log and not yet handed to the applier.
        self._unapplied: deque[Frame] = deque(unapplied)
        self._gathering = Gathering(state.applied, self._apply, host.loop.call_after)
        #: Runs that were handed to the applier: the end of each, its entries, and where their depots end
        #: then.
        self._applying: deque[tuple[Offset, list[Frame], dict[tuple[TaskId, str], DepotOffset]]] = deque()
        #: Where depots end with all that was handed to the applier, and with all that is applied.
        self._coming_ends: dict[tuple[TaskId, str], DepotOffset] = {}
        self.depot_ends: dict[tuple[TaskId, str], DepotOffset] = {}
        #: The version of the latest deletions among all that was handed to the applier, by task.
        self._coming_dropped: dict[TaskId, int] = {}
        #: Where the records of a depot entry are in the depot, by the entry's offset; of entries that are
        #: being applied, or lately were.
        self.bases: dict[Offset, DepotOffset] = {}
        self._find_depots()
        #: How many runs were applied, by task.
        self.growth: dict[TaskId, int] = {}
        self._effects: deque[Effect] = deque()
        #: Whether effects wait: for a truncation, which waits for a write in flight and then for the disk, or
        #: for an install.
        self._waits = False
        #: Whether its log and its state are being replaced.
        self.installing = False
        self._shortening = Shortening(host.commit, host.disk)
        self._running = False
        #: Entries for followers that wait for the end of the turn.
        self._outbox = Outbox(
            self._send_entries, self.step, in_next_turn=lambda: host.loop.call_soon(self._begin_turn)
        )
        self._to_commit = False
        self._turn_end_awaited = False
        self._thens: deque[events.Persisted] = deque()
        self._deadline: int | None = None
        #: Names of depots that the epoch's appends may create, by task.
        self._let_in: dict[TaskId, set[str]] = {}
        self._let_in_epoch = Epoch(0)
        #: What was last sent to a follower: start, end and bytes.
        self._last_blob = NO_BLOB
        #: Messages whose entries are being read into memory, and those whose entries are there, by follower.
        self._fetching: dict[WorkerId, effects.SendEntries] = {}
        self._fetched: dict[WorkerId, effects.SendEntries] = {}
        recovered = Recovered(
            log_start=log.start_offset,
            log_end=log.end_offset,
            history=log.history,
            applied=state.applied,
            producers=state.producers(),
            unapplied=tuple(frame.header for frame in unapplied),
        )
        self.replica = Replica(identity, recovered, settings)
        self.since = Since(self.replica, host.loop.now)

    # Events in, effects out.

    def step(self, event: Event) -> None:
        """Step the core and carry out what it wants. Raises InvariantViolation for whatever goes wrong: a
        replica that stands between two states must not go on, although the cause of the event would answer an
        error and do so."""
        if self.closed:
            return
        begun = perf_counter()
        try:
            self._effects += self.replica.step(event, self.host.loop.now)
            if type(event) not in BUSY:
                self.since.look(self.replica, self.host.loop.now)
                self.host.on_role_change(self)
            self._await_turn_end()
            if not self._running:
                if self._effects:
                    self._carry_out_all()
                self.meter.busy_seconds += perf_counter() - begun
        except Exception as error:
            values = {"group": self.key, "event": type(event).__name__, "error": error}
            raise InvariantViolation("a step of a replica was not carried out", values) from error

    def answer_sampled(self, request: int) -> effects.Result:
        """Whether what was just looked up may be shown. To be called only if it :attr:`answers_at_once`;
        nothing changes."""
        begun = perf_counter()
        match self.replica.step(events.Read(request=request, is_sampled=True), self.host.loop.now):
            case [effects.Reply(result=result)]:
                self.meter.busy_seconds += perf_counter() - begun
                return result
            case happened:
                raise InvariantViolation("a sampled read is not answered", {"effects": happened})

    def reconsider(self) -> None:
        """Look again, at the end of the turn, whether somebody waits for what is applied."""
        self._await_turn_end()

    def _await_turn_end(self) -> None:
        if not self._turn_end_awaited:
            self._turn_end_awaited = True
            self.host.loop.at_turn_end(self._end_turn)

    def _end_turn(self) -> None:
        if self.closed:
            return
        try:
            # What this leads to in the core is dealt with below.
            self._outbox.send_turn()
        except (StorageError, StorageCorrupt) as error:
            self._turn_end_awaited = False
            self.storage_failed(error)
            return
        self._turn_end_awaited = False
        if self._to_commit:
            self._to_commit = False
            self.host.commit.submit(self.log, durable=self.fsync_always)
        if self._thens:
            self.host.commit.expect(self.log, awaited=self.replica.awaits_durable)
        self.awaits_applied = self.replica.awaits_applied or self.host.awaits_growth(self)
        self._gathering.end_turn(awaited=self.awaits_applied)
        self._schedule()

    def storage_failed(self, error: StorageError | StorageCorrupt) -> None:
        """Report to the core that the log failed; the replica stops."""
        self.step(events.StorageFailed(why=str(error), suspect=not is_lack_of_space(error)))

    def _carry_out_all(self) -> None:
        """Effects of one step before those of the next; a step made meanwhile only adds to the queue."""
        self._running = True
        try:
            while self._effects and not self._waits and not self.closed:
                self._carry_out(self._effects.popleft())
        except (StorageError, StorageCorrupt) as error:
            self._running = False
            self.storage_failed(error)
        finally:
            self._running = False

    def _carry_out(self, effect: Effect) -> None:
        host = self.host
        match effect:
            case effects.Persist(frames=frames, then=then):
                self.log.append(frames)
                self._unapplied += frames
                if self.replica.leading is not None:
                    self.meter.created(frames)
                self._commit(then)
            case effects.Send(to=to, message=message):
                host.transport.send(to, wire.Replicate(self.key, message))
            case effects.SendEntries():
                self._outbox.put(effect)
            case effects.Apply(end=end):
                self.meter.decided(end)
                self._gathering.put(end)
            case effects.Reply(request=request, result=result):
                host.tickets.deliver(request, result)
            case effects.Truncate(end=end, then=then):
                self._outbox.send_all()
                self._waits = True
                host.commit.when_quiet(self.log, lambda: self._truncate(end, then))
            case effects.Cut(start=start):
                self._shortening.cut(self.log, start, self._on_cut, self.storage_failed)
            case effects.CompareAndSet():
                host.metastore.compare_and_set(self.key, effect)
            case effects.ReadRecord():
                host.metastore.read(self.key, effect)
            case effects.CheckRegistration(registration=registration):
                host.metastore.check(self.key, registration)
            case effects.LookForMembers(token=token):
                host.metastore.look_for_members(self.key, token)
            case effects.ForgetResign(epoch=epoch):
                host.metastore.forget_resign(self.key, epoch)
            case effects.FinishWork(epoch=epoch):
                host.finish_work(self, epoch)
            case effects.Sample(request=request):
                host.tickets.sample(self, request)
            case effects.ReadClock():
                # In the next turn, which begins with a look at the clock.
                host.loop.call_soon(self.step, events.ClockRead())
            case effects.ServeState():
                host.catchup.serving.serve_state(self, effect)
            case effects.StopServing(to=to):
                host.catchup.serving.stop_serving(self, to)
            case effects.FetchState():
                host.catchup.receiving.fetch_state(self, effect)
            case effects.InstallState(end=end):
                self._waits = self.installing = self._gathering.rests = True
                host.commit.when_quiet(self.log, lambda: host.catchup.receiving.install(self, end))
            case effects.SetAside(why=why):
                host.replicas.stop(self, why, renew=True)
            case effects.Stop(why=why, renew=renew):
                host.replicas.stop(self, why, renew=renew)
            case effects.Note(event=event, fields=fields):
                self._log.info(event, **fields)
                self.meter.noted(event, fields)
                self.since.look(self.replica, host.loop.now)
                host.on_role_change(self)
            case _:
                assert_never(effect)

    def _schedule(self) -> None:
        if self._deadline is not None and self._deadline <= self.host.loop.now + SOON_MS:
            return
        deadline = self.replica.next_deadline()
        if deadline is not None and (self._deadline is None or deadline < self._deadline):
            self._deadline = deadline
            self.host.loop.call_at(deadline, self._tick, deadline)

    def _tick(self, deadline: int) -> None:
        if self._deadline == deadline:
            self._deadline = None
            self.step(events.Tick())

    # The log.

    def _commit(self, then: events.Persisted) -> None:
        self._thens.append(then)
        self._to_commit = True
        self._await_turn_end()

    def on_committed(self, end: Offset | StorageError) -> None:
        """Handle the end of a round of the committer. Of the writes that it covers, only the last is reported
        to the core."""
        if isinstance(end, StorageError):
            self.storage_failed(end)
            return
        confirmed = end if self.fsync_always else self.log.written_end_offset
        reached: events.Persisted | None = None
        while self._thens and self._thens[0].end <= confirmed:
            reached = self._thens.popleft()
        if reached is not None:
            self.step(reached)

    def _on_cut(self, start: Offset) -> None:
        self.step(events.LogCut(start=start))

    def _truncate(self, end: Offset, then: events.Persisted) -> None:
        """Truncate the log. To be called when no write is in flight."""
        if not self.closed:
            self._shortening.truncate(
                self.log, end, lambda: self._on_truncated(end, then), self._on_truncation_failed
            )

    def _on_truncation_failed(self, error: StorageError | StorageCorrupt) -> None:
        self._waits = False
        self.storage_failed(error)

    def _on_truncated(self, end: Offset, then: events.Persisted) -> None:
        if self.closed:
            return
        self._waits = False
        self._thens.clear()
        self._last_blob = NO_BLOB
        while self._unapplied and self._unapplied[-1].header.offset >= end:
            self._unapplied.pop()
        if self.log.durable_end_offset >= then.end:
            self.step(then)
        else:
            self._commit(then)
        if not self._running:
            self._carry_out_all()

    def _begin_turn(self) -> None:
        self._outbox.begin_turn()
        self._await_turn_end()

    def _send_entries(self, effect: effects.SendEntries) -> events.Sent | None:
        leader = self.replica.leading
        if leader is None or leader.epoch != effect.message.epoch:
            # By now the log may hold what another leader decided.
            return None
        if effect.start < self.log.start_offset:
            # Cut since the core last heard of it; it probes what was not sent, and finds so.
            return None
        log_end = self.log.end_offset
        is_fetched = self._fetched.pop(effect.to, None) is effect
        start, end, blob = self._last_blob
        if (start, end) != (effect.start, log_end) or effect.to in self._fetching:
            # Not what another follower got just now.
            if not is_fetched and self._waits_for_disk(effect):
                return None
            chunk = self.log.read(effect.start, log_end, effect.max_bytes)
            end, blob = chunk.end, b"".join(chunk.buffers)
            self._last_blob = (effect.start, end, blob)
        message = wire.Replicate(self.key, effect.message)
        self.host.transport.send(effect.to, message, (blob,) if blob else ())
        return events.Sent(to=effect.to, incarnation=effect.message.to, attempt=effect.attempt, end=end)

    def _waits_for_disk(self, effect: effects.SendEntries) -> bool:
        """Whether the entries of a message have to be read from the disk first. Then they are fetched on a
        thread, and sent in a later turn: the loop reads from memory only, one message for each follower in a
        turn."""
        to = effect.to
        if to not in self._fetching:
            fetch = self.log.absent(effect.start, effect.max_bytes)
            if fetch is None:
                return False
            self.host.catchup.threads.run(fetch, lambda _: self._on_entries_fetched(effect))
        # The latest is what the core wants.
        self._fetching[to] = effect
        return True

    def _on_entries_fetched(self, effect: effects.SendEntries) -> None:
        latest = self._fetching.pop(effect.to)
        if not self.closed:
            if latest is effect:
                self._fetched[effect.to] = effect
            self._outbox.put(latest)
            self._await_turn_end()

    # The applied state.

    def _apply(self, end: Offset) -> None:
        if self.closed:
            return
        frames = []
        while self._unapplied and self._unapplied[0].end_offset <= end:
            frames.append(self._unapplied.popleft())
        self._applying.append((end, frames, self._placed(frames)))
        self.host.applier.apply(self, frames, end)

    def _placed(self, frames: list[Frame]) -> dict[tuple[TaskId, str], DepotOffset]:
        grown: dict[tuple[TaskId, str], DepotOffset] = {}
        for frame in frames:
            header = frame.header
            if header.kind is Kind.DEPOT:
                key = (header.task, records.head(payload(frame))[0])
                base = self._coming_ends.get(key, DepotOffset(0))
                self.bases[header.offset] = base
                self._coming_ends[key] = grown[key] = DepotOffset(base + header.count)
            elif header.kind is Kind.TRIM:
                self._place_removal(frame, grown)
        return grown

    def _place_removal(self, frame: Frame, grown: dict[tuple[TaskId, str], DepotOffset]) -> None:
        """Note what a removal does to the ends of depots: a depot that is dropped begins anew."""
        task, removal = frame.header.task, parse_removal(payload(frame))
        if isinstance(removal, Drop) and removal.version > self._coming_dropped[task]:
            self._coming_dropped[task] = removal.version
            applied = self.replica.applied
            self.bases = {offset: base for offset, base in self.bases.items() if offset >= applied}
            for key in [(task, name) for name in removal.names]:
                if key in self._coming_ends:
                    self._coming_ends[key] = grown[key] = DepotOffset(0)

    def _find_depots(self) -> None:
        self._coming_ends = {
            (task, depot): end
            for task in self.plan.tasks
            for depot, end in self.state.depot_ends(task).items()
        }
        self._coming_dropped = {task: self.state.dropped(task) for task in self.plan.tasks}
        self.depot_ends = dict(self._coming_ends)
        self.bases.clear()

    def on_applied(self, end: Offset) -> None:
        """Handle that everything below ``end`` is applied: step the core, and report which depots have
        grown."""
        self.step(events.Applied(end=end))
        tasks: set[TaskId] = set()
        depots: dict[tuple[TaskId, str], DepotOffset] = {}
        while self._applying and self._applying[0][0] <= end:
            _, frames, ends = self._applying.popleft()
            tasks |= {frame.header.task for frame in frames}
            depots |= ends
        self.depot_ends |= depots
        while len(self.bases) > BASES_KEPT and (first := next(iter(self.bases))) < end:
            del self.bases[first]
        for task in tasks:
            self.growth[task] = self.growth.get(task, 0) + 1
        self.host.on_growth(self, tasks, depots, end)

    # A leader's state takes the place of this one.

    def installed(self, storage: ReplicaStorage, history: tuple[EpochStart, ...]) -> None:
        """Go on with a leader's state, which has taken the place of this replica's log and state."""
        if self.closed:
            return
        self.log, self.state = storage.log, storage.state
        self._unapplied.clear()
        self._gathering.begin_at(self.state.applied)
        self._thens.clear()
        self._last_blob = NO_BLOB
        self._find_depots()
        end = self.state.applied
        producers = self.state.producers()
        self._end_install(events.StateInstalled(end=end, history=history, producers=producers))

    def install_failed(self) -> None:
        """Go on with the old state, since a leader's state was not installed."""
        if not self.closed:
            self._end_install(events.TransferFailed())

    def _end_install(self, event: Event) -> None:
        self._waits = self.installing = False
        self._gathering.go_on()
        self.step(event)

    # For the worker.

    @property
    def answers_at_once(self) -> bool:
        """Whether it leads, and all that is acknowledged is applied, so that a read need not wait for
        anything."""
        replica, leader = self.replica, self.replica.leading
        if leader is None or replica.stopped or self.closed:
            return False
        return replica.applied >= leader.acknowledged_end

    @property
    def leader(self) -> Leader | None:
        """The part of the core that leads, or None if this replica does not."""
        return self.replica.leading

    def session_started(self, incarnation: Incarnation) -> None:
        self.step(events.SessionStarted(incarnation=incarnation))

    def view(self) -> control.ReplicaView:
        """Describe the replica to people."""
        catchup = self.host.catchup.receiving.view(self.key)
        return replica_view(self.replica, self.plan, self.since, self.host.loop.now, catchup)

    def has_room_for(self, task: TaskId, depot: str) -> bool:
        """Whether the task's file can take that depot, with all new ones that were let in before it.

        To be asked while leading: then every entry that is not applied was let in here.
        """
        if self._coming_ends.get((task, depot)):
            # It has records; one that was dropped begins at 0 again.
            return True
        known = self.state.depot_names(task)
        if depot in known or self.leader is None:
            return True
        if self._let_in_epoch != self.leader.epoch:
            self._let_in_epoch = self.leader.epoch
            self._let_in.clear()
        let_in = self._let_in.setdefault(task, set())
        if depot not in let_in and len(let_in | set(known)) >= DEPOTS_MAX:
            return False
        let_in.add(depot)
        return True

    def unapplied_batches(self, task: TaskId, depot: str) -> Iterator[tuple[DepotOffset, Frame]]:
        """Iterate over batches of a depot that are in the log and not known to be applied, each with where it
        is in the depot, or will be."""
        for _, frames, _ in self._applying:
            for frame in frames:
                base = self.bases.get(frame.header.offset)
                if base is not None and _is_of(frame, task, depot):
                    yield base, frame
        at = self._coming_ends.get((task, depot), DepotOffset(0))
        for frame in self._unapplied:
            if _is_of(frame, task, depot):
                yield at, frame
                at = DepotOffset(at + frame.header.count)

    def close(self) -> None:
        """Close the log and the state. The caller has made sure that nothing of the replica is in flight."""
        self.closed = self._gathering.rests = True
        try:
            self.log.close()
        finally:
            self.state.close()


def is_lack_of_space(error: StorageError | StorageCorrupt) -> bool:
    """Whether an error comes from lack of space: then nothing that was written is in doubt, and it passes."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _NO_SPACE


def _is_of(frame: Frame, task: TaskId, depot: str) -> bool:
    header = frame.header
    return header.kind is Kind.DEPOT and header.task == task and records.head(payload(frame))[0] == depot
