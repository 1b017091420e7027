"""What a worker tells of its replicas, for people: read on the loop, from the state of the core.

The core says that something changed, not since when. :class:`Since` remembers that. It looks after everything
the core finds worth a note and after events that are rare, which is whenever a role, a stall or the serving
of a group can change; never for each entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from stretto import control
from stretto.replog.core.following.follower import Follower
from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.record import Member
from stretto.replog.core.replica import Replica, RoleName
from stretto.specs.assignments import GroupPlan
from stretto.vocabulary.types import Epoch, Millis, Offset, WorkerId

NO_SESSION = "it has no session with ZooKeeper"
NOT_BEGUN = "it waits for its first session with ZooKeeper"
NO_LEASE = "its lease has lapsed: ZooKeeper does not answer it"
HANDING_OVER = "it is handing over to worker {target}"

Condition: TypeAlias = tuple[RoleName, Epoch, bool, bool, bool]


class Since:
    """When a replica came into the condition it is in."""

    def __init__(self, replica: Replica, now: Millis) -> None:
        self._condition = condition_of(replica)
        self._at = now

    def look(self, replica: Replica, now: Millis) -> Millis:
        """Compare the replica's condition with the one before, and return since when it is in it."""
        condition = condition_of(replica)
        if condition != self._condition:
            self._condition = condition
            self._at = now
        return self._at


def condition_of(replica: Replica) -> Condition:
    """Return the condition of a replica: role, epoch, stalled, serving, leaderless."""
    leader = replica.leading
    return (
        replica.role_name,
        replica.record.epoch if replica.record is not None else Epoch(0),
        leader is not None and is_stalled(leader),
        leader is not None and leader.is_serving,
        _is_leaderless(replica),
    )


def _is_leaderless(replica: Replica) -> bool:
    return isinstance(replica.role, Follower) and replica.role.election.leader_exists is False


def is_stalled(leader: Leader) -> bool:
    """Whether a leader refuses appends: laggards that min-ISR forbids to drop, or too few members to begin
    with."""
    return leader.stalled or leader.membership.is_short()


def replica_view(
    replica: Replica,
    plan: GroupPlan,
    since_at: Since,
    now: Millis,
    catchup: control.CatchupView | None = None,
) -> control.ReplicaView:
    """Describe a replica that runs."""
    record = replica.record
    leader = replica.leading if not replica.stopped else None
    since = since_at.look(replica, now)
    why = ""
    serving = leader is not None and leader.is_serving
    if replica.incarnation is None:
        why = NO_SESSION
    elif leader is not None and leader.handover is not None:
        why = HANDING_OVER.format(target=leader.handover.target)
    elif serving and not replica.guards.lease_holds(now, replica.lease_end):
        serving, why = False, NO_LEASE
        since = max(since, replica.lease_end)
    return control.ReplicaView(
        group=plan.key,
        worker=replica.worker,
        incarnation=replica.incarnation,
        role=replica.role_name,
        epoch=record.epoch if record is not None else Epoch(0),
        leader=record.leader if record is not None else None,
        isr=tuple(member.worker for member in record.isr) if record is not None else (),
        osr=_others(plan, record.isr if record is not None else ()),
        min_isr=replica.min_isr,
        start=replica.log_start,
        end=replica.log_end,
        apply=replica.apply_offset,
        applied=replica.applied,
        stalled=leader is not None and is_stalled(leader),
        serving=serving,
        paused=replica.settings.paused,
        leaderless=_is_leaderless(replica),
        since_ms=now - since,
        why=why,
        followers=_followers(leader) if leader is not None else (),
        catchup=catchup,
    )


def _others(plan: GroupPlan, isr: tuple[Member, ...]) -> tuple[WorkerId, ...]:
    listed = {member.worker for member in isr}
    return tuple(worker for worker in plan.replicas if worker not in listed)


def _followers(leader: Leader) -> tuple[control.FollowerView, ...]:
    committed = leader.membership.committed
    return tuple(
        control.FollowerView(
            worker=worker,
            incarnation=progress.incarnation,
            confirmed=progress.confirmed,
            in_isr=Member(worker, progress.storage) in committed,
        )
        for worker, progress in sorted(leader.followers.items())
    )


@dataclass(slots=True)
class Stopped:
    """A replica that does not run: why, since when, and what it was when it last did."""

    plan: GroupPlan
    worker: WorkerId
    at: Millis
    why: str
    last: control.ReplicaView | None = None

    def view(self, now: Millis) -> control.ReplicaView:
        """Describe the replica to people, as one that is stopped."""
        return msgspec.structs.replace(
            self.last or self._never_ran(),
            role=RoleName.STOPPED,
            incarnation=None,
            stalled=False,
            serving=False,
            leaderless=False,
            since_ms=now - self.at,
            why=self.why,
            followers=(),
            catchup=None,
        )

    def _never_ran(self) -> control.ReplicaView:
        nowhere = Offset(0)
        return control.ReplicaView(
            group=self.plan.key,
            worker=self.worker,
            incarnation=None,
            role=RoleName.STOPPED,
            epoch=Epoch(0),
            leader=None,
            isr=(),
            osr=self.plan.replicas,
            min_isr=0,
            start=nowhere,
            end=nowhere,
            apply=nowhere,
            applied=nowhere,
            stalled=False,
            serving=False,
            since_ms=0,
        )
