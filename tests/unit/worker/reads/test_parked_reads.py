"""Reads that wait at the end of a depot: whatever is applied while they look wakes them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto.errors import UsageError
from stretto.options import OptionSet
from stretto.replog.core import effects, events
from stretto.replog.core.effects import Refusal
from stretto.state.depot import DepotBatch, DepotSlice
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import DepotOffset, pack
from stretto.vocabulary.types import Epoch, Millis, Offset, TaskId
from stretto.wire import messages as wire
from stretto.worker.reads import reads as reads_module
from stretto.worker.reads.parked_reads import PARKED_MAX, ParkedRead, ParkedReads
from stretto.worker.reads.reads import Reads
from stretto.worker.replica.tickets import Tickets
from tests.support.turns import StillLoop

KEY = GroupKey("counts", 1, 0)
TASK = TaskId(3)
SERVED = effects.ReadServed(epoch=Epoch(3))


class Depot:
    """A leader of a group with one depot, its worker and its loop; the test lets the reading thread look."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.applied = Offset(0)
        self.growth: dict[TaskId, int] = {}
        self.replies: list[wire.ToClient] = []
        self.result: effects.Result = SERVED
        self.steps: list[events.Event] = []
        self.reading: list[tuple[Callable[[], None], Callable[[Any], None]]] = []
        self.loop = StillLoop()
        self.state = self
        self.groups = {KEY: self}
        self.transport = self.applier = self
        self.config = SimpleNamespace(module="counts")
        self.description = SimpleNamespace(depots=None, pstates=())
        self.options = OptionSet()
        self.tickets = Tickets()
        self.reads = Reads(cast(Any, self), self.tickets)

    def ask(self, wait_ms: int, *, task: TaskId = TASK) -> None:
        message = wire.ReadDepot(7, KEY, task, "events", len(self.records), 1 << 20, True, wait_ms)
        self.reads.received(b"client", message)

    def look(self) -> Callable[[], None]:
        """The reading thread looks; the loop hears of it when the test calls what is returned."""
        look, then = self.reading.pop(0)
        failure: Exception | None = None
        try:
            look()
        except Exception as error:  # noqa: BLE001 - as a worker's threads do
            failure = error
        return lambda: then(failure)

    def grow(self, record: bytes) -> None:
        """A record is applied, and the loop hears so."""
        self.records.append(record)
        self.growth[TASK] = self.growth.get(TASK, 0) + 1
        self.reads.parked.grown(KEY, [TASK])

    def run(self) -> None:
        """Everything that is due."""
        self.loop.run()
        while self.reading:
            self.look()()
            self.loop.run()

    def pass_ms(self, duration_ms: int) -> None:
        for _ in range(duration_ms // 100):
            self.loop.pass_ms(100)
            self.run()

    @property
    def answers(self) -> list[tuple[int, int]]:
        """First offset and end of each that was answered."""
        return [(each.start, each.end) for each in self.replies if isinstance(each, wire.DepotBatches)]

    # Of the group.

    def step(self, event: events.Event) -> None:
        self.steps.append(event)
        if isinstance(event, events.Read):
            self.tickets.sample(cast(Any, self), event.request)
        elif isinstance(event, events.Sampled):
            self.tickets.deliver(event.request, self.result)

    def read_depot(self, _task: TaskId, _depot: str, offset: DepotOffset, **_: int) -> DepotSlice:
        found = tuple(
            DepotBatch(DepotOffset(at), 0, pack("events", [record]))
            for at, record in enumerate(self.records[offset:], offset)
        )
        return DepotSlice(offset, DepotOffset(offset + len(found)), found)

    def depot_bounds(self, *_: object) -> tuple[int, int]:
        return 0, len(self.records)

    def offset_at(self, *_: object) -> int:
        return 1

    # Of the worker, its applier and its transport.

    def read(self, look: Callable[[], None], then: Callable[[Any], None]) -> None:
        self.reading.append((look, then))

    def reply(self, _: bytes, reply: wire.ToClient, bodies: tuple[bytes, ...] = ()) -> None:
        self.replies.append(reply)


@pytest.fixture
def depot() -> Depot:
    return Depot()


def test_a_read_that_would_be_parked_at_the_moment_of_growth_is_made_again(depot: Depot) -> None:
    depot.ask(wait_ms=5_000)
    depot.loop.run()
    heard = depot.look()
    # It found nothing. What is applied before it is parked wakes nobody, for nobody is parked yet.
    depot.grow(b"a")
    heard()
    depot.run()
    assert depot.answers == [(0, 1)]
    assert not depot.reads.parked.holds(KEY)


def test_growth_of_another_task_leaves_a_read_waiting(depot: Depot) -> None:
    depot.ask(wait_ms=5_000, task=TaskId(1))
    depot.run()
    depot.grow(b"a")
    depot.run()
    assert depot.answers == []
    assert depot.reads.parked.holds(KEY)


def test_a_parked_read_is_answered_by_growth(depot: Depot) -> None:
    depot.ask(wait_ms=5_000)
    depot.run()
    assert depot.answers == []
    depot.grow(b"a")
    depot.run()
    assert depot.answers == [(0, 1)]
    assert depot.reads.parked._count == 0


def test_a_parked_read_is_answered_with_nothing_when_its_time_is_over(depot: Depot) -> None:
    depot.ask(wait_ms=5_000)
    depot.ask(wait_ms=300)
    depot.run()
    depot.pass_ms(200)
    assert depot.answers == []
    depot.pass_ms(200)
    assert depot.answers == [(0, 0)]
    depot.pass_ms(4_700)
    assert depot.answers == [(0, 0), (0, 0)]
    depot.pass_ms(1_000)
    assert depot.loop.timers == 0, "nobody is waited for any more"


def test_no_read_waits_longer_than_the_bound_and_one_without_patience_not_at_all(depot: Depot) -> None:
    depot.ask(wait_ms=0)
    depot.run()
    assert depot.answers == [(0, 0)]
    depot.ask(wait_ms=1_000_000)
    depot.run()
    depot.pass_ms(10_100)
    assert len(depot.answers) == 2


def test_reads_of_a_group_that_moved_are_refused(depot: Depot) -> None:
    depot.ask(wait_ms=5_000)
    depot.run()
    depot.groups.clear()
    depot.reads.parked.group_changed(KEY)
    depot.run()
    assert depot.replies == [wire.Refused(7, Refusal.NOT_LEADER, None, Epoch(0))]
    depot.pass_ms(10_000)
    assert len(depot.replies) == 1
    assert depot.loop.timers == 0


def test_there_is_room_for_so_many_parked_reads_and_no_more(depot: Depot) -> None:
    woken: list[ParkedRead] = []
    parked = ParkedReads(cast(Any, depot.loop), woken.append)
    message = wire.ReadDepot(7, KEY, TASK, "events", 0, 1 << 20, True, 100)
    each = ParkedRead(b"client", message, 1_000_000)
    assert all(parked.park(each) for _ in range(PARKED_MAX))
    assert not parked.park(each)
    assert depot.loop.timers == 1
    parked.grown(KEY, [TASK])
    assert len(woken) == PARKED_MAX
    assert parked.park(each)


def test_offsets_are_found_with_what_was_applied(depot: Depot) -> None:
    depot.records += [b"a", b"b"]
    depot.applied = Offset(7)
    for timestamp_ms, found in ((None, None), (5, 1)):
        depot.reads.received(b"client", wire.FindOffset(7, KEY, TASK, "events", timestamp_ms))
        depot.run()
        assert depot.replies.pop() == wire.DepotOffsets(7, 0, 2, found, Epoch(3), Offset(7))


def test_what_is_not_committed_is_read_too_if_it_is_asked_for(
    depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = DepotSlice(DepotOffset(0), DepotOffset(5))
    monkeypatch.setattr(reads_module, "_with_uncommitted", lambda *_: added)
    for committed, end in ((True, 0), (False, 5)):
        depot.reads.received(b"client", wire.ReadDepot(7, KEY, TASK, "events", 0, 1 << 20, committed, 0))
        depot.run()
        assert depot.answers[-1] == (0, end)


def test_a_read_that_fails_is_told_why(depot: Depot, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> DepotSlice:
        raise UsageError("task 3 is not in this group")

    monkeypatch.setattr(depot, "read_depot", failing)
    depot.ask(wait_ms=5_000)
    depot.run()
    [reply] = depot.replies
    assert isinstance(reply, wire.Failed)
    assert "task 3 is not in this group" in reply.why


@pytest.mark.parametrize(
    ("result", "reply"),
    [
        (
            effects.Refused(reason=Refusal.NO_LEASE, leader=None, epoch=Epoch(3)),
            wire.Refused(7, Refusal.NO_LEASE, None, Epoch(3)),
        ),
        (effects.Unknown(), wire.Unknown(7)),
    ],
)
def test_what_the_core_does_not_serve_is_not_parked(
    depot: Depot, result: effects.Result, reply: wire.ToClient
) -> None:
    depot.result = result
    depot.ask(wait_ms=5_000)
    depot.run()
    assert depot.replies == [reply]
    assert not depot.reads.parked.holds(KEY)


def test_what_others_look_at_is_answered_to_them(depot: Depot) -> None:
    looked: list[str] = []
    told: list[effects.Result] = []

    def look(done: Callable[[], None]) -> None:
        looked.append("looked")
        done()

    depot.reads.elsewhere(cast(Any, depot), look, told.append, max_staleness_ms=Millis(5))
    assert looked == ["looked"]
    assert told == [SERVED]
    assert depot.steps[0] == events.Read(request=1, max_staleness_ms=Millis(5), asks_first=True)
    depot.tickets.deliver(1, SERVED)
    assert told == [SERVED], "an answer is given once"


def test_stale_reads_that_are_one_to_the_core_want_what_the_most_demanding_of_them_wants() -> None:
    def read(stale: wire.Stale) -> reads_module._Read:
        return reads_module._Read(b"client", wire.ReadRows(7, KEY, "p", (TASK,), (b"k",), stale))

    together = reads_module._Together(
        [read(wire.Stale(50, Offset(3), Epoch(9))), read(wire.Stale(50, Offset(8), Epoch(2)))],
        cast(Any, None),
    )
    assert together.event(4) == events.Read(
        request=4, max_staleness_ms=Millis(50), after=Offset(8), after_epoch=Epoch(9)
    )
