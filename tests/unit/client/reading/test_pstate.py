"""How many questions a reader of a PState has under way."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto.client.reading import pstate as reading
from stretto.client.reading.pstate import SCANS_AT_ONCE, PStateReader
from stretto.network.routing import Network
from stretto.pstate.ordered import decode_at
from stretto.pstate.tree import compile_type, rows_of
from stretto.pstate.types import describe
from stretto.specs.modules import PStateSpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire

TYPE = dict[int, dict[str, int]]
GROUP = GroupKey("m", 1, 0)


class Asked:
    """Of a worker that has something under even keys. Answered when it is waited for."""

    open = 0
    most = 0

    def __init__(self, *args: Any, **_: Any) -> None:
        message: Callable[[int, GroupKey], wire.ScanRows] = args[3]
        self._scan = message(1, GROUP)

    def begin(self) -> Asked:
        Asked.open += 1
        Asked.most = max(Asked.most, Asked.open)
        return self

    def wait(self) -> tuple[wire.RowPage, list[memoryview]]:
        Asked.open -= 1
        key, _ = decode_at(self._scan.start, 0)
        rows = rows_of(compile_type(describe(TYPE)), b"", {key: {"a": key}}) if key % 2 == 0 else []
        keys, values = tuple(row[0] for row in rows), tuple(row[1] for row in rows)
        return wire.RowPage(1, keys, values, len(keys), None), []


def test_many_keys_of_nested_pstates_are_asked_for_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Question", Asked)
    view = SimpleNamespace(
        check_tasks=lambda *_: None, of_task={("m", TaskId(task)): GROUP for task in range(4)}
    )
    network = cast(Network, SimpleNamespace(view=view))
    reader = PStateReader(network, "m", PStateSpec(name="nested", type=describe(TYPE)), 4)
    found = reader.get_many(range(1_000))
    assert found == {key: {"a": key} for key in range(0, 1_000, 2)}
    assert (Asked.open, Asked.most) == (0, SCANS_AT_ONCE)
