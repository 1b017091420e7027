"""A worker's part in a change of grouping: what it prepares, promises, closes, opens and deletes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from stretto.errors import StrettoError
from stretto.replog.core import events
from stretto.specs.assignments import Assignment, NextGrouping, PlacedWorker, plans_of
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import StorageId, TaskId, WorkerId
from stretto.worker.hosting.hosting import DELETING
from stretto.worker.hosting.regrouping import AGAIN_MS, RETRY_MS, Regrouping
from stretto.worker.replica import takeover
from tests.support.turns import StillLoop

W, OTHER = WorkerId("a"), WorkerId("b")
OLD = [GroupKey("m", 3, number) for number in range(2)]
NEW = GroupKey("m", 5, 0)


def assignment(
    generation: int = 3,
    groups: int = 2,
    *,
    next_: int | None = None,
    closing: bool = False,
    abandoned: int = 0,
) -> Assignment:
    """Of four tasks on both workers; the next grouping has one group."""
    both = ((0, 1),)
    following = (
        None if next_ is None else NextGrouping(generation=next_, groups=both, began_ms=0, closing=closing)
    )
    return Assignment(
        generation=generation,
        tasks=4,
        workers=(PlacedWorker(W, "n1"), PlacedWorker(OTHER, "n2")),
        groups=both * groups,
        next=following,
        abandoned=abandoned,
    )


class World:
    """A worker with a replica of each group of the old grouping."""

    def __init__(self, folder: Path) -> None:
        self.loop = StillLoop()
        self.works: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        plans = plans_of("m", assignment())
        self.groups = {plan.key: self._group(plan) for plan in plans}
        self.worker = MagicMock(loop=self.loop, worker=W, groups=dict(self.groups))
        self.worker.config = SimpleNamespace(module="m", cluster="c", data_dir=folder)
        self.worker.hosting.plans = {plan.key: plan for plan in plans}
        self.worker.hosting.is_opening.return_value = False
        self.worker.replicas.is_busy.return_value = False
        self.worker.replicas.has_storage.return_value = True
        self.worker.replicas.path = lambda plan: folder / "groups" / str(plan.key).replace("/", "-")
        self.worker.disk.run = lambda work, then: self.works.append((work, then))
        self.desk = Regrouping(self.worker)

    def _group(self, plan: Any) -> Any:
        group = MagicMock(key=plan.key, plan=plan, installing=False)
        group.replica.producers.table.sealed = 0
        return group

    def seal(self, *keys: GroupKey, grouping: int = 5) -> None:
        for key in keys:
            self.groups[key].replica.producers.table.sealed = grouping
            self.groups[key].state.seal.return_value = SimpleNamespace(grouping=grouping)
        self.desk.consider()

    def work(self) -> None:
        works, self.works[:] = list(self.works), []
        for work, then in works:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - as a worker's threads do
                result = error
            then(result)

    @property
    def registered(self) -> int:
        return int(self.worker.metastore.update_registration.call_count)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(takeover, "prepare", lambda *_, **__: StorageId("fresh"))
    monkeypatch.setattr(takeover, "planned", lambda *both: both)
    (tmp_path / "groups").mkdir()
    return World(tmp_path)


def prepared(world: World) -> None:
    world.desk.on_assignment(assignment(next_=5))
    world.seal(*OLD)
    world.work()


def test_replicas_hear_of_a_grouping_once_and_those_that_begin_later_too(world: World) -> None:
    world.desk.on_assignment(assignment(next_=5))
    heard = events.Regrouping(present=3, next=5, closing=0, abandoned=0)
    for group in world.groups.values():
        group.step.assert_called_once_with(heard)
    world.desk.on_assignment(assignment(next_=5))
    assert world.groups[OLD[0]].step.call_count == 1
    later = MagicMock()
    world.desk.on_begun(later)
    later.step.assert_called_once_with(heard)
    world.desk.on_assignment(assignment(next_=5, closing=True))
    world.groups[OLD[0]].step.assert_called_with(events.Regrouping(present=3, next=5, closing=5, abandoned=0))


def test_a_replica_is_prepared_when_all_that_it_takes_tasks_from_are_sealed(world: World) -> None:
    world.desk.consider()
    world.desk.on_assignment(assignment(next_=5))
    assert world.desk.awaits_seals
    world.seal(OLD[0])
    assert world.works == []
    world.groups[OLD[1]].installing = True
    world.seal(OLD[1])
    assert world.works == [], "its state is being replaced"
    world.groups[OLD[1]].installing = False
    world.desk.consider()
    world.desk.consider()
    assert len(world.works) == 1
    world.work()
    for group in world.groups.values():
        group.state.checkpoint.assert_called_once_with()
    assert world.desk.prepared == {NEW: "fresh"}
    assert world.registered == 1
    world.desk.consider()
    assert world.works == []


def test_a_seal_of_another_grouping_prepares_nothing(world: World) -> None:
    world.desk.on_assignment(assignment(next_=5))
    world.seal(*OLD, grouping=4)
    assert world.works == []


def test_nothing_is_prepared_without_a_replica_of_every_group_or_for_another_worker(world: World) -> None:
    gone = world.worker.groups.pop(OLD[1])
    world.desk.on_assignment(assignment(next_=5))
    world.seal(*OLD)
    assert world.works == []
    world.worker.groups[OLD[1]] = gone
    world.worker.worker = WorkerId("c")
    world.desk.consider()
    assert world.works == []


def test_what_is_prepared_tells_which_seals_it_goes_on_from(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def prepare(*args: Any, **more: Any) -> str:
        asked.append((args, more))
        return "fresh"

    monkeypatch.setattr(takeover, "prepare", prepare)
    prepared(world)
    [((path, (generation, seals)), more)] = asked
    assert path == world.worker.replicas.path(SimpleNamespace(key=NEW))
    assert generation == 5
    first, second = (world.worker.replicas.path(SimpleNamespace(key=key)).name for key in OLD)
    assert {task: folder for task, (folder, _) in seals.items()} == {0: first, 1: first, 2: second, 3: second}
    assert (more["cluster"], more["group"]) == ("c", str(NEW))


def test_a_seal_that_was_taken_back_or_a_bad_disk_is_tried_again_later(world: World) -> None:
    world.desk.on_assignment(assignment(next_=5))
    world.seal(*OLD)
    world.groups[OLD[0]].state.seal.return_value = None
    world.work()
    assert world.desk.prepared == {}
    assert world.registered == 0
    assert world.works == []
    world.groups[OLD[0]].state.seal.return_value = SimpleNamespace(grouping=4)
    world.loop.pass_ms(RETRY_MS)
    world.work()
    assert world.desk.prepared == {}
    world.groups[OLD[0]].state.checkpoint.side_effect = StrettoError("a bad sector")
    world.loop.pass_ms(RETRY_MS)
    world.work()
    assert world.desk.prepared == {}
    world.groups[OLD[0]].state.checkpoint.side_effect = None
    world.seal(OLD[0])
    world.loop.pass_ms(RETRY_MS)
    world.work()
    assert world.desk.prepared == {NEW: "fresh"}


def test_a_grouping_that_is_abandoned_is_promised_no_more_and_its_files_go(
    world: World, tmp_path: Path
) -> None:
    prepared(world)
    world.desk.on_assignment(assignment(next_=5, closing=True))
    assert world.desk.closed == 5
    assert world.registered == 2
    for name in ("m-3-0", "m-5-0", "m-6-0", "other-5-0", "m-5-0.tmp"):
        (tmp_path / "groups" / name).mkdir()
    world.desk.on_assignment(assignment(abandoned=5))
    assert world.desk.closed == 0
    assert world.desk.prepared == {}
    assert world.registered == 4
    assert not world.desk.awaits_seals
    world.work()
    left = {path.name for path in (tmp_path / "groups").iterdir()}
    assert left == {"m-3-0", "m-6-0", "other-5-0", "m-5-0.tmp"}


def test_what_was_prepared_for_a_grouping_abandoned_meanwhile_is_not_promised(world: World) -> None:
    world.desk.on_assignment(assignment(next_=5))
    world.seal(*OLD)
    world.desk.on_assignment(assignment(next_=7, abandoned=5))
    world.work()
    assert world.desk.prepared == {}
    assert world.registered == 0


def test_a_closed_grouping_stays_closed_until_it_is_abandoned(world: World) -> None:
    world.desk.on_assignment(assignment(next_=5, closing=True))
    assert (world.desk.closed, world.registered) == (5, 1)
    world.desk.on_assignment(assignment(generation=5, groups=1))
    assert (world.desk.closed, world.registered) == (5, 1), "the next one is in force"


def test_what_was_promised_of_a_replica_that_is_lost_is_promised_no_more(world: World) -> None:
    prepared(world)
    unrelated = MagicMock()
    unrelated.plan.tasks = (TaskId(9),)
    world.desk.on_lost(unrelated)
    assert world.desk.prepared == {NEW: "fresh"}
    world.desk.on_lost(world.groups[OLD[0]])
    assert world.desk.prepared == {}


def in_force(world: World) -> Assignment:
    prepared(world)
    following = assignment(generation=5, groups=1)
    world.desk.on_assignment(following)
    return following


def test_without_an_old_grouping_there_is_nothing_to_switch(world: World) -> None:
    assert not world.desk.switch(assignment())
    world.worker.replicas.give_up.assert_not_called()


def test_all_old_replicas_are_closed_then_the_new_ones_opened_and_then_the_old_files_deleted(
    world: World, tmp_path: Path
) -> None:
    following = in_force(world)
    world.worker.groups.pop(OLD[1])
    world.worker.replicas.has_storage.side_effect = lambda key: key in OLD
    assert world.desk.switch(following)
    assert world.desk.switch(following), "as long as some are closing"
    [given_up] = world.worker.replicas.give_up.call_args_list
    [forgotten] = world.worker.replicas.forget_stopped.call_args_list
    assert given_up.args[0] is world.groups[OLD[0]]
    assert forgotten.args[0] == OLD[1]
    world.worker.hosting.host.assert_not_called()

    forgotten.args[1]()
    world.worker.hosting.host.assert_not_called()
    given_up.args[2]()
    [hosted] = world.worker.hosting.host.call_args_list
    assert hosted.args[0].key == NEW
    world.worker.on_peers_changed.assert_called_once_with()

    world.worker.hosting.plans[NEW] = hosted.args[0]
    world.desk.on_opened()
    world.worker.on_regrouped.assert_not_called()
    for name in ("m-3-0", "m-3-1", "m-5-0"):
        (tmp_path / "groups" / name).mkdir()
    world.worker.replicas.has_storage.side_effect = None
    world.desk.closed = 5
    world.desk.on_opened()
    world.worker.on_regrouped.assert_called_once_with()
    assert (world.desk.closed, world.desk.prepared) == (0, {})
    world.work()
    assert {path.name for path in (tmp_path / "groups").iterdir()} == {"m-5-0"}
    world.desk.on_opened()
    world.worker.on_regrouped.assert_called_once_with()
    assert not world.desk.switch(following)


@pytest.mark.parametrize("why", ["opening", "busy", "installing"])
def test_a_replica_whose_files_are_in_use_is_closed_a_moment_later(world: World, why: str) -> None:
    following = in_force(world)
    busy = OLD[1]

    def set_busy(is_busy: bool) -> None:
        world.worker.hosting.is_opening = lambda key: why == "opening" and is_busy and key == busy
        world.worker.replicas.is_busy = lambda key: why == "busy" and is_busy and key == busy
        world.groups[busy].installing = why == "installing" and is_busy

    set_busy(True)
    world.desk.switch(following)
    give_up = world.worker.replicas.give_up
    assert [each.args[0].key for each in give_up.call_args_list] == [OLD[0]]
    give_up.call_args.args[2]()
    world.worker.hosting.host.assert_not_called()
    world.loop.pass_ms(AGAIN_MS)
    assert give_up.call_count == 1
    set_busy(False)
    world.loop.pass_ms(AGAIN_MS)
    assert [each.args[0].key for each in give_up.call_args_list] == OLD
    give_up.call_args.args[2]()
    world.worker.hosting.host.assert_called_once()
    world.loop.pass_ms(10 * AGAIN_MS)
    assert (
        give_up.mock_calls == give_up.call_args_list == [call(*each.args) for each in give_up.call_args_list]
    )


def test_replicas_beside_one_whose_files_are_in_use_are_closed_at_once(world: World) -> None:
    following = in_force(world)
    world.worker.replicas.is_busy.side_effect = lambda key: key == OLD[0]
    world.desk.switch(following)
    assert [each.args[0] for each in world.worker.replicas.give_up.call_args_list] == [world.groups[OLD[1]]]


def test_folders_that_cannot_be_deleted_do_no_harm(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "groups" / "m-1-0").mkdir()

    def failing(_: Path) -> None:
        raise OSError("a bad sector")

    monkeypatch.setattr(shutil, "rmtree", failing)
    world.desk.delete_old()
    world.work()
    [left] = (tmp_path / "groups").iterdir()
    assert left.name.startswith(DELETING), "it is no replica any more"
    world.worker.hosting.plans.clear()
    world.desk.delete_old()
    assert world.works == []
