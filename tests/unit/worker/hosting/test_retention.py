"""When a leader looks for what is to go, and what it appends of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from stretto.control import ModuleDescription
from stretto.options import OptionSet
from stretto.replog.core import effects
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.specs.modules import DepotSpec
from stretto.state.removal import Drop, Removal, Trim, parse
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId
from stretto.worker.hosting import retention as retention_module
from stretto.worker.hosting.retention import LOOK_MS, Removals, Trimming
from tests.support.turns import StillLoop

KEY = GroupKey("m", 1, 0)
TASKS = (TaskId(0), TaskId(1))
ACKED = effects.Acked(offset=Offset(1))
REFUSED = effects.Refused(reason=Refusal.STALLED, leader=None, epoch=Epoch(1))


class World:
    """A worker that leads one group, of a module whose depot keeps a few records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = StillLoop()
        self.dropped: dict[TaskId, int] = dict.fromkeys(TASKS, 0)
        self.group = SimpleNamespace(
            key=KEY,
            plan=SimpleNamespace(tasks=TASKS),
            leader=SimpleNamespace(epoch=Epoch(1), is_serving=True),
            installing=False,
            closed=False,
            state=SimpleNamespace(dropped=lambda task: self.dropped[task]),
        )
        self.worker = MagicMock(
            loop=self.loop, groups={KEY: self.group}, is_paused=False, options=OptionSet()
        )
        self.worker.config.module = "m"
        self.worker.description = ModuleDescription(tasks=2, depots=(DepotSpec(name="d"),))
        self.worker.replicas.stopped = {}
        self.looks: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.worker.applier.read = lambda find, then: self.looks.append((find, then))
        self.entries: list[tuple[TaskId, Removal, Callable[[effects.Result], None]]] = []
        self.worker.clients.append_own = self._append
        self.trims: dict[TaskId, list[Trim]] = {}
        self.is_wanted = True
        monkeypatch.setattr(Trimming, "is_wanted", property(lambda _: self.is_wanted))
        monkeypatch.setattr(Trimming, "due", lambda _, state, task: self.trims.get(task, []))
        self.desk = Removals(self.worker)
        self.desk.start()

    def _append(self, group: Any, kind: Kind, task: TaskId, payload: bytes, done: Any) -> None:
        assert group is self.group
        assert kind is Kind.TRIM
        self.entries.append((task, parse(payload), done))

    def look(self) -> None:
        """A second passes, and what was begun is looked up."""
        self.loop.pass_ms(LOOK_MS)
        self.find()

    def find(self) -> None:
        looks, self.looks[:] = list(self.looks), []
        for find, then in looks:
            then(find())

    def answer(self, result: effects.Result = ACKED) -> None:
        entries, self.entries[:] = list(self.entries), []
        for *_, done in entries:
            done(result)

    @property
    def appended(self) -> list[tuple[TaskId, Removal]]:
        return [(task, removal) for task, removal, _ in self.entries]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_what_is_beyond_its_retention_is_appended_and_looked_for_again_at_once(world: World) -> None:
    world.trims = {TASKS[1]: [Trim("d", 7), Trim("e", 9)]}
    world.look()
    assert world.appended == [(1, Trim("d", 7)), (1, Trim("e", 9))]
    world.look()
    assert len(world.entries) == 2, "one at a time"
    world.trims = {TASKS[0]: [Trim("d", 3)]}
    first, second = (done for *_, done in world.entries)
    world.entries.clear()
    first(ACKED)
    world.find()
    assert world.entries == []
    second(ACKED)
    world.find()
    assert world.appended == [(0, Trim("d", 3))]
    world.trims = {}
    world.answer()
    world.find()
    assert world.entries == []
    world.trims = {TASKS[0]: [Trim("d", 4)]}
    world.look()
    assert world.appended == [(0, Trim("d", 4))]


