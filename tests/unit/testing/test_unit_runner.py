"""The unit runner: a module without a cluster, and against models of what a cluster promises."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stretto.testing
from stretto import Depot, Module, PState, microbatch, query, step, stream
from stretto.artifact.importing import manifest
from stretto.client import PStateReader
from stretto.client.reading.queries import task_of
from stretto.errors import UsageError
from stretto.module.partition import GLOBAL, owner_of
from stretto.testing.unit import PStateUnderTest


@dataclass
class Move:
    source: str
    target: str
    amount: int


class Ledger(Module):
    moves = Depot(partition_by="source")
    batched_moves = Depot(partition_by="source")
    names = Depot()
    balances = PState(dict[str, int])
    batched = PState(dict[str, int])
    journal = PState(dict[str, list[int]])
    seen = PState(dict[str, set[int]])

    @stream(moves)
    def move(self, move: Move) -> int:
        self.journal.append(move.source, value=move.amount)
        self.balances.increment(move.source, by=-move.amount)
        self.receive.at(move.target)(move.target, move.amount)
        if move.amount < 0:
            raise ValueError("negative")
        return move.amount

    @step
    def receive(self, name: str, amount: int) -> None:
        if amount == 13:
            raise ValueError("unlucky")
        self.balances.increment(name, by=amount)

    @microbatch(batched_moves, batch=True)
    def move_all(self, moves: list[Move]) -> None:
        for move in moves:
            if move.amount < 0:
                raise ValueError("negative")
            self.batched.increment(move.source, by=-move.amount)
            self.receive_all.at(move.target)(move.target, move.amount)

    @step(batch=True)
    def receive_all(self, calls: list[tuple[str, int]]) -> None:
        for name, amount in calls:
            if amount == 13:
                raise ValueError("unlucky")
            self.batched.increment(name, by=amount)

    @stream(names)
    def announce(self, name: str) -> None:
        self.note.everywhere()(name)

    @step
    def note(self, name: str) -> None:
        self.add.at(name)(name, self.task)

    @step
    def add(self, name: str, task: int) -> None:
        self.seen.add(name, task)

    @query(key="name")
    def balance(self, name: str, scale: int = 1) -> int:
        return int(self.balances.get(name, default=0)) * scale

    @query
    def richest(self, limit: int) -> list[tuple[int, str]]:
        return sorted(((amount, name) for name, amount in self.balances.items()), reverse=True)[:limit]

    @richest.combine
    def richest_of_all(self, parts: list[list[tuple[int, str]]], limit: int) -> list[tuple[int, str]]:
        return sorted((each for part in parts for each in part), reverse=True)[:limit]

    @query
    def sizes(self) -> int:
        return self.balances.count()


def test_five_lines_test_a_module() -> None:
    with stretto.testing.module(Ledger, tasks=4) as m:
        m.append("moves", {"source": "ann", "target": "bob", "amount": 3})
        ran = m.run()
        assert dict(m.balances.items()) == {"ann": -3, "bob": 3}
    assert (ran.records, ran.results, ran.failures) == (1, [3], [])


def test_pstates_are_read_over_all_tasks_in_the_order_of_keys() -> None:
    with stretto.testing.module(Ledger, tasks=8) as m:
        m.append(Ledger.moves, *(Move(f"from-{n}", f"to-{n % 5}", 2 * n) for n in range(20)))
        m.run()
        assert list(m.balances.keys(prefix="to")) == [f"to-{n}" for n in range(5)]
        assert dict(m.balances.items(start="to-3", end="to-4")) == {"to-3": 2 * (3 + 8 + 13 + 18)}
        assert m.balances.count() == 25
        assert m.journal.get("from-7") == [14]
        assert m.journal.count("from-7") == 1
        assert m.balances.get("nobody", default=5) == 5
        assert m.balances.contains("to-1")
        assert not m.pstate("balances").contains("to-9")


def test_queries_answer_with_and_without_a_key() -> None:
    with stretto.testing.module(Ledger, tasks=4) as m:
        m.append("moves", *(Move("bank", name, 10 * n) for n, name in enumerate("abcdef", 1)))
        m.run()
        assert m.query("balance", "c") == 30
        assert m.query("balance", name="c", scale=2) == 60
        assert m.query("richest", 2) == [[60, "f"], [50, "e"]]
        assert sum(m.query("sizes")) == 7
        assert len(m.query("sizes")) == 4
        with pytest.raises(UsageError, match="has no query richst; did you mean richest"):
            m.query("richst", 1)


def test_a_step_runs_everywhere_when_asked() -> None:
    with stretto.testing.module(Ledger, tasks=4) as m:
        m.append("names", "ann")
        m.run()
        assert dict(m.seen.items()) == {"ann": {0, 1, 2, 3}}


def test_what_a_function_raises_passes_through() -> None:
    with stretto.testing.module(Ledger) as m:
        m.append("moves", Move("ann", "bob", -1))
        with pytest.raises(ValueError, match="negative") as raised:
            m.run()
    assert raised.traceback[-1].name == "move"


def test_failures_can_be_kept_and_leave_their_records_out() -> None:
    with stretto.testing.module(Ledger) as m:
        for depot in ("moves", "batched_moves"):
            m.append(depot, *(Move("ann", f"t{n}", n) for n in (1, -2, 13, 4)))
            m.append(depot, b"{}", task=0)
        ran = m.run(failures="keep")
        assert dict(m.batched.items()) == {"ann": -5, "t1": 1, "t4": 4}
        # Its own step failed elsewhere, and what a stream has done here by then stays done.
        assert owner_of("ann", 4) != owner_of("t13", 4)
        assert dict(m.balances.items()) == {"ann": -18, "t1": 1, "t4": 4}
        assert dict(m.journal.items()) == {"ann": [1, 13, 4]}
    errors = sorted((failed.topology, failed.error.split(":")[0]) for failed in ran.failures)
    assert errors == [
        (topology, error)
        for topology in ("move", "move_all")
        for error in ("ValueError", "ValueError", "the record is no Move in JSON")
    ]
    assert {failed.record for failed in ran.failures if failed.topology == "move_all"} == {
        b"{}",
        b'{"source":"ann","target":"t-2","amount":-2}',
        b'{"source":"ann","target":"t13","amount":13}',
    }


def test_a_record_is_run_once_by_each_topology() -> None:
    with stretto.testing.module(Ledger) as m:
        m.append("moves", Move("ann", "bob", 1))
        assert m.run().records == 1
        assert m.run().records == 0
        m.append("moves", Move("ann", "bob", 1))
        m.run()
        assert m.balances.get("bob") == 2


@pytest.mark.parametrize("tasks", [0, 3, -4, "4", 1.0])
def test_the_number_of_tasks_is_a_power_of_two(tasks: Any) -> None:
    with (
        pytest.raises(UsageError, match="the number of tasks is a power of two"),
        stretto.testing.module(Ledger, tasks=tasks),
    ):
        pass


def test_names_that_are_not_there_are_told() -> None:
    with stretto.testing.module(Ledger) as m:
        with pytest.raises(UsageError, match="has no depot move; did you mean moves"):
            m.append("move", 1)
        with pytest.raises(AttributeError, match="has no PState balance; did you mean balances"):
            m.balance.get("x")


def test_steps_that_hop_in_a_circle_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Circle(Module):
        starts = Depot()

        @stream(starts)
        def start(self, record: int) -> None:
            self.go.on(0)()

        @step
        def go(self) -> None:
            self.go.on((self.task + 1) % self.tasks)()

    monkeypatch.setattr("stretto.testing.unit.CALLS_MAX", 1_000)
    with stretto.testing.module(Circle, tasks=2) as m:
        m.append("starts", 1)
        with pytest.raises(UsageError, match="leads to more than 1000 hops; do steps hop in a circle"):
            m.run()


def test_steps_that_lead_to_themselves_on_their_task_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spin(Module):
        starts = Depot()
        done = PState(dict[int, int])

        @stream(starts)
        def start(self, record: int) -> None:
            self.done.increment(record)
            if record:
                self.again.on(self.task)()

        @step
        def again(self) -> None:
            self.many.on(self.task)()

        @step(batch=True)
        def many(self, calls: list[tuple[()]]) -> None:
            self.again.on(self.task)()

    monkeypatch.setattr("stretto.module.runner.STEPS_MAX", 1_000)
    with stretto.testing.module(Spin, tasks=1) as m:
        m.append("starts", 1)
        with pytest.raises(UsageError, match=r"more than 1000 steps on its own task, .* (again|many);"):
            m.run()
    with stretto.testing.module(Spin, tasks=1) as m:
        m.append("starts", 1, 0)
        [failure] = m.run(failures="keep").failures
        assert failure.offset == 0
        assert dict(m.done.items()) == {0: 1}


def test_steps_of_a_microbatch_that_hop_in_a_circle_are_told() -> None:
    class Circle(Module):
        starts = Depot()

        @microbatch(starts)
        def start(self, record: int) -> None:
            self.go.on(0)()

        @step
        def go(self) -> None:
            self.go.on((self.task + 1) % self.tasks)()

    with stretto.testing.module(Circle, tasks=2) as m:
        m.append("starts", 1)
        with pytest.raises(UsageError, match="hop for more than 1000 rounds, lastly to go"):
            m.run()


class Ordered(Module):
    """A line of numbers for each name, over a hop and a batch."""

    numbers = Depot(partition_by=GLOBAL)
    lines = PState(dict[str, list[int]])
    lengths = PState(dict[str, int])

    @stream(numbers)
    def take(self, record: tuple[str, int]) -> None:
        name, number = record
        self.put.at(name)(name, number)

    @step
    def put(self, name: str, number: int) -> None:
        at = self.lines.append(name, value=number)
        if number == 7:
            raise ValueError
        self.lengths.set(name, value=at + 1)


moves = st.lists(
    st.builds(Move, st.sampled_from("abcd"), st.sampled_from("abcdef"), st.sampled_from([1, 5, 13, -2, 20])),
    max_size=30,
)


@settings(deadline=None, max_examples=60)
@given(moves, st.sampled_from([1, 2, 8]), st.none() | st.integers(0, 99), st.none() | st.integers(1, 5))
def test_a_microbatch_is_the_serial_model_without_what_fails(
    given_moves: list[Move], tasks: int, seed: int | None, at_most: int | None
) -> None:
    model: Counter[str] = Counter()
    touched = set()
    for move in given_moves:
        if move.amount >= 0 and move.amount != 13:
            model[move.target] += move.amount
            model[move.source] -= move.amount
            touched |= {move.source, move.target}
    with stretto.testing.module(Ledger, tasks=tasks, seed=seed, microbatch_records=at_most) as m:
        m.append("batched_moves", *given_moves)
        ran = m.run(failures="keep")
        assert dict(m.batched.items()) == {name: model[name] for name in touched}
        assert sum(dict(m.batched.items()).values()) == 0
    assert len(ran.failures) == sum(move.amount in (13, -2) for move in given_moves)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=30),
    st.sampled_from([1, 4]),
    st.none() | st.integers(0, 99),
)
def test_hops_from_one_task_keep_their_order(
    records: list[tuple[str, int]], tasks: int, seed: int | None
) -> None:
    with stretto.testing.module(Ordered, tasks=tasks, seed=seed) as m:
        m.append("numbers", *records)
        m.run(failures="keep")
        expected: dict[str, list[int]] = {}
        for name, number in records:
            if number != 7:
                expected.setdefault(name, []).append(number)
        assert dict(m.lines.items()) == expected
        assert dict(m.lengths.items()) == {name: len(line) for name, line in expected.items()}


class Calendar(Module):
    entries = Depot()
    days = PState(dict[date, int])
    places = PState(dict[tuple[float, str], int])

    @stream(entries)
    def enter(self, day: date) -> None:
        self.count.at(day)(day)
        self.place.at((1, "home"))()

    @step
    def count(self, day: date) -> None:
        self.days.increment(day)

    @step
    def place(self) -> None:
        self.places.increment((1, "home"))

    @query(key="day")
    def on(self, day: date) -> int:
        return int(self.days.get(day, default=0))

    @query(key="place")
    def at(self, place: tuple[float, str]) -> int:
        return int(self.places.get(place, default=0))

    @query(key="moment")
    def then(self, moment: datetime) -> int:
        return self.task


def test_a_query_is_asked_where_its_key_is_however_that_is_written() -> None:
    day = date(2026, 1, 31)
    with stretto.testing.module(Calendar, tasks=16) as m:
        m.append("entries", "2026-01-31")
        m.run()
        assert m.query("on", day) == m.query("on", "2026-01-31") == m.query("on", day="2026-01-31") == 1
        assert m.query("at", (1.0, "home")) == m.query("at", [1, "home"]) == 1


def test_a_client_that_has_only_json_asks_the_task_that_the_function_will_look_at() -> None:
    specs = {query.name: query for query in manifest(Calendar, "calendar:Calendar").queries}
    for day in (date(2026, 1, number) for number in range(1, 29)):
        assert task_of(specs["on"], [day.isoformat()], {}, 64) == owner_of(day, 64)
        assert task_of(specs["on"], [], {"day": day}, 64) == owner_of(day, 64)
        moment = datetime(2026, 1, day.day, 12, tzinfo=UTC)
        written = f"2026-01-{day.day:02}T13:00:00+01:00"
        assert task_of(specs["then"], [written], {}, 64) == owner_of(moment, 64)
    # What is no such key is for the function to refuse.
    assert task_of(specs["on"], ["tomorrow"], {}, 64) == owner_of("tomorrow", 64)


def test_what_no_key_begins_with_is_refused_and_what_equals_a_beginning_is_one() -> None:
    with stretto.testing.module(Calendar, tasks=4) as m:
        m.append("entries", "2026-01-31")
        m.run()
        assert list(m.places.keys(prefix=(1,))) == list(m.places.keys(prefix=(1.0,))) == [(1.0, "home")]
        for prefix in ("home", ("home",), (1.0, "home", "more")):
            with pytest.raises(UsageError, match=r"no beginning|no key here"):
                list(m.places.keys(prefix=prefix))
        with pytest.raises(UsageError, match="no beginning"):
            list(m.days.keys(prefix="2026"))


@pytest.mark.parametrize("task", [-1, 4])
def test_a_task_that_is_not_there_is_refused(task: int) -> None:
    with (
        stretto.testing.module(Calendar, tasks=4) as m,
        pytest.raises(UsageError, match=r"there is no task .*; they are 0 to 3"),
    ):
        m.append("entries", "2026-01-31", task=task)


class Listed(Module):
    records = Depot()
    pairs = PState(dict[tuple[str, int], int])
    seen = PState(set[tuple[str, int]])

    @stream(records)
    def take(self, record: Any) -> None:
        if record["how"] == "count":
            self.pairs.increment(record["key"])
        else:
            self.seen.add(record["key"])


@pytest.mark.parametrize("how", ["count", "add"])
def test_a_list_that_json_gave_is_told_to_be_no_tuple(how: str) -> None:
    with stretto.testing.module(Listed, tasks=1) as m:
        m.append("records", {"how": how, "key": ["de", 7]})
        [failed] = m.run(failures="keep").failures
        assert failed.error == "['de', 7] is no key here; give one that is a tuple[str, int]"


MB = 1 << 20


class Bulk(Module):
    parcels = Depot(partition_by=GLOBAL)
    heaps = Depot(partition_by=GLOBAL)
    sizes = PState(dict[int, list[int]])
    stored = PState(dict[int, bytes])
    arrived = PState(dict[int, int])

    @stream(parcels, batch=True)
    def take(self, parcels: list[int]) -> list[int]:
        self.note.once()(len(parcels))
        for parcel in parcels:
            self.arrive.at(parcel)(parcel)
        return parcels[:1] if 99 in parcels else [2 * parcel for parcel in parcels]

    @step
    def note(self, size: int) -> None:
        self.sizes.append(0, value=size)

    @step
    def arrive(self, parcel: int) -> None:
        if parcel == 13:
            raise ValueError("unlucky")
        self.arrived.increment(parcel)

    @microbatch(heaps)
    def heap(self, size: int) -> None:
        self.keep.on(1)(size)

    @step
    def keep(self, size: int) -> None:
        place = self.stored.count()
        keys = [each for each in range(100) if owner_of(each, self.tasks) == self.task]
        for part in range(0, size, 5):
            self.stored.set(keys[place], value=bytes(min(5, size - part) * MB))
            place += 1


def test_a_stream_that_takes_many_is_given_many() -> None:
    with stretto.testing.module(Bulk, tasks=1, stream_records=4) as m:
        m.append("parcels", *range(10))
        ran = m.run()
        assert m.sizes.get(0) == [4, 4, 2]
    assert (ran.records, ran.results) == (10, [2 * each for each in range(10)])
    with stretto.testing.module(Bulk, tasks=1) as m:
        m.append("parcels", *range(10))
        m.run()
        assert m.sizes.get(0) == [10]
    with stretto.testing.module(Bulk, tasks=1, stream_records=4, seed=1) as m:
        m.append("parcels", *range(20, 60))
        m.run()
        assert set(m.sizes.get(0)) == {1, 2, 3, 4}
    with pytest.raises(UsageError, match="at least one record"):
        stretto.testing.module(Bulk, stream_records=0).__enter__()


def test_a_result_for_each_of_many_records_is_demanded() -> None:
    with stretto.testing.module(Bulk, tasks=1) as m:
        m.append("parcels", 98, 99, b"no number", 100)
        ran = m.run(failures="keep")
        m.append("parcels", 98, 99)
        with pytest.raises(UsageError, match="a result for each of 2 records"):
            m.run()
    # With each record by itself the list has the right length.
    assert ran.results == [196, 99, 200]
    assert [(each.offset, each.record) for each in ran.failures] == [(2, b"no number")]


def test_of_many_records_taken_at_once_the_one_that_fails_elsewhere_is_found_as_on_a_cluster() -> None:
    with stretto.testing.module(Bulk, tasks=4) as m:
        assert owner_of(13, 4) != 0
        m.append("parcels", 12, 13, 14)
        ran = m.run(failures="keep")
        assert m.sizes.get(0) == [3, 1, 1, 1]
        assert dict(m.arrived.items()) == {12: 2, 14: 2}, "at least once"
    assert [each.offset for each in ran.failures] == [1]
    assert ran.results == [24, 28]


def test_a_microbatch_that_is_too_large_takes_fewer_records() -> None:
    with stretto.testing.module(Bulk, tasks=2) as m:
        m.append("heaps", *[5] * 9)
        assert m.run().records == 9
        assert m.stored.count() == 9


def test_a_record_that_is_too_large_for_any_microbatch_has_failed() -> None:
    with stretto.testing.module(Bulk, tasks=2) as m:
        m.append("heaps", 5, 20, 5)
        with pytest.raises(UsageError, match="beyond the limit"):
            m.run()
        ran = m.run(failures="keep")
        assert m.stored.count() == 2
    assert [each.offset for each in ran.failures] == [1]


class Receipts(Module):
    """Both kinds of topology return something."""

    orders = Depot(partition_by="customer")
    totals = PState(dict[str, int])
    seen = PState(dict[str, int])

    @stream(orders)
    def count(self, order: dict[str, Any]) -> str:
        self.seen.increment(order["customer"])
        return f"seen {order['amount']}"

    @microbatch(orders)
    def book(self, order: dict[str, Any]) -> int | None:
        if order["amount"] < 0:
            raise ValueError(order["amount"])
        total = self.totals.increment(order["customer"], by=order["amount"])
        return total if order["amount"] else None


@pytest.mark.parametrize("at_most", [None, 1])
def test_what_functions_of_microbatches_return_is_told_after_what_streams_do(at_most: int | None) -> None:
    with stretto.testing.module(Receipts, tasks=4, microbatch_records=at_most) as m:
        m.append("orders", *[{"customer": "ann", "amount": amount} for amount in (3, -1, 0, 4)])
        ran = m.run(failures="keep")
        assert ran.results == ["seen 3", "seen -1", "seen 0", "seen 4", 3, 7]
        assert [failure.error for failure in ran.failures] == ["ValueError: -1"]


class Kept(Module):
    events = Depot()
    numbers = PState(dict[str, int])
    lists = PState(dict[str, list[int]])
    names = PState(set[str])

    @stream(events)
    def keep(self, name: str) -> None:
        self.put.at(name)(name)

    @step
    def put(self, name: str) -> None:
        self.numbers.set(name, value=len(name))
        self.names.add(name)
        for number in range(len(name)):
            self.lists.append(name, value=number)


def test_a_pstate_is_read_as_on_a_cluster_and_not_whole() -> None:
    """A cluster has never had a get() of everything."""
    with stretto.testing.module(Kept) as m:
        m.append("events", "a", "bb", "ccc", "dddd")
        m.run()
        for pstate in (m.numbers, m.lists, m.names):
            with pytest.raises(UsageError, match=r"give a key of PState \w+; items\(\) and keys\(\) go"):
                pstate.get()
            with pytest.raises(UsageError, match="give a key of PState"):
                pstate.contains()
        assert m.numbers.get_many(["a", "ccc", "none"]) == {"a": 1, "ccc": 3}
        with pytest.raises(UsageError, match="PState names is a set, which has no values"):
            m.names.get_many(["a"])
        assert list(m.numbers.items(after="a", limit=2)) == [("bb", 2), ("ccc", 3)]
        assert list(m.names.keys(start="b", end="d")) == ["bb", "ccc"]
        assert (m.numbers.count(), m.numbers.count(prefix="c"), m.numbers.count(after="bb")) == (4, 1, 2)
        assert m.lists.slice("dddd", start=1, stop=3) == [1, 2]
        assert m.lists.slice("none") == []
        assert m.lists.count("dddd") == 4
        with pytest.raises(UsageError, match="only a list has slices"):
            m.numbers.slice("a")


def test_the_readers_of_tests_and_of_clients_take_the_same() -> None:
    for name in ("get", "get_many", "contains", "keys", "items", "count", "slice"):
        ours, theirs = (inspect.signature(getattr(of, name)) for of in (PStateUnderTest, PStateReader))
        assert ours == theirs, name
