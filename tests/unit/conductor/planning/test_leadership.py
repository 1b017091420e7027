"""Leadership plans against all that could be planned."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.conductor.planning.leadership import Balance, LedGroup, Plan, Switch, plan
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import WorkerId


def led(number: int, leader: str | None, *candidates: str) -> LedGroup:
    return LedGroup(
        key=GroupKey("counts", 1, number),
        leader=WorkerId(leader) if leader else None,
        candidates=tuple(WorkerId(worker) for worker in candidates),
    )


#: Worker ``a0`` and ``a1`` run on node ``a``, and so on.
WORKERS = [WorkerId(f"{node}{number}") for node in "abcd" for number in range(2)]
NODES = {worker: worker[0] for worker in WORKERS}


@dataclass(frozen=True, kw_only=True)
class Case:
    groups: tuple[LedGroup, ...]
    drained: frozenset[str]

    def plan(self) -> Plan:
        return plan(self.groups, NODES, self.drained)

    def led(self) -> list[LedGroup]:
        return [group for group in self.groups if group.leader in group.candidates]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    groups = []
    for number in range(draw(st.integers(0, 6))):
        nodes = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
        replicas = [f"{node}{draw(st.integers(0, 1))}" for node in nodes]
        alive = draw(st.lists(st.sampled_from(replicas), unique=True))
        candidates = [worker for worker in replicas if worker in alive]
        groups.append(led(number, draw(st.sampled_from([*replicas, None])), *candidates))
    return Case(groups=tuple(groups), drained=draw(st.frozensets(st.sampled_from("abcd"))))


def leaders_after(case: Case, switches: tuple[Switch, ...]) -> tuple[WorkerId | None, ...]:
    targets = {switch.key: switch.target for switch in switches}
    return tuple(targets.get(group.key, group.leader) for group in case.led())


def cost(case: Case, leaders: tuple[WorkerId | None, ...]) -> tuple[int, int, int, int]:
    """Leaders on drained nodes, unevenness of the others, switches, switches that prefer nobody."""
    counts = Counter(NODES[worker] for worker in leaders if worker)
    moved = [
        (group, worker) for group, worker in zip(case.led(), leaders, strict=True) if worker != group.leader
    ]
    return (
        sum(counts[node] for node in case.drained),
        sum(count**2 for node, count in counts.items() if node not in case.drained),
        len(moved),
        sum(worker != first_choice(case, group) for group, worker in moved),
    )


def first_choice(case: Case, group: LedGroup) -> WorkerId | None:
    return next((worker for worker in group.candidates if NODES[worker] not in case.drained), None)


@given(cases())
@settings(max_examples=400, deadline=None)
def test_no_plan_is_better_balanced_or_has_fewer_switches(case: Case) -> None:
    everything = itertools.product(*(group.candidates for group in case.led()))
    assert cost(case, leaders_after(case, case.plan().switches)) == min(
        cost(case, leaders) for leaders in everything
    )


@given(cases())
@settings(deadline=None)
def test_a_switch_goes_from_the_leader_to_another_candidate(case: Case) -> None:
    groups = {group.key: group for group in case.groups}
    switches = case.plan().switches
    assert len({switch.key for switch in switches}) == len(switches)
    for switch in switches:
        assert switch.leader == groups[switch.key].leader != switch.target
        assert switch.target in groups[switch.key].candidates
        assert switch.target[0] not in case.drained


@given(cases())
@settings(deadline=None)
def test_a_group_that_could_only_be_led_on_drained_nodes_stays(case: Case) -> None:
    switched = {switch.key for switch in case.plan().switches}
    stuck = {group.key for group in case.groups if first_choice(case, group) is None}
    assert not switched & stuck


@given(cases(), st.randoms())
@settings(deadline=None)
def test_the_order_of_groups_changes_nothing(case: Case, chance: random.Random) -> None:
    shuffled = list(case.groups)
    chance.shuffle(shuffled)
    assert plan(shuffled, NODES, case.drained) == case.plan()


@given(cases())
@settings(deadline=None)
def test_what_a_plan_announces_is_what_its_switches_bring(case: Case) -> None:
    first = case.plan()
    after = dict(zip([group.key for group in case.led()], leaders_after(case, first.switches), strict=True))
    carried_out = [
        led(group.key.group, after.get(group.key, group.leader), *group.candidates) for group in case.groups
    ]
    second = plan(carried_out, NODES, case.drained)
    assert second.switches == ()
    assert second.before == second.after == first.after


def test_a_group_without_a_living_leader_is_left_alone_and_not_counted() -> None:
    found = plan([led(0, None, "a0", "b0"), led(1, "c0", "a0", "b0"), led(2, "a0", "a0", "b0")], NODES)
    assert found.switches == ()
    assert found.before.leaders == {"a": 1, "b": 0}


def test_of_equal_plans_the_one_with_the_preferred_leader_is_taken() -> None:
    found = plan([led(0, "a0", "c0", "b0", "a0"), led(1, "a0", "a0")], NODES)
    assert [(switch.key.group, switch.target) for switch in found.switches] == [(0, "c0")]


def test_a_leader_that_is_not_the_preferred_one_is_no_reason_to_switch() -> None:
    assert plan([led(0, "b0", "a0", "b0"), led(1, "a0", "b0", "a0")], NODES).switches == ()


def test_replicas_that_share_a_node_are_one_place_to_lead() -> None:
    found = plan([led(0, "a0", "a1", "a0"), led(1, "a0", "a1", "a0"), led(2, "b0", "b0")], NODES)
    assert found.switches == ()


def test_a_drained_node_hands_all_it_can_and_gets_nothing() -> None:
    groups = [led(0, "a0", "a0", "b0"), led(1, "a0", "a0"), led(2, "b0", "a0", "b0"), led(3, "b0", "b0")]
    found = plan(groups, NODES, {"a", "elsewhere"})
    assert [(switch.key.group, switch.target) for switch in found.switches] == [(0, "b0")]
    assert found.before == Balance(leaders={"a": 2, "b": 2}, drained=frozenset("a"), to_drain=1, share=3.0)
    assert found.after == Balance(leaders={"a": 1, "b": 3}, drained=frozenset("a"), to_drain=0, share=3.0)


@pytest.mark.parametrize(
    ("leaders", "share", "imbalance"),
    [
        ({"a": 5, "b": 5}, 5.0, 0.0),
        ({"a": 3, "b": 2, "c": 2}, 7 / 3, 0.0),
        ({"a": 4, "b": 2, "c": 1}, 7 / 3, 3 / 7),
        ({"a": 12, "b": 9, "c": 9}, 10.0, 0.2),
        ({"a": 11, "b": 11, "c": 8}, 10.0, 0.2),
        ({"a": 2, "b": 0, "c": 0}, 2 / 3, 1.5),
        ({}, 0.0, 0.0),
    ],
)
def test_imbalance_is_the_worst_distance_from_a_whole_share_as_a_part_of_it(
    leaders: dict[str, int], share: float, imbalance: float
) -> None:
    found = Balance(leaders=leaders, drained=frozenset(), to_drain=0, share=share)
    assert found.imbalance == pytest.approx(imbalance)


def test_a_plan_is_due_above_the_threshold_only() -> None:
    groups = [led(number, "a0" if number < 12 else "b0", "a0", "b0") for number in range(20)]
    found = plan(groups, NODES)
    assert found.before.imbalance == pytest.approx(0.2)
    assert found.is_due(0.1)
    assert not found.is_due(0.2)


def test_draining_is_due_whatever_the_threshold() -> None:
    groups = [led(number, "a0" if number == 0 else "b0", "a0", "b0") for number in range(20)]
    assert plan(groups, NODES, {"a"}).is_due(10.0)


def test_what_cannot_be_bettered_is_never_due() -> None:
    found = plan([led(number, "a0", "a0") for number in range(4)] + [led(4, "b0", "b0")], NODES)
    assert found.before.imbalance > 0.1
    assert not found.is_due(0.0)
    assert not plan([led(0, "a0", "a0")], NODES, {"a"}).is_due(0.0)
