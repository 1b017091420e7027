"""A module that runs gets other replicas, or other groups: what :mod:`stretto.conductor.planning.moving` and
:mod:`stretto.conductor.planning.regrouping` plan, carried out.

The whole state of a change is in the metastore: the assignment names the new replicas and the processes of
the old ones, the module's spec says *scaling*, and each group's record tells how far its leader has followed.
So any conductor carries it on, by looking. Nothing is ever waited for here: groups keep serving on their old
replicas until the new ones have caught up. Groups that are sealed take no appends; so a regrouping that is
not done in a minute is abandoned.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import msgspec
import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError, NotEmptyError

from stretto.conductor.operations import Operations
from stretto.conductor.planning.moving import follows, moved, settled
from stretto.conductor.planning.regrouping import record_of, regrouped, unclosed, unprepared
from stretto.conductor.view import GroupState, Module, View
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.specs.assignments import Assignment, NextGrouping, plans_of
from stretto.specs.modules import ModuleSpec, ModuleState
from stretto.vocabulary.plurals import many, some
from stretto.vocabulary.types import WorkerId
from stretto.zk.creation import next_generation
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import encode

log = structlog.get_logger()

REGROUPING_SECONDS = 60
"""Time after which a regrouping is abandoned: as long as it lasts nothing is appended."""
SETTLED = (ModuleState.RUNNING, ModuleState.LEADERSHIP_BALANCING)
_CHANGEABLE = (ModuleState.RUNNING, ModuleState.LEADERSHIP_BALANCING, ModuleState.SCALING)


class Scaling:
    """Gives modules that run other replicas or other groups, for the active conductor."""

    def __init__(self, client: KazooClient, paths: Paths, operations: Operations) -> None:
        self._client = client
        self._paths = paths
        self._operations = operations

    # What people ask for.

    def regroup(self, view: View, module: Module, threads: int) -> str:
        """Give a module another number of threads; returns what is done, in a sentence."""
        if module.spec.state is ModuleState.PAUSED:
            raise StrettoError(
                f"module {module.name} is paused, and its tasks stay in their groups; "
                f"resume it first with 'stretto deploy resume {module.name}'"
            )
        if module.spec.state not in SETTLED:
            raise RetriableError(f"module {module.name} is {module.spec.state}; wait until it is running")
        if threads == module.spec.threads:
            raise UsageError(f"{module.name} has {many(threads, 'thread')} already; ask for others")
        began_ms = _now_ms()
        regrouped(module.assignment, threads=threads, generation=0, now_ms=began_ms)
        out = [group for group in module.groups if not _is_whole(view, group)]
        if out:
            raise RetriableError(
                f"{many(len(out), 'group')} of {module.name} ({_numbers(out)}) cannot take part: all their "
                f"replicas have to be in sync; see 'stretto task-groups-status {module.name}'"
            )
        number = next_generation(self._client, self._paths)
        following = msgspec.structs.replace(
            regrouped(module.assignment, threads=threads, generation=number, now_ms=began_ms),
            unclean_epochs=_unclean_epochs(module),
        )
        self._commit(module, msgspec.structs.replace(module.assignment, next=following), module.spec)
        what = f"scale from {many(module.spec.threads, 'thread')} to {many(threads, 'thread')}"
        self._operations.note(what, module.name)
        return what

    def abandon(self, module: Module) -> str:
        """Abandon a change of threads that is under way; returns what is done, in a sentence."""
        if module.assignment.next is None:
            raise UsageError(
                f"the threads of {module.name} are not being scaled; there is nothing to abandon"
            )
        if not self._abandon(module, "an operator asked for it"):
            raise RetriableError(f"module {module.name} changed meanwhile; try again")
        return f"{module.name} keeps its {many(module.spec.threads, 'thread')}"

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
            given_up = {*after.given_up, *(group.plan.key.group for group in lost)}
            after = msgspec.structs.replace(after, given_up=tuple(sorted(given_up)))
        self._commit(module, after, module.spec)
        what = f"reassign {many(len(concerned), 'group')} from node {node}"
        if lost:
            what += f", by force: {_what_is_lost(lost)}"
        self._operations.note(what, module.name)
        return what

    def scale(self, view: View, module: Module, *, workers: int | None, factor: int | None) -> str:
        """Give a module other numbers of workers and replicas; returns what is done, in a sentence."""
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

    def advance(self, view: View, module: Module) -> None:
        """Take the next step of a change that is under way; forget retired workers whose data is deleted."""
        if module.spec.state is ModuleState.SCALING:
            if module.assignment.next is not None:
                self._regroup(view, module, module.assignment.next)
            else:
                self._finish(module)
        if module.assignment.retired and module.spec.state is not ModuleState.DESTROYING:
            self._forget_retired(module)

    def _regroup(self, view: View, module: Module, following: NextGrouping) -> None:
        waits = regrouping_awaits(view, module)
        if following.unclean_epochs != _unclean_epochs(module):
            self._abandon(module, "a leader was elected uncleanly meanwhile")
        elif waits:
            if _now_ms() - following.began_ms > REGROUPING_SECONDS * 1_000:
                self._abandon(module, f"not done within {REGROUPING_SECONDS} s: {waits}")
        elif following.closing:
            self._switch(view, module)
        else:
            closing = msgspec.structs.replace(following, closing=True)
            after = msgspec.structs.replace(module.assignment, next=closing)
            with contextlib.suppress(NoNodeError, BadVersionError):
                path = self._paths.assignment(module.name)
                self._client.set(path, encode(after), module.assignment_version)

    def _abandon(self, module: Module, why: str) -> bool:
        """Drop the next grouping: the module keeps its present one. False if something changed meanwhile."""
        following = module.assignment.next
        if following is None:
            return False
        after = msgspec.structs.replace(module.assignment, next=None, abandoned=following.generation)
        running = msgspec.structs.replace(module.spec, state=ModuleState.RUNNING)
        change = self._client.transaction()
        change.set_data(self._paths.spec(module.name), encode(running), module.spec_version)
        change.set_data(self._paths.assignment(module.name), encode(after), module.assignment_version)
        if any(isinstance(result, Exception) for result in change.commit()):
            return False
        what = f"scaling to {many(len(following.groups), 'thread')} abandoned"
        self._operations.note(what, module.name, why)
        return True

    def _switch(self, view: View, module: Module) -> None:
        """Replace the present groups by the next ones, all at once; from then on these elect leaders."""
        after = module.assignment.following
        if after is None:
            return
        before = [group.record for group in module.groups if group.record is not None]
        threads = len(after.groups)
        running = msgspec.structs.replace(module.spec, state=ModuleState.RUNNING, threads=threads)
        paths = self._paths
        for answer in [self._client.delete_async(paths.resign(group.plan.key)) for group in module.groups]:
            with contextlib.suppress(NoNodeError):
                answer.get()
        change = self._client.transaction()
        change.set_data(paths.spec(module.name), encode(running), module.spec_version)
        change.set_data(paths.assignment(module.name), encode(after), module.assignment_version)
        for group in module.groups:
            change.delete(paths.group(group.plan.key), group.version)
        change.delete(paths.groups(module.name, module.assignment.generation))
        change.create(paths.groups(module.name, after.generation))
        for plan in plans_of(module.name, after):
            change.create(paths.group(plan.key), encode(record_of(plan, before, view.workers)))
        if not any(isinstance(result, Exception) for result in change.commit()):
            self._operations.note(f"scaled: {many(threads, 'thread')}", module.name)

    def _finish(self, module: Module) -> None:
        assignment = module.assignment
        if not all(follows(each.record, assignment, number) for number, each in enumerate(module.groups)):
            return
        after = msgspec.structs.replace(settled(assignment), given_up=())
        running = msgspec.structs.replace(module.spec, state=ModuleState.RUNNING)
        change = self._client.transaction()
        change.set_data(self._paths.spec(module.name), encode(running), module.spec_version)
        change.set_data(self._paths.assignment(module.name), encode(after), module.assignment_version)
        if not any(isinstance(result, Exception) for result in change.commit()):
            left = len(after.retired) - len(assignment.retired)
            self._operations.note("scaled: every group has its replicas", module.name, _retired(left))

    def _forget_retired(self, module: Module) -> None:
        """Forget retired workers whose data is deleted; supervisors report it by deleting a znode each."""
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


def regrouping_awaits(view: View, module: Module) -> str:
    """What a regrouping waits for, in a few words; empty if for nothing."""
    following = module.assignment.following
    if following is None or module.assignment.next is None:
        return ""
    late = unprepared(plans_of(module.name, following), view.workers)
    if late:
        return f"{', '.join(late)} {'have' if len(late) > 1 else 'has'} not prepared the new groups"
    if module.assignment.next.closing:
        records = [group.record for group in module.groups]
        open_groups = list(unclosed(records, following.generation, view.workers))
        if open_groups:
            return f"the leaders of {many(len(open_groups), 'group')} ({some(open_groups)}) have not let go"
    return ""


def _unclean_epochs(module: Module) -> tuple[int, ...]:
    return tuple(group.record.unclean_epoch if group.record is not None else 0 for group in module.groups)


def _is_whole(view: View, group: GroupState) -> bool:
    """Whether a group is led, with all its replicas in sync and registered."""
    if group.record is None or not view.is_led(group):
        return False
    members = {member.worker for member in group.record.isr}
    return members == set(group.plan.replicas) and members <= view.workers.keys()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _check_changeable(module: Module) -> None:
    if module.assignment.next is not None:
        raise RetriableError(f"the threads of {module.name} are being scaled; wait until that is done")
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
