from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto import control
from stretto.network.loop import Loop
from stretto.replog.frame import Kind
from stretto.snapshot.manifest import file_of
from stretto.snapshot.unfinished import CREATING
from stretto.state.applied import AppliedState
from stretto.state.held import HeldState
from stretto.state.task_digest import HeldTask
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Millis, TaskId
from stretto.worker import snapshots
from stretto.worker.process import Worker
from stretto.worker.snapshots import Host, Snapshots, is_snapshot
from stretto.worker.topology.hold import HOLD_MS_MAX, Holding
from tests.support.entries import Log
from tests.unit.snapshot.snapshots import TASKS, a_log

KEY = GroupKey("bank", 1, 0)
DEADLINE_SECONDS = 30.0


class Timers(Loop):
    """A loop whose time is set by the test."""

    def __init__(self) -> None:
        self.now = Millis(1_000)
        self._due: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []

    def call_soon(self, function: Callable[..., None], *args: Any) -> None:
        self.call_at(self.now, function, *args)

    def call_after(self, delay_ms: int, function: Callable[..., None], *args: Any) -> None:
        self.call_at(self.now + delay_ms, function, *args)

    def call_at(self, when: int, function: Callable[..., None], *args: Any) -> None:
        self._due.append((when, function, args))

    def pass_ms(self, millis: int) -> None:
        self.now = Millis(self.now + millis)
        due = [each for each in self._due if each[0] <= self.now]
        self._due = [each for each in self._due if each[0] > self.now]
        for _, function, args in due:
            function(*args)


@dataclass
class Desk:
    """Of topologies, as much of it as a hold sees."""

    under_way: str = ""
    changes: list[bool] = field(default_factory=list)
    is_held: Callable[[], bool] = lambda: False

    def settings_changed(self) -> None:
        self.changes.append(self.is_held())


@dataclass
class World:
    loop: Timers = field(default_factory=Timers)
    worker: str = "w0"
    streams: Desk = field(default_factory=Desk)
    microbatches: Desk = field(default_factory=Desk)
    groups: dict[GroupKey, Any] = field(default_factory=dict)
    config: Any = field(default_factory=lambda: SimpleNamespace(cluster="c", node="n0"))
    description: Any = field(default_factory=lambda: SimpleNamespace(topologies=()))

    def option(self, _: str) -> int:
        return 0


def hold(token: str, hold_ms: int) -> control.HoldTopologies:
    return control.HoldTopologies(token=token, hold_ms=hold_ms)


def held(holding: Holding) -> bool:
    """For the type checker, which believes that nothing changes it."""
    return holding.is_held


def test_a_hold_lasts_until_it_is_ended_and_not_longer_than_it_may() -> None:
    world = World()
    holding = Holding(cast(Worker, world))
    world.streams.is_held = world.microbatches.is_held = lambda: holding.is_held
    leader = SimpleNamespace(epoch=4, is_serving=True)
    world.groups = {
        KEY: SimpleNamespace(key=KEY, leader=leader),
        GroupKey("bank", 1, 1): SimpleNamespace(key=GroupKey("bank", 1, 1), leader=None),
    }
    world.streams.under_way = "stream a is at work"
    told = holding.asked(hold("x", 5_000))
    assert (told.led, told.waits) == (((KEY, 4),), "stream a is at work")
    assert held(holding)
    holding.asked(hold("y", 1_000_000))
    holding.asked(hold("x", 0))
    assert held(holding)
    world.loop.pass_ms(HOLD_MS_MAX - 1)
    assert held(holding)
    world.loop.pass_ms(1)
    assert not held(holding)
    assert world.streams.changes == world.microbatches.changes == [True, False]


def test_a_hold_that_is_prolonged_does_not_end_at_its_first_time() -> None:
    world = World()
    holding = Holding(cast(Worker, world))
    holding.asked(hold("x", 100))
    world.loop.pass_ms(60)
    holding.asked(hold("x", 100))
    world.loop.pass_ms(60)
    assert held(holding)
    world.loop.pass_ms(40)
    assert not held(holding)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def desk(world: World) -> Iterator[Snapshots]:
    desk = Snapshots(cast(Host, world))
    yield desk
    desk.close()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[AppliedState]:
    state = AppliedState.open(tmp_path / "state", TASKS)
    yield state
    state.close()


def mark(desk: Snapshots, state: AppliedState, log: Log, token: str, *, age_ms: int = 0) -> None:
    now_ms = time.time_ns() // 1_000_000
    frame = log.add(Kind.MARKER, payload=b"snapshot/" + token.encode(), timestamp_ms=now_ms - age_ms)
    assert is_snapshot(frame)
    state.apply([each for each in log.frames if each.end_offset > state.applied])
    desk.marked(cast(Any, SimpleNamespace(key=KEY, state=state)), frame)


