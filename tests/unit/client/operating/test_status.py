"""The state of a group is what its replicas say together, whatever the record says."""

from __future__ import annotations

from typing import Any

import pytest

from stretto import control
from stretto.client.operating.status import GroupState, GroupStatus, judge
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, Offset, TaskId, WorkerId
from stretto.wire import messages as wire

W0, W1, W2 = (WorkerId(f"w{number}") for number in range(3))
ALL = (W0, W1, W2)
KEY = GroupKey("counts", 1, 0)


def group(leader: WorkerId | None = W0, epoch: int = 3, isr: tuple[WorkerId, ...] = ALL) -> wire.GroupView:
    return wire.GroupView(KEY, (TaskId(0), TaskId(1)), ALL, Epoch(epoch), leader, isr, 2)


def replica(worker: WorkerId, role: str = "follower", **known: Any) -> control.ReplicaView:
    isr = known.setdefault("isr", ALL)
    facts: dict[str, Any] = {
        "group": KEY,
        "worker": worker,
        "incarnation": Incarnation("i"),
        "role": role,
        "epoch": Epoch(3),
        "leader": W0,
        "osr": tuple(each for each in ALL if each not in isr),
        "min_isr": 2,
        "start": Offset(0),
        "end": Offset(10),
        "apply": Offset(10),
        "applied": Offset(10),
        "stalled": False,
        "serving": role == "leader",
        "since_ms": 5_000,
    }
    return control.ReplicaView(**(facts | known))


def follower(
    worker: WorkerId, confirmed: int | None, *, incarnation: str = "i", in_isr: bool = True
) -> control.FollowerView:
    end = None if confirmed is None else Offset(confirmed)
    return control.FollowerView(
        worker=worker, incarnation=Incarnation(incarnation), confirmed=end, in_isr=in_isr
    )


def judged(
    view: wire.GroupView, *told: control.ReplicaView, registered: tuple[WorkerId, ...] = ALL
) -> GroupStatus:
    return judge(view, {each.worker: each for each in told}, frozenset(registered))


def test_a_group_whose_leader_serves_and_whose_replicas_are_in_sync_runs() -> None:
    leader = replica(
        W0,
        "leader",
        end=Offset(12),
        followers=(follower(W1, 12), follower(W2, 9)),
    )
    status = judged(group(), leader, replica(W1), replica(W2))

    assert (status.state, status.since_ms, status.why) == (GroupState.RUNNING, 5_000, "")
    assert (status.leader, status.epoch, status.isr, status.osr, status.min_isr) == (W0, 3, ALL, (), 2)
    assert [(each.worker, each.role, each.lag) for each in status.replicas] == [
        (W0, "leader", 0),
        (W1, "follower", 0),
        (W2, "follower", 3),
    ]
    assert status.is_whole


@pytest.mark.parametrize(
    ("followers", "told", "lag"),
    [
        ((follower(W1, 10),), (replica(W1), replica(W2)), 0),
        ((follower(W1, 10), follower(W2, 8, incarnation="before")), (replica(W1), replica(W2)), 0),
        ((follower(W1, 10), follower(W2, 8)), (replica(W1),), 2),
        ((follower(W1, 10), follower(W2, 8)), (replica(W1), replica(W2, "stopped")), 2),
        ((follower(W1, 10), follower(W2, 8, in_isr=False)), (replica(W1), replica(W2)), 2),
        ((follower(W1, 10), follower(W2, 8)), (replica(W1), replica(W2, "near")), 2),
        ((follower(W1, 10), follower(W2, None)), (replica(W1), replica(W2)), 0),
    ],
    ids=["not heard of", "only an earlier one", "silent", "stopped", "another disk", "near", "only a Hello"],
)
def test_a_group_is_not_whole_while_a_member_of_its_isr_does_not_follow(
    followers: tuple[control.FollowerView, ...], told: tuple[control.ReplicaView, ...], lag: int
) -> None:
    status = judged(group(), replica(W0, "leader", followers=followers), *told)
    assert (status.state, status.osr, status.is_whole) == (GroupState.RUNNING, (), False)
    assert status.replicas[2].lag == lag


def test_a_group_without_a_leader_or_with_a_replica_outside_its_isr_is_not_whole() -> None:
    assert not judged(group(), replica(W1), replica(W2)).is_whole
    isr = (W0, W1)
    leader = replica(W0, "leader", isr=isr, followers=(follower(W1, 10), follower(W2, 10, in_isr=False)))
    assert not judged(group(isr=isr), leader, replica(W1, isr=isr), replica(W2, "near", isr=isr)).is_whole


def test_a_leader_that_is_registered_and_does_not_answer_is_not_shown_as_running() -> None:
    status = judged(group(), replica(W1), replica(W2))
    assert status.state is GroupState.LEADER_SILENT
    assert status.why == "worker w0 leads by the record and does not answer"
    assert status.replicas[0].role == "silent"
    assert [each.lag for each in status.replicas] == [None, None, None]


