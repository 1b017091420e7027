"""A group as the assignment has it."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.types import TaskId, WorkerId
from stretto.zk.paths import GroupKey
from stretto.zk.records import Assignment


@dataclass(frozen=True, slots=True)
class GroupPlan:
    key: GroupKey
    tasks: tuple[TaskId, ...]
    replicas: tuple[WorkerId, ...]
    """Preferred leader first."""
    number: int = 0
    """Of this list of replicas: a later one is higher."""
    is_given_up: bool = False
    """Its members in sync were given up by force: others may lead with what they have."""


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
