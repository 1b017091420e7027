from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pytest

from stretto.module.work import StepCall, Timed
from stretto.specs.modules import TopologySpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId
from stretto.worker.executors.replies import Lost, Why
from stretto.worker.topology import rows
from stretto.worker.topology.machine import effects
from stretto.worker.topology.machine.stored import Stored
from stretto.worker.topology.streams import Streams

HUNG = Lost(Why.TIME_OUT, "it took too long", ran_ms=7)


def calls(*steps: str) -> effects.RunCalls:
    body = msgspec.msgpack.encode([StepCall(step, b"", 0) for step in steps])
    return effects.RunCalls(batch=1, attempt=1, applied=1, calls=body)


RECORDS = effects.RunRecords(
    batch=1, attempt=1, applied=1, depot="events", offset=0, records_max=9, bytes_max=1 << 20
)


@pytest.mark.parametrize(
    ("run", "timed"),
    [(RECORDS, "take"), (calls("add", "add"), "add"), (calls("add", "count"), "take")],
)
def test_a_step_that_hangs_is_timed_by_its_name_once_that_is_known(
    run: effects.RunRecords | effects.RunCalls, timed: str
) -> None:
    desk = Streams(MagicMock())
    led = MagicMock()
    led.spec.name = "take"
    told: list[tuple[Timed, ...]] = []
    led.group.meter = SimpleNamespace(called=told.append)
    desk._measure(led, run, HUNG)
    assert told == [(Timed(timed, 0, 0, (7_000_000,)),)]


def test_streams_that_begin_again_before_they_have_begun_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when an update comes while the rows of a group are still being read."""
    monkeypatch.setattr(rows, "read", lambda _state, _task, _name, now: Stored(latest_hop=now))
    worker = MagicMock()
    worker.description.topologies = [TopologySpec(name="take", kind="stream", depots=("events",))]
    worker.options.value.return_value = worker.option.return_value = 100
    worker.is_paused = worker.holding.is_held = False
    turns: list[Callable[[], None]] = []
    worker.loop.at_turn_end.side_effect = turns.append
    worker.loop.now = 0
    reads: list[tuple[Callable[[], object], Callable[[object], None]]] = []
    worker.applier.read.side_effect = lambda read, then: reads.append((read, then))
    group = MagicMock(closed=False, key=GroupKey("m", 1, 0), depot_ends={(TaskId(0), "events"): 10})
    group.leader.epoch, group.leader.is_serving = Epoch(3), True
    group.replica.applied = group.replica.log_end = 5
    group.plan.tasks = (TaskId(0),)
    worker.groups = {group.key: group}
    desk = Streams(worker)
    desk.looked(group)
    desk.restart()
    assert len(reads) == 2
    for read, then in reads:
        then(read())
    while turns:
        turns.pop(0)()
    assert worker.executors.run.call_count == 1
