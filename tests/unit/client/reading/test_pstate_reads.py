"""What a reader of a PState asks of a worker that holds rows, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stretto.client.reading import pstate as reading
from stretto.client.reading.pstate import PStateReader
from stretto.errors import RetriableError, UsageError
from stretto.module.partition import owner_of
from stretto.network.routing import Network
from stretto.pstate import ordered
from stretto.pstate.tree import compile_type, rows_of
from stretto.pstate.types import describe
from stretto.replog.core.effects import Refusal
from stretto.specs.modules import PStateSpec
from stretto.vocabulary.types import Epoch, Offset, TaskId
from stretto.wire import messages as wire
from tests.unit.client.answering import (
    FOLLOWER,
    LEADER,
    MODULE,
    TASKS,
    Answer,
    AnsweringWorker,
    answered_by,
)

COUNTS = {f"k{number:02}": number for number in range(23)}


class Rows:
    """The rows of one PState, by task, as a worker reads them."""

    def __init__(self, annotation: Any, content: dict[Any, Any] | set[Any]) -> None:
        node = compile_type(describe(annotation))
        self._rows: dict[TaskId, list[tuple[bytes, bytes]]] = {TaskId(task): [] for task in range(TASKS)}
        for key in content:
            one = {key: content[key]} if isinstance(content, dict) else {key}
            self._rows[owner_of(key, TASKS)] += rows_of(node, b"", one)
        for rows in self._rows.values():
            rows.sort()
        self.offset = Offset(7)

    def answer(self, message: wire.ToWorker, _: list[bytes]) -> Answer:
        match message:
            case wire.ReadRows(request=request, tasks=tasks, keys=keys):
                found = (dict(self._rows[task]).get(key) for task, key in zip(tasks, keys, strict=True))
                return wire.RowValues(request, tuple(found), Epoch(1), self.offset)
            case wire.ScanRows(request=request, task=task, start=start, end=end, rows_max=rows_max):
                rows = [row for row in self._rows[task] if start <= row[0] < end]
                rows = rows[-1:] if message.backwards else rows
                keys, values = (tuple(row[at] for row in rows[:rows_max]) for at in range(2))
                after = rows[rows_max][0] if len(rows) > rows_max else None
                return wire.RowPage(request, keys, values, len(keys), after, Epoch(1), self.offset)
            case wire.ScanKeys(request=request, task=task, start=start, end=end, keys_max=keys_max):
                cut = dict.fromkeys(
                    key[: ordered.decode_at(key, message.depth)[1]]
                    for key, _ in self._rows[task]
                    if start <= key < end
                )
                first, rest = tuple(cut)[:keys_max], tuple(cut)[keys_max:]
                told = first if message.tell else ()
                after = rest[0] if rest else None
                return wire.RowPage(request, told, (), len(first), after, Epoch(1), self.offset)
            case _:
                return None


@contextmanager
def held(
    declared: Any, content: Any, **options: Any
) -> Iterator[tuple[PStateReader, AnsweringWorker, Network]]:
    with answered_by((LEADER, Rows(declared, content).answer)) as (network, [worker]):
        spec = PStateSpec(name="p", type=describe(declared))
        yield PStateReader(network, MODULE, spec, TASKS, **options), worker, network


def test_values_are_read_by_key_or_are_not_there() -> None:
    with held(dict[str, int], COUNTS) as (reader, _, _):
        assert reader
        assert reader.get("k07") == 7
        assert (reader.get("x"), reader.get("x", default=5)) == (None, 5)
        assert (reader.contains("k07"), reader.contains("x")) == (True, False)
        assert reader.get_many(["k03", "x", "k01"]) == {"k03": 3, "k01": 1}
        for refused in (reader.get, reader.contains):
            with pytest.raises(UsageError, match="give a key of PState p"):
                refused()


def test_keys_and_items_of_all_tasks_come_in_order_over_many_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PAGE_ROWS", 2)
    with held(dict[str, int], COUNTS) as (reader, worker, _):
        assert list(reader.keys()) == sorted(COUNTS)
        assert list(reader.items()) == sorted(COUNTS.items())
        assert list(reader.keys(start="k03", end="k06")) == ["k03", "k04", "k05"]
        assert list(reader.keys(prefix="k1", limit=3)) == ["k10", "k11", "k12"]
        assert list(reader.items(after="k20")) == [("k21", 21), ("k22", 22)]
        worker.asked.clear()
        assert list(reader.items(limit=1)) == [("k00", 0)]
        assert {each.rows_max for each in worker.asked if isinstance(each, wire.ScanRows)} == {1}
        assert list(reader.keys(limit=1)) == ["k00"]
        assert {each.keys_max for each in worker.asked if isinstance(each, wire.ScanKeys)} == {1}


def test_entries_are_counted_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "COUNT_KEYS", 2)
    with held(dict[str, int], COUNTS) as (reader, worker, _):
        assert reader.count() == 23
        assert reader.count(prefix="k1") == 10
        assert not any(each.tell for each in worker.asked if isinstance(each, wire.ScanKeys))


def test_collections_are_read_whole_by_member_or_counted() -> None:
    content = {"a": {1: "x", 2: "y"}, "b": {3: "z"}}
    with held(dict[str, dict[int, str]], content) as (reader, worker, _):
        assert reader.get("a") == {1: "x", 2: "y"}
        assert reader.get("c", default=()) == ()
        assert (reader.get("a", 2), reader.get("a", 3)) == ("y", None)
        assert reader.get_many(["b", "c", "a"]) == {"b": {3: "z"}, "a": {1: "x", 2: "y"}}
        assert (reader.contains("a"), reader.contains("c"), reader.contains("a", 2)) == (True, False, True)
        assert list(reader.keys("a")) == [1, 2]
        assert list(reader.items("a")) == [(1, "x"), (2, "y")]
        assert (reader.count(), reader.count("a")) == (2, 2)
        worker.asked.clear()
        assert list(reader.items(limit=1)) == [("a", {1: "x", 2: "y"})]
        assert reader.contains("a")
        scans = [each for each in worker.asked if isinstance(each, wire.ScanRows)]
        assert [each.rows_max for each in scans] == [reading.PAGE_ROWS] * TASKS + [1]


def test_lists_have_a_length_and_slices() -> None:
    with held(dict[str, list[int]], {"a": [10, 11, 12, 13]}) as (reader, _, _):
        assert reader.get("a") == [10, 11, 12, 13]
        assert reader.get("a", 2) == 12
        assert (reader.count("a"), reader.count("b")) == (4, 0)
        assert reader.slice("a") == [10, 11, 12, 13]
        assert reader.slice("a", start=1, stop=3) == [11, 12]
        assert reader.slice("a", start=2) == [12, 13]
        assert reader.slice("a", start=3, stop=3) == []
        with pytest.raises(UsageError, match="only dicts and sets have keys"):
            reader.count("a", start=1)
        with pytest.raises(UsageError, match="only a dict has items"):
            reader.items("a")


def test_sets_have_members() -> None:
    with held(set[int], {3, 1, 2}) as (reader, _, _):
        assert list(reader.keys()) == [1, 2, 3]
        assert (reader.contains(2), reader.contains(9)) == (True, False)
        for refused in (lambda: reader.get(2), lambda: reader.get_many([2])):
            with pytest.raises(UsageError, match="ask whether"):
                refused()
        with pytest.raises(UsageError, match="only a list has slices"):
            reader.slice()


def test_coroutines_read_the_same() -> None:
    async def read(reader: PStateReader, *path: Any) -> Any:
        return await reader.get_awaited(*path, default="none")

    with held(dict[str, int], COUNTS) as (reader, _, _):
        assert [asyncio.run(read(reader, key)) for key in ("k07", "x")] == [7, "none"]
    with held(dict[str, dict[int, str]], {"a": {1: "x"}}) as (reader, _, _):
        found = [asyncio.run(read(reader, *path)) for path in (("a",), ("b",), ("a", 1), ("a", 2))]
        assert found == [{1: "x"}, "none", "x", "none"]


def test_a_type_of_the_callers_own_has_to_fit() -> None:
    with held(dict[str, int], COUNTS, annotation=dict[str, int]) as (reader, _, network):
        assert reader.get("k07") == 7
        spec = PStateSpec(name="p", type=describe(dict[str, int]))
        with pytest.raises(UsageError, match=r"PState p of m is dict\[str, int\]"):
            PStateReader(network, MODULE, spec, TASKS, annotation=dict[int, int])


def test_a_reader_tells_what_it_saw_and_another_one_sees_as_much() -> None:
    with held(dict[str, int], COUNTS) as (reader, _, network):
        list(reader.keys())
        assert reader.token == "m/1/0:1.7 m/1/1:1.7"
        spec = PStateSpec(name="p", type=describe(dict[str, int]))
        other = PStateReader(network, MODULE, spec, TASKS, token=reader.token)
        assert other.token == reader.token


def test_an_answer_to_something_else_is_not_taken() -> None:
    def answer(message: wire.ToWorker, _: list[bytes]) -> Answer:
        assert isinstance(message, wire.ScanKeys)
        return wire.DepotOffsets(message.request, 0, 0, None)

    with answered_by((LEADER, answer)) as (network, _):
        reader = PStateReader(network, MODULE, PStateSpec(name="p", type=describe(set[int])), TASKS)
        with pytest.raises(RetriableError, match="unexpected answer came: DepotOffsets"):
            list(reader.keys())
        lost = PStateReader(network, "other", PStateSpec(name="p", type=describe(set[int])), TASKS)
        with pytest.raises(RetriableError, match="task 0 of other cannot be found now"):
            lost.keys()


def test_followers_are_asked_with_what_was_seen_and_the_leader_if_they_lag() -> None:
    rows = Rows(dict[str, int], COUNTS)
    lags = False

    def follower(message: wire.ToWorker, bodies: list[bytes]) -> Answer:
        assert isinstance(message, wire.ScanKeys)
        if lags:
            return wire.Refused(message.request, Refusal.TOO_STALE, LEADER, Epoch(1))
        return rows.answer(message, bodies)

    with answered_by((LEADER, rows.answer), (FOLLOWER, follower)) as (network, [first, second]):
        spec = PStateSpec(name="p", type=describe(dict[str, int]))
        reader = PStateReader(network, MODULE, spec, TASKS, max_staleness=2.0)
        assert list(reader.keys()) == sorted(COUNTS)
        assert (len(first.asked), len(second.asked)) == (0, TASKS)
        lags = True
        assert list(reader.keys()) == sorted(COUNTS)
        assert len(first.asked) == TASKS
        told = second.asked[-1]
        assert isinstance(told, wire.ScanKeys)
        assert told.stale == wire.Stale(2_000, Offset(7), Epoch(1))
