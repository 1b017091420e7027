"""Steps for other tasks: in order, recognized when they come again, and forgotten in time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import msgspec

from stretto import wire
from stretto.replog.frame import Buffer
from stretto.types import Epoch, TaskId, WorkerId
from stretto.worker.topology import hops
from stretto.worker.topology.hops import Failures, Hops
from stretto.zk.paths import GroupKey

GROUP = GroupKey("m", 1, 0)
Tell: TypeAlias = Callable[[Failures | None], None]


CODE = "1f"


def test_an_answer_that_is_long_in_coming_keeps_no_others(monkeypatch: Any) -> None:
    monkeypatch.setattr(hops, "TAKEN_MAX", 10)
    told: list[Tell] = []
    replies: list[wire.ToClient] = []

    def take(
        _group: GroupKey,
        _task: TaskId,
        _topology: str,
        _calls: Buffer,
        tell: Callable[[Failures | None], None],
    ) -> bool:
        told.append(tell)
        return True

    transport = SimpleNamespace(reply=lambda _sender, reply: replies.append(reply))
    desk = Hops(cast(Any, SimpleNamespace(worker=WorkerId("w0"), transport=transport, artifact=CODE)), take)

    def send(number: int) -> None:
        message = wire.RunSteps(number, GROUP, TaskId(0), "t", "source", number, CODE)
        desk.received(cast(Any, "sender"), message, [memoryview(msgspec.msgpack.encode([]))])

    for number in range(100):
        send(number)
    for tell in told[1:]:
        tell(())
    assert len(desk._taken) <= 11
    taken = len(told)
    send(99)
    send(0)
    assert len(told) == taken, "neither runs again"
    told[0](())
    assert [reply.request for reply in replies[-3:] if isinstance(reply, wire.StepsRun)] == [99, 0, 0]


def test_calls_of_other_code_are_refused_until_both_go_by_the_same() -> None:
    taken: list[TaskId] = []
    replies: list[wire.ToClient] = []

    def take(_group: GroupKey, task: TaskId, _topology: str, _calls: Buffer, _tell: Tell) -> bool:
        taken.append(task)
        return True

    worker = SimpleNamespace(
        worker=WorkerId("w0"),
        transport=SimpleNamespace(reply=lambda _sender, reply: replies.append(reply)),
        artifact=CODE,
    )
    desk = Hops(cast(Any, worker), take)
    message = wire.RunSteps(1, GROUP, TaskId(0), "t", "source", 7, "of an update")
    desk.received(cast(Any, "sender"), message, [memoryview(msgspec.msgpack.encode([]))])
    assert taken == []
    (refused,) = replies
    assert isinstance(refused, wire.Refused)
    worker.artifact = "of an update"
    desk.received(cast(Any, "sender"), message, [memoryview(msgspec.msgpack.encode([]))])
    assert taken == [0]


def test_hops_go_out_in_the_order_of_sending_also_while_nobody_knows_where_to() -> None:
    taken: list[bytes] = []
    later: list[Callable[[], None]] = []
    of_task: dict[tuple[str, TaskId], GroupKey] = {}

    def take(_group: GroupKey, task: TaskId, _topology: str, calls: Buffer, _tell: Tell) -> bool:
        if calls == b"first":
            # What is sent meanwhile waits for its turn too.
            desk.send("t", TaskId(0), b"from within", lambda _: None)
        taken.append(bytes(calls))
        return True

    worker = SimpleNamespace(
        config=SimpleNamespace(module="m"),
        worker=WorkerId("w0"),
        loop=SimpleNamespace(call_after=lambda _ms, refresh, then: later.append(lambda: refresh(then))),
    )
    desk = Hops(cast(Any, worker), take)
    view = SimpleNamespace(of_task=of_task, epoch=lambda _: Epoch(1))
    desk._network = cast(Any, SimpleNamespace(view=view, refresh=lambda then: then()))
    desk.send("t", TaskId(0), b"first", lambda _: None)
    later.pop()()
    assert (taken, len(later)) == ([], 1)
    of_task["m", TaskId(0)] = GROUP
    desk.send("t", TaskId(0), b"second", lambda _: None)
    assert taken == []
    later.pop()()
    assert (taken, later) == ([b"first", b"second", b"from within"], [])
    desk.send("t", TaskId(0), b"third", lambda _: None)
    assert taken[-1] == b"third"
