"""Rows that a topology keeps beside PStates."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

from stretto import control
from stretto.pstate.changes import Changes
from stretto.pstate.memory import MemoryRows
from stretto.state.applied import AppliedState
from stretto.vocabulary.types import TaskId
from stretto.worker.topology import rows

LIMIT = 3


def test_parked_records_come_page_by_page_and_each_once() -> None:
    tasks = [TaskId(4), TaskId(0), TaskId(2)]
    kept = {task: MemoryRows() for task in tasks}
    note = rows._encode(rows.FailureRow(0, 1, "no luck", "", b"record"))
    for task in tasks[:2]:
        keys = [
            rows.key_of(topology, "events", offset)
            for topology in ("join", "split")
            for offset in (0, 7, 300)
        ]
        kept[task].apply(Changes(puts=tuple((key, note) for key in keys)))
    state = cast(AppliedState, SimpleNamespace(reading_pstate=lambda task, _: nullcontext(kept[task])))
    seen: list[tuple[int, str, int]] = []
    after: control.FailureKey | None = None
    pages = 0
    while True:
        page, more = rows.failures_page(state, tasks, LIMIT, after)
        seen += [(each.task, each.topology, each.offset) for each in page]
        pages += 1
        if not more:
            break
        after = page[-1]
    assert seen == [
        (task, topology, offset)
        for task in (0, 4)
        for topology in ("join", "split")
        for offset in (0, 7, 300)
    ]
    assert pages == 4
