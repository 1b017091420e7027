"""Followers that fell behind further than their leader's log reaches."""

from __future__ import annotations

from typing import Any

from stretto.options import Level
from stretto.zk.watches.options import set_options
from tests.support.cluster import DEPOT, MODULE, Cluster, WorkerProcess
from tests.support.waiting import wait_until

DEADLINE_SECONDS = 90.0


def options(cluster: Cluster, **values: Any) -> None:
    """Returns when every running worker has them."""
    running = [worker for worker in cluster.workers.values() if worker.is_running]
    before = {worker.name: worker.said("options_in_force") for worker in running}
    set_options(cluster.operator, cluster.paths, Level.of(MODULE), values)
    for worker in running:
        wait_until(
            f"{worker.name} has the options {values}",
            lambda worker=worker: worker.said("options_in_force") > before[worker.name],  # type: ignore[misc]
            DEADLINE_SECONDS,
        )


def append(cluster: Cluster, records: int, *, record_bytes: int = 20) -> None:
    """So many records to each task, acknowledged."""
    client = cluster.connect()
    filler = b"/" + b"x" * record_bytes
    with client.producer(MODULE, DEPOT, linger_ms=20, batch_records=2_000) as producer:
        tasks = client.reader(MODULE, DEPOT).tasks
        acks = [producer.append(b"%d" % at + filler, task=task) for at in range(records) for task in tasks]
        for ack in acks:
            ack.result(DEADLINE_SECONDS)


def leave_behind(cluster: Cluster, records: int, *, record_bytes: int = 20) -> WorkerProcess:
    """A follower that is not running, out of the ISR, and lacks so many records of each task."""
    victim = cluster.followers()[0]
    victim.kill()
    cluster.wait_isr(set(cluster.workers) - {victim.name})
    append(cluster, records, record_bytes=record_bytes)
    return victim


def wait_said(worker: WorkerProcess, event: str, times: int = 1) -> None:
    wait_until(f"{worker.name} says {event}", lambda: worker.said(event) >= times, DEADLINE_SECONDS)


def wait_whole(cluster: Cluster) -> None:
    """Every replica is in the ISR."""
    wanted = set(cluster.workers)
    wait_until(f"the ISR is {sorted(wanted)}", lambda: cluster.isr() == wanted, DEADLINE_SECONDS)