def test_a_leader_whose_registration_is_gone_leaves_a_group_that_elects() -> None:
    told = [replica(each, leaderless=True, since_ms=70) for each in (W1, W2)]
    status = judged(group(), *told, registered=(W1, W2))
    assert (status.state, status.since_ms) == (GroupState.ELECTING, 70)
    assert status.why == "w1 and w2 can lead it"
    assert status.replicas[0].role == "absent"


def test_a_group_without_any_member_of_its_isr_is_offline() -> None:
    view = group(isr=(W0, W1))
    told = replica(W2, "near", isr=(W0, W1), leaderless=True, since_ms=900)
    status = judged(view, told, registered=(W2,))
    assert (status.state, status.since_ms) == (GroupState.OFFLINE, 900)
    assert status.why == "nobody can lead it before w0 or w1 is back"


def test_members_whose_replica_is_stopped_cannot_lead() -> None:
    stopped = replica(W0, "stopped", isr=(W0,), why="no space left on device")
    status = judged(group(isr=(W0,)), stopped, replica(W1, "near", isr=(W0,)))
    assert status.state is GroupState.OFFLINE
    assert status.replicas[0].why == "no space left on device"


def test_a_stalled_group_says_who_holds_it_up() -> None:
    leader = replica(W0, "leader", stalled=True, since_ms=1_200)
    status = judged(group(), leader, registered=(W0,))
    assert (status.state, status.since_ms) == (GroupState.STALLED, 1_200)
    assert status.why == "it needs 2 replicas in the ISR, and w1 and w2 cannot take entries"


def test_a_replica_on_its_way_into_the_isr_is_catching_up() -> None:
    isr = (W0, W1)
    leader = replica(W0, "leader", isr=isr, followers=(follower(W2, 4, in_isr=False),))
    far = replica(W2, "near", isr=isr, since_ms=300, end=Offset(5))
    status = judged(group(isr=isr), leader, replica(W1, isr=isr), far)
    assert (status.state, status.since_ms, status.osr) == (GroupState.CATCHING_UP, 300, (W2,))
    assert status.replicas[2].lag == 6


def test_a_replica_that_is_out_of_the_isr_and_gone_is_not_catching_up() -> None:
    isr = (W0, W1)
    status = judged(group(isr=isr), replica(W0, "leader", isr=isr), replica(W1, isr=isr), registered=(W0, W1))
    assert status.state is GroupState.RUNNING
    assert (status.osr, status.replicas[2].role) == ((W2,), "absent")


def test_a_leader_without_a_lease_is_not_shown_as_running() -> None:
    leader = replica(W0, "leader", serving=False, why="its lease has lapsed", since_ms=40)
    status = judged(group(), leader, replica(W1), replica(W2))
    assert (status.state, status.since_ms) == (GroupState.NO_LEASE, 40)
    assert status.why == "worker w0: its lease has lapsed"


def test_a_leader_that_does_not_serve_yet_is_still_being_elected() -> None:
    status = judged(group(), replica(W0, "leader", serving=False, since_ms=3), replica(W1))
    assert (status.state, status.since_ms) == (GroupState.ELECTING, 3)


def test_what_a_replica_knows_of_a_newer_epoch_counts_before_the_metadata() -> None:
    leader = replica(W1, "leader", epoch=Epoch(4), leader=W1, isr=(W1, W2))
    status = judged(group(), replica(W2, epoch=Epoch(4), leader=W1), leader, registered=(W1, W2))
    assert (status.leader, status.epoch, status.isr) == (W1, 4, (W1, W2))
    assert status.state is GroupState.RUNNING


def test_a_deposed_leader_that_does_not_know_it_yet_does_not_count() -> None:
    old = replica(W0, "leader", leader=W0)
    new = replica(W1, "leader", epoch=Epoch(4), leader=W1)
    assert judged(group(), old, new, replica(W2)).leader == W1
    status = judged(group(), old, replica(W2, epoch=Epoch(4), leader=W1))
    assert (status.state, status.leader) == (GroupState.LEADER_SILENT, W1)


@pytest.mark.parametrize("told", [(), (replica(W0, "near", epoch=Epoch(0), leader=None, isr=()),)])
def test_a_group_that_never_had_a_leader_is_launching(told: tuple[control.ReplicaView, ...]) -> None:
    status = judged(group(None, 0, ()), *told)
    assert status.state is GroupState.LAUNCHING
    assert status.since_ms == (5_000 if told else None)


def test_a_group_of_a_paused_module_is_shown_as_paused() -> None:
    status = judged(group(), replica(W0, "leader", paused=True), replica(W1), replica(W2))
    assert status.state is GroupState.PAUSED
