"""Which leaders should move where: the fewest switches to the best balance that can be reached.

What counts is how many groups a *node* leads. A group can be led by its *candidates*: the members of its ISR
that live. A node may be *drained*: it should lead nothing. A plan is made in this order:

1. a group led on a drained node moves, if it has a candidate anywhere else; if not, it stays; 2. the other
nodes lead as evenly as can be reached (:mod:`stretto.conductor.planning.spread` says how even that is); 3. no
plan that does the same has fewer switches; 4. and of those, none has more of its switches go to a group's
first candidate, the preferred leader.

A group without a leader, or whose leader is no candidate, is about to elect one: it is left alone and counted
nowhere. A node without a candidate of any group has no share.

It is a function of its arguments: no clock, no chance, no metastore.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stretto.conductor.planning.spread import spread
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.invariants import present
from stretto.vocabulary.types import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LedGroup:
    """A task group with its leader and the replicas that may lead it."""

    key: GroupKey
    leader: WorkerId | None
    candidates: tuple[WorkerId, ...]
    """Living members of the ISR, preferred leader first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A change of leader that a plan wants."""

    key: GroupKey
    leader: WorkerId
    target: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """How leaders are spread over nodes."""

    leaders: dict[str, int]
    """How many groups each node leads, by name; all nodes that have a candidate of some group."""
    drained: frozenset[str]
    """Nodes, of those in ``leaders``, that should lead nothing."""
    to_drain: int
    """Groups that are led on a drained node and could be led on another."""
    share: float
    """Ideal number of groups that a node leads: all that undrained nodes could lead, by their number."""

    @property
    def imbalance(self) -> float:
        """How far the worst node that is not drained is from its share, as a part of the share.

        A share is rarely whole: both its neighbours are ideal, and the distance is to the nearer one. So 0
        means that no two nodes differ by more than one.
        """
        least, most = math.floor(self.share), math.ceil(self.share)
        distances = [
            max(least - leaders, leaders - most, 0)
            for node, leaders in self.leaders.items()
            if node not in self.drained
        ]
        return max(distances, default=0) / self.share if self.share else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The switches to make, and the balance before and after them."""

    switches: tuple[Switch, ...]
    before: Balance
    after: Balance

    def is_due(self, threshold: float) -> bool:
        """Whether to carry the plan out unasked: ``threshold`` is `leadership.balance.threshold`.

        A drained node is drained whatever the threshold.
        """
        return bool(self.switches) and (self.before.to_drain > 0 or self.before.imbalance > threshold)


def plan(groups: Iterable[LedGroup], nodes: Mapping[WorkerId, str], drained: Collection[str] = ()) -> Plan:
    """Plan the fewest switches to the best balance; ``nodes`` has the node of every candidate."""
    led = sorted((group for group in groups if group.leader in group.candidates), key=lambda group: group.key)
    names = sorted({nodes[worker] for group in led for worker in group.candidates})
    places = {name: place for place, name in enumerate(names)}
    closed = frozenset(names) & frozenset(drained)

    movable: list[LedGroup] = []
    choices: list[tuple[int, ...]] = []
    for group in led:
        there = dict.fromkeys(nodes[worker] for worker in group.candidates)
        choice = tuple(places[node] for node in there if node not in closed)
        if choice:
            movable.append(group)
            choices.append(choice)
    homes = [places[nodes[_leader(group)]] for group in movable]
    planned = spread(homes, choices)

    switches = tuple(
        Switch(key=group.key, leader=_leader(group), target=_on(names[place], group, nodes))
        for group, home, place in zip(movable, homes, planned, strict=True)
        if place != home
    )
    leaders = Counter(nodes[_leader(group)] for group in led)
    moved = Counter(leaders)
    for switch in switches:
        moved[nodes[switch.leader]] -= 1
        moved[nodes[switch.target]] += 1
    share = len(movable) / max(1, len(names) - len(closed))

    def balance(counts: Counter[str], to_drain: int) -> Balance:
        return Balance(
            leaders={name: counts[name] for name in names}, drained=closed, to_drain=to_drain, share=share
        )

    to_drain = sum(names[home] in closed for home in homes)
    return Plan(switches=switches, before=balance(leaders, to_drain), after=balance(moved, 0))


def _leader(group: LedGroup) -> WorkerId:
    return present(group.leader, "the leader of a led group")


def _on(node: str, group: LedGroup, nodes: Mapping[WorkerId, str]) -> WorkerId:
    return next(worker for worker in group.candidates if nodes[worker] == node)
