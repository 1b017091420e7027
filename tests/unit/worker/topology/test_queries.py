"""Queries in a worker: who is still there to be told, and what becomes of those whose asker is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stretto.network.loop import Loop
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId
from stretto.wire import messages as wire
from stretto.worker.executors import protocol
from stretto.worker.topology import queries
from stretto.worker.topology.queries import Queries

GROUP = GroupKey("M", 1, 0)
ASKER = b"asker"


class Worker:
    """What the desk needs of one. An asker in ``gone`` hears nothing."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.description = SimpleNamespace(queries=[SimpleNamespace(name="ask")], tasks=1)
        self.config = SimpleNamespace(module="M")
        leader = SimpleNamespace(epoch=Epoch(1))
        meter = SimpleNamespace(called=lambda times: None)
        state = SimpleNamespace(folder=lambda task: SimpleNamespace(absolute=lambda: "folder"))
        group = SimpleNamespace(
            key=GROUP, plan=SimpleNamespace(tasks=(TaskId(0),)), leader=leader, state=state, meter=meter
        )
        self.groups = {GROUP: group}
        self.executors = self.transport = self
        self.clients = SimpleNamespace(reads=self)
        self.gone: set[bytes] = set()
        self.sent: list[tuple[bytes, wire.ToClient]] = []
        self.running: list[Any] = []
        self.cancelled: list[int] = []

    def option(self, _: str) -> int:
        return 10_000

    def reply(self, to: bytes, message: wire.ToClient, bodies: Any = ()) -> bool:
        self.sent.append((to, message))
        return to not in self.gone

    def elsewhere(self, _: Any, look: Any, replied: Any) -> None:
        look(lambda: replied(None))

    def run(self, _: GroupKey, request: Any, then: Any, **options: Any) -> int:
        self.running.append(then)
        return len(self.running)

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        self.loop.stop()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setattr(queries, "PROBE_MS", 10)
    return Worker()


def test_a_query_whose_asker_is_gone_without_a_word_is_cancelled(worker: Worker) -> None:
    desk = Queries(worker)  # type: ignore[arg-type]
    desk.received(ASKER, wire.RunQuery(7, GROUP, "ask", TaskId(0), 60_000), [])
    worker.gone.add(ASKER)
    worker.loop.call_after(10_000, worker.loop.stop)
    worker.loop.run()
    assert worker.cancelled == [1]
    assert worker.sent[0] == (ASKER, wire.QueryGoesOn(7))


def test_an_asker_that_is_there_is_told_that_its_query_goes_on_until_it_is_answered(worker: Worker) -> None:
    desk = Queries(worker)  # type: ignore[arg-type]
    desk.received(ASKER, wire.RunQuery(7, GROUP, "ask", TaskId(0), 60_000), [])

    def look() -> None:
        if len(worker.sent) > 2:
            worker.running[0](protocol.QueryRan(1), [b"answer"])
            worker.loop.call_after(100, worker.loop.stop)
        else:
            worker.loop.call_after(5, look)

    worker.loop.call_soon(look)
    worker.loop.run()
    assert worker.cancelled == []
    assert worker.sent[-1] == (ASKER, wire.QueryAnswered(7))
    assert {type(message) for _, message in worker.sent[:-1]} == {wire.QueryGoesOn}
