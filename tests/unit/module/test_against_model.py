"""The runner against plain Python: random operations, failures in their middle, hops, and batches."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto import Depot, Module, PState, step, stream
from stretto.module.runner import TaskRunner
from stretto.module.work import Calls, Records, StepCall
from stretto.pstate.changes import pack, parse
from stretto.pstate.memory import MemoryRows
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import TaskId


class Machine(Module):
    """Does what its records say."""

    orders = Depot()
    numbers = PState(dict[str, int])
    nested = PState(dict[str, dict[str, int]])
    lists = PState(dict[str, list[int]])
    sets = PState(dict[str, set[int]])

    @stream(orders)
    def take(self, order: list[tuple[str, str, int]]) -> int | None:
        return self.carry_out(order)

    @step
    def more(self, order: list[tuple[str, str, int]]) -> None:
        self.carry_out(order)

    @step
    def far(self, number: int) -> None:
        pass

    def carry_out(self, order: list[tuple[str, str, int]]) -> int | None:
        for at, (what, key, number) in enumerate(order):
            match what:
                case "count":
                    self.numbers.increment(key, by=number)
                case "set":
                    self.numbers.set(key, value=number)
                case "delete":
                    self.numbers.delete(key)
                case "nested":
                    self.nested.increment(key, str(number))
                case "replace":
                    self.nested.set(key, value={str(number): number})
                case "drop":
                    self.nested.delete(key)
                case "append":
                    self.lists.append(key, value=number)
                case "cut":
                    self.lists.truncate(key, length=number)
                case "add":
                    self.sets.add(key, number)
                case "discard":
                    self.sets.discard(key, number)
                case "double":
                    self.numbers.set(key, value=2 * self.numbers.get(key, default=0))
                case "clear":
                    self.nested.delete()
                case "later":
                    self.more.at(key)(order[at + 1 :])
                    break
                case "far":
                    self.far.on(1)(number)
                case "fail":
                    raise ValueError(number)
                case "return":
                    return number
                case _:
                    raise AssertionError(what)
        return None


OPERATIONS = [
    "count",
    "set",
    "delete",
    "nested",
    "replace",
    "drop",
    "append",
    "cut",
    "add",
    "discard",
    "double",
]
orders = st.lists(
    st.tuples(
        st.sampled_from([*OPERATIONS, *OPERATIONS, "clear", "later", "far", "fail", "return"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 3),
    ),
    max_size=6,
)


class Model:
    """The same, without any care."""

    def __init__(self) -> None:
        self.state: dict[str, dict[str, Any]] = {"numbers": {}, "nested": {}, "lists": {}, "sets": {}}
        self.far: list[tuple[int, int]] = []
        self.failed: list[int] = []
        self.results: list[tuple[int, int]] = []

    def take(self, index: int, order: list[tuple[str, str, int]]) -> None:
        before, sent = copy.deepcopy(self.state), len(self.far)
        try:
            result = self.carry_out(index, order)
        except ValueError:
            self.state = before
            del self.far[sent:]
            self.failed.append(index)
        else:
            if result is not None:
                self.results.append((index, result))

    def carry_out(self, index: int, order: list[tuple[str, str, int]]) -> int | None:
        numbers, nested, lists, sets = self.state.values()
        for at, (what, key, number) in enumerate(order):
            match what:
                case "count":
                    numbers[key] = numbers.get(key, 0) + number
                case "set":
                    numbers[key] = number
                case "delete":
                    numbers.pop(key, None)
                case "nested":
                    inner = nested.setdefault(key, {})
                    inner[str(number)] = inner.get(str(number), 0) + 1
                case "replace":
                    nested[key] = {str(number): number}
                case "drop":
                    nested.pop(key, None)
                case "append":
                    lists.setdefault(key, []).append(number)
                case "cut":
                    del lists.get(key, [])[number:]
                case "add":
                    sets.setdefault(key, set()).add(number)
                case "discard":
                    sets.get(key, set()).discard(number)
                case "double":
                    numbers[key] = 2 * numbers.get(key, 0)
                case "clear":
                    nested.clear()
                case "later":
                    self.carry_out(index, order[at + 1 :])
                    return None
                case "far":
                    self.far.append((index, number))
                case "fail":
                    raise ValueError
                case "return":
                    return number
                case _:
                    raise AssertionError(what)
        return None

    def held(self) -> dict[str, dict[str, Any]]:
        """An empty collection is none."""
        return {
            name: {key: value for key, value in held.items() if value or isinstance(value, int)}
            for name, held in self.state.items()
        }


def check_batches(given_orders: list[Any], sizes: list[int], *, as_calls: bool) -> None:
    runner = TaskRunner(Machine, TaskId(0), 1)
    rows = {name: MemoryRows() for name in ("numbers", "nested", "lists", "sets")}
    model = Model()
    for index, order in enumerate(given_orders):
        model.take(index, order)
    failed, results = [], []
    at = 0
    while at < len(given_orders):
        size = sizes[at % len(sizes)]
        some = given_orders[at : at + size]
        if as_calls:
            calls = [StepCall("more", msgspec.msgpack.encode((order,)), 0) for order in some]
            outcome = runner.run(Calls("take", calls), rows.__getitem__)
        else:
            work = Records("take", "orders", DepotOffset(at), [json.dumps(order).encode() for order in some])
            outcome = runner.run(work, rows.__getitem__)
        assert outcome.done == len(some)
        for name, changes in parse(pack(outcome.changes)).items():
            rows[name].apply(changes)
        failed += [at + failure.index for failure in outcome.failures]
        results += [(at + index, json.loads(result)) for index, result in outcome.results]
        at += size
    _, bound = runner.bind("reader", rows.__getitem__, hops=False)
    held = {name: dict(getattr(bound, name).items()) for name in rows}
    assert held == model.held()
    assert failed == model.failed
    if not as_calls:
        assert results == model.results


without_far = orders.map(lambda order: [each for each in order if each[0] != "far"])
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@settings(deadline=None, max_examples=80)
@given(st.lists(without_far, max_size=8), sizes)
def test_records_in_any_batches_are_what_plain_python_does(
    given_orders: list[Any], batch_sizes: list[int]
) -> None:
    check_batches(given_orders, batch_sizes, as_calls=False)


@settings(deadline=None, max_examples=80)
@given(st.lists(without_far, max_size=8), sizes)
def test_calls_in_any_batches_are_what_plain_python_does(
    given_orders: list[Any], batch_sizes: list[int]
) -> None:
    check_batches(given_orders, batch_sizes, as_calls=True)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(["far", "far", "fail"]), st.just("a"), st.integers(0, 9))))
)
def test_hops_to_another_task_are_those_of_records_that_succeed_in_order(given_orders: list[Any]) -> None:
    model = Model()
    for index, order in enumerate(given_orders):
        model.take(index, order)
    work = Records("take", "orders", DepotOffset(0), [json.dumps(order).encode() for order in given_orders])
    outcome = TaskRunner(Machine, TaskId(0), 2).run(work, lambda _: MemoryRows())
    sent = [(call.origin, msgspec.msgpack.decode(call.args)[0]) for call in outcome.hops.get(TaskId(1), [])]
    assert sent == model.far
    assert [failure.index for failure in outcome.failures] == model.failed


@settings(deadline=None, max_examples=80)
@given(st.lists(without_far, max_size=8))
def test_a_run_that_stops_has_done_what_came_before(given_orders: list[Any]) -> None:
    model = Model()
    stopped = len(given_orders)
    for index, order in enumerate(given_orders):
        model.take(index, order)
        if model.failed:
            stopped = index
            break
    work = Records("take", "orders", DepotOffset(0), [json.dumps(order).encode() for order in given_orders])
    rows = {name: MemoryRows() for name in ("numbers", "nested", "lists", "sets")}
    runner = TaskRunner(Machine, TaskId(0), 1)
    outcome = runner.run(work, rows.__getitem__, stop_at_failure=True)
    assert outcome.done == stopped
    for name, changes in outcome.changes.items():
        rows[name].apply(changes)
    _, bound = runner.bind("reader", rows.__getitem__, hops=False)
    assert {name: dict(getattr(bound, name).items()) for name in rows} == model.held()
