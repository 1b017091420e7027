"""A module that runs gets other replicas: what :mod:`stretto.conductor.moving` plans, carried out.

The whole state of a change is in the metastore: the assignment names the new replicas and the processes of
the old ones, the module's spec says *scaling*, and each group's record tells how far its leader has followed.
So any conductor carries it on, by looking. Nothing is ever waited for here: groups keep serving on their old
replicas until the new ones have caught up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import msgspec
import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError, NotEmptyError

from stretto.conductor.answers import many, some
from stretto.conductor.moving import follows, moved, settled
from stretto.conductor.operations import Operations
from stretto.conductor.view import GroupState, Module, View
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.options import Level
from stretto.types import WorkerId
from stretto.zk.options import read_all, set_option, unset_option
from stretto.zk.paths import Paths
from stretto.zk.records import Assignment, ModuleSpec, ModuleState, encode

log = structlog.get_logger()

UNCLEAN = "replication.unclean.election"
_CHANGEABLE = (ModuleState.RUNNING, ModuleState.LEADERSHIP_BALANCING, ModuleState.SCALING)


class Scaling:
    """Of the active conductor."""

    def __init__(self, client: KazooClient, paths: Paths, operations: Operations) -> None:
        self._client = client
        self._paths = paths
        self._operations = operations

    # What people ask for.

    def reassign(self, view: View, module: Module, node: str, *, force: bool) -> str:
        """Move all replicas away from a node; returns what is done, in a sentence."""
        _check_changeable(module)
        leaving = {each.worker for each in module.assignment.workers if each.node == node}
        concerned = [group for group in module.groups if leaving & set(group.plan.replicas)]
        if not concerned:
            raise UsageError(f"node {node} has no replicas of {module.name}")
        sole = [group for group in concerned if _is_sole(group, leaving)]
        lost = [group for group in sole if not _lives(view, group)]
        if sole and not force:
            raise StrettoError(_why_refused(module, node, sole, lost))
        factor = module.spec.replication_factor
        processes = view.processes()
        after = moved(module.name, module.assignment, factor=factor, processes=processes, leave={node})
        if lost:
            after = msgspec.structs.replace(after, forced=self._let_others_lead(module))
        self._commit(module, after, module.spec)
        what = f"reassign {many(len(concerned), 'group')} from node {node}"
        if lost:
            what += f", by force: {_what_is_lost(lost)}"
        self._operations.note(what, module.name)
        return what

    def scale(self, view: View, module: Module, *, workers: int | None, factor: int | None) -> str:
        """Other numbers of workers and replicas; returns what is done, in a sentence."""
        _check_changeable(module)
        spec = module.spec
        workers = None if workers == spec.workers else workers
        if workers is None and factor in (None, spec.replication_factor):
            raise UsageError(
                f"{module.name} has {many(spec.workers, 'worker')} and replication factor "
                f"{spec.replication_factor} already; ask for others"
            )
        after = moved(
            module.name,
            module.assignment,
            factor=factor or spec.replication_factor,
            workers=workers,
            processes=view.processes(),
        )
        scaled = msgspec.structs.replace(
            spec, workers=workers or spec.workers, replication_factor=factor or spec.replication_factor
        )
        self._commit(module, after, scaled)
        what = (
            f"scale from {many(spec.workers, 'worker')} and replication factor {spec.replication_factor} "
            f"to {many(scaled.workers, 'worker')} and replication factor {scaled.replication_factor}"
        )
        self._operations.note(what, module.name)
        return what

    def _let_others_lead(self, module: Module) -> bool:
        """Unclean elections, until this change is done. False if they are allowed anyway."""
        level = Level.of(module.name)
        if read_all(self._client, self._paths).value(UNCLEAN, level):
            return False
        set_option(self._client, self._paths, level, UNCLEAN, True)
        return True

    def _commit(self, module: Module, after: Assignment, spec: ModuleSpec) -> None:
        before = {placed.worker for placed in module.assignment.workers}
        change = self._client.transaction()
        scaling = msgspec.structs.replace(spec, state=ModuleState.SCALING)
        change.set_data(self._paths.spec(module.name), encode(scaling), module.spec_version)
        change.set_data(self._paths.assignment(module.name), encode(after), module.assignment_version)
        for placed in after.workers:
            if placed.worker not in before:
                change.create(self._paths.remains_of(module.name, placed.worker))
        if any(isinstance(result, Exception) for result in change.commit()):
            raise RetriableError(f"module {module.name} changed meanwhile; try again")

    # Turns.

    def advance(self, module: Module) -> None:
        if module.spec.state is ModuleState.SCALING:
            self._finish(module)
        if module.assignment.retired and module.spec.state is not ModuleState.DESTROYING:
            self._forget_retired(module)

    def _finish(self, module: Module) -> None:
        assignment = module.assignment
        if not all(follows(each.record, assignment, number) for number, each in enumerate(module.groups)):
            return
        if assignment.forced:
            unset_option(self._client, self._paths, Level.of(module.name), UNCLEAN)
        after = msgspec.structs.replace(settled(assignment), forced=False)
        running = msgspec.structs.replace(module.spec, state=ModuleState.RUNNING)
        change = self._client.transaction()
        change.set_data(self._paths.spec(module.name), encode(running), module.spec_version)
        change.set_data(self._paths.assignment(module.name), encode(after), module.assignment_version)
        if not any(isinstance(result, Exception) for result in change.commit()):
            left = len(after.retired) - len(assignment.retired)
            self._operations.note("scaled: every group has its replicas", module.name, _retired(left))

    def _forget_retired(self, module: Module) -> None:
        """Those whose data is deleted, which their supervisors tell by deleting a znode each."""
        left = tuple(placed for placed in module.assignment.retired if placed.worker in module.remains)
        if left == module.assignment.retired:
            return
        for placed in module.assignment.retired:
            if placed not in left:
                with contextlib.suppress(NoNodeError, NotEmptyError):
                    self._client.delete(self._paths.worker(placed.worker))
        after = msgspec.structs.replace(module.assignment, retired=left)
        with contextlib.suppress(NoNodeError, BadVersionError):
            self._client.set(self._paths.assignment(module.name), encode(after), module.assignment_version)


def _check_changeable(module: Module) -> None:
    if module.spec.state is ModuleState.PAUSED:
        raise StrettoError(
            f"module {module.name} is paused, and its replicas stay where they are; "
            f"resume it first with 'stretto deploy resume {module.name}'"
        )
    if module.spec.state not in _CHANGEABLE:
        raise RetriableError(f"module {module.name} is {module.spec.state}; wait until it is running")


def _is_sole(group: GroupState, leaving: AbstractSet[WorkerId]) -> bool:
    return group.record is not None and all(member.worker in leaving for member in group.record.isr)


def _lives(view: View, group: GroupState) -> bool:
    return group.record is not None and any(member.worker in view.workers for member in group.record.isr)


def _numbers(groups: Sequence[GroupState]) -> str:
    return some([group.plan.key.group for group in groups])


def _what_is_lost(lost: Sequence[GroupState]) -> str:
    return (
        f"what only its replicas of {many(len(lost), 'group')} ({_numbers(lost)}) had is lost, "
        "and what others have of them becomes all there is"
    )


def _why_refused(module: Module, node: str, sole: Sequence[GroupState], lost: Sequence[GroupState]) -> str:
    held = f"node {node} has the only replica in sync of {many(len(sole), 'group')} of {module.name}"
    if lost:
        return (
            f"{held} ({_numbers(sole)}), and of {_numbers(lost)} it does not run; bring it back, "
            f"or give up what nobody else has with --force: {_what_is_lost(lost)}"
        )
    return (
        f"{held} ({_numbers(sole)}); wait until others are in sync (stretto task-groups-status "
        f"{module.name}), or add --force to go on: nothing is lost as long as the node lives"
    )


def _retired(count: int) -> str:
    return f"{many(count, 'worker')} retired"