def test_what_is_refused_is_tried_again_a_second_later_and_not_at_once(world: World) -> None:
    world.trims = {TASKS[0]: [Trim("d", 3)]}
    world.look()
    world.answer(REFUSED)
    assert world.looks == []
    world.look()
    assert len(world.entries) == 1


@pytest.mark.parametrize("why", ["no leader", "not serving", "installing"])
def test_only_a_leader_that_serves_looks(world: World, why: str) -> None:
    world.trims = {TASKS[0]: [Trim("d", 3)]}
    if why == "no leader":
        world.group.leader = cast(Any, None)
    elif why == "not serving":
        world.group.leader.is_serving = False
    else:
        world.group.installing = True
    world.loop.pass_ms(LOOK_MS)
    assert world.looks == []


def test_without_a_retention_nothing_is_looked_for(world: World) -> None:
    world.is_wanted = False
    world.loop.pass_ms(LOOK_MS)
    assert world.looks == []


@pytest.mark.parametrize("why", ["another epoch", "no leader", "another replica"])
def test_what_was_found_for_a_leader_that_is_none_any_more_is_not_appended(world: World, why: str) -> None:
    world.trims = {TASKS[0]: [Trim("d", 3)]}
    world.loop.pass_ms(LOOK_MS)
    leader = world.group.leader
    if why == "another epoch":
        world.group.leader = SimpleNamespace(epoch=Epoch(2), is_serving=True)
    elif why == "no leader":
        world.group.leader = cast(Any, None)
    else:
        world.worker.groups[KEY] = MagicMock(leader=None)
    world.find()
    assert world.entries == []
    world.group.leader = leader
    world.worker.groups[KEY] = world.group
    world.look()
    assert len(world.entries) == 1, "it is not taken for busy"


def test_a_look_that_fails_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.loop.pass_ms(LOOK_MS)
    [(_, then)] = world.looks
    world.looks.clear()
    then(OSError("a bad sector"))
    assert world.entries == []
    world.trims = {TASKS[0]: [Trim("d", 3)]}
    world.look()
    assert len(world.entries) == 1


def test_a_paused_module_keeps_its_records_and_loses_what_was_deleted(world: World) -> None:
    world.worker.is_paused = True
    world.trims = {TASKS[0]: [Trim("d", 3)]}
    world.loop.pass_ms(LOOK_MS)
    assert world.looks == []
    world.desk.on_deleted({"old": 4})
    world.find()
    assert world.appended == [(0, Drop(4, ("old",))), (1, Drop(4, ("old",)))]


def test_what_an_update_deleted_is_dropped_where_it_is_not_yet(world: World) -> None:
    world.dropped[TASKS[0]] = 4
    world.desk.on_deleted({"old": 4, "older": 3})
    world.find()
    assert world.appended == [(1, Drop(4, ("old", "older")))]


def test_deletions_are_told_when_all_replicas_have_carried_them_out(world: World) -> None:
    registered = world.worker.metastore.update_registration
    world.desk.on_deleted({"old": 4})
    world.dropped[TASKS[0]] = 4
    world.look()
    assert (world.desk.dropped, registered.call_count) == (0, 0)
    world.dropped[TASKS[1]] = 4
    world.worker.replicas.stopped = {GroupKey("m", 1, 1): object()}
    world.look()
    assert world.desk.dropped == 0, "one that is stopped may have it still"
    world.worker.replicas.stopped = {}
    world.look()
    world.look()
    assert (world.desk.dropped, registered.call_count) == (4, 1)


def test_ages_are_by_the_clock_of_the_wall(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def due(trimming: Trimming, *_: object) -> list[Trim]:
        seen.append(trimming.now_ms)
        return []

    monkeypatch.setattr(retention_module, "time", SimpleNamespace(time_ns=lambda: 5_000_000_123))
    monkeypatch.setattr(Trimming, "due", due)
    world.look()
    assert seen == [5_000, 5_000]
