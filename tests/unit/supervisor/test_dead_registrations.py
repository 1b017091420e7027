"""Registrations of workers that are proven dead are deleted, those alone; and a node has one supervisor."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stretto.supervisor import dead_registrations as burials_module
from stretto.supervisor.dead_registrations import Burials
from stretto.supervisor.duplicates import Namesakes
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import NodeRegistration, WorkerRegistration, encode
from tests.support.turns import StillLoop
from tests.unit.supervisor.followed import ToldView

PATHS = Paths("/c")
W = WorkerId("w")


def registered_at(incarnation: str) -> str:
    return PATHS.registration(W, Incarnation(incarnation))


class World:
    def __init__(self) -> None:
        self.loop = StillLoop()
        self.view = ToldView()
        self.buried: list[tuple[WorkerId, str]] = []
        self.burials = Burials(
            cast(Any, self.loop), cast(Any, self.view), PATHS, lambda *dead: self.buried.append(dead)
        )

    def tell(self, path: str, data: Any) -> None:
        self.view.told[path](data)
        self.loop.run()

    def list_registered(self, *incarnations: str) -> None:
        self.tell(PATHS.worker(W), [*incarnations])

    def read(self, incarnation: str, launch: str, address: str = "here:1") -> None:
        registration = WorkerRegistration(
            worker=W, incarnation=Incarnation(incarnation), node="n1", address=address, launch=launch
        )
        self.tell(registered_at(incarnation), encode(registration))

    def gone(self, incarnation: str) -> None:
        for each in self.view.deleting.pop(registered_at(incarnation)):
            each()
        self.loop.run()

    def is_done(self) -> bool:
        return self.burials.is_done

    @property
    def deleting(self) -> list[str]:
        return sorted(self.view.deleting)


@pytest.fixture
def world() -> World:
    world = World()
    world.burials.watch(W)
    return world


def test_a_death_deletes_at_once_the_registration_that_is_known_and_no_other(world: World) -> None:
    world.list_registered("old", "new")
    world.read("old", "first")
    world.read("new", "second")
    world.burials.died(W, "first")
    assert world.deleting == [registered_at("old")]
    assert world.buried == []
    assert not world.is_done()
    assert world.view.followed[PATHS.worker(W)].asked_again == 1, "one may be on its way"
    world.gone("old")
    assert world.buried == [], "which was not told yet"
    world.list_registered("new")
    assert world.buried == [(W, "first")]
    assert world.is_done()
    assert world.view.followed[registered_at("old")].is_stopped
    world.list_registered("new")
    assert world.buried == [(W, "first")]


def test_a_registration_that_comes_after_the_death_is_deleted_as_soon_as_it_is_seen(world: World) -> None:
    world.list_registered()
    world.burials.died(W, "first")
    world.list_registered("late")
    assert world.buried == [], "whose it is was not read yet"
    world.read("late", "first")
    assert world.deleting == [registered_at("late")]
    world.gone("late")
    assert world.buried == [(W, "first")]
    world.list_registered("later")
    world.read("later", "first")
    assert world.deleting == [registered_at("later")], "the dead are remembered"
    world.read("later", "first")
    assert len(world.view.deleting[registered_at("later")]) == 1


def test_a_registration_that_ends_by_itself_is_gone(world: World) -> None:
    world.list_registered("old")
    world.read("old", "first")
    world.burials.died(W, "first")
    world.list_registered("old")
    assert world.buried == []
    world.tell(registered_at("old"), None)
    assert world.buried == [(W, "first")]


def test_one_that_cannot_be_read_is_nobodys(world: World) -> None:
    world.list_registered("old")
    world.burials.died(W, "first")
    world.list_registered("old")
    assert world.buried == []
    world.tell(registered_at("old"), b"no registration")
    assert world.deleting == []
    assert world.buried == [(W, "first")]


def test_addresses_are_those_of_the_latest_registrations(world: World) -> None:
    world.list_registered("one")
    world.read("one", "first", "there:1")
    assert world.burials.addresses == {W: "there:1"}
    world.list_registered("one", "two")
    world.read("two", "second", "there:2")
    assert world.burials.addresses == {W: "there:2"}


def test_a_worker_is_watched_until_its_dead_are_buried(world: World) -> None:
    world.list_registered("old")
    world.read("old", "first")
    world.burials.died(W, "first")
    world.burials.unwatch(W)
    assert not world.view.followed[PATHS.worker(W)].is_stopped
    world.gone("old")
    world.list_registered()
    world.list_registered("next")
    world.read("next", "second")
    world.burials.unwatch(W)
    world.burials.unwatch(W)
    for path in (PATHS.worker(W), registered_at("next")):
        assert world.view.followed[path].is_stopped
    assert world.burials.addresses == {}
    world.tell(PATHS.worker(W), ["late"])
    assert registered_at("late") not in world.view.told, "what is still told of it is void"


def test_a_death_of_one_that_was_not_watched_begins_to_watch_it() -> None:
    world = World()
    world.burials.died(W, "first")
    world.burials.watch(W)
    assert world.view.followed[PATHS.worker(W)].asked_again == 1
    world.list_registered()
    assert world.buried == [(W, "first")]


def test_only_so_many_dead_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burials_module, "DEAD_MAX", 2)
    for launch in ("a", "b", "c"):
        world.burials.died(W, launch)
        world.list_registered()
    world.list_registered("one", "two")
    world.read("one", "a")
    world.read("two", "b")
    assert world.deleting == [registered_at("two")]


# Supervisors of one name.


class Node:
    def __init__(self) -> None:
        self.loop = StillLoop()
        self.view = ToldView()
        self.changes = 0
        self.namesakes = Namesakes(
            cast(Any, self.loop),
            cast(Any, self.view),
            PATHS,
            node="n1",
            folder="mine",
            changed=self._changed,
        )
        self.namesakes.start()

    def _changed(self) -> None:
        self.changes += 1

    def list(self, *incarnations: str) -> None:
        self.view.told[PATHS.node_parent("n1")]([*incarnations])
        self.loop.run()

    def tell(self, incarnation: str, data: bytes | None) -> None:
        self.view.told[PATHS.node("n1", Incarnation(incarnation))](data)
        self.loop.run()

    def read(self, incarnation: str, folder: str) -> None:
        registration = NodeRegistration(
            node="n1", incarnation=Incarnation(incarnation), address="here:1", folder=folder
        )
        self.tell(incarnation, encode(registration))

    def are_none(self) -> bool:
        return self.namesakes.are_none


def test_there_is_no_other_supervisor_as_soon_as_that_is_known_and_not_before() -> None:
    node = Node()
    assert not node.are_none()
    node.list("me")
    assert not node.are_none(), "whose it is was not read yet"
    node.read("me", "mine")
    assert node.are_none()
    node.list("me", "old")
    assert not node.are_none()
    node.read("old", "mine")
    assert node.are_none(), "it is of this folder, from before"
    node.list("me", "other")
    assert node.view.followed[PATHS.node("n1", Incarnation("old"))].is_stopped
    node.read("other", "theirs")
    assert not node.are_none()
    followed = node.view.followed[PATHS.node("n1", Incarnation("other"))]
    node.list("me")
    assert node.are_none()
    assert followed.is_stopped
    assert node.changes == 7


def test_what_cannot_be_read_of_a_namesake_leaves_it_unknown() -> None:
    node = Node()
    node.list("me", "other")
    node.read("me", "mine")
    node.tell("other", b"no registration")
    node.tell("other", None)
    assert not node.are_none()
    late = node.view.told[PATHS.node("n1", Incarnation("other"))]
    node.list("me")
    late(b"whatever")
    node.loop.run()
    assert node.are_none()
    node.view.told.clear()
    node.namesakes.start()
    assert node.view.told == {}, "it is followed once"
