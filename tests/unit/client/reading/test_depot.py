"""Records that are known to be there are read, although a follower that is asked does not have them yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto.client.reading.depot import Reader, Record, Slice
from stretto.errors import OffsetTrimmed, UsageError
from stretto.wire import messages as wire


def answer(start: int, end: int) -> SimpleNamespace:
    """Of a depot that ends there; each record is a batch."""
    bases = tuple(range(start, end))
    reply = wire.DepotBatches(1, 0, max(start, end), bases, (0,) * len(bases))
    return SimpleNamespace(wait=lambda: (reply, [memoryview(b"%d" % base) for base in bases]))


def read(monkeypatch: pytest.MonkeyPatch, *, follower: int, leader: int) -> tuple[list[int], list[bool]]:
    reader = Reader(cast(Any, SimpleNamespace()), "M", "events", max_staleness=10.0)
    asked: list[bool] = []

    def reading(_task: int, offset: int, *_: Any, by_leader: bool = False, **__: Any) -> SimpleNamespace:
        asked.append(by_leader)
        return answer(offset, leader if by_leader else follower)

    monkeypatch.setattr(reader, "_reading", reading)
    return [batch.base for batch in reader.batches(0, 2, 7)], asked


def test_what_a_follower_does_not_have_yet_the_leader_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, follower=9, leader=9) == ([2, 3, 4, 5, 6], [False])
    # It has some of them: it is asked again, and then the leader is.
    assert read(monkeypatch, follower=4, leader=9) == ([2, 3, 4, 5, 6], [False, False, True])
    assert read(monkeypatch, follower=0, leader=9) == ([2, 3, 4, 5, 6], [False, True])


def test_records_that_the_leader_does_not_have_either_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="ends at offset 4 on task 0, before 7"):
        read(monkeypatch, follower=4, leader=4)


def test_reading_all_ends_where_the_depot_ended_when_the_call_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows meanwhile, so that what is read reaches beyond the end."""
    view = SimpleNamespace(tasks={"M": [0, 1]})
    reader = Reader(cast(Any, SimpleNamespace(view=view)), "M", "events")
    starts = {0: 0, 1: 3}

    def slice_at(task: int, offset: int) -> Slice:
        if offset < starts[task]:
            raise OffsetTrimmed("events", task, offset, starts[task])
        return Slice([Record(task, at, 0, b"") for at in range(offset, offset + 3)], offset + 3)

    monkeypatch.setattr(reader, "bounds", {0: (0, 4), 1: (0, 5)}.get)
    monkeypatch.setattr(reader, "read", slice_at)
    found = [(record.task, record.offset) for record in reader.read_all()]
    assert found == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (1, 4)]
