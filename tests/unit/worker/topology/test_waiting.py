"""Appends that wait for topologies: what they are told, and when it is not known."""

from __future__ import annotations

import pytest

from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire
from stretto.worker.microbatch.machines.effects import Processed
from stretto.worker.topology import waiting
from stretto.worker.topology.waiting import Waiters, Where

GROUP, OTHER = GroupKey("m", 1, 0), GroupKey("m", 1, 1)
TASK = TaskId(2)
ORDERS: Where = (GROUP, TASK, "orders")

Told = tuple[wire.StreamResult, ...] | None
LOST: Told = (wire.StreamResult("book", (), (), is_lost=True),)


class Appender:
    """Waits for records ``[start, end)``."""

    def __init__(
        self, waiters: Waiters, start: int | None, end: int, processed: dict[str, int], where: Where = ORDERS
    ) -> None:
        self.told: list[Told] = []
        waiters.add(where, start, end, processed, self.told.append)


def run(start: int, end: int, *results: int, lost: bool = False) -> Processed:
    """Each of these records returned its own offset."""
    returned = tuple((offset, str(offset).encode()) for offset in results)
    return Processed(depot="orders", start=start, end=end, results=None if lost else returned)


def test_it_is_told_what_its_own_records_returned_by_their_place_among_them() -> None:
    waiters = Waiters()
    appender = Appender(waiters, 10, 13, {"book": 5})
    waiters.processed(GROUP, TASK, "book", run(5, 11, 9, 10))
    assert appender.told == []
    waiters.processed(GROUP, TASK, "book", run(11, 20, 12, 13))
    assert appender.told == [(wire.StreamResult("book", ((0, b"10"), (2, b"12")), ()),)]


def test_it_waits_for_every_topology_of_its_depot_and_for_nothing_else() -> None:
    waiters = Waiters()
    appender = Appender(waiters, 0, 1, {"book": 0, "audit": 0})
    waiters.processed(GROUP, TASK, "book", run(0, 1, 0))
    waiters.processed(GROUP, TASK, "book", run(1, 2, 1))
    waiters.processed(GROUP, TaskId(3), "audit", run(0, 1, 0))
    waiters.processed(OTHER, TASK, "audit", run(0, 1, 0))
    assert appender.told == []
    waiters.processed(GROUP, TASK, "audit", run(0, 1))
    assert appender.told == [
        (wire.StreamResult("audit", (), ()), wire.StreamResult("book", ((0, b"0"),), ())),
    ]


def test_without_a_microbatch_there_is_nothing_to_wait_for() -> None:
    assert Appender(Waiters(), 0, 1, {}).told == [()]


def test_a_record_that_was_left_out_is_told_with_its_error() -> None:
    waiters = Waiters()
    appender = Appender(waiters, 0, 2, {"book": 0})
    failed = Processed(depot="orders", start=0, end=2, results=(), failures=((1, "ValueError: no"),))
    waiters.processed(GROUP, TASK, "book", failed)
    assert appender.told == [(wire.StreamResult("book", (), ((1, "ValueError: no"),)),)]


@pytest.mark.parametrize(
    ("start", "processed", "runs"),
    [
        pytest.param(0, 0, [run(0, 2, lost=True)], id="another leader ran it"),
        pytest.param(0, 0, [run(0, 1, 0), run(1, 2, lost=True)], id="of a part of it"),
        pytest.param(0, 2, [], id="it was processed before anybody waited"),
        pytest.param(0, 1, [run(1, 2, 1)], id="a part of it was"),
        pytest.param(None, 0, [run(0, 2, 0, 1)], id="nobody knows where it begins"),
    ],
)
def test_what_is_lost_is_not_told_to_be_nothing(
    start: int | None, processed: int, runs: list[Processed]
) -> None:
    waiters = Waiters()
    appender = Appender(waiters, start, 2, {"book": processed})
    for each in runs:
        assert appender.told == []
        waiters.processed(GROUP, TASK, "book", each)
    assert appender.told == [LOST]


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        pytest.param(3, (wire.StreamResult("book", ((0, b"3"), (1, b"4")), ()),), id="it is remembered"),
        pytest.param(2, LOST, id="not for ever"),
    ],
)
def test_who_asks_again_is_told_what_was_returned_lately(
    monkeypatch: pytest.MonkeyPatch, kept: int, told: Told
) -> None:
    monkeypatch.setattr(waiting, "RECENT_BYTES", kept)
    monkeypatch.setattr(waiting, "ROW_BYTES", 0)
    waiters = Waiters()
    for each in (run(0, 3, lost=True), run(3, 4, 3), run(4, 6, 4, 5)):
        waiters.processed(GROUP, TASK, "book", each)
    assert Appender(waiters, 3, 5, {"book": 6}).told == [told]
    assert Appender(waiters, 2, 5, {"book": 6}).told == [LOST]
    waiters.ended(GROUP)
    assert Appender(waiters, 4, 6, {"book": 6}).told == [LOST]


def test_who_asks_again_while_a_part_is_not_processed_is_told_all_of_it() -> None:
    waiters = Waiters()
    waiters.processed(GROUP, TASK, "book", run(0, 2, 0, 1))
    appender = Appender(waiters, 1, 3, {"book": 2})
    assert appender.told == []
    waiters.processed(GROUP, TASK, "book", run(2, 3, 2))
    assert appender.told == [(wire.StreamResult("book", ((0, b"1"), (1, b"2")), ()),)]


def test_what_was_lost_of_earlier_records_does_not_matter() -> None:
    waiters = Waiters()
    appender = Appender(waiters, 3, 4, {"book": 0})
    waiters.processed(GROUP, TASK, "book", run(0, 3, lost=True))
    waiters.processed(GROUP, TASK, "book", run(3, 4, 3))
    assert appender.told == [(wire.StreamResult("book", ((0, b"3"),), ()),)]


def test_an_epoch_that_ends_leaves_it_unknown_to_those_of_its_group() -> None:
    waiters = Waiters()
    here = Appender(waiters, 0, 1, {"book": 0})
    there = Appender(waiters, 0, 1, {"book": 0}, (OTHER, TASK, "orders"))
    waiters.ended(GROUP)
    assert (here.told, there.told) == ([None], [])


def test_whoever_hands_over_hears_when_nobody_waits_for_anything_of_the_group() -> None:
    waiters = Waiters()
    heard: list[str] = []
    Appender(waiters, 0, 1, {"book": 0})
    Appender(waiters, 0, 1, {"book": 0}, (GROUP, TaskId(3), "orders"))
    Appender(waiters, 0, 1, {"book": 0}, (OTHER, TASK, "orders"))
    waiters.when_none(GROUP, lambda: heard.append("here"))
    waiters.processed(GROUP, TASK, "book", run(0, 1, 0))
    assert heard == []
    waiters.processed(GROUP, TaskId(3), "book", run(0, 1, 0))
    assert heard == ["here"]
    waiters.when_none(GROUP, lambda: heard.append("at once"))
    assert heard == ["here", "at once"]
    waiters.when_none(OTHER, lambda: heard.append("ended"))
    waiters.ended(OTHER)
    assert heard == ["here", "at once", "ended"]
