"""Connections between workers that break, in one direction or both, while all of them reach ZooKeeper.

Everybody reaches a worker by its road: to cut it leaves that worker able to send, and unable to hear.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import pytest

from stretto.replog.core.effects import Refusal
from stretto.replog.core.producers import new_producer_id
from stretto.replog.frame import Kind
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire
from tests.integration.worker.test_crashes import wait_for_more
from tests.integration.worker.test_outages import refusal
from tests.support.cluster import DEADLINE_SECONDS, Cluster
from tests.support.load import Load, check_history
from tests.support.waiting import wait_until
from tests.support.wires import Wire


@pytest.fixture
def roads(start: Callable[..., Cluster]) -> Cluster:
    return start(proxied=True, options={"replication.max.time.lag.millis": 3_000})


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_a_follower_that_nobody_reaches_leaves_the_isr_and_returns(roads: Cluster, how: str) -> None:
    with Load(roads.connect()) as load:
        wait_for_more(load)
        deaf = roads.followers()[0]
        getattr(roads.roads[deaf.name], how)()
        roads.wait_isr(set(roads.workers) - {deaf.name})
        wait_for_more(load)
        roads.roads[deaf.name].heal()
        roads.wait_healed()
        wait_for_more(load)
    assert check_history(roads, load)["failed"] == 0


def wait_stalled(cluster: Cluster) -> None:
    """The leader is asked where it listens, not by its road; and given something that it cannot apply."""
    with Wire(cluster.leader().address) as caller:
        producer = new_producer_id(time.time_ns() // 1_000_000, secrets.randbits(32))
        number, key = caller.number(), cluster.key_of(0)
        caller.send(wire.AppendBatch(number, key, Kind.PRODUCER_OPEN, TaskId(0), producer, 0, 1), b"")
        wait_until(
            "the leader refuses appends",
            lambda: refusal(cluster, caller) == Refusal.STALLED,
            DEADLINE_SECONDS,
        )


def test_a_leader_that_hears_no_confirmation_stalls_and_recovers(roads: Cluster) -> None:
    """Its entries reach the followers, so they hold more than it may count."""
    with Load(roads.connect()) as load:
        wait_for_more(load)
        road = roads.roads[roads.leader().name]
        road.cut()
        wait_stalled(roads)
        assert len(roads.isr()) >= 2, "the ISR shrank below min-ISR"
        road.heal()
        wait_for_more(load)
    assert check_history(roads, load)["failed"] == 0


def test_workers_that_lose_all_connections_at_once_recover(roads: Cluster) -> None:
    with Load(roads.connect()) as load:
        wait_for_more(load)
        for road in roads.roads.values():
            road.cut()
        wait_stalled(roads)
        for road in roads.roads.values():
            road.heal()
        wait_for_more(load)
    assert check_history(roads, load)["failed"] == 0


def test_connections_that_break_again_and_again_cost_no_record(roads: Cluster) -> None:
    with Load(roads.connect()) as load:
        for _ in range(3):
            for road in roads.roads.values():
                road.cut()
                road.heal()
                wait_for_more(load, 50)
    assert check_history(roads, load)["failed"] == 0
