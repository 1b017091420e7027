"""Real workers that take their leader's state, while things go on and while things break."""

from __future__ import annotations

from tests.integration.catchup.behind import leave_behind, wait_said, wait_whole
from tests.integration.cluster import DEPOT, MODULE, Cluster
from tests.integration.load import Load, check_records
from tests.integration.zk.waiting import wait_until

LOAD_DEPOT = "load"


def check(cluster: Cluster, load: Load) -> None:
    """Nothing that was promised is lost, and all replicas are the same."""
    cluster.heal()
    records = cluster.connect().reader(MODULE, LOAD_DEPOT).read_all()
    assert check_records(load.outcomes(), records)["failed"] == 0
    cluster.check_replicas_agree()


def test_a_follower_that_slept_past_the_log_comes_back_under_load(cluster: Cluster) -> None:
    victim = leave_behind(cluster, records=100_000)
    with Load(cluster.connect(), depot=LOAD_DEPOT) as load:
        victim.start()
        wait_said(victim, "far_horizon_ends")
        wait_whole(cluster)
        acked = load.acked_so_far()
        wait_until("appends go on", lambda: load.acked_so_far() > acked + 100, 40.0)
    assert victim.said("round_ends") >= 2
    assert sum(bounds[1] for bounds in _bounds(cluster)) == 200_000
    check(cluster, load)


def _bounds(cluster: Cluster) -> list[tuple[int, int]]:
    reader = cluster.connect().reader(MODULE, DEPOT)
    return [reader.bounds(task) for task in reader.tasks]
