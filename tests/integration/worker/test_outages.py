"""Too few replicas, leaders cut off from the metastore, and a metastore that goes away."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import ProducerId, TaskId
from stretto.wire import messages as wire
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.server.ensemble import EmbeddedEnsemble
from tests.integration.worker.test_crashes import wait_for_more
from tests.support.cluster import DEADLINE_SECONDS, DEPOT, MODULE, Cluster
from tests.support.load import Load, check_history
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.wires import Wire

ZNODE_BYTES_MAX = 4_096


def test_a_resumed_leader_answers_no_read_that_waited_for_it(cluster: Cluster) -> None:
    """Reads that were sent while it was frozen are the first thing it sees, before any news of its end."""
    client = cluster.connect()
    producer = client.producer(MODULE, DEPOT, linger_ms=0)
    producer.append(b"old", task=0).result(30)
    leader, epoch = cluster.leader(), cluster.record().epoch
    with Wire(leader.address) as reader:
        leader.pause()
        cluster.wait_led_by(set(cluster.workers) - {leader.name}, above_epoch=epoch)
        producer.append(b"new", task=0).result(DEADLINE_SECONDS)
        for _ in range(50):
            reader.send(
                wire.ReadDepot(reader.number(), cluster.key_of(0), TaskId(0), DEPOT, 0, 1 << 20, True)
            )
        leader.resume()
        for _ in range(50):
            answer = reader.receive()
            assert isinstance(answer, wire.Refused), f"it answered {answer}"
    cluster.heal()


def test_too_few_replicas_refuse_appends_until_one_comes_back(cluster: Cluster) -> None:
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        dead = cluster.followers()
        for follower in dead:
            follower.kill()
        with Wire(cluster.leader().address) as caller:
            wait_until(
                "the leader refuses appends", lambda: refusal(cluster, caller) == Refusal.STALLED, 40.0
            )
        assert len(cluster.isr()) >= 2, "the ISR shrank below min-ISR"
        dead[0].start()
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


def refusal(cluster: Cluster, caller: Wire) -> Refusal | None:
    """What an append gets now; it is from a producer that nobody admitted, so it never succeeds."""
    message = wire.AppendBatch(caller.number(), cluster.key_of(0), Kind.DEPOT, TaskId(0), ProducerId(1), 0, 1)
    answer = caller.ask(message, pack(DEPOT, [b"stray"]))
    return answer.reason if isinstance(answer, wire.Refused) else None


@pytest.fixture
def road(zookeeper: EmbeddedZooKeeper) -> Iterator[Proxy]:
    """Between one worker and ZooKeeper."""
    with Proxy(zookeeper.port) as proxy:
        yield proxy


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_a_leader_cut_off_from_zookeeper_is_replaced_and_returns(
    start: Callable[..., Cluster], zookeeper: EmbeddedZooKeeper, road: Proxy, how: str
) -> None:
    cluster = start(hosts_of=lambda name: road.address if name == "w0" else zookeeper.address)
    isolated = cluster.workers["w0"]
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        epochs = [cluster.record(group).epoch for group in range(2)]
        led = [group for group in range(2) if cluster.leader(group) is isolated]
        getattr(road, how)()
        for group in led:
            cluster.wait_led_by({"w1", "w2"}, group, above_epoch=epochs[group])
        cluster.wait_isr({"w1", "w2"})
        wait_for_more(load)
        road.heal()
        cluster.wait_healed()
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


def test_a_zookeeper_frozen_for_longer_than_all_sessions_costs_no_record(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    with EmbeddedZooKeeper(tmp_path / "zookeeper", tick_ms=300, fsync=False) as zookeeper:
        cluster = start(zookeeper.address)
        with Load(cluster.connect()) as load:
            wait_for_more(load)
            zookeeper.signal(signal.SIGSTOP)
            wait_until("all workers notice", lambda: all_said(cluster, "metastore_suspended"), 40.0)
            zookeeper.signal(signal.SIGCONT)
            wait_for_more(load)
        assert check_history(cluster, load)["failed"] == 0


def all_said(cluster: Cluster, event: str) -> bool:
    return all(worker.said(event) for worker in cluster.workers.values())


@pytest.mark.soak
def test_an_ensemble_that_loses_its_leader_costs_no_record(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    with EmbeddedEnsemble(tmp_path / "ensemble", fsync=False) as ensemble:
        cluster = start(ensemble.hosts)
        with Load(cluster.connect()) as load:
            wait_for_more(load)
            lost = ensemble.leader()
            lost.kill()
            wait_for_more(load)
            leader, epoch = cluster.leader(), cluster.record().epoch
            leader.kill()
            cluster.wait_led_by(set(cluster.workers) - {leader.name}, above_epoch=epoch)
            wait_for_more(load)
            lost.start()
        assert check_history(cluster, load)["failed"] == 0


def test_the_metastore_holds_nothing_big_after_a_loaded_run(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=4, tasks=16, groups=8)
    with Load(cluster.connect(), producers=4) as load:
        wait_for_more(load, 2_000)
    sizes = cluster.znode_sizes()
    assert len(sizes) > 10
    big = {path: size for path, size in sizes.items() if size > ZNODE_BYTES_MAX}
    assert not big, f"records or code do not belong into ZooKeeper: {big}"
