"""What running workers tell of their replicas, and where the conductor is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stretto import control
from stretto.errors import StrettoError
from stretto.network.asking import ask
from stretto.network.routing import Network
from stretto.telemetry.windows import GroupWindow
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.zk.znodes.records import ConductorRegistration, encode
from tests.support.cluster import DEPOT, MODULE, Cluster, WorkerProcess
from tests.support.waiting import wait_until


@pytest.fixture
def network(calm: Cluster) -> Iterator[Network]:
    made = Network(calm.addresses(), None)
    yield made
    made.close()


def replicas(network: Network, worker: WorkerProcess) -> tuple[control.ReplicaView, ...]:
    return ask(network, worker.address, control.Replicas(module=MODULE))


def test_each_worker_tells_its_replica_of_every_group(calm: Cluster, network: Network) -> None:
    calm.connect().producer(MODULE, DEPOT, linger_ms=0).append(b"one", task=0).result(30)
    leader = calm.leader(0)
    for worker in calm.workers.values():
        views = {view.group: view for view in replicas(network, worker)}
        assert set(views) == {plan.key for plan in calm.plans}
        view = views[calm.key_of(0)]
        assert view.worker == worker.name
        assert view.role == ("leader" if worker is leader else "follower")
        assert view.leader == leader.name
        assert view.epoch == calm.record(0).epoch
        assert set(view.isr) == set(calm.workers)
        assert (view.osr, view.min_isr, view.stalled, view.why) == ((), 2, False, "")
        assert view.serving == (worker is leader)
        assert 0 <= view.start <= view.applied <= view.apply <= view.end
        assert {each.worker for each in view.followers} == (
            set(calm.workers) - {leader.name} if worker is leader else set()
        )
    [led] = [view for view in replicas(network, leader) if view.group == calm.key_of(0)]
    assert led.apply == led.end
    assert all(each.in_isr and each.confirmed == led.end for each in led.followers)


def test_how_long_a_leader_has_led_only_grows_while_nothing_changes(calm: Cluster, network: Network) -> None:
    leader = calm.leader(0)

    def since_ms() -> int:
        [led] = [view for view in replicas(network, leader) if view.group == calm.key_of(0)]
        return led.since_ms

    first = since_ms()
    calm.connect().producer(MODULE, DEPOT, linger_ms=0).append(b"more", task=0).result(30)
    assert since_ms() >= first


def test_a_leader_tells_what_it_measured_and_what_it_went_through(calm: Cluster, network: Network) -> None:
    calm.connect().producer(MODULE, DEPOT, linger_ms=0).append(b"measured", task=0).result(30)
    leader = calm.leader(0)

    def measured() -> tuple[GroupWindow, ...]:
        """A record is applied a moment after it was replicated, and looks are made now and then: each may be
        told by another window."""
        windows = ask(network, leader.address, control.Windows())
        groups = tuple(each for window in windows for each in window.groups if each.group == calm.key_of(0))
        depots = [each.kinds["depot"] for each in groups if "depot" in each.kinds]
        is_whole = any(each.replicate for each in depots) and any(each.apply for each in depots)
        return groups if is_whole and any(each.isr.count for each in groups) else ()

    windows = wait_until("the windows end", measured, 60)
    window = next(each for each in windows if "depot" in each.kinds and each.kinds["depot"].replicate)
    depot = window.kinds["depot"]
    assert (window.role, window.in_isr, window.min_isr) == ("leader", True, 2)
    assert depot.entries >= 1
    assert depot.replicate is not None
    assert depot.replicate.sum > 0
    assert window.busy_ms > 0
    looked_at = next(each for each in reversed(windows) if each.isr.count)
    assert looked_at.isr.min == looked_at.isr.max == 3
    newest = max(each.start_ms for each in ask(network, leader.address, control.Windows()))
    later = ask(network, leader.address, control.Windows(since_ms=newest))
    assert all(each.start_ms >= newest for each in later)
    story = ask(network, leader.address, control.Story(group=calm.key_of(0)))
    assert "leads" in [line.event for line in story]


def test_modules_that_a_worker_does_not_serve_have_no_replicas_there(calm: Cluster, network: Network) -> None:
    assert ask(network, calm.workers["w0"].address, control.Replicas(module="another")) == ()


def test_any_worker_tells_where_the_active_conductor_is(calm: Cluster, network: Network) -> None:
    address = calm.workers["w1"].address
    assert ask(network, address, control.FindConductor()) is None
    path = calm.paths.conductor_leader
    registration = ConductorRegistration(incarnation=Incarnation("i"), address="127.0.0.1:7400")
    calm.operator.create(path, encode(registration), makepath=True)
    try:
        wait_until(
            "the conductor is told",
            lambda: ask(network, address, control.FindConductor()) == "127.0.0.1:7400",
        )
    finally:
        calm.operator.delete(path)


def test_calls_that_are_not_a_workers_are_refused(calm: Cluster, network: Network) -> None:
    with pytest.raises(StrettoError, match="worker w0 does not answer Nodes; ask the conductor"):
        ask(network, calm.workers["w0"].address, control.Nodes())


def test_survivors_tell_of_the_new_epoch_after_the_leader_was_killed(cluster: Cluster) -> None:
    old, epoch = cluster.leader(), cluster.record().epoch
    rest = [worker for worker in cluster.workers.values() if worker is not old]
    old.kill()
    leader = cluster.wait_led_by({worker.name for worker in rest}, above_epoch=epoch)
    network = Network(cluster.addresses(), None)
    try:
        [follower] = [worker for worker in rest if worker is not leader]
        for worker in rest:
            wait_until(
                f"{worker.name} tells of the new leader",
                lambda worker=worker: knows(network, worker, cluster, leader),  # type: ignore[misc]
            )
        [view] = [each for each in replicas(network, leader) if each.group == cluster.key_of()]
        assert view.role == "leader"
        assert view.epoch > epoch
        assert WorkerId(follower.name) in view.isr
    finally:
        network.close()


def knows(network: Network, worker: WorkerProcess, cluster: Cluster, leader: WorkerProcess) -> bool:
    [view] = [each for each in replicas(network, worker) if each.group == cluster.key_of()]
    return view.leader == leader.name
