"""Reads of clients at a replica that is real but for its clock, its disk and its threads: what they are
answered by, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto.control import ModuleDescription
from stretto.options import OptionSet
from stretto.pstate.changes import Changes
from stretto.pstate.changes import pack as pack_changes
from stretto.pstate.types import describe
from stretto.replog.core import effects, events
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.specs.modules import PStateSpec
from stretto.vocabulary.types import Epoch, Millis, Offset, ProducerId
from stretto.wire import messages as wire
from stretto.worker.reads.page_residency import ENOUGH_KEYS
from stretto.worker.reads.reads import Reads
from stretto.worker.replica.group import Group
from stretto.worker.replica.tickets import Tickets
from tests.support.core_group import ALL, SETTINGS, W0, W1, settings
from tests.unit.worker.replica.driving import KEY, TASK, Driven

PSTATE = "counts"
PUT = 1_000
"""A number that no read has."""
COUNTS = PStateSpec(name=PSTATE, type=describe(dict[str, str]))


class Reading:
    """The reads of a worker that has one group, of which all rows are known to be in memory."""

    def __init__(self, folder: Path) -> None:
        self.replies: dict[int, wire.ToClient] = {}
        self.driven = driven = Driven(folder, settings(min_isr=1))
        worker = SimpleNamespace(
            loop=driven,
            applier=SimpleNamespace(read=driven.run),
            groups={KEY: driven.group},
            transport=SimpleNamespace(reply=self._replied),
            config=SimpleNamespace(module="counts"),
            options=OptionSet({}),
            description=ModuleDescription(tasks=1, depots=(), pstates=(COUNTS,)),
        )
        self.tickets = Tickets()
        self.reads = Reads(cast(Any, worker), self.tickets)
        self.reads._points.residence.looked_up(ENOUGH_KEYS, waits=0)
        driven.sample = self.tickets.sample
        driven.is_tailed = False

    def _replied(self, _: object, reply: Any, __: object = ()) -> None:
        self.replies[reply.request] = reply

    def lead(self) -> None:
        self.driven.lead()
        self.driven.group.step(events.LeaseRenewed(sent_at=Millis(self.driven.now)))

    def put(self, value: bytes) -> None:
        """It is acknowledged; it is not applied."""
        change = pack_changes({PSTATE: Changes(puts=((b"k", value),))})
        self.driven.group.step(
            events.Append(
                request=PUT,
                kind=Kind.STATE,
                task=TASK,
                producer=ProducerId(0),
                sequence=0,
                count=1,
                payload=change,
                timestamp_ms=0,
            )
        )
        self.driven.end_turn()
        assert isinstance(self.driven.replies.pop(PUT), effects.Acked)

    def get(self, request: int, *, stale: wire.Stale | None = None) -> None:
        self.reads.received(b"client", wire.ReadRows(request, KEY, PSTATE, (TASK,), (b"k",), stale))

    def apply(self) -> None:
        self.driven.is_tailed = True
        self.driven.group.reconsider()
        self.driven.end_turn()
        self.driven.apply_all()
        for request, result in list(self.driven.replies.items()):
            self.tickets.deliver(request, result)
        self.driven.replies.clear()

    def lease_ends_during_the_next_look_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        state = self.driven.group.state
        look_up = state.look_up

        def slow(*args: Any, **options: Any) -> Any:
            found = look_up(*args, **options)
            self.driven.clock = self.driven.now + SETTINGS.lease_ms
            return found

        monkeypatch.setattr(state, "look_up", slow)


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Reading]:
    reading = Reading(tmp_path)
    yield reading
    reading.driven.close()


def test_a_point_read_is_answered_by_all_that_was_acknowledged_before_it(reading: Reading) -> None:
    reading.lead()
    reading.put(b"one")
    reading.get(1)
    reading.driven.end_turn()
    assert reading.replies == {}, "it waits for what is acknowledged and not applied"
    reading.apply()
    reading.get(2)
    end = reading.driven.group.state.applied
    assert reading.replies == {number: wire.RowValues(number, (b"one",), Epoch(1), end) for number in (1, 2)}


def test_a_lease_that_ends_while_a_point_read_looks_its_row_up_answers_nothing(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row may be an old one: another leader may have acknowledged others since the lease ended."""
    reading.lead()
    reading.put(b"one")
    reading.apply()
    reading.lease_ends_during_the_next_look_up(monkeypatch)
    reading.get(1)
    assert reading.replies == {1: wire.Refused(1, Refusal.NO_LEASE, W0, Epoch(1))}


def test_a_lease_that_ends_while_a_read_that_had_to_wait_looks_its_row_up_answers_nothing(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading.lead()
    reading.put(b"one")
    reading.get(1)
    reading.driven.end_turn()
    assert reading.replies == {}
    reading.lease_ends_during_the_next_look_up(monkeypatch)
    reading.apply()
    assert reading.replies == {1: wire.Refused(1, Refusal.NO_LEASE, W0, Epoch(1))}


def test_a_replica_that_does_not_lead_or_has_stopped_answers_nothing_at_once(reading: Reading) -> None:
    group = reading.driven.group
    at_once = [group.answers_at_once]
    reading.lead()
    at_once.append(group.answers_at_once)
    group.step(events.StorageFailed(why="a bad sector", suspect=False))
    at_once.append(group.answers_at_once)
    assert at_once == [False, True, False]


def test_stale_reads_that_are_one_wait_for_all_that_any_of_their_readers_has_seen(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a reader who has seen more is shown less than before."""
    reading.driven.follow(W1, ALL)
    stepped: list[events.Event] = []
    monkeypatch.setattr(Group, "step", lambda _, event: stepped.append(event))
    seen = ((3, 2), (9, 1), (5, 4))
    for number, (after, epoch) in enumerate(seen):
        reading.get(number, stale=wire.Stale(1_000, Offset(after), Epoch(epoch)))
    reading.driven.end_turn()
    [read] = stepped
    assert isinstance(read, events.Read)
    assert (read.max_staleness_ms, read.after, read.after_epoch) == (1_000, 9, 4)
