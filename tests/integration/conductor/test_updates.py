"""Updates, with a real conductor and ZooKeeper: the test plays nodes that try the code, and workers."""

from __future__ import annotations

import msgspec
import pytest

from stretto import control
from stretto.conductor.process import Conductor
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.options import Level
from stretto.specs.modules import DepotSpec, ModuleSpec, Trial
from stretto.vocabulary.types import Incarnation
from stretto.zk.watches.options import set_option
from stretto.zk.znodes.records import WorkerRegistration, decode, encode
from tests.integration.conductor.scene import DIGEST, MANIFEST, Scene, incarnation_of
from tests.support.waiting import wait_until

NEW = "e" * 64
NEXT = msgspec.structs.replace(MANIFEST, depots=(*MANIFEST.depots, DepotSpec(name="more")))


@pytest.fixture
def conductor(scene: Scene) -> Conductor:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    scene.artifacts.add(NEW)
    take_up(scene, DIGEST)
    return conductor


def update(scene: Scene, conductor: Conductor, manifest: control.ModuleManifest = NEXT, *delete: str) -> None:
    scene.ask(conductor, control.Update(module="m", artifact=NEW, manifest=manifest, delete=delete))


def spec(scene: Scene) -> ModuleSpec:
    found = scene.spec()
    assert found is not None
    return found


def try_code(scene: Scene, node: str, why: str = "", *, of: str | None = None) -> None:
    found = spec(scene).update
    assert found is not None
    trial = Trial(id=of or found.id, why=why, traceback="Traceback ..." if why else "")
    scene.zk.create(scene.paths.trial("m", node), encode(trial))


def take_up(scene: Scene, artifact: str, *workers: str) -> None:
    """As workers do that have read the spec."""
    for worker in scene.assignment().nodes:
        if not workers or worker in workers:
            path = scene.paths.registration(worker, incarnation_of(worker))
            before = decode(scene.zk.get(path)[0], WorkerRegistration, path)
            scene.zk.set(path, encode(msgspec.structs.replace(before, artifact=artifact)))


def view(scene: Scene, conductor: Conductor) -> control.ModuleView:
    [found] = scene.ask(conductor, control.Modules(module="m"))
    return found


def operations(scene: Scene, conductor: Conductor) -> list[str]:
    return [each.what for each in scene.ask(conductor, control.Operations(module="m"))]


def test_an_update_is_tried_everywhere_then_switched_and_done_when_all_workers_go_by_it(
    scene: Scene, conductor: Conductor
) -> None:
    update(scene, conductor)
    tried = spec(scene)
    assert (tried.state, tried.artifact, tried.version, tried.depots) == (
        "updating",
        DIGEST,
        1,
        MANIFEST.depots,
    )
    for call in (control.Pause(module="m"), control.Update(module="m", artifact=NEW, manifest=NEXT)):
        with pytest.raises(RetriableError, match="module m is updating; wait"):
            scene.ask(conductor, call)
    try_code(scene, "n1")
    try_code(scene, "n2", of="an earlier update")
    wait_until(
        "who is waited for is told",
        lambda: view(scene, conductor).problems == ("the new code is being tried on n2, n3",),
    )
    scene.zk.delete(scene.paths.trial("m", "n2"))
    try_code(scene, "n2")
    assert spec(scene).artifact == DIGEST
    try_code(scene, "n3")
    wait_until("it is switched", lambda: spec(scene).artifact == NEW)
    switched = spec(scene)
    assert (switched.state, switched.version) == ("updating", 2)
    assert tuple(each.declared for each in switched.depots) == NEXT.depots
    assert [each.since for each in switched.depots] == [1, 2], "the second came with this version"
    first, *others = scene.assignment().nodes
    take_up(scene, NEW, *others)
    wait_until(
        "who is late is told",
        lambda: view(scene, conductor).problems == (f"{first} still go by the code of before",),
    )
    take_up(scene, NEW, first)
    wait_until("it runs", lambda: scene.state() in ("running", "leadership-balancing"))
    assert (view(scene, conductor).version, view(scene, conductor).failed_update) == (2, None)
    assert "updated to version 2" in operations(scene, conductor)
    wait_until("nothing is left of it", lambda: not scene.zk.get_children(scene.paths.trials("m")))
    with pytest.raises(UsageError, match="runs this very code already"):
        update(scene, conductor)


