"""Appends of clients: what can never be taken gets into no log, and the rest is answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from stretto.control import ModuleDescription
from stretto.errors import PeerError
from stretto.options import OptionSet
from stretto.pstate.changes import Changes
from stretto.pstate.changes import pack as pack_changes
from stretto.replog.core import effects, events
from stretto.replog.core.effects import Refusal
from stretto.replog.core.producers import ROUNDS_MAX, named_producer_id, sequence_in
from stretto.replog.frame import Kind
from stretto.specs.modules import DepotSpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId, WorkerId
from stretto.wire import messages as wire
from stretto.worker.clients import MARKER_BYTES_MAX, Clients
from stretto.worker.replica.tickets import Tickets

KEY = GroupKey("M", 1, 0)
NAMED = named_producer_id(5, lasting=True)
RECORDS = pack("events", [b"a", b"b"])
CHANGES = pack_changes({"counts": Changes(puts=((b"k", b"v"),))})


class World:
    """A worker of a module with one depot and one PState, and a group that keeps what it is asked."""

    def __init__(self) -> None:
        self.replies: list[wire.ToClient] = []
        self.steps: list[events.Append] = []
        self.room = True
        self.group = SimpleNamespace(
            key=KEY,
            plan=SimpleNamespace(tasks=(TaskId(1),)),
            leader=None,
            meter=MagicMock(),
            step=self.steps.append,
            has_room_for=lambda *_: self.room,
            bases={},
            depot_ends={},
        )
        self.tickets = Tickets()
        self.worker = MagicMock(groups={KEY: self.group}, options=OptionSet(), tickets=self.tickets)
        self.worker.config.module = "M"
        pstate = SimpleNamespace(name="counts")
        self.worker.description = ModuleDescription(
            tasks=4, depots=(DepotSpec(name="events"),), pstates=cast(Any, (pstate,))
        )
        self.worker.transport.reply = lambda _, reply: self.replies.append(reply)
        self.clients = Clients(self.worker)

    def append(
        self,
        body: bytes = RECORDS,
        *,
        kind: Kind = Kind.DEPOT,
        task: int = 1,
        producer: int = 7,
        sequence: int = 0,
        count: int = 2,
        is_worker: bool = False,
        **more: Any,
    ) -> None:
        message = wire.AppendBatch(
            9, more.pop("group", KEY), kind, TaskId(task), ProducerId(producer), sequence, count, **more
        )
        self.clients.received(b"client", message, [memoryview(body)] if body else [], is_worker=is_worker)


@pytest.fixture
def world() -> World:
    return World()


GOOD: list[dict[str, Any]] = [
    {},
    {"producer": 0},
    {"sequence": (1 << 64) - 3},
    {"producer": NAMED, "sequence": sequence_in(ROUNDS_MAX - 1, 0)},
    {"kind": Kind.PRODUCER_OPEN, "body": b"", "count": 1},
    {"kind": Kind.PRODUCER_OPEN, "body": b"", "count": 1, "task": 3},
    {"kind": Kind.MARKER, "body": b"x", "count": 1, "producer": 0},
    {"kind": Kind.MARKER, "body": b"x" * MARKER_BYTES_MAX, "count": 1, "producer": 0, "task": 3},
    {"kind": Kind.CLAIM, "body": b"", "count": 1, "producer": NAMED},
    {"kind": Kind.STATE, "body": CHANGES, "count": 1, "producer": 0, "is_worker": True},
]

BAD: list[tuple[dict[str, Any], str]] = [
    ({"task": -1}, "no entry has such a task"),
    ({"task": 1 << 32}, "no entry has such a task"),
    ({"count": 0}, "no entry has such a task"),
    ({"count": 1 << 32}, "no entry has such a task"),
    ({"producer": -1}, "no entry has such a task"),
    ({"sequence": -1}, "no entry has such a task"),
    ({"sequence": (1 << 64) - 2}, "no entry has such a task"),
    ({"kind": Kind.PRODUCER_OPEN, "body": b"", "count": 1, "producer": 0}, "a producer's id is"),
    ({"kind": Kind.PRODUCER_OPEN, "body": b"", "count": 1, "producer": NAMED}, "a producer's id is"),
    ({"kind": Kind.PRODUCER_OPEN, "body": b"", "count": 2}, "a producer's id is"),
    ({"kind": Kind.MARKER, "body": b"", "count": 1, "producer": 0}, "a marker is a name"),
    ({"kind": Kind.MARKER, "body": b"x" * 65, "count": 1, "producer": 0}, "a marker is a name"),
    ({"kind": Kind.MARKER, "body": b"x", "count": 1}, "a marker is a name"),
    ({"kind": Kind.MARKER, "body": b"x", "count": 2, "producer": 0}, "a marker is a name"),
    ({"kind": Kind.CLAIM, "body": b"", "count": 1}, "only a named producer"),
    ({"kind": Kind.CLAIM, "body": b"x", "count": 1, "producer": NAMED}, "only a named producer"),
    ({"kind": Kind.CLAIM, "body": b"", "count": 2, "producer": NAMED}, "only a named producer"),
    ({"kind": Kind.EPOCH, "body": b"", "count": 1}, "clients append records, not EPOCH"),
    ({"kind": Kind.SEAL, "body": b"", "count": 1}, "clients append records, not SEAL"),
    ({"producer": NAMED, "sequence": sequence_in(1, 0) - 1}, "a named producer appends at most"),
    (
        {"kind": Kind.STATE, "body": CHANGES, "count": 1, "producer": NAMED, "is_worker": True},
        "a named producer appends at most",
    ),
    ({"count": 3}, "the batch holds 2 records, not 3"),
    ({"body": b"no batch"}, ""),
    ({"body": pack("event", [b"a", b"b"])}, "module M has no depot event; did you mean events?"),
    (
        {"kind": Kind.STATE, "body": CHANGES, "count": 2, "is_worker": True},
        "changes of PStates are one entry",
    ),
    ({"kind": Kind.STATE, "body": b"?", "count": 1, "is_worker": True}, ""),
    ({"task": 2}, "task 2 is not in group"),
    ({"kind": Kind.CLAIM, "body": b"", "count": 1, "producer": NAMED, "task": 2}, "task 2 is not in group"),
]


@pytest.mark.parametrize("append", GOOD)
def test_what_a_log_can_hold_is_taken_as_it_is(world: World, append: dict[str, Any]) -> None:
    world.append(**append)
    assert world.replies == []
    [event] = world.steps
    kind = append.get("kind", Kind.DEPOT)
    assert (event.kind, event.task) == (kind, append.get("task", 1))
    assert event.producer == append.get("producer", 7)
    assert event.sequence == append.get("sequence", 0)
    assert event.count == append.get("count", 2)
    assert bytes(event.payload) == append.get("body", RECORDS)
    assert event.until_applied == (kind in {Kind.MARKER, Kind.STATE}), (
        "producers wait for no more than needed"
    )
    assert event.timestamp_ms > 1_600_000_000_000


@pytest.mark.parametrize(("append", "why"), BAD)
def test_what_no_log_can_hold_is_refused(world: World, append: dict[str, Any], why: str) -> None:
    world.append(**append)
    [reply] = world.replies
    assert isinstance(reply, wire.Failed)
    assert (reply.request, reply.fault) == (9, wire.Fault.USAGE)
    assert why in reply.why
    assert world.steps == []


@pytest.mark.parametrize(
    ("is_finishing", "awaits", "is_refused"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_leader_that_finishes_before_it_hands_over_takes_nobody_who_would_wait(
    world: World, is_finishing: bool, awaits: bool, is_refused: bool
) -> None:
    cast(Any, world.group).leader = SimpleNamespace(handover=SimpleNamespace(is_finishing=is_finishing))
    world.append(awaits_streams=awaits)
    assert len(world.steps) == (not is_refused)
    refused = wire.Refused(9, Refusal.HANDING_OVER, None, Epoch(0))
    assert world.replies == ([refused] if is_refused else [])


def test_a_depot_for_which_there_is_no_room_is_refused(world: World) -> None:
    world.room = False
    world.append()
    assert "depots, and takes no other" in cast(wire.Failed, world.replies[0]).why
    world.append(b"", kind=Kind.CLAIM, count=1, producer=NAMED)
    assert len(world.steps) == 1, "a claim needs none"


def test_clients_change_no_pstates(world: World) -> None:
    world.append(CHANGES, kind=Kind.STATE, count=1)
    assert "append records to its depots" in cast(wire.Failed, world.replies[0]).why
    assert world.steps == []


def test_a_group_that_is_not_here_is_refused_and_its_leader_not_known(world: World) -> None:
    world.append(group=GroupKey("M", 1, 5))
    assert world.replies == [wire.Refused(9, Refusal.NOT_LEADER, None, Epoch(0))]
    assert world.steps == []


@pytest.mark.parametrize(
    ("result", "reply"),
    [
        (effects.Acked(offset=Offset(3)), wire.Appended(9, Offset(3))),
        (
            effects.Refused(reason=Refusal.STALLED, leader=WorkerId("w"), epoch=Epoch(2)),
            wire.Refused(9, Refusal.STALLED, WorkerId("w"), Epoch(2)),
        ),
        (effects.Unknown(), wire.Unknown(9)),
    ],
)
def test_an_append_is_answered_once_as_it_came_out(
    world: World, result: effects.Result, reply: wire.ToClient
) -> None:
    world.append()
    world.tickets.deliver(world.steps[0].request, result)
    assert world.replies == [reply]
    world.tickets.deliver(world.steps[0].request, result)
    assert world.replies == [reply]


def test_an_entry_of_the_workers_own_is_told_to_whoever_appended_it(world: World) -> None:
    heard: list[effects.Result] = []
    world.clients.append_own(cast(Any, world.group), Kind.TRIM, TaskId(1), b"payload", heard.append)
    [event] = world.steps
    assert (event.kind, event.producer, event.count, event.until_applied) == (Kind.TRIM, 0, 1, True)
    world.append()
    assert world.steps[1].request != event.request
    world.tickets.deliver(event.request, effects.Unknown())
    assert heard == [effects.Unknown()]
    assert world.replies == []


def test_a_depot_with_a_time_of_its_own_has_that(world: World) -> None:
    world.append()
    assert world.steps[0].timeout_ms is None
    world.clients._append_timeout_ms = cast(Any, SimpleNamespace(special={"events": 77}))
    world.append()
    assert world.steps[1].timeout_ms == 77
    world.append(b"", kind=Kind.CLAIM, count=1, producer=NAMED)
    assert world.steps[2].timeout_ms is None


def test_messages_between_workers_are_no_requests_of_a_client(world: World) -> None:
    with pytest.raises(PeerError, match="not a request of a client"):
        world.clients.received(
            b"client", cast(Any, wire.Replicate(KEY, cast(Any, None))), [], is_worker=False
        )


def test_each_request_goes_to_whom_it_concerns(world: World) -> None:
    worker = world.worker
    metadata = wire.GetMetadata(1)
    world.clients.received(b"client", metadata, [], is_worker=False)
    worker.metadata.asked.assert_called_once_with(b"client", metadata)
    world.clients.received(b"client", wire.Cancel(5), [], is_worker=False)
    worker.queries.cancelled.assert_called_once_with(b"client", 5)
    for read in (
        wire.ReadRows(2, KEY, "nothing", (TaskId(1),), (b"k",)),
        wire.ReadDepot(3, KEY, TaskId(1), "event", 0, 100, True),
        wire.ReadDepot(4, KEY, TaskId(1), "events", -1, 100, True),
        wire.ReadDepot(5, KEY, TaskId(1), "events", 0, 100, False, 0, wire.Stale(100)),
        wire.FindOffset(6, KEY, TaskId(1), "event", None),
        wire.ScanRows(7, KEY, TaskId(1), "nothing", b"", b"\xff", 1),
    ):
        world.clients.received(b"client", read, [], is_worker=False)
        failed = cast(wire.Failed, world.replies[-1])
        assert (failed.request, failed.fault) == (read.request, wire.Fault.USAGE)
    assert len(world.replies) == 6
