from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import msgspec
import pytest

from stretto import wire
from stretto.topology.work import Timed
from stretto.types import TaskId
from stretto.worker.executors import protocol
from stretto.worker.executors.pool import Lost, Why
from stretto.worker.microbatch import machine, messages
from stretto.worker.microbatch.desk import MicrobatchDesk
from stretto.worker.microbatch.entries import Span, Version
from stretto.zk.paths import GroupKey

GROUP = GroupKey("m", 1, 0)


@pytest.mark.parametrize(
    ("steps", "careful", "timed"),
    [
        ((), False, "take"),
        (("add", "add"), False, "add"),
        (("add", "count"), False, "take"),
        (("add", "count"), True, "count"),
    ],
)
def test_a_step_that_hangs_is_timed_by_its_name_once_that_is_known(
    steps: tuple[str, ...], careful: bool, timed: str
) -> None:
    desk = MicrobatchDesk(MagicMock())
    led = MagicMock()
    led.spec.name = "take"
    told: list[tuple[Timed, ...]] = []
    led.group.meter = SimpleNamespace(called=told.append)
    calls = [protocol.SourcedCall(step, b"", "events", TaskId(0), 1) for step in steps]
    effect = machine.Execute(
        version=Version(1, 0),
        round=1 if steps else 0,
        after=1,
        careful=careful,
        spans=() if steps else (Span("events", TaskId(0), 0, 9),),
        left_out=(),
        calls=(msgspec.msgpack.encode(calls),) if steps else (),
    )
    desk._executed(led, effect, Lost(Why.TIME_OUT, "it took too long", ran_ms=7, done=1), [])
    assert told == [(Timed(timed, 0, 0, (7_000_000,)),)]


def test_who_goes_by_other_code_takes_no_part_in_a_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    replies: list[wire.ToClient] = []
    worker = SimpleNamespace(
        loop=None,
        groups={},
        artifact="of an update",
        transport=SimpleNamespace(reply=lambda _sender, reply: replies.append(reply)),
    )
    desk = MicrobatchDesk(cast(Any, worker))
    monkeypatch.setattr(desk, "_deliver", lambda *_: True)
    body = memoryview(msgspec.msgpack.encode(messages.Poll(1, {})))
    for code in ("the one before", "of an update"):
        message = wire.Microbatch(1, GROUP, TaskId(0), "take", code)
        desk.received(cast(Any, "sender"), message, [body])
    assert [type(reply) for reply in replies] == [wire.Refused, wire.Taken]
