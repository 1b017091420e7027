"""The health of a cluster in one line."""

from __future__ import annotations

from typing import Any

from stretto import admin
from stretto.client.status import GroupState, GroupStatus
from stretto.types import Epoch, TaskId, WorkerId
from stretto.ui.views import Health, problems_of, sentence_of
from stretto.zk.paths import GroupKey


def node(name: str = "n1", **more: Any) -> admin.NodeView:
    standing: dict[str, Any] = {"address": "a:1", "labels": {}, "workers": 2, "running": 2, "leaders": 1}
    return admin.NodeView(node=name, leadership_allowed=True, **(standing | more))


def status(
    state: GroupState = GroupState.RUNNING, *, osr: tuple[str, ...] = (), why: str = ""
) -> GroupStatus:
    return GroupStatus(
        group=GroupKey("M", 1, 3),
        tasks=(TaskId(0),),
        state=state,
        since_ms=0,
        why=why,
        leader=WorkerId("w0"),
        epoch=Epoch(1),
        isr=(WorkerId("w0"), WorkerId("w1")),
        osr=tuple(WorkerId(each) for each in osr),
        min_isr=2,
        replicas=(),
    )


def told(*groups: GroupStatus, nodes: tuple[admin.NodeView, ...] = (node(),)) -> tuple[Health, str]:
    return sentence_of(problems_of(nodes, groups, ()), nodes, ())


def test_what_is_not_served_comes_first() -> None:
    health, sentence = told(
        status(osr=("w2",)), status(GroupState.STALLED, why="it needs 2 replicas"), nodes=(node(running=1),)
    )
    assert health is Health.BAD
    assert sentence == "group 3 of M is stalled: it needs 2 replicas"


def test_a_replica_outside_the_isr_degrades() -> None:
    assert told(status(osr=("w2",))) == (
        Health.DEGRADED,
        "group 3 of M has 2 of 3 replicas in its ISR",
    )


def test_a_node_that_lacks_workers_degrades() -> None:
    assert told(nodes=(node(running=1),)) == (Health.DEGRADED, "node n1 runs 1 of 2 workers")
    health, sentence = told(nodes=(node(address=None),))
    assert health is Health.DEGRADED
    assert "supervisor of node n1 is down" in sentence


def test_several_of_a_kind_are_counted() -> None:
    assert told(status(GroupState.OFFLINE), status(GroupState.OFFLINE))[1].endswith(", and 1 more")


def test_an_empty_cluster_is_told_as_one() -> None:
    assert told(nodes=())[1] == "no node has joined yet"
    assert told() == (Health.GOOD, "1 nodes run, and no module is launched")