def test_code_that_does_not_load_on_one_node_is_rolled_back_with_its_traceback(
    scene: Scene, conductor: Conductor
) -> None:
    scene.ask(conductor, control.Pause(module="m"))
    update(scene, conductor)
    assert spec(scene).is_paused
    try_code(scene, "n1")
    try_code(scene, "n3", "m:M cannot be imported")
    wait_until("it is what it was", lambda: scene.state() == "paused")
    found = view(scene, conductor)
    assert (found.version, found.artifact, found.depots) == (1, DIGEST, MANIFEST.depots)
    assert found.failed_update is not None
    assert (found.failed_update.node, found.failed_update.traceback) == ("n3", "Traceback ...")
    assert any("rolled back, because of node n3: m:M cannot be" in problem for problem in found.problems)
    assert "update to version 2 rolled back" in operations(scene, conductor)
    scene.ask(conductor, control.Resume(module="m"))
    update(scene, conductor)
    assert view(scene, conductor).failed_update is None


def test_another_conductor_goes_on_with_an_update_and_forgets_what_was_deleted(scene: Scene) -> None:
    first, stop = scene.conductor()
    scene.active(first)
    scene.running(first)
    scene.artifacts.add(NEW)
    take_up(scene, DIGEST)
    level = Level.of("m", depot="sentences")
    set_option(scene.zk, scene.paths, level, "depot.max.read.bytes", 2_048)
    other = msgspec.structs.replace(MANIFEST, depots=(DepotSpec(name="more"),))
    with pytest.raises(UsageError, match="add --delete sentences"):
        update(scene, first, other)
    update(scene, first, other, "sentences")
    try_code(scene, "n1")
    stop()
    second, stop = scene.conductor()
    scene.active(second)
    for node in ("n2", "n3"):
        try_code(scene, node)
    wait_until("it is switched", lambda: spec(scene).artifact == NEW)
    assert spec(scene).deleted == {}, "somebody may still add to it"
    stop()
    third, _ = scene.conductor()
    scene.active(third)
    take_up(scene, NEW)
    wait_until("it runs", lambda: scene.state() in ("running", "leadership-balancing"))
    assert spec(scene).deleted == {"sentences": 2}
    assert scene.zk.exists(scene.paths.options_of(level)) is None


def test_a_node_that_is_away_is_not_waited_for_but_one_whose_workers_run_is(
    scene: Scene, conductor: Conductor
) -> None:
    away, left = (placed.node for placed in scene.assignment().workers[:2])
    for node in (away, left):
        scene.zk.delete(scene.paths.node(node, incarnation_of_node(node)))
    scene.stop_worker(scene.assignment().workers[0].worker)
    scene.artifacts.add(NEW)
    wait_until(
        "they are gone", lambda: len([n for n in scene.ask(conductor, control.Nodes()) if n.address]) == 1
    )
    with pytest.raises(StrettoError, match="on 1 nodes, of 3"):
        update(scene, conductor)
    for node in (away, left):
        scene.node(node)
    wait_until(
        "they are back", lambda: len([n for n in scene.ask(conductor, control.Nodes()) if n.address]) == 3
    )
    update(scene, conductor)
    for node in (away, left):
        scene.zk.delete(scene.paths.node(node, incarnation_of_node(node)))
    [other] = {placed.node for placed in scene.assignment().workers} - {away, left}
    try_code(scene, other)
    wait_until(
        "only one is waited for",
        lambda: f"the new code is being tried on {left}" in view(scene, conductor).problems,
    )


def test_a_module_is_destroyed_in_the_middle_of_an_update_and_leaves_nothing(
    scene: Scene, conductor: Conductor
) -> None:
    level = Level.of("m", depot="sentences")
    set_option(scene.zk, scene.paths, level, "depot.retention.records", 5)
    update(scene, conductor)
    try_code(scene, "n1")
    scene.ask(conductor, control.Destroy(module="m"))
    workers = list(scene.assignment().nodes)
    for worker in workers:
        scene.stop_worker(worker)
        scene.zk.delete(scene.paths.remains_of("m", worker))
    wait_until("it is gone", lambda: scene.zk.exists(scene.paths.module("m")) is None)
    assert scene.zk.exists(scene.paths.options_of(Level.of("m"))) is None
    assert all(scene.zk.exists(scene.paths.worker(worker)) is None for worker in workers)
    told = scene.ask(conductor, control.Operations(module="m"))
    assert [each.what for each in told][-3:] == ["update to version 2", "destroy", "destroyed"]


def incarnation_of_node(node: str) -> Incarnation:
    return Incarnation(f"i-{node}")
