"""Which task answers a query, and what becomes of its answer."""

from __future__ import annotations

import asyncio
import threading
from datetime import date
from typing import Any

import pytest

from stretto.client.reading.queries import Asking, argument, named_argument, task_of
from stretto.control import ModuleDescription
from stretto.errors import QueryFailed, RetriableError, UsageError
from stretto.module.partition import owner_of
from stretto.network.routing import Network
from stretto.pstate.types import describe
from stretto.specs.modules import QuerySpec
from stretto.wire import messages as wire
from tests.unit.client.answering import GROUPS, LEADER, MODULE, SECONDS, TASKS, Answer, answered_by

SPECS = (
    QuerySpec(name="sum", parameters=("day", "of"), key="of"),
    QuerySpec(name="since", parameters=("day",), key="day", key_type=describe(date)),
    QuerySpec(name="all"),
)
DESCRIPTION = ModuleDescription(tasks=TASKS, depots=None, queries=SPECS)


def asking(network: Network, name: str, *args: Any, timeout: float = SECONDS, **named: Any) -> Asking:
    return Asking(network, MODULE, DESCRIPTION, name, args=args, named=named, timeout=timeout)


def echo(message: wire.ToWorker, bodies: list[bytes]) -> Answer:
    assert isinstance(message, wire.RunQuery)
    return wire.QueryAnswered(message.request), [bodies[0]]


def test_a_query_gets_its_arguments_and_its_result_comes_back() -> None:
    with answered_by((LEADER, echo)) as (network, [worker]):
        assert asking(network, "sum", 1, of="ann").wait() == [[1], {"of": "ann"}]
        assert asyncio.run(asking(network, "sum", 1, "ann").awaited()) == [[1, "ann"], {}]
        assert asking(network, "all").wait() == [[], {}]
        task = owner_of("ann", TASKS)
        asked = [each for each in worker.asked if isinstance(each, wire.RunQuery)]
        assert [(each.query, each.task) for each in asked] == [("sum", task), ("sum", task), ("all", None)]
        assert {each.timeout_ms for each in asked} == {20_000}
        # Any worker does for a question to all tasks: the one that leads the first.
        assert [each.group for each in asked[1:]] == [GROUPS[task // 2], GROUPS[0]]


def test_what_cannot_be_asked_is_refused_before_it_is_sent() -> None:
    with answered_by((LEADER, echo)) as (network, [worker]):
        with pytest.raises(UsageError, match=r"module m has no query smu; .*sum"):
            asking(network, "smu")
        with pytest.raises(UsageError, match="an argument of all cannot be sent"):
            asking(network, "all", object())
        with pytest.raises(UsageError, match="query sum needs of, which chooses the task"):
            asking(network, "sum", 1)
        assert worker.asked == []


def test_a_query_that_fails_tells_its_error_and_what_is_no_answer_is_none() -> None:
    answers: list[Any] = [lambda n: wire.QueryFailed(n, "it broke", "a traceback"), wire.Appended]

    def answer(message: wire.ToWorker, _: list[bytes]) -> Answer:
        assert isinstance(message, wire.RunQuery)
        made: wire.ToClient = (
            answers[0](message.request) if len(answers) == 2 else wire.Appended(message.request, None)
        )
        answers.pop()
        return made

    with answered_by((LEADER, answer)) as (network, _):
        with pytest.raises(QueryFailed, match="query all of m failed: it broke") as failed:
            asking(network, "all").wait()
        assert failed.value.traceback == "a traceback"
        with pytest.raises(RetriableError, match="unexpected answer came: Appended"):
            asking(network, "all").wait()


def test_a_coroutine_that_is_cancelled_asks_no_longer() -> None:
    asked = threading.Event()
    cancelled = threading.Event()

    def answer(message: wire.ToWorker, _: list[bytes]) -> Answer:
        (cancelled if isinstance(message, wire.Cancel) else asked).set()
        return None

    async def cancel(network: Network) -> None:
        running = asyncio.create_task(asking(network, "all", timeout=1_000.0).awaited())
        await asyncio.to_thread(asked.wait, SECONDS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with answered_by((LEADER, answer)) as (network, _):
        asyncio.run(cancel(network))
        assert cancelled.wait(SECONDS)


def test_the_key_chooses_the_task_as_the_function_gets_it() -> None:
    keyed, since, _ = SPECS
    day = date(2026, 1, 31)
    assert task_of(keyed, [1, "ann"], {}, 64) == owner_of("ann", 64)
    assert task_of(keyed, [1, "bob"], {"of": "ann"}, 64) == owner_of("ann", 64)
    assert task_of(since, ["2026-01-31"], {}, 64) == owner_of(day, 64)
    assert task_of(since, [], {"day": day}, 64) == owner_of(day, 64)
    # The function refuses it, wherever it runs.
    assert task_of(since, ["never"], {}, 64) == owner_of("never", 64)


def test_arguments_are_json_and_what_is_none_is_text() -> None:
    assert [argument(text) for text in ("7", '"7"', "ann", "[1]")] == [7, "7", "ann", [1]]
    assert named_argument("of=ann") == ("of", "ann")
    assert named_argument("of=a=b") == ("of", "a=b")
    for text in ("of", "1of=2", "=2"):
        with pytest.raises(UsageError, match="a named argument is NAME=JSON"):
            named_argument(text)
