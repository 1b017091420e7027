"""What the core answers reaches whoever asked, by one table, whatever was asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from stretto.control import ModuleDescription
from stretto.options import OptionSet
from stretto.replog.core import effects, events
from stretto.replog.frame import Kind
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId
from stretto.wire import messages as wire
from stretto.worker.clients import Clients
from stretto.worker.replica.group import Group
from stretto.worker.replica.tickets import Ticket, Tickets
from stretto.worker.topology.entries import Entries
from tests.support.core_group import settings
from tests.support.turns import StillLoop
from tests.unit.worker.replica.driving import Driven

KEY = GroupKey("M", 1, 0)
TASK = TaskId(0)
ACKED = effects.Acked(offset=Offset(5))
SERVED = effects.ReadServed(epoch=Epoch(3))


class Noting(Ticket):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_reply(self, result: effects.Result) -> None:
        self.heard.append(result)

    def on_sample(self, group: Group, number: int) -> None:
        self.heard.append((group, number))


def test_an_answer_goes_to_whoever_has_its_number_once() -> None:
    tickets = Tickets()
    one, two = Noting(), Noting()
    first, second = tickets.take(one), tickets.take(two)
    assert first != second
    tickets.deliver(second, ACKED)
    assert (one.heard, two.heard) == ([], [ACKED])
    assert (tickets.is_open(first), tickets.is_open(second)) == (True, False)
    tickets.deliver(second, SERVED)
    tickets.deliver(first, SERVED)
    tickets.deliver(77, SERVED)
    assert (one.heard, two.heard) == ([SERVED], [ACKED])


def test_a_number_that_needs_no_ticket_is_no_other_ones() -> None:
    tickets = Tickets()
    numbers = [tickets.take(Noting()), tickets.next_number(), tickets.take(Noting()), tickets.next_number()]
    assert len(set(numbers)) == 4
    assert not tickets.is_open(numbers[1])


def test_a_read_is_told_when_to_look_and_is_answered_after_that() -> None:
    tickets, read, group = Tickets(), Noting(), cast(Any, object())
    number = tickets.take(read)
    tickets.sample(group, number)
    tickets.deliver(number, SERVED)
    assert read.heard == [(group, number), SERVED]


def test_an_append_is_never_told_to_look() -> None:
    class Append(Ticket):
        def on_reply(self, result: effects.Result) -> None:
            pass

    tickets = Tickets()
    with pytest.raises(InvariantViolation, match="no read is sampled"):
        tickets.sample(cast(Any, SimpleNamespace(key=KEY)), tickets.take(Append()))


class Asking:
    """All who ask the core, and a group that keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.replies: list[wire.ToClient] = []
        self.tickets = Tickets()
        group = SimpleNamespace(
            key=KEY,
            closed=False,
            plan=SimpleNamespace(tasks=(TASK,)),
            leader=SimpleNamespace(epoch=Epoch(1), handover=None),
            replica=SimpleNamespace(log_end=Offset(1)),
            meter=MagicMock(),
            has_room_for=lambda *_: True,
            step=self.asked.append,
        )
        self.group = cast(Group, group)
        worker = MagicMock(groups={KEY: group}, options=OptionSet(), tickets=self.tickets, loop=StillLoop())
        worker.config.module = "M"
        worker.description = ModuleDescription(tasks=1, depots=None)
        worker.transport.reply = lambda _, reply, __=(): self.replies.append(reply)
        self.clients = Clients(worker)
        self.entries = Entries(self.tickets)


def test_clients_reads_and_entries_of_the_worker_share_the_numbers_and_get_their_own_answers() -> None:
    asking = Asking()
    own: list[effects.Result] = []
    elsewhere: list[effects.Result] = []
    batch = wire.AppendBatch(9, KEY, Kind.DEPOT, TASK, ProducerId(0), 0, 1)
    asking.clients.received(b"client", batch, [memoryview(pack("d", [b"r"]))], is_worker=False)
    asking.clients.received(b"client", wire.FindOffset(8, KEY, TASK, "d", None), [], is_worker=False)
    asking.clients.append_own(asking.group, Kind.TRIM, TASK, b"", own.append)
    asking.clients.reads.elsewhere(asking.group, lambda done: done(), elsewhere.append)
    assert asking.entries.append(asking.group, TASK, b"", lambda: None)
    numbers = [event.request for event in asking.asked]
    assert len(set(numbers)) == 5
    assert all(asking.tickets.is_open(number) for number in numbers)

    appended, found, trimmed, looked, entered = numbers
    asking.tickets.deliver(looked, SERVED)
    assert elsewhere == [SERVED]
    asking.tickets.deliver(trimmed, ACKED)
    assert own == [ACKED]
    assert asking.replies == []
    asking.tickets.deliver(appended, ACKED)
    assert asking.replies == [wire.Appended(9, Offset(5))]
    asking.tickets.deliver(found, effects.Unknown())
    assert asking.replies == [wire.Appended(9, Offset(5)), wire.Unknown(8)]
    asking.tickets.deliver(entered, ACKED)
    assert not any(asking.tickets.is_open(number) for number in numbers)
    assert (len(asking.replies), own, elsewhere) == (2, [ACKED], [SERVED])


def test_an_entry_that_is_refused_later_says_nothing_of_the_next_one() -> None:
    """It was taken, and its epoch ended."""
    asking = Asking()
    refused = effects.Refused(reason=effects.Refusal.NOT_LEADER, leader=None, epoch=Epoch(2))
    assert asking.entries.append(asking.group, TASK, b"", lambda: None)
    asking.tickets.deliver(asking.asked[0].request, refused)
    assert asking.entries.append(asking.group, TASK, b"", lambda: None)


def test_a_group_delivers_what_its_core_answers_and_lets_reads_look(tmp_path: Path) -> None:
    driven = Driven(tmp_path, settings(min_isr=1))
    tickets = Tickets()
    driven.tickets = cast(Any, tickets)
    driven.lead()
    append, read = Noting(), Noting()
    driven.append(tickets.take(append), [b"r"])
    number = tickets.take(read)
    driven.group.step(events.Read(request=number))
    driven.end_turn()
    driven.apply_all()
    assert [type(each) for each in append.heard] == [effects.Acked]
    assert read.heard == [(driven.group, number)]
    driven.close()
