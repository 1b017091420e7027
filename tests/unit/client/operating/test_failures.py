"""Parked records of a module that has more of them than one answer holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto import control
from stretto.client.operating import failures
from stretto.client.operating.cluster import Cluster
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire

PAGE = 10
WORKER = WorkerId("w0")


def parked(task: int, offset: int, topology: str = "split") -> control.FailureView:
    return control.FailureView(
        topology=topology,
        depot="events",
        task=TaskId(task),
        offset=offset,
        at_ms=0,
        attempts=1,
        error="no luck",
        traceback="",
        record="",
    )


class Leader:
    """Of two groups with a task each; what is forgotten is gone a while later, as in a real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, int]) -> None:
        self.rows = [[parked(task, offset) for offset in range(counts[task])] for task in range(2)]
        self.settled: list[control.FailureKey] = []
        monkeypatch.setattr(failures, "ask", self.ask)
        monkeypatch.setattr(failures, "SHOWN_MAX", PAGE)

    @property
    def cluster(self) -> Cluster:
        groups = tuple(
            wire.GroupView(GroupKey("M", 1, task), (TaskId(task),), (WORKER,), Epoch(1), WORKER, (WORKER,), 2)
            for task in range(2)
        )
        metadata = wire.Metadata(1, {WORKER: "a:1"}, groups)
        return cast(Cluster, SimpleNamespace(network=None, metadata=lambda: metadata))

    def ask(self, _: Any, __: str, call: Any) -> Any:
        match call:
            case control.Failures(group=group, after=after):
                start = 0 if after is None else after.offset + 1
                rows = self.rows[group.group][start:]
                return control.FailuresView(parked=tuple(rows[:PAGE]), more=len(rows) > PAGE)
            case control.SettleFailures(keys=keys):
                self.settled += keys
                return len(keys)
            case _:
                raise AssertionError(call)


def everything(_: control.FailureView) -> bool:
    return True


def test_all_are_settled_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch, (3 * PAGE + 1, 2))
    assert failures.settle_failures(leader.cluster, "M", everything, again=False) == 3 * PAGE + 3
    assert len({(each.task, each.offset) for each in leader.settled}) == 3 * PAGE + 3


def test_that_there_are_more_than_are_shown_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch, (PAGE + 1, PAGE))
    found = failures.find_failures(leader.cluster, "M", everything)
    assert (len(found.parked), found.more) == (2 * PAGE, True)
    leader.rows[0].pop()
    found = failures.find_failures(leader.cluster, "M", everything)
    assert (len(found.parked), found.more) == (2 * PAGE, False)


def test_those_of_one_topology_are_found_behind_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch, (5 * PAGE, 0))
    leader.rows[0].append(parked(0, 5 * PAGE, "zip"))
    found = failures.find_failures(leader.cluster, "M", lambda each: each.topology == "zip")
    assert [each.offset for each in found.parked] == [5 * PAGE]


def test_one_record_is_settled_and_no_other_of_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch, (8, 8))
    wanted = control.FailureKey(topology="split", depot="events", task=TaskId(1), offset=5)
    assert failures.settle_one(leader.cluster, "M", wanted, again=False) == 1
    assert leader.settled == [wanted]
