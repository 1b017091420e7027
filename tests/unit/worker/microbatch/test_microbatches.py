from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import msgspec
import pytest

from stretto import control
from stretto.module.work import Timed
from stretto.state.microbatch_entries import Span, Version
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire
from stretto.worker.executors import protocol
from stretto.worker.executors.replies import Lost, Why
from stretto.worker.microbatch.machines import effects, messages
from stretto.worker.microbatch.microbatches import Microbatches
from stretto.worker.topology import rows

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
    desk = Microbatches(MagicMock())
    led = MagicMock()
    led.spec.name = "take"
    told: list[tuple[Timed, ...]] = []
    led.group.meter = SimpleNamespace(called=told.append)
    calls = [protocol.SourcedCall(step, b"", "events", TaskId(0), 1) for step in steps]
    effect = effects.Execute(
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
    desk = Microbatches(cast(Any, worker))
    monkeypatch.setattr(desk, "_deliver", lambda *_: True)
    body = memoryview(msgspec.msgpack.encode(messages.Poll(1, {})))
    for code in ("the one before", "of an update"):
        message = wire.Microbatch(1, GROUP, TaskId(0), "take", code)
        desk.received(cast(Any, "sender"), message, [body])
    assert [type(reply) for reply in replies] == [wire.Refused, wire.Taken]


def a_desk(*topologies: str) -> tuple[Microbatches, MagicMock]:
    """Of a worker that reads at once, and whose entries are applied when their callback is called."""
    worker = MagicMock(worker="w0")
    worker.description.topologies = [
        SimpleNamespace(kind="microbatch", name=name, depots=("orders",)) for name in topologies
    ]
    worker.applier.read.side_effect = lambda function, then: then(function())
    return Microbatches(worker), worker


def test_an_append_that_nothing_takes_part_in_here_is_unknown_and_one_without_microbatches_is_done() -> None:
    where = (GROUP, TaskId(0), "orders")
    assert a_desk("book")[0].processed_of(where, 1) is None
    assert a_desk()[0].processed_of(where, 1) == {}


def key(offset: int, task: int = 0) -> control.FailureKey:
    return control.FailureKey(topology="book", depot="orders", task=TaskId(task), offset=offset)


@pytest.fixture
def parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records 3 and 4 are."""

    def among(_: object, __: TaskId, ___: str, keys: list[tuple[str, int]]) -> list[tuple[str, int]]:
        return [each for each in keys if each[1] in (3, 4)]

    monkeypatch.setattr(rows, "parked_among", among)


@pytest.mark.usefixtures("parked")
def test_only_parked_records_are_forgotten_and_each_counts_once() -> None:
    desk, worker = a_desk("book")
    group = MagicMock(key=GROUP)
    group.plan.tasks = (TaskId(0),)
    append = worker.streams.entries.append
    append.return_value = True
    told: list[object] = []
    desk.forget(group, [key(3), key(9), key(3, task=5)], told.append)
    desk.forget(group, [key(3), key(4)], told.append)
    assert told == []
    for *_, applied in [call.args for call in append.call_args_list]:
        applied()
    assert told == [1, 1]
    desk.forget(group, [key(9)], told.append)
    assert told == [1, 1, 0]


@pytest.mark.usefixtures("parked")
def test_who_forgets_records_of_a_group_that_takes_no_entries_or_is_led_elsewhere_is_told_to_ask_again() -> (
    None
):
    desk, worker = a_desk("book")
    group = MagicMock(key=GROUP)
    group.plan.tasks = (TaskId(0),)
    told: list[object] = []
    worker.streams.entries.append.return_value = False
    desk.forget(group, [key(3)], told.append)
    worker.streams.entries.append.return_value = True
    desk.forget(group, [key(3)], told.append)
    desk.closed(GROUP)
    refused, moved = told
    assert "takes no entries now; ask again" in str(refused)
    assert "ceased to lead group m/1/0" in str(moved)
