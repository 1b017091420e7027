"""The health of a cluster in one line."""

from __future__ import annotations

from typing import Any

import pytest

from stretto import control
from stretto.client.operating.status import GroupState, GroupStatus, ReplicaStatus
from stretto.specs.modules import FailedUpdate
from stretto.ui.cluster.views import Health, problems_of, sentence_of, serving_of, serving_unknown
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId


def node(name: str = "n1", **more: Any) -> control.NodeView:
    standing: dict[str, Any] = {"address": "a:1", "labels": {}, "workers": 2, "running": 2, "leaders": 1}
    return control.NodeView(node=name, leadership_allowed=True, **(standing | more))


def replica(worker: str, role: str = "follower", *, in_isr: bool = True) -> ReplicaStatus:
    return ReplicaStatus(worker=WorkerId(worker), role=role, in_isr=in_isr)


def status(
    state: GroupState = GroupState.RUNNING,
    *,
    group: int = 3,
    osr: tuple[str, ...] = (),
    why: str = "",
    replicas: tuple[ReplicaStatus, ...] = (),
) -> GroupStatus:
    return GroupStatus(
        group=GroupKey("M", 1, group),
        tasks=(TaskId(0),),
        state=state,
        since_ms=0,
        why=why,
        leader=WorkerId("w0"),
        epoch=Epoch(1),
        isr=(WorkerId("w0"), WorkerId("w1")),
        osr=tuple(WorkerId(each) for each in osr),
        min_isr=2,
        replicas=replicas,
        is_whole=not osr,
    )


def module(**more: Any) -> control.ModuleView:
    standing: dict[str, Any] = {
        "module": "M",
        "state": "running",
        "artifact": "",
        "tasks": 8,
        "threads": 4,
        "workers": 1,
        "replication_factor": 2,
        "depots": (),
        "pstates": (),
        "processes": (control.WorkerView(worker=WorkerId("w0"), node="n1", address="a:1"),),
        "groups": 4,
        "led": 4,
        "problems": (),
    }
    return control.ModuleView(**(standing | more))


def told(
    *groups: GroupStatus,
    nodes: tuple[control.NodeView, ...] = (node(),),
    modules: tuple[control.ModuleView, ...] = (),
    parked: dict[tuple[str, str], int] | None = None,
) -> tuple[Health, str]:
    return sentence_of(problems_of(nodes, groups, modules, parked or {}), nodes, modules)


def test_what_is_not_served_comes_first() -> None:
    health, sentence = told(
        status(osr=("w2",)), status(GroupState.STALLED, why="it needs 2 replicas"), nodes=(node(running=1),)
    )
    assert health is Health.BAD
    assert sentence == "group 3 of M: stalled: it needs 2 replicas (and 2 more problems)"


@pytest.mark.parametrize(
    "state",
    [
        GroupState.STALLED,
        GroupState.NO_LEASE,
        GroupState.ELECTING,
        GroupState.LEADER_SILENT,
        GroupState.OFFLINE,
    ],
)
def test_a_group_that_does_not_serve_is_bad(state: GroupState) -> None:
    assert told(status(state, why="because")) == (Health.BAD, f"group 3 of M: {state.value}: because")


def test_a_replica_outside_the_isr_degrades() -> None:
    assert told(status(osr=("w2",))) == (
        Health.DEGRADED,
        "group 3 of M: 2 of 3 replicas in the ISR, min-ISR 2",
    )


def test_one_that_catches_up_degrades_and_says_how_many_are_in_sync() -> None:
    assert told(status(GroupState.CATCHING_UP, osr=("w2",))) == (
        Health.DEGRADED,
        "group 3 of M: catching up (2 of 3 replicas in the ISR, min-ISR 2)",
    )


def test_a_member_that_does_not_run_degrades_before_any_append_stalls() -> None:
    replicas = (replica("w0", "leader"), replica("w1", "absent"))
    assert told(status(replicas=replicas)) == (
        Health.DEGRADED,
        "group 3 of M: w1 of the ISR cannot take entries (2 of 2 replicas in the ISR, min-ISR 2)",
    )


