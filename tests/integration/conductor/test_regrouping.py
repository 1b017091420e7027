"""Regrouping, against a real ZooKeeper: what a conductor writes, and that another one carries it on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from kazoo.exceptions import NoNodeError

from stretto import control
from stretto.conductor import scaling
from stretto.conductor.process import Conductor
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.specs.assignments import Assignment, plans_of
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import StorageId, WorkerId
from stretto.zk.znodes.records import ResignRequest, WorkerRegistration, decode, encode
from tests.integration.conductor.scene import Scene, incarnation_of
from tests.support.waiting import wait_until

MODULE = "m"


def running(scene: Scene) -> Conductor:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    wait_until("it runs", lambda: scene.state() == "running")
    return conductor


def change(scene: Scene, worker: WorkerId, **changes: object) -> None:
    path = scene.paths.registration(worker, incarnation_of(worker))
    registration = decode(scene.zk.get(path)[0], WorkerRegistration, path)
    scene.zk.set(path, encode(msgspec.structs.replace(registration, **changes)))


def prepare(scene: Scene, workers: Iterable[WorkerId]) -> None:
    """These have applied all seals."""
    following = scene.assignment().following
    assert following is not None
    for worker in workers:
        path = scene.paths.registration(worker, incarnation_of(worker))
        known = decode(scene.zk.get(path)[0], WorkerRegistration, path)
        mine = [plan.key for plan in plans_of(MODULE, following) if worker in plan.replicas]
        change(scene, worker, members=known.members | {str(key): storage_of(worker, key) for key in mine})


def storage_of(worker: WorkerId, key: GroupKey) -> StorageId:
    return StorageId(f"{worker}/{key.generation}/{key.group}")


def closing(scene: Scene) -> Assignment | None:
    found = scene.assignment()
    return found if found.next is not None and found.next.closing else None


def problems(scene: Scene, conductor: Conductor) -> str:
    [view] = scene.ask(conductor, control.Modules(module=MODULE))
    return "; ".join(view.problems)


def has_records(scene: Scene, generation: int) -> bool:
    try:
        return bool(scene.zk.get_children(scene.paths.groups(MODULE, generation)))
    except NoNodeError:
        return False


def test_a_regrouping_is_carried_on_by_another_conductor(scene: Scene) -> None:
    first, stop = scene.conductor()
    scene.active(first)
    scene.running(first)
    wait_until("it runs", lambda: scene.state() == "running")
    before = scene.assignment()
    said = scene.ask(first, control.ScaleThreads(module=MODULE, threads=8))
    assert said == "scale from 4 threads to 8 threads"
    during = scene.assignment()
    assert scene.state() == "scaling"
    assert (during.generation, during.groups) == (before.generation, before.groups)
    assert during.next is not None
    assert during.next.generation > before.generation
    [one, two, three] = during.nodes
    prepare(scene, [one, two])
    wait_until("it waits for one", lambda: f"{three} has not prepared" in problems(scene, first))
    assert closing(scene) is None
    stop()

    second, stop = scene.conductor()
    scene.active(second)
    prepare(scene, [three])
    wait_until("it closes in", lambda: closing(scene))
    assert has_records(scene, before.generation)
    stop()

    third, _ = scene.conductor()
    scene.active(third)
    leaders = {found[0].leader for number in range(4) if (found := scene.record(number)) is not None}
    number = during.next.generation
    for worker in leaders:
        assert worker is not None
        # A request to resign that nobody took up is no obstacle.
        request = ResignRequest(epoch=scene.record(0)[0].epoch, target=one)  # type: ignore[index]
        path = scene.paths.resign(GroupKey(MODULE, before.generation, 0))
        if scene.zk.exists(path) is None:
            scene.zk.create(path, encode(request))
        change(scene, worker, closed=number)
    wait_until("it is in force", lambda: scene.assignment().generation == number)
    after = scene.assignment()
    assert (len(after.groups), after.next, after.workers) == (8, None, before.workers)
    spec = scene.spec()
    assert spec is not None
    assert (spec.threads, spec.state) == (8, "running")
    assert not has_records(scene, before.generation)
    for plan in plans_of(MODULE, after):
        found = scene.record(plan.key.group)
        assert found is not None
        record, _ = found
        assert (record.epoch, record.leader) == (1, None)
        assert {member.worker: member.storage for member in record.isr} == {
            worker: storage_of(worker, plan.key) for worker in plan.replicas
        }


def test_a_leader_that_did_not_close_is_waited_for(scene: Scene) -> None:
    """Also one that was elected after all others had closed."""
    conductor = running(scene)
    scene.ask(conductor, control.ScaleThreads(module=MODULE, threads=1))
    number = scene.assignment().next.generation  # type: ignore[union-attr]
    [one, two, three] = scene.assignment().nodes
    prepare(scene, [one, two, three])
    wait_until("it closes in", lambda: closing(scene))
    scene.lead(2, three)
    change(scene, one, closed=number)
    change(scene, two, closed=number)
    wait_until("it waits", lambda: "have not let go" in problems(scene, conductor))
    assert scene.assignment().generation != number
    change(scene, three, closed=number)
    wait_until("it is in force", lambda: scene.assignment().generation == number)


def test_it_is_abandoned_by_an_operator_and_can_be_asked_for_again(scene: Scene) -> None:
    conductor = running(scene)
    before = scene.assignment()
    with pytest.raises(UsageError, match="are not being scaled"):
        scene.ask(conductor, control.AbandonScaling(module=MODULE))
    scene.ask(conductor, control.ScaleThreads(module=MODULE, threads=2))
    number = scene.assignment().next.generation  # type: ignore[union-attr]
    prepare(scene, scene.assignment().nodes)
    wait_until("it closes in", lambda: closing(scene))
    assert scene.ask(conductor, control.AbandonScaling(module=MODULE)) == "m keeps its 4 threads"
    after = scene.assignment()
    assert (after.generation, after.groups, after.next) == (before.generation, before.groups, None)
    assert (after.abandoned, scene.state()) == (number, "running")
    scene.ask(conductor, control.ScaleThreads(module=MODULE, threads=2))
    assert scene.assignment().next.generation > number  # type: ignore[union-attr]


def test_it_is_abandoned_when_it_takes_too_long_or_a_leader_was_elected_uncleanly(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    conductor = running(scene)
    scene.ask(conductor, control.ScaleThreads(module=MODULE, threads=2))
    found = scene.record(1)
    assert found is not None
    unclean = msgspec.structs.replace(found[0], unclean_epoch=found[0].epoch)
    scene.zk.set(scene.paths.group(GroupKey(MODULE, scene.assignment().generation, 1)), encode(unclean))
    wait_until("it is abandoned", lambda: scene.assignment().next is None)
    wait_until("it runs", lambda: scene.state() == "running")
    monkeypatch.setattr(scaling, "REGROUPING_SECONDS", 0)
    scene.ask(conductor, control.ScaleThreads(module=MODULE, threads=2))
    wait_until("it is abandoned", lambda: scene.assignment().next is None)
    outcomes = [each.outcome for each in scene.ask(conductor, control.Operations(module=MODULE, limit=9))]
    assert "a leader was elected uncleanly meanwhile" in outcomes
    assert any("not done within 0 s" in outcome and "not prepared" in outcome for outcome in outcomes)


def test_what_cannot_be_is_refused_and_nothing_has_changed(scene: Scene) -> None:
    conductor = running(scene)
    before = scene.assignment()
    with pytest.raises(UsageError, match="8 tasks cannot occupy 9 threads"):
        scene.ask(conductor, control.ScaleThreads(module=MODULE, threads=9))
    with pytest.raises(UsageError, match="has 4 threads already"):
        scene.ask(conductor, control.ScaleThreads(module=MODULE, threads=4))
    scene.ask(conductor, control.Pause(module=MODULE))
    with pytest.raises(StrettoError, match="is paused, and its tasks stay in their groups; resume it first"):
        scene.ask(conductor, control.ScaleThreads(module=MODULE, threads=2))
    scene.ask(conductor, control.Resume(module=MODULE))
    gone = scene.assignment().replicas[3][-1]
    scene.stop_worker(gone)
    wait_until("it is missed", lambda: "not registered" in problems(scene, conductor))
    with pytest.raises(RetriableError, match="cannot take part: all their replicas have to be in sync"):
        scene.ask(conductor, control.ScaleThreads(module=MODULE, threads=2))
    assert scene.assignment() == before


def test_nothing_else_is_changed_meanwhile(scene: Scene) -> None:
    conductor = running(scene)
    scene.ask(conductor, control.ScaleThreads(module=MODULE, threads=2))
    calls: list[control.Call[Any]] = [
        control.ScaleThreads(module=MODULE, threads=8),
        control.Scale(module=MODULE, replication_factor=2),
        control.Reassign(module=MODULE, node="n1"),
        control.Pause(module=MODULE),
    ]
    for call in calls:
        with pytest.raises(RetriableError, match="scal"):
            scene.ask(conductor, call)
