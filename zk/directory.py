"""Where the workers are: the addresses of those registered, as peers and clients need them.

Read as a whole, on demand: few workers, few bytes, and no watch per worker for every worker. Of a worker with
several incarnations, the one registered last counts: the others are leftovers of processes that are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from stretto.types import Incarnation, WorkerId
from stretto.zk.following import Asker
from stretto.zk.records import WorkerRegistration, ZnodeDamaged, decode

log = structlog.get_logger()

Found = Callable[[dict[WorkerId, WorkerRegistration]], None]


class Listing:
    """One reading of all registrations; ``found`` is called once, or not at all if a step of it failed."""

    def __init__(self, asker: Asker, found: Found) -> None:
        self._asker = asker
        self._found = found
        self._newest: dict[WorkerId, tuple[int, WorkerRegistration]] = {}
        self._steps = 0
        self._failed = False

    def start(self) -> None:
        self._step(lambda client: client.get_children_async(self._asker.paths.workers), self._workers)

    def _workers(self, names: list[str]) -> None:
        for name in names:
            self._worker(WorkerId(name))

    def _worker(self, worker: WorkerId) -> None:
        path = self._asker.paths.worker(worker)

        def listed(incarnations: list[str]) -> None:
            for incarnation in incarnations:
                self._incarnation(self._asker.paths.registration(worker, Incarnation(incarnation)))

        self._step(lambda client: client.get_children_async(path), listed)

    def _incarnation(self, path: str) -> None:
        self._step(lambda client: client.get_async(path), lambda value: self._registration(path, value))

    def _registration(self, path: str, value: Any) -> None:
        data, stat = value
        registration = decode(data, WorkerRegistration, path)
        known = self._newest.get(registration.worker)
        if known is None or known[0] < stat.czxid:
            self._newest[registration.worker] = (stat.czxid, registration)

    def _step(self, send: Callable[[KazooClient], Any], then: Callable[[Any], None]) -> None:
        self._steps += 1

        def answered(value: Any, error: Exception | None) -> None:
            self._steps -= 1
            if error is None:
                try:
                    then(value)
                except ZnodeDamaged as damage:
                    log.error("znode_damaged", path=damage.path, problem=damage.problem)
            elif not isinstance(error, NoNodeError):
                self._failed = True
            if self._steps == 0 and not self._failed:
                self._found({worker: each for worker, (_, each) in self._newest.items()})

        self._asker.ask(send, answered)
