"""What somebody else writes between two steps of a module's life, against a real ZooKeeper.

Another conductor, or a worker, is always faster here than the one that is tested: it goes by a view that is
old by then.
"""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from stretto.conductor import life as subject
from stretto.conductor.life import Life
from stretto.conductor.operations import Operations
from stretto.conductor.view import Module, View, read
from stretto.errors import RetriableError
from stretto.vocabulary.types import Incarnation
from stretto.zk.creation import next_generation
from stretto.zk.watches.tree import WatchedTree
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import DestroyedModules, NodeRegistration, decode, encode
from tests.integration.conductor.scene import DIGEST, MANIFEST, Scene

NODES = ("n1", "n2", "n3")


class Lived:
    """A module, by a conductor that looks at the cluster when it is told to."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.zk, self.paths = scene.zk, scene.paths
        for path in scene.paths.mirrored:
            scene.zk.ensure_path(path)
        self.life = Life(scene.zk, scene.paths, Operations(scene.zk, scene.paths))

    def look(self) -> View:
        """The nodes are there, and so is what the metastore says now."""
        mirror = WatchedTree(self.zk, self.paths, lambda: None)
        mirror.refresh()
        mirror.close()
        view = read(mirror, self.paths)
        view.nodes = {
            node: NodeRegistration(node=node, incarnation=Incarnation("i"), address="127.0.0.1:1")
            for node in NODES
        }
        return view

    def launch(self) -> Module:
        self.life.launch(
            self.look(),
            "m",
            artifact=DIGEST,
            manifest=MANIFEST,
            tasks=4,
            threads=4,
            workers=1,
            factor=3,
            options={},
        )
        return self.look().module("m")

    def destroying(self) -> tuple[View, Module]:
        """It is to go, nobody runs it any more, and one node that has data of it is away."""
        module = self.launch()
        self.life.destroy(module)
        away, *there = module.assignment.workers
        for placed in there:
            self.zk.delete(self.paths.remains_of("m", placed.worker))
        view = self.look()
        del view.nodes[away.node]
        return view, view.module("m")

    def destroyed(self) -> dict[str, int]:
        path = self.paths.destroyed
        try:
            data = self.zk.get(path)[0]
        except NoNodeError:
            return {}
        return decode(data, DestroyedModules, path).groupings if data else {}

    def somebody_destroys(self, module: str, generation: int) -> None:
        groupings = self.destroyed() | {module: generation}
        self.zk.ensure_path(self.paths.destroyed)
        self.zk.set(self.paths.destroyed, encode(DestroyedModules(groupings=groupings)))


@pytest.fixture
def lived(scene: Scene) -> Lived:
    return Lived(scene)


def test_a_module_whose_worker_registers_again_meanwhile_is_not_forgotten(lived: Lived) -> None:
    """Nobody has proven it dead: it may be writing to its files."""
    view, module = lived.destroying()
    lived.scene.start_workers()
    lived.life.advance(view, module)
    assert lived.scene.state() == "destroying"
    assert lived.scene.assignment() == module.assignment
    assert lived.zk.get_children(lived.paths.remains("m"))
    assert lived.destroyed() == {}
    for worker in module.assignment.nodes:
        assert lived.zk.get_children(lived.paths.worker(worker))
        lived.scene.stop_worker(worker)
    lived.life.advance(view, module)
    assert lived.scene.state() is None
    assert lived.destroyed() == {"m": module.assignment.generation}


def test_what_another_conductor_remembers_of_the_destroyed_is_not_overwritten(
    lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, module = lived.destroying()
    look = lived.life._destroyed

    def looks_too_early() -> tuple[DestroyedModules, int]:
        found = look()
        lived.somebody_destroys("other", 99)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(lived.life, "_destroyed", looks_too_early)
        lived.life.advance(view, module)
    assert lived.destroyed() == {"other": 99}
    assert lived.scene.state() == "destroying", "it is what tells who was away"
    lived.life.advance(view, module)
    assert lived.destroyed() == {"other": 99, "m": module.assignment.generation}
    assert lived.scene.state() is None


def test_a_launch_fails_if_a_namesake_is_destroyed_meanwhile(
    lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was away would take the data of this one for that of the other, and delete it."""

    def draws_a_number_too_early(client: KazooClient, paths: Paths) -> int:
        number = next_generation(client, paths)
        lived.somebody_destroys("m", next_generation(client, paths))
        return number

    with monkeypatch.context() as patched:
        patched.setattr(subject, "next_generation", draws_a_number_too_early)
        with pytest.raises(RetriableError, match=r"could not be launched .* try again"):
            lived.launch()
    assert lived.zk.exists(lived.paths.module("m")) is None
    module = lived.launch()
    assert module.assignment.generation > lived.destroyed()["m"]


def test_a_launch_fails_if_its_number_was_destroyed_already(
    lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.somebody_destroys("m", 5)
    with monkeypatch.context() as patched:
        patched.setattr(subject, "next_generation", lambda *_: 5)
        with pytest.raises(RetriableError, match="module m was destroyed just now; try again"):
            lived.launch()
    assert lived.zk.exists(lived.paths.module("m")) is None
