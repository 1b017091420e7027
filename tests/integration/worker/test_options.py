"""Options that change while records are appended, workers die and come back, and replicas fall behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from stretto import control
from stretto.errors import StrettoError
from stretto.network.asking import ask
from stretto.network.routing import Network
from stretto.options import CLUSTER, Level
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import ProducerId, TaskId
from stretto.wire import messages as wire
from stretto.zk.watches.options import set_option, set_options, unset_option
from tests.integration.worker.test_crashes import wait_for_more
from tests.integration.worker.test_outages import refusal
from tests.support.cluster import DEADLINE_SECONDS, DEPOT, MODULE, Cluster, WorkerProcess
from tests.support.load import Load, check_history
from tests.support.waiting import wait_until
from tests.support.wires import Wire

MIN_ISR = "replication.min.isr"
LAG = "replication.max.time.lag.millis"
TIMEOUT = "replication.append.timeout.millis"
UNAPPLIED = "replication.max.unapplied.entries"
FSYNC = "replication.fsync"
OF_MODULE = Level.of(MODULE)


def tune(cluster: Cluster, name: str, value: object, level: Level = OF_MODULE) -> None:
    set_option(cluster.operator, cluster.paths, level, name, value)


def replicas(
    cluster: Cluster, worker: WorkerProcess, network: Network | None = None
) -> tuple[control.ReplicaView, ...]:
    network = network or cluster.connect([worker.name])._network
    return ask(network, worker.address, control.Replicas(module=MODULE))


def min_isrs(cluster: Cluster, network: Network | None = None) -> set[int]:
    """In force on the replicas that run."""
    running = [worker for worker in cluster.workers.values() if worker.is_running]
    return {view.min_isr for worker in running for view in replicas(cluster, worker, network)}


def fsync_of(cluster: Cluster, worker: WorkerProcess, group: int = 0) -> str:
    """What its identity says."""
    path = cluster.replica_folder(worker.name, group) / "replog" / "identity"
    fsync: str = msgspec.json.decode(path.read_bytes().partition(b"\n")[0])["fsync"]
    return fsync


def test_a_change_is_in_force_on_every_worker_within_a_second(cluster: Cluster) -> None:
    """The quickest of several: the machine may be busy, but nothing here waits for a clock."""
    took = []
    network = cluster.connect()._network

    def is_min_isr(value: int) -> bool:
        return min_isrs(cluster, network) == {value}

    with Load(cluster.connect()) as load:
        wait_for_more(load)
        assert min_isrs(cluster, network) == {2}
        for value in (3, 1, 2, 3, 1):
            began = time.monotonic()
            tune(cluster, MIN_ISR, value)
            wait_until(f"min-ISR {value} everywhere", partial(is_min_isr, value))
            took.append(time.monotonic() - began)
        assert unset_option(cluster.operator, cluster.paths, OF_MODULE, MIN_ISR)
        wait_until("the default everywhere", lambda: min_isrs(cluster) == {2})
        wait_for_more(load)
    assert min(took) < 1.0, took
    assert check_history(cluster, load)["failed"] == 0


def test_a_module_overrides_the_cluster_and_bounds_are_read_as_they_should(cluster: Cluster) -> None:
    for level, value, expected in [
        (CLUSTER, 3, 3),
        (OF_MODULE, 1, 1),
        (OF_MODULE, 0, 1),
        (OF_MODULE, 99, 3),
    ]:
        tune(cluster, MIN_ISR, value, level)
        wait_until(f"min-ISR {expected}", lambda expected=expected: min_isrs(cluster) == {expected})  # type: ignore[misc] # mypy: lambda defaults
    assert unset_option(cluster.operator, cluster.paths, OF_MODULE, MIN_ISR)
    tune(cluster, MIN_ISR, 1, CLUSTER)
    wait_until("the cluster's", lambda: min_isrs(cluster) == {1})


def test_a_restarted_worker_goes_by_the_min_isr_that_was_set_before_it_applies_anything(
    cluster: Cluster,
) -> None:
    """By default two of three would do."""
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        set_options(cluster.operator, cluster.paths, OF_MODULE, {MIN_ISR: 3, LAG: 500})
        wait_until("min-ISR 3 everywhere", lambda: min_isrs(cluster) == {3})
        cluster.kill_at_once()
        *back, last = cluster.workers.values()
        for worker in back:
            worker.start()
        cluster.wait_led_by({worker.name for worker in back}, above_epoch=cluster.record().epoch - 1)
        wait_until("both are back", lambda: all(replicas_or_none(cluster, worker) for worker in back), 40.0)
        views = [view for worker in back for view in replicas(cluster, worker)]
        assert {view.min_isr for view in views} == {3}
        acked = load.acked_so_far()
        wait_until("it is stalled", lambda: any(view.stalled for view in replicas(cluster, cluster.leader())))
        assert load.acked_so_far() == acked
        last.start()
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


def replicas_or_none(cluster: Cluster, worker: WorkerProcess) -> tuple[control.ReplicaView, ...] | None:
    try:
        views = replicas(cluster, worker)
    except StrettoError:
        return None
    return views if views and all(view.incarnation is not None for view in views) else None


@pytest.mark.soak
def test_options_change_under_load_while_workers_die(cluster: Cluster) -> None:
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        # A dead follower stalls a group that wants all three, until it does not any more.
        tune(cluster, MIN_ISR, 3)
        wait_until("min-ISR 3 everywhere", lambda: min_isrs(cluster) == {3})
        victim = cluster.followers()[0]
        victim.kill()
        with Wire(cluster.leader().address) as caller:
            wait_until("it stalls", lambda: refusal(cluster, caller) is Refusal.STALLED, 40.0)
        set_options(cluster.operator, cluster.paths, OF_MODULE, {MIN_ISR: 1, LAG: 300, TIMEOUT: 500})
        wait_for_more(load)
        # A frozen follower is dropped after the new time lag, long before its session ends.
        frozen = next(worker for worker in cluster.followers() if worker is not victim)
        frozen.pause()
        wait_for_more(load)
        frozen.resume()
        victim.start()
        cluster.wait_healed()
        # Few unapplied entries allowed: appends are refused at times, and repeated.
        tune(cluster, UNAPPLIED, 40)
        wait_for_more(load)
        epoch = cluster.record().epoch
        leader = cluster.leader()
        leader.kill()
        cluster.wait_led_by(set(cluster.workers) - {leader.name}, above_epoch=epoch)
        for name in (MIN_ISR, LAG, TIMEOUT, UNAPPLIED):
            assert unset_option(cluster.operator, cluster.paths, OF_MODULE, name)
        leader.start()
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0


def test_fsync_changes_under_load_and_back(cluster: Cluster) -> None:
    def everywhere(fsync: str) -> Callable[[], bool]:
        return lambda: all(
            fsync_of(cluster, worker, group) == fsync
            for worker in cluster.workers.values()
            for group in range(len(cluster.plans))
        )

    with Load(cluster.connect()) as load:
        wait_for_more(load)
        tune(cluster, FSYNC, "interval")
        wait_until("interval everywhere", everywhere("interval"))
        wait_for_more(load)
        victim = cluster.followers()[0]
        victim.restart()
        cluster.wait_healed()
        wait_until("it is interval again after the restart", everywhere("interval"))
        tune(cluster, FSYNC, "always")
        wait_until("always everywhere", everywhere("always"))
        wait_for_more(load)
        for fsync in ("interval", "always", "interval", "always"):
            tune(cluster, FSYNC, fsync)
        wait_for_more(load)
        wait_until("always everywhere", everywhere("always"))
    assert check_history(cluster, load)["failed"] == 0


def test_an_option_of_one_depot_holds_for_it_alone(cluster: Cluster) -> None:
    client = cluster.connect()
    for depot in (DEPOT, "others"):
        with client.producer(MODULE, depot, linger_ms=0) as producer:
            for _ in range(5):
                producer.append(bytes(1_000), task=0).result(DEADLINE_SECONDS)
    tune(cluster, "depot.max.read.bytes", 1_024, Level.of(MODULE, depot=DEPOT))

    def counts() -> list[int]:
        return [len(client.reader(MODULE, depot).read(0, 0).records) for depot in (DEPOT, "others")]

    wait_until("reads of one depot are short", lambda: counts() == [1, 5])


def test_an_append_to_a_depot_with_a_time_out_of_its_own_is_given_up_then(cluster: Cluster) -> None:
    """The followers are frozen for less than it takes to see them go, so that both appends wait."""
    tune(cluster, TIMEOUT, 200, Level.of(MODULE, depot=DEPOT))
    leader, followers = cluster.leader(), cluster.followers()
    wait_until("told", lambda: leader.said(f"depot {DEPOT}") > 0)
    with Wire(leader.address) as caller:
        for follower in followers:
            follower.pause()
        requests = {depot: append(cluster, caller, depot) for depot in (DEPOT, "others")}
        answer: Any = caller.receive()
        assert isinstance(answer, wire.Unknown), answer
        assert answer.request == requests[DEPOT]
        for follower in followers:
            follower.resume()
        answer = caller.receive()
        assert isinstance(answer, wire.Appended), answer
        assert answer.request == requests["others"]


def append(cluster: Cluster, caller: Wire, depot: str) -> int:
    number = caller.number()
    key, no_producer = cluster.key_of(0), ProducerId(0)
    caller.send(wire.AppendBatch(number, key, Kind.DEPOT, TaskId(0), no_producer, 0, 1), pack(depot, [b"r"]))
    return number
