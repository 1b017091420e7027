"""What a microbatch has not heard of counts as not taken, although it lags by nothing by its own word."""

from __future__ import annotations

from typing import Any

import pytest

from stretto import control
from stretto.testing.clusters import _has_taken
from stretto.vocabulary.types import TaskId


def view(**others: Any) -> control.MicrobatchView:
    told: dict[str, Any] = {
        "topology": "book",
        "id": 3,
        "version": 0,
        "phase": "idle",
        "lag": 0,
        "why": "",
        "ends": {"orders": {TaskId(0): 5, TaskId(1): 2}},
    }
    return control.MicrobatchView(**(told | others))


def test_one_that_has_heard_of_everything_and_has_it() -> None:
    assert _has_taken(view(), {"orders": {0: 5, 1: 2}, "of others": {0: 9, 1: 9}})


@pytest.mark.parametrize(
    ("told", "visible"),
    [
        (view(), {"orders": {0: 6, 1: 2}}),
        (view(ends={"orders": {TaskId(0): 9}}), {"orders": {0: 5, 1: 2}}),
        (view(lag=1), {"orders": {0: 5, 1: 2}}),
        (view(lag=None), {"orders": {0: 5, 1: 2}}),
        (view(phase="rolling"), {"orders": {0: 5, 1: 2}}),
    ],
)
def test_one_that_has_not(told: control.MicrobatchView, visible: dict[str, dict[int, int]]) -> None:
    assert not _has_taken(told, visible)
