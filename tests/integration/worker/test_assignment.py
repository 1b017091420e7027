"""Groups that get other replicas while records are appended."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.cluster import DEPOT, MODULE, Cluster
from tests.support.load import Load, check_history
from tests.support.waiting import wait_until


def wait_for_more(load: Load, records: int = 200) -> None:
    """Until so many more records are acknowledged."""
    target = load.acked_so_far() + records
    wait_until(f"{target} records are acknowledged", lambda: load.acked_so_far() >= target, 60.0)


def wait_settled(cluster: Cluster) -> None:
    """Until all replicas of the assignment are members, one of them leads, and the others have no data."""
    cluster.wait_healed()
    for number, plan in enumerate(cluster.plans):
        cluster.wait_led_by(plan.replicas, number)
        for name in cluster.workers.keys() - set(plan.replicas):
            folder = cluster.replica_folder(name, number)
            wait_until(f"{folder} is gone", lambda folder=folder: not folder.exists(), 60.0)  # type: ignore[misc]
        assert cluster.record(number).factor == len(plan.replicas)


@pytest.mark.soak
def test_all_replicas_of_a_group_move(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=4, groups=1, factor=2, options={"replication.max.near.sync.message.lag": 100})
    idle = cluster.connect(["w0", "w1"]).reader(MODULE, DEPOT)
    assert idle.bounds(0)[1] >= 0
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        cluster.assign(["w2", "w3"])
        wait_settled(cluster)
        assert idle.bounds(0)[1] > 0  # all that it knew of the group are alive, and do not hold it
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


@pytest.mark.soak
def test_a_worker_killed_while_it_leaves_and_one_while_it_comes(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=4, groups=1, factor=3)
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        cluster.workers["w3"].kill()
        leader = cluster.leader()
        stays = next(name for name in ("w0", "w1", "w2") if name != leader.name)
        cluster.assign([stays, "w3"])
        wait_until("the record follows", lambda: cluster.record().plan == 1, 60.0)
        leader.kill()
        cluster.wait_led_by(set(cluster.workers) - {leader.name})
        cluster.workers["w3"].start()
        cluster.wait_healed()
        leader.start()
        wait_settled(cluster)
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


MOVES = (["w1", "w2", "w3"], ["w3", "w4"], ["w4", "w5", "w6"], ["w6"], ["w6", "w7"], ["w8", "w9", "w10"])
"""No worker returns to a group that it left."""


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_replicas_move_again_and_again_while_workers_are_killed(
    start: Callable[..., Cluster], seed: int
) -> None:
    chance = random.Random(seed)
    options = {"replication.max.near.sync.message.lag": chance.choice([20, 100_000])}
    cluster = start(workers=11, groups=1, factor=3, options=options)
    with Load(cluster.connect()) as load:
        for move in MOVES:
            wait_for_more(load)
            cluster.assign(move)
            concerned = sorted({*move, *cluster.isr()})
            for name in chance.sample(concerned, min(2, len(concerned))):
                wait_until("a part of it is done", lambda: chance.random() < 0.2, 60.0)
                cluster.workers[name].restart()
            wait_settled(cluster)
    assert check_history(cluster, load)["failed"] == 0
