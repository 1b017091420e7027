"""What a worker tells of a replica is what the core knows, and since when."""

from __future__ import annotations

import pytest

from stretto.replog.core import effects, events
from stretto.replog.core.effects import Effect
from stretto.replog.core.events import Event
from stretto.replog.core.replica import Replica, RoleName
from stretto.sim.replication.simulation import run_seed
from stretto.specs.assignments import GroupPlan
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Millis, TaskId
from stretto.worker.replica.group import BUSY
from stretto.worker.replica.views import (
    HANDING_OVER,
    NO_LEASE,
    NO_SESSION,
    Since,
    Stopped,
    condition_of,
    replica_view,
)
from tests.support.core_group import (
    ALL,
    SETTINGS,
    W0,
    W1,
    W2,
    FollowerSubject,
    Subject,
    new_leader,
    record,
    registration,
    serving_leader,
)

PLAN = GroupPlan(GroupKey("counts", 1, 0), (TaskId(0),), ALL)


def lease(subject: Subject) -> None:
    subject.step(events.LeaseRenewed(sent_at=subject.now))


def test_a_leader_tells_what_it_knows_of_its_followers() -> None:
    subject = serving_leader((W0, W1))
    lease(subject)
    subject.hello(W2)
    subject.append(1)
    subject.persisted()
    view = replica_view(subject.replica, PLAN, Since(subject.replica, subject.now), subject.now)

    assert (view.group, view.worker, view.role, view.epoch) == (PLAN.key, W0, "leader", 1)
    assert (view.isr, view.osr, view.min_isr) == ((W0, W1), (W2,), 2)
    assert (view.start, view.end, view.apply, view.applied) == (0, 2, 1, 1)
    assert (view.serving, view.stalled, view.why) == (True, False, "")
    assert subject.replica.leading is not None
    progress = subject.replica.leading.followers
    assert [(each.worker, each.incarnation, each.confirmed, each.in_isr) for each in view.followers] == [
        (W1, progress[W1].incarnation, 1, True),
        (W2, progress[W2].incarnation, None, False),
    ]


def test_a_leader_that_inherited_entries_does_not_serve_before_they_are_applied() -> None:
    subject = new_leader()
    since = Since(subject.replica, subject.now)
    lease(subject)
    assert not replica_view(subject.replica, PLAN, since, subject.now).serving
    subject.persisted()
    subject.join(W1)
    subject.join(W2)
    subject.applied()
    assert replica_view(subject.replica, PLAN, since, subject.now).serving


def test_a_stall_is_told_with_its_own_time() -> None:
    subject = serving_leader()
    lease(subject)
    since = Since(subject.replica, subject.now)
    subject.append(1)
    subject.persisted()
    subject.tick(after=SETTINGS.max_time_lag_ms)
    since.look(subject.replica, subject.now)
    stalled_at = subject.now

    view = replica_view(subject.replica, PLAN, since, Millis(stalled_at + 70))
    assert (view.stalled, view.since_ms) == (True, 70)
    subject.tick(after=100)
    assert replica_view(subject.replica, PLAN, since, subject.now).since_ms == 100


def test_a_group_with_fewer_members_than_min_isr_is_told_as_stalled() -> None:
    subject = new_leader((W0,))
    subject.persisted()
    view = replica_view(subject.replica, PLAN, Since(subject.replica, subject.now), subject.now)
    assert view.stalled
    assert not view.serving


def test_a_leader_without_a_lease_does_not_serve_since_the_lease_ended() -> None:
    subject = serving_leader()
    since = Since(subject.replica, subject.now)
    lease(subject)
    later = Millis(subject.now + SETTINGS.lease_ms + 30)
    view = replica_view(subject.replica, PLAN, since, later)
    assert (view.role, view.serving, view.why) == ("leader", False, NO_LEASE)
    assert 0 <= view.since_ms <= 30


def test_a_leader_that_resigns_says_to_whom() -> None:
    subject = serving_leader()
    lease(subject)
    subject.append(1)
    subject.step(events.Resign(epoch=subject.role.epoch, target=W1))
    view = replica_view(subject.replica, PLAN, Since(subject.replica, subject.now), subject.now)
    assert view.why == HANDING_OVER.format(target=W1)


def test_a_follower_that_lost_its_session_says_so() -> None:
    subject = FollowerSubject(W1)
    subject.see(record(3, W0))
    since = Since(subject.replica, subject.now)
    assert replica_view(subject.replica, PLAN, since, subject.now).role == RoleName.FOLLOWER
    subject.step(events.SessionExpired())
    view = replica_view(subject.replica, PLAN, since, subject.now)
    assert (view.epoch, view.leader, view.incarnation, view.why) == (3, W0, None, NO_SESSION)


def test_a_replica_that_leaves_the_isr_is_near_from_then_on() -> None:
    subject = FollowerSubject(W1)
    subject.see(record(3, W0))
    since = Since(subject.replica, subject.now)
    subject.see(record(3, W0, (W0, W2)))
    left_at = subject.now
    since.look(subject.replica, left_at)
    view = replica_view(subject.replica, PLAN, since, Millis(left_at + 5))
    assert (view.role, view.since_ms, view.osr) == (RoleName.NEAR, 5, (W1,))


def test_a_follower_tells_since_when_its_leader_is_gone() -> None:
    subject = FollowerSubject(W1)
    subject.see(record(3, W0))
    since = Since(subject.replica, subject.now)
    assert not replica_view(subject.replica, PLAN, since, subject.now).leaderless
    subject.gone(registration(W0))
    since.look(subject.replica, subject.now)
    view = replica_view(subject.replica, PLAN, since, Millis(subject.now + 8))
    assert (view.leaderless, view.since_ms, view.leader) == (True, 8, W0)


def test_a_stopped_replica_keeps_what_it_was_and_says_why() -> None:
    subject = serving_leader()
    running = replica_view(subject.replica, PLAN, Since(subject.replica, subject.now), subject.now)
    stopped = Stopped(PLAN, W0, subject.now, "no space left on device", running)
    view = stopped.view(Millis(subject.now + 9))
    assert (view.role, view.why, view.since_ms) == (RoleName.STOPPED, "no space left on device", 9)
    assert (view.end, view.epoch, view.serving, view.followers) == (running.end, 1, False, ())


@pytest.mark.parametrize("seed", range(6))
def test_no_busy_event_changes_a_condition_without_a_note(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the time since when it holds would be wrong. Far replicas only begin again: nothing to tell."""
    step = Replica.step
    looked = 0

    def watched(self: Replica, event: Event, now: Millis) -> list[Effect]:
        nonlocal looked
        before = condition_of(self)
        happened = step(self, event, now)
        after = condition_of(self)
        if type(event) in BUSY and before != after and before[0] is not RoleName.FAR:
            looked += 1
            assert any(isinstance(effect, effects.Note) for effect in happened), (event, before, after)
        return happened

    monkeypatch.setattr(Replica, "step", watched)
    assert run_seed(seed).violation is None
    assert looked > 0
