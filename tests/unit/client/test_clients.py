"""What a client finds out for who uses it, in both of its manners: waiting, and awaited."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stretto import connect, connect_async, control
from stretto.client import api
from stretto.errors import RetriableError, UsageError
from stretto.network.routing import Network
from stretto.pstate.types import describe
from stretto.replog.frame import Kind
from stretto.specs.modules import DepotSpec, PStateSpec, QuerySpec
from stretto.vocabulary.types import Offset
from stretto.wire import messages as wire
from tests.unit.client.answering import GROUPS, LEADER, MODULE, TASKS, Answer, answered_by
from tests.unit.client.reading.test_depot_reads import Depot, record
from tests.unit.client.reading.test_pstate_reads import Rows

COUNTS = {"a": 1, "b": 2, "c": 3}


class Module:
    """A module with a depot, a PState and a query, which is told to clients that ask."""

    def __init__(self) -> None:
        self._rows = Rows(dict[str, int], COUNTS)
        self._depot = Depot()
        self.queries: tuple[QuerySpec, ...] = (QuerySpec(name="sum"),)
        self.appended: list[bytes] = []
        self.described = 0

    def answer(self, message: wire.ToWorker, bodies: list[bytes]) -> Answer:
        match message:
            case wire.Ask(request=request, call=call):
                assert isinstance(control.decode_call(call), control.Describe)
                self.described += 1
                return wire.Answer(request, control.encode(self._description()))
            case wire.RunQuery(request=request):
                return wire.QueryAnswered(request), [bodies[0]]
            case wire.AppendBatch(request=request, kind=kind):
                if kind is not Kind.PRODUCER_OPEN:
                    self.appended += bodies
                return wire.Appended(request, Offset(0))
            case wire.ReadDepot() | wire.FindOffset():
                return self._depot.answer(message, bodies)
            case _:
                return self._rows.answer(message, bodies)

    def _description(self) -> control.ModuleDescription:
        return control.ModuleDescription(
            tasks=TASKS,
            depots=(DepotSpec(name="events"),),
            pstates=(PStateSpec(name="counts", type=describe(dict[str, int])),),
            queries=self.queries,
        )


def test_a_client_finds_what_the_module_declares() -> None:
    module = Module()
    with answered_by((LEADER, module.answer)) as (_, [worker]), connect(worker.address) as client:
        assert [view.key for view in client.groups()] == list(GROUPS)
        assert client.describe(MODULE).tasks == TASKS
        assert client.pstate(MODULE, "counts").get("b") == 2
        assert client.reader(MODULE, "events").read(1, 4).records[0] == record(1, 4)
        assert client.query(MODULE, "sum", 1, of=2) == [[1], {"of": 2}]
        for refused in (lambda: client.pstate(MODULE, "count"), lambda: client.depot(MODULE, "event")):
            with pytest.raises(UsageError, match="did you mean"):
                refused()
        with pytest.raises(UsageError, match="say which depot of module m"):
            client.depot(MODULE)  # type: ignore[call-overload]
        client.depot(MODULE, "events").append({"n": 1}).result(20.0)
        assert len(module.appended) == 1


def test_a_module_is_described_again_when_a_query_is_not_known() -> None:
    module = Module()
    with answered_by((LEADER, module.answer)) as (_, [worker]), connect([worker.address]) as client:
        client.query(MODULE, "sum")
        client.query(MODULE, "sum")
        assert module.described == 1
        module.queries = (QuerySpec(name="sum"), QuerySpec(name="new"))
        assert client.query(MODULE, "new", 7) == [[7], {}]
        assert module.described == 2


def test_a_client_waits_until_all_tasks_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "AGAIN_SECONDS", 0.001)
    module = Module()
    with answered_by((LEADER, module.answer)) as (_, [worker]):
        known = worker.metadata
        worker.metadata = wire.Metadata(0, known.addresses, known.groups[:1])
        with connect([worker.address]) as client:
            with pytest.raises(RetriableError, match="not all tasks of module m can be found"):
                client.pstate(MODULE, "counts", timeout=0.05)
            worker.metadata = known
            assert client.pstate(MODULE, "counts").count() == 3


def test_a_client_that_nobody_answers_says_so() -> None:
    with pytest.raises(UsageError, match="needs the address of at least one worker"):
        connect([])
    with pytest.raises(RetriableError, match="no worker answered"):
        connect(["127.0.0.1:1"], timeout=0.05)


def test_the_same_is_awaited_by_coroutines() -> None:
    async def use(address: str) -> list[Any]:
        async with await connect_async([address]) as client:
            assert [view.key for view in client.groups()] == list(GROUPS)
            await client.refresh()
            counts = await client.pstate(MODULE, "counts")
            reader = client.reader(MODULE, "events")
            depot = await client.depot(MODULE, "events")
            await depot.append({"n": 1})
            producer = await client.producer(MODULE, "events")
            await producer.append(b"2", task=1)
            tail = reader.tail(start={0: 4, 1: 9, 2: 9, 3: 9})
            return [
                await counts.get("b"),
                await counts.get("x", default=0),
                await counts.get_many(["c", "x"]),
                await counts.contains("x"),
                await counts.count(),
                [key async for key in counts.keys(start="b")],
                [item async for item in counts.items(limit=1)],
                (await reader.read(1, 4)).records[0],
                await anext(tail),
                await client.query(MODULE, "sum", 1, of=2),
            ]

    module = Module()
    with answered_by((LEADER, module.answer)) as (_, [worker]):
        assert asyncio.run(use(worker.address)) == [
            2,
            0,
            {"c": 3},
            False,
            3,
            ["b", "c"],
            [("a", 1)],
            record(1, 4),
            record(0, 4),
            [[1], {"of": 2}],
        ]
    assert len(module.appended) == 2


def test_long_results_are_taken_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "RUN", 2)

    async def collect() -> list[int]:
        return [each async for each in api._awaited(lambda: iter(range(5)))]

    assert asyncio.run(collect()) == [0, 1, 2, 3, 4]


def test_a_network_knows_its_own_thread_and_is_closed_once() -> None:
    with answered_by((LEADER, Module().answer)) as (network, [worker]):
        assert not network.is_own_thread
        seen: list[bool] = []
        network.call(lambda: seen.append(network.is_own_thread))
        other = Network([worker.address], None)
        other.close()
        other.close()
        assert other.is_own_thread is False
        with connect([worker.address]) as client:
            client.refresh()
    assert seen == [True]
