"""Leadership balance, carried out: plans become requests to resign, a few at a time, until all are settled.

Looked at every ``leadership.balance.interval.millis``, and soon after leaders or members change (a node came
back and caught up, one was drained). A drained node loses its leaders whatever the threshold says; otherwise
nothing moves below ``leadership.balance.threshold``. While switches of a module are under way its state is
*leadership-balancing*, but a paused one stays paused. A request names the epoch it is meant for: it cannot
end another.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from dataclasses import dataclass

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from stretto import control
from stretto.conductor.life import Life
from stretto.conductor.operations import Operations
from stretto.conductor.planning.leadership import LedGroup, Plan, plan
from stretto.conductor.view import GroupState, Module, View, named
from stretto.errors import StrettoError, UsageError
from stretto.options import CLUSTER, Level, OptionSet
from stretto.replog.core.record import GroupRecord
from stretto.specs.modules import ModuleState
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.plurals import many
from stretto.vocabulary.types import Epoch, WorkerId
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import ResignRequest, encode

log = structlog.get_logger()

AT_ONCE = 16
"""Most groups that are being handed over at the same time."""
SETTLE_SECONDS = 1.0
"""How long leaders and members must have stayed as they are before they are rearranged."""
GRACE_SECONDS = 5.0
"""How much longer than a leader gives itself to hand over the conductor waits before it gives up."""

_BALANCED = (ModuleState.RUNNING, ModuleState.LEADERSHIP_BALANCING, ModuleState.PAUSED)
_AT_REST = (ModuleState.RUNNING, ModuleState.PAUSED)


@dataclass(frozen=True, slots=True)
class _Switch:
    group: GroupKey
    epoch: Epoch
    target: WorkerId


class Balancing:
    """Carries out the leadership balance of all modules, for the active conductor."""

    def __init__(self, client: KazooClient, paths: Paths, operations: Operations, life: Life) -> None:
        self._client = client
        self._paths = paths
        self._operations = operations
        self._life = life
        self._waiting: deque[_Switch] = deque()
        #: Switches that were requested, and when to give up on each.
        self._requested: dict[_Switch, float] = {}
        self._moved = 0
        self._next_at = 0.0
        #: When the leaders and members seen last will have stayed as they are for long enough.
        self._settled_at = math.inf
        self._seen: object = None

    def hurry(self) -> None:
        """Look for imbalance in the next turn, without waiting for the interval."""
        self._next_at = 0.0

    # Turns.

    def advance(self, view: View, options: OptionSet, now: float) -> None:
        """Take one turn: settle requests, send further ones, and plan anew when it is time to."""
        self._settle(view, now)
        self._request(view, options, now)
        if self._requested or self._waiting:
            return
        self._finish(view)
        seen = (
            view.drained,
            frozenset(name for name, module in view.modules.items() if module.spec.state in _BALANCED),
            tuple(
                (group.record.leader, group.record.isr)
                for module in view.modules.values()
                for group in module.groups
                if group.record is not None
            ),
            frozenset(view.workers),
        )
        if seen != self._seen:
            self._seen = seen
            self._settled_at = now + SETTLE_SECONDS
        if now < min(self._next_at, self._settled_at):
            return
        self._settled_at = math.inf
        self._next_at = now + options.value("leadership.balance.interval.millis", CLUSTER) / 1_000
        for module in view.modules.values():
            if module.spec.state in _AT_REST:
                found = _plan(view, module)
                if found.is_due(_threshold(options, module)):
                    self._begin(module, found)

    def _settle(self, view: View, now: float) -> None:
        """Forget the requests that have been obeyed, have become void, or take too long."""
        for switch, deadline in list(self._requested.items()):
            record = _record(view, switch.group)
            if record is not None and record.epoch == switch.epoch and now < deadline:
                continue
            del self._requested[switch]
            if record is not None and record.epoch > switch.epoch:
                self._moved += record.leader == switch.target
            elif record is not None:
                log.warning("leadership_not_handed_over", group=str(switch.group), target=switch.target)
                self._withdraw(switch)

    def _withdraw(self, switch: _Switch) -> None:
        """Delete a request to resign, unless somebody has asked for something else meanwhile."""
        path = self._paths.resign(switch.group)
        with contextlib.suppress(NoNodeError, BadVersionError):
            data, stat = self._client.get(path)
            if data == _encoded(switch):
                self._client.delete(path, stat.version)

    def _request(self, view: View, options: OptionSet, now: float) -> None:
        while self._waiting and len(self._requested) < AT_ONCE:
            switch = self._waiting.popleft()
            record = _record(view, switch.group)
            if record is not None and record.epoch == switch.epoch:
                level = Level.of(switch.group.module)
                patience = options.value("leadership.resign.timeout.millis", level) / 1_000 + GRACE_SECONDS
                self._requested[switch] = now + patience
                self._write(switch)

    def _write(self, switch: _Switch) -> None:
        path = self._paths.resign(switch.group)
        data = _encoded(switch)
        try:
            self._client.create(path, data)
        except NodeExistsError:
            with contextlib.suppress(NoNodeError):
                self._client.set(path, data)
        except NoNodeError:
            return

    def _begin(self, module: Module, found: Plan) -> None:
        if not found.switches:
            return
        is_paused = module.spec.state is ModuleState.PAUSED
        if not is_paused and not self._life.enter(module, ModuleState.LEADERSHIP_BALANCING):
            return
        records = {group.plan.key: group.record for group in module.groups}
        for switch in found.switches:
            record = records[switch.key]
            if record is not None:
                self._waiting.append(_Switch(switch.key, record.epoch, switch.target))
        self._operations.note(
            f"leadership balance: {many(len(found.switches), 'switch', 'switches')}", module.name
        )

    def _finish(self, view: View) -> None:
        """End the balancing state of modules: nothing is under way, also if another conductor began it."""
        for module in view.modules.values():
            if module.spec.state is ModuleState.LEADERSHIP_BALANCING and self._life.enter(
                module, ModuleState.RUNNING
            ):
                self._operations.note(
                    "leadership balanced", module.name, f"{many(self._moved, 'leader')} moved"
                )
        self._moved = 0

    # Answers.

    def show(self, view: View, module: Module, options: OptionSet) -> control.LeadershipView:
        """Return how the leaders of a module are spread, and which switches would balance them."""
        found = _plan(view, module)
        before = found.before
        return control.LeadershipView(
            module=module.name,
            state=module.spec.state,
            nodes=tuple(
                control.NodeLeaders(
                    node=node,
                    leaders=leaders,
                    ideal=0.0 if node in before.drained else before.share,
                    allowed=node not in before.drained,
                )
                for node, leaders in before.leaders.items()
            ),
            leaderless=tuple(group.plan.key for group in module.groups if not view.is_led(group)),
            switches=tuple(
                control.SwitchView(group=switch.key, leader=switch.leader, target=switch.target)
                for switch in found.switches
            ),
            imbalance=before.imbalance,
            threshold=_threshold(options, module),
        )

    def ask_for(self, view: View, module: Module, options: OptionSet) -> control.LeadershipView:
        """Balance a module now, whatever the threshold."""
        if module.spec.state not in _AT_REST:
            raise StrettoError(f"module {module.name} is {module.spec.state}; wait until it is running")
        self._begin(module, _plan(view, module))
        return self.show(view, module, options)

    def resign(self, view: View, module: Module, number: int, to: WorkerId) -> Epoch:
        """Ask the leader of a group to hand over to a worker; returns the epoch that is to end."""
        if not 0 <= number < len(module.groups):
            raise UsageError(f"module {module.name} has groups 0 to {len(module.groups) - 1}, not {number}")
        group = module.groups[number]
        record = group.record
        if record is None or not view.is_led(group):
            raise StrettoError(f"group {number} of {module.name} has no leader that could resign")
        named("replica of this group on worker", to, group.plan.replicas)
        if to == record.leader:
            raise UsageError(f"{to} leads group {number} of {module.name} already")
        if record.member(to) is None or to not in view.workers:
            raise StrettoError(
                f"{to} is not in sync, so it cannot lead group {number}; see task-groups-status"
            )
        node = module.assignment.nodes[to]
        if node in view.drained:
            raise StrettoError(
                f"leadership is disallowed on node {node}, where {to} runs; "
                f"allow it first with 'stretto leadership allow {node}'"
            )
        self._write(_Switch(group.plan.key, record.epoch, to))
        self._operations.note(f"leadership resign group {number} to {to}", module.name)
        return record.epoch


def _encoded(switch: _Switch) -> bytes:
    return encode(ResignRequest(epoch=switch.epoch, target=switch.target))


def _record(view: View, key: GroupKey) -> GroupRecord | None:
    """The record of a group; None if there is nothing left to hand over."""
    module = view.modules.get(key.module)
    if module is None or module.spec.state is ModuleState.DESTROYING:
        return None
    if module.assignment.generation != key.generation or key.group >= len(module.groups):
        return None
    group: GroupState = module.groups[key.group]
    return group.record


def _plan(view: View, module: Module) -> Plan:
    groups = []
    for group in module.groups:
        record = group.record
        if record is not None and view.is_led(group):
            alive = {member.worker for member in record.isr} & view.workers.keys()
            candidates = tuple(worker for worker in group.plan.replicas if worker in alive)
            groups.append(LedGroup(key=group.plan.key, leader=record.leader, candidates=candidates))
    return plan(groups, module.assignment.nodes, view.drained)


def _threshold(options: OptionSet, module: Module) -> float:
    return float(options.value("leadership.balance.threshold", Level.of(module.name)))
