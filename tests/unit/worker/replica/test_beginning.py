"""Topologies begin once what is stored of them can be read, however often that fails at first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from stretto.errors import StorageError
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId
from stretto.worker.microbatch.machines import effects, events
from stretto.worker.microbatch.microbatches import Microbatches
from stretto.worker.topology import rows
from stretto.worker.topology.machine.stored import Stored
from stretto.worker.topology.streams import Streams

KEY, TASK = GroupKey("m", 1, 0), TaskId(0)
FULL = StorageError("the state has all readers it may have")


def a_worker() -> MagicMock:
    """What is read is told at once, and so is what is to come later."""
    worker = MagicMock()

    def read(function: Callable[[], Any], then: Callable[[Any], None]) -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - as the applier does
            result = error
        then(result)

    worker.applier.read.side_effect = read
    worker.loop.call_after.side_effect = lambda _, function, *args: function(*args)
    worker.loop.now = 0
    return worker


def test_a_microbatch_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Microbatches(a_worker())
    put = MagicMock()
    monkeypatch.setattr(desk, "_put", put)
    group = MagicMock(key=KEY, closed=False)
    group.state.reading_pstate.side_effect = [FULL, FULL, nullcontext({})]
    led = SimpleNamespace(group=group, task=TASK, spec=SimpleNamespace(name="t"), is_over=False)
    desk._load(cast(Any, led), effects.Load(token=7))
    put.assert_called_once_with(led, events.Loaded(token=7))


def test_streams_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = a_worker()
    worker.description.topologies = [
        SimpleNamespace(kind="stream", name="t", depots=("d",), retry="individual", batch=False)
    ]
    monkeypatch.setattr(rows, "read", MagicMock(side_effect=[FULL, FULL, Stored()]))
    desk = Streams(worker)
    group = MagicMock(key=KEY, closed=False, depot_ends={})
    group.plan.tasks = (TASK,)
    desk._begin(group, Epoch(1))
    assert list(desk._led[KEY, TASK]) == ["t"]
