"""``stretto verify`` against real replicas, equal ones and one that was tampered with."""

from __future__ import annotations

import json
import signal
import threading

import lmdb
import msgspec

from stretto.cli.cluster import reach
from stretto.client import Client
from stretto.client.operating.verify import all_equal
from stretto.client.operating.verify import verify as verify_all
from stretto.vocabulary.types import WorkerId
from tests.support.cluster import DEPOT, MODULE, Cluster
from tests.support.commands import Done, stretto


def verify(cluster: Cluster, *more: str) -> Done:
    return stretto("verify", MODULE, "--bootstrap", ",".join(cluster.addresses()), *more)


def append(client: Client, count: int) -> None:
    producer = client.producer(MODULE, DEPOT)
    acks = [producer.append(b"record %d" % number) for number in range(count)]
    producer.flush()
    for ack in acks:
        ack.result(30)


def test_replicas_are_compared_while_records_are_appended(cluster: Cluster) -> None:
    client = cluster.connect()
    append(client, 2_000)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            append(client, 200)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        done = verify(cluster)
        told = verify(cluster, "--json")
    finally:
        stop.set()
        loading.join()
    assert done.code == 0, done.out + done.err
    assert f"{MODULE}: all replicas of 2 tasks hold the same" in done.out
    verdicts = json.loads(told.out)
    assert [verdict["missing"] for verdict in verdicts] == [[], []]
    for verdict in verdicts:
        for found in verdict["digests"].values():
            assert len(found) == 3
            assert len(set(found.values())) == 1


def test_a_replica_that_was_tampered_with_is_told(cluster: Cluster) -> None:
    append(cluster.connect(), 100)
    assert verify(cluster).code == 0  # so all of them have applied it
    victim = cluster.followers()[0]
    victim.terminate()
    victim.wait()
    task = next((cluster.replica_folder(victim.name) / "state").glob("task-0"))
    environment = lmdb.open(str(task), max_dbs=64)
    depot = environment.open_db(f"depot/{DEPOT}".encode())
    with environment.begin(write=True, db=depot) as txn:
        cursor = txn.cursor()
        assert cursor.first()
        value = cursor.value()
        cursor.put(cursor.key(), value[:-1] + bytes([value[-1] ^ 1]))
    environment.close()
    victim.start()
    cluster.wait_healed()
    done = verify(cluster)
    assert done.code == 1
    assert "! replicas of task 0 in group 0 DIFFER" in done.out
    assert "task 1" not in done.out


def test_a_replica_that_is_not_there_is_told(cluster: Cluster) -> None:
    append(cluster.connect(), 10)
    victim = cluster.followers()[0]
    victim.send(signal.SIGKILL)
    victim.wait()
    cluster.wait_isr({worker.name for worker in cluster.workers.values()} - {victim.name})
    done = verify(cluster, "--timeout", "4")
    assert done.code == 1
    assert f"{victim.name} did not get there with group 0" in done.out


def test_a_replica_is_found_where_it_is_by_now(cluster: Cluster) -> None:
    """It was started again, at another address, after somebody began to ask."""
    client = cluster.connect()
    append(client, 10)
    with reach(",".join(cluster.addresses()), None) as reached:
        metadata = reached.metadata()
    nowhere = dict.fromkeys(metadata.addresses, "127.0.0.1:1")
    network = client._network
    network.view.addresses.update({WorkerId(cluster.followers()[0].name): "127.0.0.1:1"})
    stale = msgspec.structs.replace(metadata, addresses=nowhere)
    assert all_equal(verify_all(network, stale, MODULE, timeout=30))
