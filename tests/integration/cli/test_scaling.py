"""``deploy scale-executors`` and ``deploy reassign`` on a whole cluster, while records are appended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.client import Client, connect
from stretto.local.cluster import LocalCluster
from tests.support.commands import Done, stretto
from tests.support.load import Load, check_records
from tests.support.waiting import wait_until

MODULE = """
from stretto import Depot, Module

class Counts(Module):
    events = Depot()
"""


def on(cluster: LocalCluster) -> list[str]:
    return ["--bootstrap", cluster.bootstrap[0]]


def deploy(cluster: LocalCluster, verb: str, *args: str) -> Done:
    return stretto("deploy", verb, "counts", *args, *on(cluster))


@pytest.fixture
def counts(whole_cluster: LocalCluster, tmp_path: Path) -> Iterator[Client]:
    """One replica of each of two groups; one that lacks a few entries comes by the far horizon."""
    source = tmp_path / "counts.py"
    source.write_text(MODULE)
    shape = ["--tasks", "4", "--threads", "2", "--workers", "1", "--replication-factor", "1"]
    options = ["--option", "replication.max.near.sync.message.lag=10"]
    named = ["--module", f"{source}:Counts", "--name", "counts"]
    launched = stretto("deploy", "launch", *named, *shape, *options, *on(whole_cluster))
    assert launched.code == 0, launched
    client = connect(whole_cluster.bootstrap, timeout=60.0)
    try:
        yield client
    finally:
        client.close()
        assert stretto("deploy", "destroy", "counts", "--yes", *on(whole_cluster)).code == 0


def module(cluster: LocalCluster) -> dict[str, object]:
    [found] = json.loads(stretto("module-status", "counts", "--json", *on(cluster)).out)
    assert isinstance(found, dict)
    return found


def homes(cluster: LocalCluster) -> dict[str, str]:
    processes = module(cluster)["processes"]
    assert isinstance(processes, list)
    return {each["worker"]: each["node"] for each in processes}


def data_of(cluster: LocalCluster, worker: str) -> list[Path]:
    return list(cluster.folder.glob(f"node-*/workers/{worker}"))


def wait_for_more(load: Load, records: int = 200) -> None:
    target = load.acked_so_far() + records
    wait_until(f"{target} records are acknowledged", lambda: load.acked_so_far() >= target, 60.0)


@pytest.mark.soak
def test_replicas_come_move_and_go_under_load(whole_cluster: LocalCluster, counts: Client) -> None:
    cluster = whole_cluster
    with Load(counts) as load:
        wait_for_more(load)
        [first] = homes(cluster)
        raised = deploy(cluster, "scale-executors", "--replication-factor", "3")
        assert raised.code == 0, raised
        assert raised.lines[0] == (
            "scale from 1 worker and replication factor 1 to 1 worker and replication factor 3"
        )
        assert raised.lines[-1] == "counts has 3 replicas of 2 groups, 3 workers on 3 nodes"
        fresh = homes(cluster).keys() - {first}
        logs = [next(iter(cluster.folder.glob(f"node-*/logs/{worker}.log"))).read_text() for worker in fresh]
        assert all("far_horizon_ends" in log for log in logs)
        verified = stretto("verify", "counts", *on(cluster))
        assert verified.code == 0, verified
        wait_for_more(load)

        lowered = deploy(cluster, "scale-executors", "--replication-factor", "2", "--workers", "2")
        assert lowered.code == 0, lowered
        assert lowered.lines[-1] == "counts has 2 replicas of 2 groups, 4 workers on 3 nodes"
        left = homes(cluster)
        gone = ({first} | fresh) - left.keys()
        wait_until(
            f"the data of {gone} is gone", lambda: not any(data_of(cluster, each) for each in gone), 60
        )

        node = left[first] if first in left else next(iter(left.values()))
        moved = deploy(cluster, "reassign", "--from", node)
        assert moved.code == 0, moved
        assert moved.lines[0].startswith("reassign ")
        assert moved.lines[0].endswith(f" from node {node}")
        after = homes(cluster)
        assert (len(after), len(set(after.values()))) == (4, 2)
        assert node not in after.values()
        wait_for_more(load)
    assert check_records(load.outcomes(), counts.reader("counts", "events").read_all())["failed"] == 0
    assert stretto("verify", "counts", *on(cluster)).code == 0


def test_what_cannot_be_is_refused(whole_cluster: LocalCluster, counts: Client) -> None:
    cluster = whole_cluster
    del counts
    [(_, node)] = homes(cluster).items()
    sole = deploy(cluster, "reassign", "--from", node)
    assert sole.code == 1
    assert f"node {node} has the only replica in sync of 2 groups of counts (0, 1)" in sole.err
    assert "nothing is lost as long as the node lives" in sole.err
    elsewhere = next(name for name in ("node-1", "node-2", "node-3") if name != node)
    assert "has no replicas of counts" in deploy(cluster, "reassign", "--from", elsewhere).err
    unknown = deploy(cluster, "reassign", "--from", "nowhere")
    assert (unknown.code, "there is no node nowhere" in unknown.err) == (2, True)
    many = deploy(cluster, "scale-executors", "--replication-factor", "4")
    assert (many.code, "needs 4 nodes, and there are 3" in many.err) == (2, True)
    same = deploy(cluster, "scale-executors", "--replication-factor", "1")
    assert (same.code, "1 worker and replication factor 1 already" in same.err) == (2, True)
    crowded = deploy(cluster, "scale-executors", "--workers", "3")
    assert (crowded.code, "2 threads cannot occupy 3 workers" in crowded.err) == (2, True)
    nothing = deploy(cluster, "scale-executors")
    assert (nothing.code, "say --threads, --workers or --replication-factor" in nothing.err) == (2, True)
    forced = deploy(cluster, "reassign", "--from", node, "--force")
    assert forced.code == 0, forced
    assert node not in homes(cluster).values()
