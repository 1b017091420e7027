"""Workers that die, freeze, restart or lose their disks while records are appended."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import pytest

from tests.support.cluster import DEADLINE_SECONDS, DEPOT, MODULE, Cluster, WorkerProcess
from tests.support.load import Load, check_history
from tests.support.waiting import wait_until


def wait_for_more(load: Load, records: int = 200) -> None:
    """Until so many more records are acknowledged."""
    target = load.acked_so_far() + records
    wait_until(f"{target} records are acknowledged", lambda: load.acked_so_far() >= target, 40.0)


def test_records_survive_kill_9_of_the_leader(cluster: Cluster) -> None:
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        leader, epoch = cluster.leader(), cluster.record().epoch
        survivors = set(cluster.workers) - {leader.name}
        leader.kill()
        cluster.wait_led_by(survivors, above_epoch=epoch)
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


def test_records_survive_kill_9_of_a_follower(cluster: Cluster) -> None:
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        victim = cluster.followers()[0]
        victim.kill()
        cluster.wait_isr(set(cluster.workers) - {victim.name})
        wait_for_more(load)
        victim.start()
        cluster.wait_healed()
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


def test_records_survive_kill_9_of_all_workers(cluster: Cluster) -> None:
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        for worker in cluster.workers.values():
            worker.kill()
        for worker in cluster.workers.values():
            worker.start()
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


def test_a_leader_frozen_for_longer_than_its_session_comes_back_as_a_follower(cluster: Cluster) -> None:
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        leader, epoch = cluster.leader(), cluster.record().epoch
        others = set(cluster.workers) - {leader.name}
        leader.pause()
        cluster.wait_led_by(others, above_epoch=epoch)
        wait_for_more(load)
        leader.resume()
        cluster.wait_healed()
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


def test_a_wiped_follower_comes_back_into_the_isr_by_itself(cluster: Cluster) -> None:
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        victim = cluster.followers()[0]
        before = {member.worker: member.storage for member in cluster.record().isr}
        victim.kill()
        victim.wipe()
        victim.start()
        wait_until(
            "the wiped follower is in the ISR under a fresh storage id",
            lambda: any(
                member.worker == victim.name and member.storage != before[member.worker]
                for member in cluster.record().isr
            ),
            40.0,
        )
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


def test_sigterm_hands_leadership_over_and_no_append_fails(cluster: Cluster) -> None:
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        leader, epoch = cluster.leader(), cluster.record().epoch
        leader.terminate()
        assert leader.wait() == 0
        record = cluster.record()
        assert record.epoch > epoch
        assert record.leader != leader.name
        assert leader.said('"hands_over"'), "it went without handing over"
        wait_for_more(load)
    outcomes = check_history(cluster, load)
    assert outcomes.keys() == {"acked"}, f"some appends were not acknowledged: {outcomes}"


def _check_disk_full(cluster: Cluster, load: Load, worker: WorkerProcess) -> None:
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
    wait_until("it says so", lambda: worker.said("replica_stopped") > 0, 30.0)
    wait_for_more(load, 100)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    cluster.wait_healed()
    wait_for_more(load, 100)


def test_a_full_disk_of_a_follower_is_told_and_overcome(cluster: Cluster) -> None:
    with Load(cluster.connect()) as load:
        wait_for_more(load, 400)
        _check_disk_full(cluster, load, cluster.followers()[0])
    assert check_history(cluster, load)["failed"] == 0


def test_a_full_disk_of_the_leader_is_told_and_overcome(cluster: Cluster) -> None:
    with Load(cluster.connect()) as load:
        wait_for_more(load, 400)
        _check_disk_full(cluster, load, cluster.leader())
    assert check_history(cluster, load)["failed"] == 0


def test_a_client_finds_the_next_leader_without_waiting_for_a_time_out(
    start: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that proves a worker dead deletes its registration, so no session has to expire."""
    monkeypatch.setattr("stretto.client.appending.producer.REQUEST_TIMEOUT_MS", 30_000)
    cluster = start(session_timeout_ms=40_000)
    producer = cluster.connect().producer(MODULE, DEPOT, linger_ms=0)
    producer.append(b"before", task=0).result(30)
    record, leader = cluster.record(), cluster.leader()
    assert record.leader is not None
    assert record.leader_incarnation is not None
    leader.kill()
    killed = time.monotonic()
    cluster.operator.delete(cluster.paths.registration(record.leader, record.leader_incarnation))
    producer.append(b"after", task=0).result(DEADLINE_SECONDS)
    assert time.monotonic() - killed < 20.0, "it waited for the answer of a dead worker"
