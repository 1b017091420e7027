"""Which tasks make a group, which workers hold its replicas, and where these run."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import TaskId, WorkerId


class PlacedWorker(msgspec.Struct, frozen=True, array_like=True):
    """A worker process and the node that runs it."""

    worker: WorkerId
    node: str


class NextGrouping(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that the tasks are to make, on the same workers.

    See :mod:`stretto.conductor.planning.regrouping`.
    """

    generation: int
    groups: tuple[tuple[int, ...], ...]
    began_ms: int
    closing: bool = False
    """Whether all its replicas are prepared: it is in force once the present leaders show nothing more."""
    unclean_epochs: tuple[int, ...] = ()
    """The latest unclean epoch of each present group, when the regrouping began; 0 for none.

    After an unclean election two replicas may be sealed at different entries.
    """


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks make a group, which workers hold its replicas, and where these run.

    Groups name their workers by position in one table, so that hundreds of groups stay a few KB.
    """

    generation: int
    tasks: int
    """Number of tasks; the groups share them out in contiguous runs."""
    workers: tuple[PlacedWorker, ...]
    groups: tuple[tuple[int, ...], ...]
    """The replicas of each group as positions in ``workers``, preferred leader first."""
    plan: int = 0
    """A number that goes up whenever groups get other replicas.

    A worker that a group lost never returns to it.
    """
    retired: tuple[PlacedWorker, ...] = ()
    """Workers that no group counts on any more: they are stopped and their data is deleted."""
    named: int = 0
    """How many names of workers were given so far; none is given twice."""
    given_up: tuple[int, ...] = ()
    """Groups whose members in sync were given up by force: these, and no others, may elect uncleanly until
    the change under way is done."""
    next: NextGrouping | None = None
    """The grouping that the tasks are being brought into; None if there is none."""
    abandoned: int = 0
    """The latest grouping that was given up before it was in force."""

    def __post_init__(self) -> None:
        groups = self.groups if self.next is None else (*self.groups, *self.next.groups)
        if any(not 0 <= index < len(self.workers) for group in groups for index in group):
            raise ValueError(f"a group names a worker beyond the {len(self.workers)} there are")

    @property
    def following(self) -> Assignment | None:
        """The assignment once the next grouping is in force; None if there is no next one."""
        if self.next is None:
            return None
        return msgspec.structs.replace(
            self, generation=self.next.generation, groups=self.next.groups, next=None, given_up=()
        )

    @property
    def replicas(self) -> tuple[tuple[WorkerId, ...], ...]:
        """The workers of each group, preferred leader first, by group number."""
        return tuple(tuple(self.workers[index].worker for index in group) for group in self.groups)

    @property
    def nodes(self) -> dict[WorkerId, str]:
        """Where each worker process runs."""
        return {placed.worker: placed.node for placed in self.workers}

    @property
    def homes(self) -> dict[WorkerId, str]:
        """The node of each worker, also of those that are retired."""
        return {placed.worker: placed.node for placed in (*self.workers, *self.retired)}

    def tasks_of(self, group: int) -> range:
        return run_of(self.tasks, len(self.groups), group)


def run_of(tasks: int, groups: int, group: int) -> range:
    """The tasks of a group: contiguous runs, and no group has two tasks more than another."""
    return range(-(-group * tasks // groups), -(-(group + 1) * tasks // groups))


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group as the assignment has it: its tasks and its replicas."""

    key: GroupKey
    tasks: tuple[TaskId, ...]
    replicas: tuple[WorkerId, ...]
    """Workers that hold its replicas, preferred leader first."""
    number: int = 0
    """Number of this list of replicas: that of a later one is higher."""
    is_given_up: bool = False
    """Whether its members in sync were given up by force: others may lead with what they have."""


def plans_of(module: str, assignment: Assignment) -> tuple[GroupPlan, ...]:
    """The groups of an assignment."""
    return tuple(
        GroupPlan(
            GroupKey(module, assignment.generation, number),
            tuple(TaskId(task) for task in assignment.tasks_of(number)),
            replicas,
            assignment.plan,
            number in assignment.given_up,
        )
        for number, replicas in enumerate(assignment.replicas)
    )
