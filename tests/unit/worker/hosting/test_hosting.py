"""What a worker makes of an assignment, for the groups it holds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from stretto.replog.core import events
from stretto.replog.core.settings import Settings
from stretto.specs.assignments import Assignment, GroupPlan, NextGrouping, PlacedWorker, plans_of
from stretto.vocabulary.types import WorkerId
from stretto.worker.hosting.hosting import Hosting
from stretto.worker.hosting.retention import Removals

ASSIGNMENT = Assignment(
    generation=1,
    tasks=2,
    workers=(PlacedWorker(WorkerId("m-0"), "n1"), PlacedWorker(WorkerId("m-1"), "n2")),
    groups=((0, 1), (1, 0)),
    plan=1,
)


class Holding:
    """A worker with a group for each plan, which notes what it is told."""

    def __init__(self, folder: Path) -> None:
        plans = plans_of("m", ASSIGNMENT)
        self.worker = WorkerId("m-0")
        self.config = SimpleNamespace(data_dir=folder, module="m")
        self.regrouping = SimpleNamespace(on_assignment=lambda _: None, switch=lambda _: False)
        self.replicas = SimpleNamespace(stopped={}, folder=lambda _: SimpleNamespace(open=None))
        self.retention = Removals(cast(Any, self))
        self.opening: list[object] = []
        self.disk = SimpleNamespace(run=lambda work, _: self.opening.append(work))
        self.loop = SimpleNamespace(now=0)
        self.groups = {plan.key: _Group(plan) for plan in plans}
        self.hosting = Hosting(cast(Any, self), plans)

    def settings(self, plan: GroupPlan) -> Settings:
        return Settings(unclean_election=plan.is_given_up)

    def on_peers_changed(self) -> None:
        pass

    def assigned(self, **changes: Any) -> list[bool]:
        """Which groups may elect uncleanly after this."""
        self.hosting.on_assignment(msgspec.structs.replace(ASSIGNMENT, **changes))
        return [group.is_unclean for group in self.groups.values()]


class _Group:
    def __init__(self, plan: GroupPlan) -> None:
        self.plan = plan
        self.is_unclean = False

    def step(self, event: events.Event) -> None:
        if isinstance(event, events.OptionsChanged):
            self.is_unclean = event.settings.unclean_election


def test_only_a_group_that_is_given_up_may_elect_uncleanly_and_only_as_long_as_it_is(tmp_path: Path) -> None:
    holding = Holding(tmp_path)
    assert holding.assigned() == [False, False]
    assert holding.assigned(given_up=(1,)) == [False, True]
    assert holding.assigned(plan=2, given_up=(1,)) == [False, True]
    # Read late, and older than what is known.
    assert holding.assigned(plan=1, given_up=(0,)) == [False, True]
    assert holding.assigned(plan=2) == [False, False]


def test_a_worker_that_takes_a_replica_on_says_nothing_of_deletions_until_it_is_open(tmp_path: Path) -> None:
    """Its group may be the one where a deletion is not decided yet."""
    holding = Holding(tmp_path)
    holding.retention.dropped = 7
    holding.assigned(plan=2)
    assert (len(holding.opening), holding.retention.dropped) == (0, 7)
    holding.assigned(plan=3, tasks=3, groups=((0, 1), (1, 0), (0, 1)))
    assert (len(holding.opening), holding.retention.dropped) == (1, 0)


def test_a_grouping_that_follows_gives_nothing_up() -> None:
    following = msgspec.structs.replace(
        ASSIGNMENT,
        given_up=(1,),
        next=NextGrouping(generation=2, groups=((0, 1),), began_ms=0),
    ).following
    assert following is not None
    assert following.given_up == ()
