"""What a client knows of the groups, whom it asks for news, and when it tries again."""

from __future__ import annotations

import threading

import pytest

from stretto.network.routing import (
    EAGER_ATTEMPTS,
    PATIENCE,
    ClusterView,
    Network,
    _Once,
    patience_ms,
)
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire
from tests.unit.client.answering import FOLLOWER, GROUPS, LEADER, SECONDS, answered_by, views


def test_a_leader_is_tried_often_at_first_and_less_and_less_later() -> None:
    assert [patience_ms(EAGER_ATTEMPTS + each) for each in (-8, -1, 0, 1, 2, 100)] == [
        PATIENCE.first_ms,
        PATIENCE.first_ms,
        PATIENCE.first_ms,
        2 * PATIENCE.first_ms,
        4 * PATIENCE.first_ms,
        PATIENCE.most_ms,
    ]


def test_what_runs_once_runs_once() -> None:
    ran: list[int] = []
    once = _Once(lambda: ran.append(1))
    assert not once.is_done
    once()
    once()
    assert (ran, once.is_done) == ([1], True)


@pytest.fixture
def view() -> ClusterView:
    view = ClusterView()
    addresses = {LEADER: "at w0", FOLLOWER: "at w1"}
    assert view.take(wire.Metadata(0, addresses, views())) == []
    return view


def test_groups_that_are_led_anew_are_told_and_older_news_are_none(view: ClusterView) -> None:
    later = views(leader=FOLLOWER, epoch=2)
    assert view.take(wire.Metadata(0, {}, later[:1])) == [GROUPS[0]]
    assert view.leader_address(GROUPS[0]) == "at w1"
    assert view.take(wire.Metadata(0, {}, later[:1])) == []
    assert view.take(wire.Metadata(0, {}, views())) == []
    assert (view.leader_address(GROUPS[0]), view.epoch(GROUPS[0])) == ("at w1", 2)
    assert (view.leader_address(GROUPS[1]), view.epoch(GROUPS[1])) == ("at w0", 1)
    unknown = GroupKey("m", 9, 9)
    assert (view.leader_address(unknown), view.epoch(unknown)) == (None, 0)


def refused(leader: WorkerId | None, epoch: int) -> wire.Refused:
    return wire.Refused(1, Refusal.NOT_LEADER, leader, Epoch(epoch))


def test_who_was_asked_in_vain_tells_who_leads(view: ClusterView) -> None:
    group = GROUPS[0]
    assert not view.learn(group, refused(FOLLOWER, 1))
    assert not view.learn(group, refused(None, 2))
    assert not view.learn(GroupKey("m", 9, 9), refused(FOLLOWER, 2))
    assert view.leader_address(group) == "at w0"
    assert view.learn(group, refused(FOLLOWER, 2))
    assert (view.leader_address(group), view.epoch(group)) == ("at w1", 2)


def test_a_task_stays_in_its_group_until_its_new_one_is_heard_of(view: ClusterView) -> None:
    def grouped(number: int, *tasks: int, module_tasks: int = 4) -> wire.GroupView:
        key = GroupKey("m", 2, number)
        members = (LEADER,)
        placed = tuple(map(TaskId, tasks))
        return wire.GroupView(key, placed, members, Epoch(1), LEADER, members, module_tasks)

    view.take(wire.Metadata(0, {}, (grouped(0, 0),)))
    assert [view.of_task["m", TaskId(task)].generation for task in range(4)] == [2, 1, 1, 1]
    assert set(view.groups) == {*GROUPS, GroupKey("m", 2, 0)}
    view.take(wire.Metadata(0, {}, (grouped(1, 1),)))
    assert GROUPS[0] not in view.groups
    # What is told late of the grouping before changes nothing.
    view.take(wire.Metadata(0, {}, views()))
    assert GROUPS[0] not in view.groups
    assert view.of_task["m", TaskId(1)] == GroupKey("m", 2, 1)


def test_tasks_that_a_relaunch_takes_away_are_gone(view: ClusterView) -> None:
    members = (LEADER,)
    key = GroupKey("m", 2, 0)
    fewer = wire.GroupView(key, (TaskId(0), TaskId(1)), members, Epoch(1), LEADER, members, 2)
    view.take(wire.Metadata(0, {}, (fewer,)))
    assert view.tasks["m"] == [0, 1]
    assert set(view.of_task.values()) == {key} == set(view.groups)
    # One of the grouping before that is heard of late has no task any more.
    view.take(wire.Metadata(0, {}, views()))
    assert view.tasks["m"] == [0, 1]


def on_loop(network: Network, function: object) -> None:
    done = threading.Event()

    def run() -> None:
        function()  # type: ignore[operator]
        done.set()

    network.call(run)
    assert done.wait(SECONDS)


def test_who_waits_for_a_leader_hears_of_it_at_once_and_once() -> None:
    heard = threading.Semaphore(0)
    calls: list[int] = []

    def then() -> None:
        calls.append(1)
        heard.release()

    with answered_by((LEADER, lambda *_: None)) as (network, _):
        group = GROUPS[0]
        # There is one already.
        on_loop(network, lambda: network.when_led_anew(group, then, above=Epoch(0), within_ms=1_000_000))
        assert heard.acquire(timeout=SECONDS)
        on_loop(network, lambda: network.when_led_anew(group, then, above=Epoch(1), within_ms=1_000_000))
        assert calls == [1]
        on_loop(network, lambda: network.learn(group, refused(FOLLOWER, 2)))
        assert heard.acquire(timeout=SECONDS)
        on_loop(network, lambda: network.learn(group, refused(LEADER, 3)))
        assert calls == [1, 1]
        # After its time in any case.
        on_loop(network, lambda: network.when_led_anew(group, then, above=Epoch(9), within_ms=1))
        assert heard.acquire(timeout=SECONDS)


def test_a_leader_that_cannot_be_reached_is_looked_for_at_any_worker() -> None:
    """Perhaps all replicas of its group have moved, so that none of those that are known can tell."""
    with answered_by((LEADER, lambda *_: None)) as (network, [worker]):
        found = threading.Event()
        on_loop(network, lambda: network.learn(GROUPS[0], refused(WorkerId("w9"), 2)))
        assert network.view.leader_address(GROUPS[0]) is None
        worker.metadata = wire.Metadata(0, {LEADER: worker.address}, views(epoch=3))
        on_loop(
            network,
            lambda: network.when_led_anew(GROUPS[0], found.set, above=Epoch(2), within_ms=1_000_000),
        )
        assert found.wait(SECONDS)
        assert network.view.epoch(GROUPS[0]) == 3


def test_nothing_is_sent_to_a_leader_that_nobody_knows() -> None:
    with answered_by((LEADER, lambda *_: None)) as (network, _):
        sent: list[bool] = []
        message = wire.GetMetadata(7)
        on_loop(
            network,
            lambda: sent.append(
                network.to_leader(GroupKey("m", 9, 9), 7, message, (), lambda *_: None, timeout_ms=1_000)
            ),
        )
        assert sent == [False]
