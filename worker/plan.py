"""A group as the assignment has it."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.types import TaskId, WorkerId
from stretto.zk.paths import GroupKey


@dataclass(frozen=True, slots=True)
class GroupPlan:
    key: GroupKey
    tasks: tuple[TaskId, ...]
    replicas: tuple[WorkerId, ...]
    """Preferred leader first."""
