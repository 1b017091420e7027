"""Moving replicas, against a real ZooKeeper: what a conductor writes, and that another one carries it on."""

from __future__ import annotations

import pytest

from stretto import control
from stretto.errors import StrettoError, UsageError
from stretto.replog.core.record import Member
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, StorageId, WorkerId
from stretto.zk.znodes.records import encode
from tests.integration.conductor.scene import DIGEST, Scene, incarnation_of
from tests.support.waiting import wait_until

MODULE = "m"


def follow(scene: Scene, *numbers: int) -> None:
    """The leaders of these groups do what the assignment says."""
    assignment = scene.assignment()
    for number in numbers:
        replicas = assignment.replicas[number]
        found = scene.record(number)
        assert found is not None
        record, version = found
        members = [Member(worker, StorageId(f"{worker}/{number}")) for worker in replicas]
        leader = record.leader if record.leader in replicas else replicas[0]
        followed = (
            record.with_isr(members, replicas)
            .following(assignment.plan, len(replicas))
            .with_leader(leader, incarnation_of(leader), Epoch(record.epoch + 1))
        )
        path = scene.paths.group(GroupKey(MODULE, assignment.generation, number))
        scene.zk.set(path, encode(followed), version)


def remains(scene: Scene) -> set[str]:
    return set(scene.zk.get_children(scene.paths.remains(MODULE)))


def leave_alone(scene: Scene, worker: WorkerId, *numbers: int) -> None:
    """Only that worker is in sync, of these groups, or of every one."""
    assignment = scene.assignment()
    for number in numbers or range(len(assignment.groups)):
        found = scene.record(number)
        assert found is not None
        record, version = found
        alone = record.with_isr(
            [Member(worker, StorageId(f"{worker}/{number}"))], assignment.replicas[number]
        )
        alone = alone.with_leader(worker, incarnation_of(worker), Epoch(record.epoch + 1))
        path = scene.paths.group(GroupKey(MODULE, assignment.generation, number))
        scene.zk.set(path, encode(alone), version)


def test_a_move_is_carried_on_by_another_conductor(scene: Scene) -> None:
    first, stop = scene.conductor()
    scene.active(first)
    scene.running(first)
    scene.nodes(first, "n4")
    before = scene.assignment()
    [leaving] = [worker for worker, node in before.nodes.items() if node == "n1"]
    said = scene.ask(first, control.Reassign(module=MODULE, node="n1"))
    assert said == "reassign 4 groups from node n1"
    assert scene.state() == "scaling"
    after = scene.assignment()
    [fresh] = after.nodes.keys() - before.nodes.keys()
    assert (after.nodes[fresh], after.plan) == ("n4", before.plan + 1)
    assert leaving in after.nodes
    assert remains(scene) == set(after.nodes)
    follow(scene, 0, 1, 2)
    stop()

    second, _ = scene.conductor()
    scene.active(second)
    [view] = scene.ask(second, control.Modules(module=MODULE))
    assert (view.state, view.moved, view.groups) == ("scaling", 3, 4)
    follow(scene, 3)
    wait_until("the move is done", lambda: scene.state() != "scaling")
    done = scene.assignment()
    assert leaving not in done.nodes
    assert [(each.worker, each.node) for each in done.retired] == [(leaving, "n1")]
    assert done.replicas == after.replicas

    scene.stop_worker(leaving)
    scene.zk.delete(scene.paths.remains_of(MODULE, leaving))
    wait_until("it is forgotten", lambda: scene.assignment().retired == ())
    assert scene.zk.exists(scene.paths.worker(leaving)) is None


def test_the_factor_is_that_of_the_spec_from_the_beginning(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    scene.ask(conductor, control.Scale(module=MODULE, replication_factor=1))
    spec = scene.spec()
    assert spec is not None
    assert (spec.replication_factor, spec.state) == (1, "scaling")
    with pytest.raises(UsageError, match="needs 4 nodes"):
        scene.ask(conductor, control.Scale(module=MODULE, replication_factor=4))
    scene.ask(conductor, control.Scale(module=MODULE, replication_factor=2, workers=2))
    follow(scene, 0, 1, 2, 3)
    wait_until("it is done", lambda: scene.state() != "scaling")
    done = scene.assignment()
    assert len(done.workers) == 4
    assert all(len(replicas) == 2 for replicas in done.replicas)


def test_what_only_a_dead_node_has_is_given_up_by_force_only(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    scene.nodes(conductor, "n4")
    [alone] = [worker for worker, node in scene.assignment().nodes.items() if node == "n2"]
    leave_alone(scene, alone)

    def leads_all() -> bool:
        nodes = scene.ask(conductor, control.Leadership(module=MODULE)).nodes
        return {each.node for each in nodes if each.leaders} == {"n2"}

    wait_until("that is known", leads_all)
    with pytest.raises(StrettoError, match="nothing is lost as long as the node lives"):
        scene.ask(conductor, control.Reassign(module=MODULE, node="n2"))
    scene.stop_worker(alone)
    wait_until(
        "it is known to be gone",
        lambda: not scene.ask(conductor, control.Modules(module=MODULE))[0].led,
    )
    with pytest.raises(StrettoError, match=r"bring it back, or give up what nobody else has with --force"):
        scene.ask(conductor, control.Reassign(module=MODULE, node="n2"))
    scene.artifacts.clear()
    with pytest.raises(StrettoError, match="no node that runs has the code of m"):
        scene.ask(conductor, control.Reassign(module=MODULE, node="n2", force=True))
    scene.artifacts.add(DIGEST)
    said = scene.ask(conductor, control.Reassign(module=MODULE, node="n2", force=True))
    assert "what only its replicas of 4 groups (0, 1, 2, 3) had is lost" in said
    assert scene.assignment().given_up == (0, 1, 2, 3)
    follow(scene, 0, 1, 2, 3)
    wait_until("it is done", lambda: scene.state() != "scaling")
    assert scene.assignment().given_up == ()


def test_only_groups_whose_loss_was_told_are_given_up_and_all_of_them_until_the_change_is_done(
    scene: Scene,
) -> None:
    conductor, stop = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    scene.nodes(conductor, "n4", "n5")
    workers = {node: worker for worker, node in scene.assignment().nodes.items()}
    leave_alone(scene, workers["n2"], 1)
    leave_alone(scene, workers["n3"], 3)
    for node in ("n2", "n3"):
        scene.stop_worker(workers[node])
    wait_until(
        "they are known to be gone",
        lambda: scene.ask(conductor, control.Modules(module=MODULE))[0].led <= 2,
    )
    said = scene.ask(conductor, control.Reassign(module=MODULE, node="n2", force=True))
    assert "what only its replicas of 1 group (1) had is lost" in said
    assert scene.assignment().given_up == (1,)
    said = scene.ask(conductor, control.Reassign(module=MODULE, node="n3", force=True))
    assert "what only its replicas of 1 group (3) had is lost" in said
    assert scene.assignment().given_up == (1, 3)
    options = scene.ask(conductor, control.Options(level=control.OptionLevel(module=MODULE)))
    assert not {each.name: each.value for each in options}["replication.unclean.election"]
    stop()

    second, _ = scene.conductor()
    scene.active(second)
    follow(scene, 0, 1, 2, 3)
    wait_until("it is done", lambda: scene.state() != "scaling")
    assert scene.assignment().given_up == ()
