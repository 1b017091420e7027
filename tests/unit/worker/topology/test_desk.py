from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pytest

from stretto.topology.work import StepCall, Timed
from stretto.worker.executors.pool import Lost, Why
from stretto.worker.topology import work
from stretto.worker.topology.desk import StreamDesk

HUNG = Lost(Why.TIME_OUT, "it took too long", ran_ms=7)


def calls(*steps: str) -> work.RunCalls:
    body = msgspec.msgpack.encode([StepCall(step, b"", 0) for step in steps])
    return work.RunCalls(batch=1, attempt=1, applied=1, calls=body)


RECORDS = work.RunRecords(
    batch=1, attempt=1, applied=1, depot="events", offset=0, records_max=9, bytes_max=1 << 20
)


@pytest.mark.parametrize(
    ("run", "timed"),
    [(RECORDS, "take"), (calls("add", "add"), "add"), (calls("add", "count"), "take")],
)
def test_a_step_that_hangs_is_timed_by_its_name_once_that_is_known(
    run: work.RunRecords | work.RunCalls, timed: str
) -> None:
    desk = StreamDesk(MagicMock())
    led = MagicMock()
    led.spec.name = "take"
    told: list[tuple[Timed, ...]] = []
    led.group.meter = SimpleNamespace(called=told.append)
    desk._measure(led, run, HUNG)
    assert told == [(Timed(timed, 0, 0, (7_000_000,)),)]
