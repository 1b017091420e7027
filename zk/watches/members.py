"""Which members of a group's ISR have a live registration: asked before an unclean election.

To overlook one means to lose data. So this answers only when every step of it succeeded; otherwise the core
asks again in its own time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from kazoo.exceptions import NoNodeError

from stretto.replog.core.record import GroupRecord, Member
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.zk.sessions.outcomes import LOST_ANSWER
from stretto.zk.watches.registrations import SyncedAsker
from stretto.zk.znodes.paths import named
from stretto.zk.znodes.records import WorkerRegistration, ZnodeDamaged, decode

log = structlog.get_logger()


class MemberSearch:
    """One search for members of an ISR that are alive; ``found`` is called once at the most."""

    def __init__(
        self, asker: SyncedAsker, group: GroupKey, found: Callable[[frozenset[Member]], None]
    ) -> None:
        self._asker = asker
        self._paths = asker.paths
        self._group = group
        self._found = found
        self._alive: set[Member] = set()
        self._steps = 0
        self._failed = False

    def start(self) -> None:
        path = self._paths.group(self._group)

        def read(value: Any) -> None:
            record = decode(value[0], GroupRecord, path)
            for worker in dict.fromkeys(member.worker for member in record.isr):
                self._list(worker)

        self._step(self._asker.ask_synced, "get_async", path, read)

    def _list(self, worker: WorkerId) -> None:
        def listed(incarnations: list[str]) -> None:
            for incarnation in named(incarnations):
                self._look_at(self._paths.registration(worker, Incarnation(incarnation)))

        self._step(self._asker.ask, "get_children_async", self._paths.worker(worker), listed)

    def _look_at(self, path: str) -> None:
        def read(value: Any) -> None:
            registration = decode(value[0], WorkerRegistration, path)
            storage = registration.storage_of(self._group)
            if storage is not None:
                self._alive.add(Member(registration.worker, storage))

        self._step(self._asker.ask, "get_async", path, read)

    def _step(self, ask: Callable[..., None], call: str, path: str, then: Callable[[Any], None]) -> None:
        self._steps += 1

        def answered(value: Any, error: Exception | None) -> None:
            self._steps -= 1
            if error is None:
                try:
                    then(value)
                except ZnodeDamaged as damage:
                    log.error("znode_damaged", path=damage.path, problem=damage.problem)
                    self._failed = True
            # What is not there is not alive; but without a record there is nobody to look for.
            elif not isinstance(error, NoNodeError) or path == self._paths.group(self._group):
                self._failed = True
                if not isinstance(error, (*LOST_ANSWER, NoNodeError)):
                    log.error("members_not_found", path=path, error=repr(error))
            if self._steps == 0 and not self._failed:
                self._found(frozenset(self._alive))

        ask(lambda client: getattr(client, call)(path), answered)
