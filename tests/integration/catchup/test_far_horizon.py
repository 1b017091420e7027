"""Real workers that take their leader's state, while things go on and while things break."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto import control
from stretto.network.asking import ask
from stretto.network.routing import Network
from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.integration.catchup.behind import (
    DEADLINE_SECONDS,
    append,
    leave_behind,
    options,
    wait_said,
    wait_whole,
)
from tests.integration.catchup.spoiler import Spoiler
from tests.support.cluster import DEPOT, MODULE, Cluster, WorkerProcess
from tests.support.load import Load, check_records
from tests.support.waiting import wait_until

LOAD_DEPOT = "load"
LIMIT = "replication.catchup.max.bytes.per.second"
#: A state of about 6 MB, which takes a while at this rate, and no time without a limit.
BULK = {"records": 3_000, "record_bytes": 1_000}
SLOW = 500_000


def check(cluster: Cluster, load: Load) -> None:
    """Nothing that was promised is lost, and all replicas are the same."""
    cluster.heal()
    records = cluster.connect().reader(MODULE, LOAD_DEPOT).read_all()
    assert check_records(load.outcomes(), records)["failed"] == 0
    cluster.check_replicas_agree()


def begun(worker: WorkerProcess) -> list[tuple[int, int]]:
    """(size, missing bytes) of each round of a task that it began."""
    found = [
        (re.search(r'size_bytes"?[=:] ?(\d+)', line), re.search(r'missing_bytes"?[=:] ?(\d+)', line))
        for line in worker.log()
        if "task_round_begins" in line
    ]
    return [(int(size[1]), int(missing[1])) for size, missing in found if size and missing]


def test_a_follower_that_slept_past_the_log_comes_back_under_load(cluster: Cluster) -> None:
    victim = leave_behind(cluster, records=100_000)
    with Load(cluster.connect(), depot=LOAD_DEPOT) as load:
        victim.start()
        wait_said(victim, "far_horizon_ends")
        wait_whole(cluster)
        acked = load.acked_so_far()
        wait_until("appends go on", lambda: load.acked_so_far() > acked + 100, 40.0)
    assert victim.said("round_ends") >= 2
    reader = cluster.connect().reader(MODULE, DEPOT)
    assert [reader.bounds(task)[1] for task in reader.tasks] == [100_000, 100_000]
    check(cluster, load)


def test_a_replica_on_a_new_disk_takes_the_leaders_state(cluster: Cluster) -> None:
    victim = leave_behind(cluster, records=2_000)
    victim.wipe()
    with Load(cluster.connect(), depot=LOAD_DEPOT) as load:
        victim.start()
        wait_said(victim, "far_horizon_ends")
        wait_whole(cluster)
    check(cluster, load)


@pytest.mark.soak
def test_a_leader_killed_in_the_middle_of_a_round_is_replaced_by_the_next(cluster: Cluster) -> None:
    victim = leave_behind(cluster, **BULK)
    options(cluster, **{LIMIT: SLOW})
    with Load(cluster.connect(), depot=LOAD_DEPOT) as load:
        victim.start()
        wait_said(victim, "task_round_begins")
        leader, epoch = cluster.leader(), cluster.record().epoch
        assert victim.said("far_horizon_ends") == 0
        leader.kill()
        cluster.wait_led_by(set(cluster.workers) - {leader.name, victim.name}, above_epoch=epoch)
        assert victim.said("far_horizon_ends") == 0
        options(cluster, **{LIMIT: 0})
        wait_said(victim, "far_horizon_ends")
        leader.start()
        wait_whole(cluster)
    check(cluster, load)


@pytest.mark.soak
def test_a_follower_killed_in_the_middle_of_a_round_goes_on_with_what_it_has(cluster: Cluster) -> None:
    victim = leave_behind(cluster, **BULK)
    options(cluster, **{LIMIT: SLOW})
    incoming = cluster.replica_folder(victim.name) / "incoming" / "state"
    with Load(cluster.connect(), depot=LOAD_DEPOT) as load:
        victim.start()
        wait_until("a megabyte is here", lambda: _written_bytes(incoming) > 1_000_000, DEADLINE_SECONDS)
        assert victim.said("far_horizon_ends") == 0
        victim.kill()
        before = len(begun(victim))
        victim.start()
        wait_until("it goes on", lambda: len(begun(victim)) >= before + 2, DEADLINE_SECONDS)
        options(cluster, **{LIMIT: 0})
        wait_said(victim, "far_horizon_ends")
        wait_whole(cluster)
    resumed = begun(victim)[before : before + 2]
    assert sum(size - missing for size, missing in resumed) > 500_000
    check(cluster, load)


def _written_bytes(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.glob("*/data.mdb"))


@pytest.mark.soak
def test_a_full_disk_is_told_and_overcome(cluster: Cluster) -> None:
    victim = leave_behind(cluster, **BULK)
    timeout_seconds = 4.0
    timeout_ms = int(timeout_seconds * 1_000)
    options(cluster, **{LIMIT: SLOW, "replication.far.horizon.timeout.millis": timeout_ms})
    leader = cluster.leader()
    network = Network(cluster.addresses(), None)
    with Load(cluster.connect(), depot=LOAD_DEPOT) as load:
        victim.start()
        wait_until("it has started", victim.has_started, DEADLINE_SECONDS)
        resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
        wait_said(victim, "no_room_for_state")
        wait_until("its view says so", lambda: "free some space" in _waits(network, victim), 20.0)
        wait_said(leader, "follower_has_no_room")
        images = leader.said("image_begins")
        waited = time.monotonic()
        wait_until("three time-outs pass", lambda: time.monotonic() > waited + 3 * timeout_seconds, 60.0)
        assert leader.said("image_begins") == images
        resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        options(cluster, **{LIMIT: 0})
        wait_said(victim, "far_horizon_ends")
        wait_whole(cluster)
    network.close()
    check(cluster, load)


@contextlib.contextmanager
def _small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A file system of its own; skips the test where that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this needs a file system of its own, and mounting one failed: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fill(file: Path) -> None:
    with file.open("wb", 0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(64 * 1024))


@pytest.mark.soak
def test_a_disk_that_fills_up_in_the_middle_of_a_round_is_told_and_overcome(cluster: Cluster) -> None:
    victim = leave_behind(cluster, **BULK)
    options(cluster, **{LIMIT: SLOW})
    victim.wipe()
    with _small_disk(victim.data_dir, megabytes=40):
        incoming = cluster.replica_folder(victim.name) / "incoming" / "state"
        network = Network(cluster.addresses(), None)
        victim.start()
        wait_until("a megabyte is here", lambda: _written_bytes(incoming) > 1_000_000, DEADLINE_SECONDS)
        _fill(victim.data_dir / "ballast")
        wait_said(victim, "no_room_for_state")
        wait_until("its view says so", lambda: "free some space" in _waits(network, victim), 20.0)
        wait_said(cluster.leader(), "follower_has_no_room")
        assert victim.said("far_horizon_ends") == 0
        (victim.data_dir / "ballast").unlink()
        options(cluster, **{LIMIT: 0})
        wait_said(victim, "far_horizon_ends")
        wait_whole(cluster)
        network.close()
        cluster.heal()
        cluster.check_replicas_agree()
        cluster.stop()


@pytest.mark.soak
def test_workers_of_one_node_share_what_they_may_send(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> None:
    cluster = Cluster(tmp_path, zookeeper.address, groups=2, factor=2)
    (common,) = set(cluster.plans[0].replicas) & set(cluster.plans[1].replicas)
    others = [next(iter(set(plan.replicas) - {common})) for plan in cluster.plans]
    plain = cluster.command
    for worker in cluster.workers.values():
        worker._command = lambda worker: [*plain(worker), "--node-dir", str(tmp_path / "node")]
    with cluster:
        options(cluster, **{"replication.max.near.sync.message.lag": 1_000, LIMIT: SLOW})
        victim = cluster.workers[common]
        victim.kill()
        leaders = [cluster.wait_led_by({name}, group) for group, name in enumerate(others)]
        for group, leader in enumerate(leaders):
            cluster.wait_isr({leader.name}, group)
        append(cluster, **BULK)
        victim.start()
        wait_said(victim, "far_horizon_ends", 2)
        for leader in leaders:
            assert any("senders_of_state" in line and '"workers": 2' in line for line in leader.log())
        ends = [_took(line) for line in victim.log() if "far_horizon_ends" in line]
        received_bytes, took_ms = sum(each[1] for each in ends), max(each[0] for each in ends)
        assert received_bytes * 1_000 / took_ms < SLOW * 1.3


def _took(line: str) -> tuple[int, int]:
    found = [re.search(rf'{name}"?[=:] ?(\d+)', line) for name in ("took_ms", "received_bytes")]
    took_ms, received_bytes = (int(each[1]) for each in found if each)
    return took_ms, received_bytes


def _waits(network: Network, worker: WorkerProcess) -> str:
    views = ask(network, worker.address, control.Replicas(module=MODULE))
    return views[0].catchup.waits if views and views[0].catchup else ""


@pytest.mark.soak
def test_the_log_is_kept_for_so_long_and_then_the_follower_begins_again(cluster: Cluster) -> None:
    options(cluster, **{"replication.far.horizon.max.pinned.entries": 2_000})
    victim = leave_behind(cluster, **BULK)
    options(cluster, **{LIMIT: SLOW})
    leader = cluster.leader()
    victim.start()
    wait_said(victim, "task_round_begins")
    append(cluster, 3_000)
    wait_said(leader, "pin_released")
    wait_said(victim, "far_horizon_fails")
    assert any("replication.far.horizon.max.pinned.entries" in line for line in victim.log())
    options(cluster, **{LIMIT: 0})
    wait_whole(cluster)
    cluster.heal()
    cluster.check_replicas_agree()


@pytest.fixture
def spoilt(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> Iterator[tuple[Cluster, Spoiler]]:
    """A cluster in which the way to one worker leads through somebody who changes what it sends."""
    cluster = Cluster(tmp_path, zookeeper.address, groups=1)
    plain = cluster.command
    target = cluster.workers[cluster.plans[0].replicas[-1]]
    with Spoiler(target.address) as spoiler:

        def command(worker: WorkerProcess) -> list[str]:
            return plain(worker) + (["--advertise", spoiler.address] if worker is target else [])

        for worker in cluster.workers.values():
            worker._command = command
        with cluster:
            options(cluster, **{"replication.max.near.sync.message.lag": 1_000})
            yield cluster, spoiler


def test_blocks_that_come_damaged_are_refused_and_asked_for_again(
    spoilt: tuple[Cluster, Spoiler],
) -> None:
    cluster, spoiler = spoilt
    victim = cluster.workers[cluster.plans[0].replicas[-1]]
    if cluster.leader() is victim:
        victim.restart()
        cluster.wait_led_by(set(cluster.workers) - {victim.name})
        wait_whole(cluster)
    victim.kill()
    cluster.wait_isr(set(cluster.workers) - {victim.name})
    append(cluster, **BULK)
    spoiler.spoil(3)
    victim.start()
    wait_said(victim, "far_horizon_ends")
    assert spoiler.spoilt == 3
    assert victim.said("damaged_blocks") > 0
    assert victim.said("far_horizon_fails") == 0
    wait_whole(cluster)
    cluster.heal()
    cluster.check_replicas_agree()


@pytest.mark.parametrize(
    ("name", "at"),
    [("replog/*.replog", -1_000), ("state/task-0/data.mdb", 0)],
    ids=["segment of the log", "file of the state"],
)
def test_a_replica_whose_disk_changed_bytes_becomes_somebody_else_and_takes_the_leaders_state(
    cluster: Cluster, name: str, at: int
) -> None:
    append(cluster, 2_000)
    victim = cluster.followers()[0]
    before = {member.storage for member in cluster.record().isr if member.worker == victim.name}
    victim.kill()
    file = max(cluster.replica_folder(victim.name).glob(name))
    with file.open("r+b") as damaged:
        damaged.seek(at % file.stat().st_size)
        page = damaged.read(8_192)
        damaged.seek(-len(page), os.SEEK_CUR)
        damaged.write(bytes(each ^ 0xFF for each in page))
    with Load(cluster.connect(), depot=LOAD_DEPOT) as load:
        victim.start()
        wait_said(victim, "replica_set_aside")
        wait_said(victim, "far_horizon_ends")
        wait_whole(cluster)
    after = {member.storage for member in cluster.record().isr if member.worker == victim.name}
    assert len(before | after) == 2
    assert list(cluster.replica_folder(victim.name).glob("**/aside.*"))
    check(cluster, load)