def cut(desk: Snapshots, token: str) -> control.CutView | None:
    return desk.cut(control.Cut(group=KEY, marker=token))


def until(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.002)
    raise AssertionError(f"{what}: not in {DEADLINE_SECONDS} s")


def digested(desk: Snapshots, token: str) -> control.CutView | None:
    view = cut(desk, token)
    return view if view is not None and all(task.digest for task in view.tasks.values()) else None


def finished(desk: Snapshots, token: str) -> control.CutView | None:
    view = cut(desk, token)
    assert view is not None
    return view if view.problem or all(task.sha256 for task in view.tasks.values()) else None


def test_the_state_at_a_marker_is_digested_and_copied_while_more_is_applied(
    desk: Snapshots, state: AppliedState, tmp_path: Path
) -> None:
    log = a_log()
    mark(desk, state, log, "one")
    marked, digests = state.applied, {task: state.digest(task) for task in TASKS}
    log.depot([b"later"], task=0)
    state.apply(log.frames[-1:])
    view = until("digests", lambda: digested(desk, "one"))
    assert (view.offset, view.epoch, view.cluster) == (marked, 1, "c")
    assert {task: each.digest for task, each in view.tasks.items()} == digests
    (tmp_path / CREATING).write_text("word")
    call = control.CopyCut(group=KEY, marker="one", folder=str(tmp_path), token="word")
    assert desk.copy(call)
    assert desk.copy(call)  # once is enough
    view = until("copies", lambda: finished(desk, "one"))
    assert view.problem == ""
    for task in TASKS:
        assert file_of(tmp_path, task).stat().st_size == view.tasks[task].size_bytes
    assert view.copied_bytes == sum(each.size_bytes or 0 for each in view.tasks.values())
    desk.drop(control.DropCut(group=KEY, marker="one"))
    assert cut(desk, "one") is None
    assert not desk.copy(call)


def test_who_waits_for_a_snapshot_is_told_of_whatever_goes_wrong_with_it(
    desk: Snapshots, state: AppliedState, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(*_: object) -> str:
        raise ValueError("no number")

    def problem() -> str:
        world.loop.pass_ms(1)
        view = cut(desk, "one")
        return view.problem if view is not None else ""

    monkeypatch.setattr(HeldState, "digest", digest)
    mark(desk, state, a_log(), "one")
    assert "no number" in until("a problem", problem)


def test_half_a_copy_is_not_taken_for_a_whole_one(
    state: AppliedState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(_: object, fd: int) -> None:
        os.write(fd, b"half")
        raise ValueError("no number")

    monkeypatch.setattr(HeldTask, "copy", copy)
    held = state.hold()
    with pytest.raises(ValueError, match="no number"):
        held.copy(TASKS[0], tmp_path / "copy", 0)
    assert not (tmp_path / "copy").exists()
    held.release()


@pytest.mark.parametrize("there", [None, "another word"])
def test_a_folder_that_is_not_the_asker_s_is_left_alone(
    desk: Snapshots, state: AppliedState, tmp_path: Path, there: str | None
) -> None:
    mark(desk, state, a_log(), "one")
    folder = tmp_path / "folder"
    folder.mkdir()
    if there is not None:
        (folder / CREATING).write_text(there)
    desk.copy(control.CopyCut(group=KEY, marker="one", folder=str(folder), token="word"))
    view = until("an answer", lambda: finished(desk, "one"))
    assert "node n0 does not see the folder" in view.problem
    assert not file_of(folder, TaskId(0)).exists()


def test_what_nobody_asks_for_is_let_go_and_old_markers_are_not_kept(
    desk: Snapshots, state: AppliedState, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log()
    mark(desk, state, log, "old", age_ms=snapshots.IDLE_MS + 1_000)
    assert cut(desk, "old") is None
    clock = 0
    monkeypatch.setattr(snapshots, "_now_ms", lambda: clock)
    mark(desk, state, log, "one")
    world.loop.pass_ms(0)
    clock = snapshots.IDLE_MS - 1
    assert cut(desk, "one") is not None
    clock += snapshots.IDLE_MS - 1
    world.loop.pass_ms(snapshots.IDLE_MS + 1)
    assert cut(desk, "one") is not None
    clock += snapshots.IDLE_MS
    world.loop.pass_ms(3 * snapshots.IDLE_MS)
    assert cut(desk, "one") is None


def test_of_a_marker_that_is_there_twice_the_last_counts_and_older_ones_give_way(
    desk: Snapshots, state: AppliedState
) -> None:
    log = a_log()
    mark(desk, state, log, "one")
    log.depot([b"more"], task=1)
    mark(desk, state, log, "one")
    view = cut(desk, "one")
    assert view is not None
    assert view.offset == log.end
    mark(desk, state, log, "two")
    mark(desk, state, log, "three")
    assert cut(desk, "one") is None
    assert cut(desk, "two") is not None
    assert cut(desk, "three") is not None
