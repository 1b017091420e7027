"""One reading of the groups of one module, or of all: their assignment and their records.

For workers that are asked about groups they do not hold. It leaves no watches: hundreds of groups times all
workers that were ever asked would be a storm at every election.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog
from kazoo.exceptions import NoNodeError

from stretto.replog.core.record import GroupRecord
from stretto.specs.assignments import Assignment
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import TaskId, WorkerId
from stretto.zk.watches.group import Asker
from stretto.zk.znodes.paths import named
from stretto.zk.znodes.records import Record, ZnodeDamaged, decode

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A group as its assignment and its record show it."""

    key: GroupKey
    tasks: tuple[TaskId, ...]
    replicas: tuple[WorkerId, ...]
    record: GroupRecord | None
    module_tasks: int


Surveyed: TypeAlias = Callable[[list[GroupSeen], bool], None]
"""Takes the groups that were seen, and whether these are all."""


class Survey:
    """One reading of groups; ``surveyed`` is called once, when it is done."""

    def __init__(self, asker: Asker, known: Collection[GroupKey], surveyed: Surveyed) -> None:
        """Nothing is read of the groups in ``known``."""
        self._asker = asker
        self._known = frozenset(known)
        self._surveyed = surveyed
        self._seen: list[GroupSeen] = []
        self._steps = 0
        self._is_whole = True

    def start(self, module: str | None) -> None:
        if module is not None:
            self._module(module)
            return

        def listed(modules: list[str]) -> None:
            for each in named(modules):
                self._module(each)

        self._step("get_children_async", self._asker.paths.modules, listed)

    def _module(self, module: str) -> None:
        def read(assignment: Assignment | None) -> None:
            if assignment is not None:
                for number, replicas in enumerate(assignment.replicas):
                    key = GroupKey(module, assignment.generation, number)
                    tasks = tuple(TaskId(task) for task in assignment.tasks_of(number))
                    if key not in self._known:
                        self._group(key, tasks, replicas, assignment.tasks)

        self._get(self._asker.paths.assignment(module), Assignment, read)

    def _group(
        self, key: GroupKey, tasks: tuple[TaskId, ...], replicas: tuple[WorkerId, ...], module_tasks: int
    ) -> None:
        def read(record: GroupRecord | None) -> None:
            self._seen.append(GroupSeen(key, tasks, replicas, record, module_tasks))

        self._get(self._asker.paths.group(key), GroupRecord, read)

    def _get(self, path: str, kind: type[Record], then: Callable[[Record | None], None]) -> None:
        """Read a record; ``then`` gets None for what is not there, and nothing for what cannot be read."""

        def read(value: Any) -> None:
            then(decode(value[0], kind, path) if value is not None else None)

        self._step("get_async", path, read)

    def _step(self, call: str, path: str, then: Callable[[Any], None]) -> None:
        self._steps += 1

        def answered(value: Any, error: Exception | None) -> None:
            self._steps -= 1
            if error is None or (isinstance(error, NoNodeError) and call == "get_async"):
                try:
                    then(value)
                except ZnodeDamaged as damage:
                    log.error("znode_damaged", path=damage.path, problem=damage.problem)
            elif not isinstance(error, NoNodeError):
                self._is_whole = False
            if self._steps == 0:
                self._surveyed(self._seen, self._is_whole)

        self._asker.ask(lambda client: getattr(client, call)(path), answered)
