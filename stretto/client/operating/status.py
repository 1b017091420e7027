"""The current state of task groups, as their replicas report it themselves.

The metastore's record says who should lead. Whether that worker does, and what the others do, only they can
tell: each is asked, all at once, and what they say is judged together. A replica that does not answer is part
of the answer. No conductor is needed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
from msgspec.structs import replace

from stretto import control
from stretto.errors import StrettoError, UsageError
from stretto.network.asking import ask
from stretto.network.routing import Network
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.suggest import did_you_mean
from stretto.vocabulary.types import Epoch, Offset, TaskId, WorkerId
from stretto.wire import messages as wire

ASK_SECONDS = 2.0
THREADS = 16


class GroupState(enum.StrEnum):
    RUNNING = "running"
    CATCHING_UP = "catching up"
    """The group serves, and replicas outside the ISR are catching up."""
    PAUSED = "paused"
    """The group serves reads, and refuses records until its module is resumed."""
    STALLED = "stalled"
    """Fewer replicas than min-ISR can take an entry: appends are refused."""
    NO_LEASE = "no lease"
    """The leader is cut off from the metastore and serves no reads."""
    ELECTING = "electing"
    LEADER_SILENT = "leader silent"
    """The leader is registered, and does not answer."""
    OFFLINE = "offline"
    """No member of the ISR is there to lead."""
    LAUNCHING = "launching"


SILENT: Final = "silent"
ABSENT: Final = "absent"


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    worker: WorkerId
    node: str | None = None
    role: str
    """Reported by the replica; ``silent`` if its worker does not answer, ``absent`` if none is registered."""
    in_isr: bool
    start: Offset | None = None
    end: Offset | None = None
    apply: Offset | None = None
    lag: int | None = None
    """Entries that the leader has and this replica has not confirmed."""
    since_ms: int | None = None
    why: str = ""
    catchup: control.CatchupView | None = None
    """Progress of a replica while it receives its leader's state; None otherwise."""


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    group: GroupKey
    tasks: tuple[TaskId, ...]
    state: GroupState
    since_ms: int | None
    """How long the group has been in that state, if any replica knows."""
    why: str
    leader: WorkerId | None
    """Leader by the newest record that any replica has; :attr:`state` says whether it does lead."""
    epoch: Epoch
    isr: tuple[WorkerId, ...]
    osr: tuple[WorkerId, ...]
    min_isr: int | None
    replicas: tuple[ReplicaStatus, ...]
    is_whole: bool
    """Whether the group is led, and all its replicas are in the ISR.

    Not only by the record, which still has those that died a moment ago, but by their own word, and by the
    leader's of these very processes."""

    def placed_on(self, nodes: Mapping[WorkerId, str]) -> GroupStatus:
        """Return this status with the nodes of its workers, as far as they are known."""
        placed = (replace(each, node=nodes.get(each.worker)) for each in self.replicas)
        return replace(self, replicas=tuple(placed))


def judge(
    view: wire.GroupView,
    told: Mapping[WorkerId, control.ReplicaView],
    registered: frozenset[WorkerId],
) -> GroupStatus:
    """Derive the status of a group from what its replicas reported.

    ``told`` has the workers that answered; ``registered``, those with an address to be asked at.
    """
    group = _Evidence(view, told, registered)
    state, since_ms, why = group.state()
    return GroupStatus(
        group=view.key,
        tasks=view.tasks,
        state=state,
        since_ms=since_ms,
        why=why,
        leader=group.leader,
        epoch=group.epoch,
        isr=group.isr,
        osr=tuple(worker for worker in view.replicas if worker not in group.isr),
        min_isr=group.min_isr,
        replicas=tuple(group.replica(worker) for worker in view.replicas),
        is_whole=all(group.takes_part(worker) for worker in view.replicas),
    )


