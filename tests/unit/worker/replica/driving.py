"""A replica's driver without its worker: a turn of the loop ends, and the disk and the applier work, when the
test says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from stretto.replog.core import effects, events, messages
from stretto.replog.core.record import Registration
from stretto.replog.core.settings import Identity, Settings
from stretto.replog.folder import OsFolder
from stretto.replog.frame import Frame, Kind
from stretto.replog.log import Replog
from stretto.replog.storage import EpochStart
from stretto.specs.assignments import GroupPlan
from stretto.state.applied import AppliedState
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import DepotOffset, pack
from stretto.vocabulary.types import Epoch, Offset, ProducerId, StorageId, TaskId, WorkerId
from stretto.wire import messages as wire
from stretto.worker.replica.group import Group
from stretto.worker.replica.meter import Meter
from tests.support.core_group import ALL, W0, incarnation_of, member, record

TASK = TaskId(0)
KEY = GroupKey("counts", 1, 0)


class Driven:
    """The host of one group, which W0 leads: worker, loop, committer, applier and metastore at once."""

    def __init__(self, folder: Path, settings: Settings, *, segment_bytes: int = 1 << 20) -> None:
        self.worker = W0
        self.now = 10_000
        #: What time it is; the loop goes by what it was when it last looked at the clock.
        self.clock = 10_000
        self.turns = 0
        self.sent: list[tuple[WorkerId, messages.AnyMessage]] = []
        #: Of each that was sent.
        self.bodies: list[tuple[bytes, ...]] = []
        self.replies: dict[int, effects.Result] = {}
        self.stopped: list[str] = []
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._turn_end: list[Callable[[], None]] = []
        self._unapplied: list[tuple[Sequence[Frame], Offset]] = []
        self._works: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.holds = 0
        #: What is to take the place of the state, as it arrived.
        self.installs: list[Offset] = []
        #: Somebody tails what is led here: it is applied at once.
        self.is_tailed = True
        self.sample: Callable[[Group, int], None] = lambda *_: None
        self._meter = Meter()
        self.loop = self.commit = self.applier = self.metastore = self
        self.disk = self.transport = self.replicas = self.tickets = self
        self.catchup = SimpleNamespace(receiving=self, threads=self)
        (folder / "replog").mkdir()
        log = Replog.open(OsFolder(folder / "replog"), segment_bytes=segment_bytes, tail_bytes=0)
        state = AppliedState.open(folder / "state", (TASK,))
        storage: StorageId = member(W0).storage
        identity = Identity(worker=W0, storage=storage, incarnation=incarnation_of(W0), replicas=ALL)
        plan = GroupPlan(KEY, (TASK,), ALL)
        self.group = Group(cast(Any, self), plan, identity, settings, log=log, state=state, unapplied=())

    # The test's.

    def lead(self, isr: Collection[WorkerId] = (W0,)) -> None:
        """As the only member, so that nobody else has to confirm."""
        self.group.step(events.RecordRead(record=record(1, W0, isr), version=1))
        self.end_turn()
        self.apply_all()
        assert self.group.leader is not None
        assert self.group.leader.is_serving

    def append(self, number: int, records: Sequence[bytes], depot: str = "events") -> None:
        self.group.step(
            events.Append(
                request=number,
                kind=Kind.DEPOT,
                task=TASK,
                producer=ProducerId(0),
                sequence=0,
                count=len(records),
                payload=pack(depot, records),
                timestamp_ms=0,
            )
        )

    def join(self, worker: WorkerId, end: int = 0) -> None:
        """It says Hello, and that it has what is below ``end``."""
        incarnation = incarnation_of(worker)
        hello = messages.Hello(
            Epoch(1), incarnation, storage=member(worker).storage, attempt=1, end=Offset(end)
        )
        self.group.step(events.Received(sender=worker, message=hello))
        self.confirm(worker, end)

    def confirm(self, worker: WorkerId, end: int) -> None:
        confirm = messages.Confirm(
            Epoch(1),
            incarnation_of(worker),
            attempt=1,
            end=Offset(end),
            log_end=Offset(end),
            known_apply_offset=Offset(0),
            resume=True,
        )
        self.group.step(events.Received(sender=worker, message=confirm))

    def follow(self, leader: WorkerId, isr: Collection[WorkerId]) -> None:
        """Its log is empty, and part of the leader's."""
        self.group.step(events.RecordRead(record=record(1, leader, isr), version=1))
        self.end_turn()
        self.reconcile(leader)

    def reconcile(
        self,
        leader: WorkerId,
        *,
        epoch: int = 1,
        history: tuple[EpochStart, ...] = (),
        start: int = 0,
        end: int = 0,
        listed: bool = True,
    ) -> None:
        """The leader, whose log holds what is from ``start`` to ``end``, answers the latest Hello."""
        hellos = [message for _, message in self.sent if isinstance(message, messages.Hello)]
        lineage = messages.Lineage(
            Epoch(epoch),
            incarnation_of(leader),
            to=incarnation_of(W0),
            attempt=hellos[-1].attempt,
            history=history,
            start=Offset(start),
            end=Offset(end),
            apply_offset=Offset(start),
            near_lag=100,
            listed=listed,
        )
        self.group.step(events.Received(sender=leader, message=lineage))
        self.end_turn()

    def take(self, leader: WorkerId, frames: Sequence[Frame], apply_offset: int, *, epoch: int = 1) -> None:
        entries = messages.Entries(
            Epoch(epoch),
            incarnation_of(leader),
            to=incarnation_of(W0),
            apply_offset=Offset(apply_offset),
            log_end=self.group.replica.log_end,
            retain_offset=Offset(0),
            probe=False,
        )
        self.group.step(events.Received(sender=leader, message=entries, frames=tuple(frames)))
        self.end_turn()

    @property
    def handed_on(self) -> list[Offset]:
        """Up to where the applier has been told to apply, each time."""
        return [end for _, end in self._unapplied]

    def end_turn(self) -> None:
        """And take what it led to, until nothing is left."""
        while self._turn_end or self._calls:
            functions, self._turn_end = self._turn_end, []
            for function in functions:
                function()
            calls, self._calls = self._calls, []
            for call, args in calls:
                call(*args)
        self.turns += 1

    def work(self) -> None:
        """What was left to other threads."""
        works, self._works = self._works, []
        for work, then in works:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - as a worker's threads do
                result = error
            then(result)
        self.end_turn()

    def write_to_state(self) -> Offset:
        """What was handed to the applier is in the state; the loop has not heard of it."""
        for frames, _ in self._unapplied:
            self.group.state.apply(frames)
        end = self._unapplied[-1][1]
        self._unapplied.clear()
        return end

    def apply_all(self) -> None:
        if self._unapplied:
            self.group.on_applied(self.write_to_state())
            self.end_turn()

    def close(self) -> None:
        self.group.close()

    # The group's: of a loop.

    def look_at_clock(self) -> None:
        self.now = max(self.now, self.clock)

    def call_soon(self, function: Callable[..., None], *args: Any) -> None:
        self._calls.append((function, args))

    def call_at(self, when: int, function: Callable[..., None], *args: Any) -> None:
        """Time stands still."""

    def call_after(self, delay_ms: int, function: Callable[..., None], *args: Any) -> None:
        """Likewise."""

    def at_turn_end(self, function: Callable[[], None]) -> None:
        self._turn_end.append(function)

    # Of a committer.

    def submit(self, log: Replog, *, durable: bool = True) -> None:
        log.sync()
        self.call_soon(lambda: self.group.on_committed(log.durable_end_offset))

    def expect(self, log: Replog, *, awaited: bool) -> None:
        pass

    def when_quiet(self, log: Replog, action: Callable[[], None]) -> None:
        action()

    def hold(self, log: Replog, *, writes: bool) -> Callable[[], None]:
        self.holds += 1

        def release() -> None:
            self.holds -= 1

        return release

    # Of threads for files.

    def run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._works.append((work, then))

    # Of an applier.

    def apply(self, group: Group, frames: Sequence[Frame], end: Offset) -> None:
        self._unapplied.append((frames, end))

    # Of what receives states.

    def fetch_state(self, group: Group, effect: effects.FetchState) -> None:
        """The test says when it has arrived."""

    def install(self, group: Group, end: Offset) -> None:
        self.installs.append(end)

    # Of the metastore.

    def compare_and_set(self, group: GroupKey, effect: effects.CompareAndSet) -> None:
        """It never answers."""

    def check(self, group: GroupKey, registration: Registration) -> None:
        """Nor here."""

    # Of the worker.

    def meter(self, _: GroupKey) -> Meter:
        return self._meter

    def on_growth(
        self,
        group: Group,
        tasks: Collection[TaskId],
        depots: Mapping[tuple[TaskId, str], DepotOffset],
        end: Offset,
    ) -> None:
        pass

    def awaits_growth(self, group: Group) -> bool:
        return self.is_tailed and group.leader is not None

    def on_role_change(self, group: Group) -> None:
        pass

    # Of its parts: the transport, the tickets, the replicas.

    def send(self, to: WorkerId, message: wire.Replicate, bodies: Sequence[bytes] = ()) -> None:
        self.sent.append((to, message.message))
        self.bodies.append(tuple(bodies))

    def deliver(self, number: int, result: effects.Result) -> None:
        self.replies[number] = result

    def stop(self, group: Group, why: str, *, renew: bool) -> None:
        self.stopped.append(why)
        group.closed = True