def test_a_node_that_is_down_is_told_once_and_before_what_it_causes() -> None:
    down = node(address=None, running=0)
    view = module(problems=("1 worker of node n1 not registered: its supervisor is not registered",))
    problems = problems_of((down,), [status(osr=("w1",))], (view,), {})
    assert [each.node for each in problems] == ["n1", None]
    assert problems[0].sentence.startswith("node n1 is down: no supervisor, 0 of 2 workers; start")
    assert [each.node for each in problems_of((down,), [], (view,), {})] == ["n1"]


def test_a_node_that_lacks_workers_degrades() -> None:
    health, sentence = told(nodes=(node(running=1),))
    assert health is Health.DEGRADED
    assert sentence.startswith("node n1 runs 1 of 2 workers; ")
    health, sentence = told(nodes=(node(address=None),))
    assert health is Health.DEGRADED
    assert "supervisor of node n1 is down: its 2 workers would not be restarted" in sentence


def test_groups_with_the_same_to_say_say_it_together() -> None:
    groups = [status(GroupState.OFFLINE, group=number, why="w0 is gone") for number in range(200)]
    [problem] = problems_of((node(),), [*groups, status()], (), {})
    assert problem.sentence == "groups 0, 1, 2, 3, 4, 5, 6, 7 and 192 more of M: offline: w0 is gone"
    assert problem.groups == tuple(range(200))


def test_a_paused_module_is_told_as_one_and_not_group_by_group() -> None:
    groups = [status(GroupState.PAUSED, group=number) for number in range(4)]
    assert told(*groups, modules=(module(state="paused", problems=("it takes no records",)),)) == (
        Health.DEGRADED,
        "M is paused: it takes no records until 'stretto deploy resume M'",
    )


def test_what_only_the_conductor_knows_of_a_module_is_told() -> None:
    failed = FailedUpdate(version=2, node="n1", why="it raised")
    assert told(status(osr=("w2",)), modules=(module(failed_update=failed),))[1].endswith(
        "(and 1 more problem)"
    )
    assert told(modules=(module(problems=("w0 still goes by the code of before",)),)) == (
        Health.DEGRADED,
        "M: w0 still goes by the code of before",
    )


def test_parked_records_are_a_problem() -> None:
    [problem] = problems_of((node(),), [status()], (), {("M", "count"): 2})
    assert problem.health is Health.DEGRADED
    assert problem.sentence == "2 records of count of M are parked: not processed until somebody decides"
    assert (problem.module, problem.topology) == ("M", "count")


def test_when_all_is_well_it_says_of_what() -> None:
    assert told(status(), modules=(module(),)) == (
        Health.GOOD,
        "4 task groups on 1 node, all led, all replicas in sync",
    )


def test_an_empty_cluster_is_told_as_one() -> None:
    assert told(nodes=())[1].startswith("no node has joined yet")
    assert told() == (Health.GOOD, "1 node runs, and no module is launched")


def serving(*groups: GroupStatus, **more: Any) -> tuple[Health, str]:
    [found] = serving_of([module(**more)], groups)
    assert found.module == "M"
    return found.health, found.state


def test_a_module_whose_groups_nobody_may_lead_does_not_run_whatever_a_conductor_told_last() -> None:
    without = [status(GroupState.NO_LEASE, group=number) for number in range(4)]
    assert serving(*without) == (Health.BAD, "4 of 4 groups: no lease")
    assert serving(*without[:1]) == (Health.BAD, "1 of 1 group: no lease")
    mixed = [without[0], status(GroupState.OFFLINE, group=1), status(group=2)]
    assert serving(*mixed) == (Health.BAD, "2 of 3 groups: not served")


def test_a_module_that_is_served_is_in_the_state_that_its_conductor_tells() -> None:
    assert serving(status(), status(group=1)) == (Health.GOOD, "running")
    assert serving(status(), status(group=1, osr=("w2",))) == (Health.DEGRADED, "running")
    assert serving(state="launching") == (Health.DEGRADED, "launching")
    assert serving(status(GroupState.PAUSED), state="paused") == (Health.DEGRADED, "paused")
    [unknown] = serving_unknown([module()])
    assert (unknown.health, unknown.state) == (Health.UNKNOWN, "not known")