class _Evidence:
    """What is known of one group: its record, and the reports of its replicas."""

    def __init__(
        self,
        view: wire.GroupView,
        told: Mapping[WorkerId, control.ReplicaView],
        registered: frozenset[WorkerId],
    ) -> None:
        self.told = told
        self.registered = registered
        #: The newest record that any replica has. Of one epoch its leader knows best: it makes the changes.
        newest = max(told.values(), key=lambda each: (each.epoch, each.role == "leader"), default=None)
        record: wire.GroupView | control.ReplicaView = view
        if newest is not None and (newest.epoch, newest.role == "leader") > (view.epoch, False):
            record = newest
        self.epoch, self.leader, self.isr = record.epoch, record.leader, record.isr
        #: The leader, if it answered that it is.
        self.leading = told.get(self.leader) if self.leader is not None else None
        if self.leading is not None and (self.leading.role, self.leading.epoch) != ("leader", self.epoch):
            self.leading = None

    @property
    def min_isr(self) -> int | None:
        if self.leading is not None:
            return self.leading.min_isr
        return max((each.min_isr for each in self.told.values()), default=0) or None

    def state(self) -> tuple[GroupState, int | None, str]:
        """Return the state of the group, how long it has been so, and why."""
        if self.leading is not None:
            return self._led(self.leading)
        if self.leader is None and self.epoch == 0:
            since_ms = max((each.since_ms for each in self.told.values()), default=None)
            return GroupState.LAUNCHING, since_ms, "it waits for its replicas to register"
        if self.leader is not None and self.leader not in self.told and self.leader in self.registered:
            why = f"worker {self.leader} leads by the record and does not answer"
            return GroupState.LEADER_SILENT, None, why
        since_ms = max((each.since_ms for each in self.told.values() if each.leaderless), default=None)
        able = [worker for worker in self.isr if self._runs(worker)]
        if able:
            return GroupState.ELECTING, since_ms, f"{_listed(able)} can lead it"
        return GroupState.OFFLINE, since_ms, f"nobody can lead it before {_listed(self.isr, 'or')} is back"

    def _led(self, leading: control.ReplicaView) -> tuple[GroupState, int | None, str]:
        if leading.stalled:
            lost = [worker for worker in self.isr if not self._runs(worker)]
            why = f"it needs {leading.min_isr} replicas in the ISR"
            if lost:
                why += f", and {_listed(lost)} cannot take entries"
            return GroupState.STALLED, leading.since_ms, why
        if not leading.serving and leading.why:
            return GroupState.NO_LEASE, leading.since_ms, f"worker {leading.worker}: {leading.why}"
        if not leading.serving:
            return GroupState.ELECTING, leading.since_ms, "its new leader applies what it inherited"
        behind = [
            each
            for each in self.told.values()
            if each.role in ("near", "far") and each.worker not in self.isr
        ]
        if behind:
            return GroupState.CATCHING_UP, max(each.since_ms for each in behind), leading.why
        if leading.paused:
            return GroupState.PAUSED, None, leading.why
        return GroupState.RUNNING, leading.since_ms, leading.why

    def _runs(self, worker: WorkerId) -> bool:
        return worker in self.told and self.told[worker].role != "stopped"

    def takes_part(self, worker: WorkerId) -> bool:
        """Whether a worker leads, or is a follower in the ISR that has confirmed its log in this epoch."""
        if self.leading is None or worker not in self.told:
            return False
        if worker == self.leading.worker:
            return True
        known = self._known(self.leading, worker)
        confirmed = known is not None and known.in_isr and known.confirmed is not None
        return confirmed and self.told[worker].role == "follower"

    def replica(self, worker: WorkerId) -> ReplicaStatus:
        told = self.told.get(worker)
        in_isr, lag = worker in self.isr, self._lag(worker)
        if told is None:
            role = SILENT if worker in self.registered else ABSENT
            return ReplicaStatus(worker=worker, role=role, in_isr=in_isr, lag=lag)
        return ReplicaStatus(
            worker=worker,
            role=told.role,
            in_isr=in_isr,
            start=told.start,
            end=told.end,
            apply=told.apply,
            lag=lag,
            since_ms=told.since_ms,
            why=told.why,
            catchup=told.catchup,
        )

    def _lag(self, worker: WorkerId) -> int | None:
        """Return how far a replica is behind, by what it confirmed to the leader, else by its own report."""
        leading, told = self.leading, self.told.get(worker)
        if leading is None:
            return None
        if worker == leading.worker:
            return 0
        known = self._known(leading, worker)
        confirmed = known.confirmed if known is not None else None
        end = confirmed if confirmed is not None else told.end if told is not None else None
        return None if end is None else max(0, leading.end - end)

    def _known(self, leading: control.ReplicaView, worker: WorkerId) -> control.FollowerView | None:
        """Return what the leader knows of a follower, unless another incarnation of it has answered."""
        told = self.told.get(worker)
        for each in leading.followers:
            if each.worker == worker and (told is None or each.incarnation == told.incarnation):
                return each
        return None


def _listed(workers: Sequence[WorkerId], joint: str = "and") -> str:
    *others, last = workers or ("nobody",)
    return f"{', '.join(others)} {joint} {last}" if others else str(last)


# Asking.


def group_statuses(
    network: Network, metadata: wire.Metadata, module: str, *, group: int | None = None
) -> list[GroupStatus]:
    """Ask for the status of all groups of a module, or of one, in order.

    ``metadata`` is what any daemon reported a moment ago.
    """
    views = newest_groups(metadata, module, group)
    concerned = {worker for view in views for worker in view.replicas}
    asked = {worker: metadata.addresses[worker] for worker in concerned if worker in metadata.addresses}
    call = control.Replicas(module=module)
    with ThreadPoolExecutor(THREADS, "replicas") as pool:
        answers = pool.map(lambda address: _answer(network, address, call), asked.values())
        told = {
            (replica.group, worker): replica
            for worker, replicas in zip(asked, answers, strict=True)
            for replica in replicas or ()
            if replica.worker == worker
        }
    return [
        judge(
            view,
            {worker: told[view.key, worker] for worker in view.replicas if (view.key, worker) in told},
            frozenset(asked),
        )
        for view in views
    ]


def _answer(network: Network, address: str, call: control.Replicas) -> tuple[control.ReplicaView, ...] | None:
    try:
        return ask(network, address, call, timeout=ASK_SECONDS)
    except StrettoError:
        return None


def newest_groups(metadata: wire.Metadata, module: str, group: int | None = None) -> list[wire.GroupView]:
    """Return all groups of the newest grouping of the module, or one of them."""
    views = [view for view in metadata.groups if view.key.module == module]
    if not views:
        modules = {view.key.module for view in metadata.groups}
        raise UsageError(f"there is no module {module}; {did_you_mean(module, modules)}")
    generation = max(view.key.generation for view in views)
    newest = sorted((view for view in views if view.key.generation == generation), key=lambda view: view.key)
    chosen = [view for view in newest if group in (None, view.key.group)]
    if not chosen:
        raise UsageError(f"{module} has no group {group}; its groups are 0 to {len(newest) - 1}")
    return chosen
