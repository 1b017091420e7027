"""Where the workers are: the registrations of all of them, kept by watches.

One watch on the list of workers and one on each worker's incarnations (:mod:`stretto.zk.watches.znode`); what
a registration says of where its process listens never changes, so it is read once. The whole is told when no
read is under way, if it is another than before. Of a worker with several incarnations, the one registered
last counts: the others are leftovers of processes that are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from kazoo.exceptions import NoNodeError

from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.zk.sessions.outcomes import LOST_ANSWER
from stretto.zk.sessions.session import Done, Send
from stretto.zk.watches.group import Asker
from stretto.zk.watches.znode import WatchedZnode
from stretto.zk.znodes.paths import named
from stretto.zk.znodes.records import WorkerRegistration, ZnodeDamaged, decode

log = structlog.get_logger()

Workers = dict[WorkerId, WorkerRegistration]
Found = Callable[[Workers], None]


class WorkerDirectory:
    """The registrations of all workers; ``found`` gets all of them whenever one comes or goes."""

    def __init__(self, asker: Asker, found: Found) -> None:
        self._asker = asker
        self._found = found
        self._told: Workers | None = None
        self._asking = 0
        # Our own registration is below it, so it is never gone.
        self._root = WatchedZnode(
            asker, asker.paths.workers, ask=self._ask, found=self._workers_listed, lists=True
        )
        self._listings: dict[WorkerId, WatchedZnode] = {}
        #: Registrations of each worker by incarnation, with the zxid of their creation.
        self._registered: dict[WorkerId, dict[Incarnation, tuple[int, WorkerRegistration]]] = {}

    def restart(self) -> None:
        """Read and watch again on a new connection: the watches of the one before are gone."""
        self._root.restart()
        for listing in list(self._listings.values()):
            listing.restart()

    def _ask(self, send: Send, done: Done) -> None:
        self._asking += 1

        def answered(value: Any, error: Exception | None) -> None:
            self._asking -= 1
            done(value, error)
            if self._asking == 0:
                self._tell()

        self._asker.ask(send, answered)

    def _workers_listed(self, names: list[str]) -> None:
        for name in named(names):
            worker = WorkerId(name)
            if worker not in self._listings:
                self._listings[worker] = self._list(worker)
                self._listings[worker].restart()

    def _list(self, worker: WorkerId) -> WatchedZnode:
        def listed(names: list[str]) -> None:
            known = self._registered.setdefault(worker, {})
            for gone in known.keys() - set(names):
                del known[gone]
            for name in named(names):
                if Incarnation(name) not in known:
                    self._read(worker, Incarnation(name))

        def gone() -> None:
            self._listings.pop(worker, None)
            self._registered.pop(worker, None)

        return WatchedZnode(
            self._asker,
            self._asker.paths.worker(worker),
            ask=self._ask,
            found=listed,
            missing=gone,
            lists=True,
        )

    def _read(self, worker: WorkerId, incarnation: Incarnation) -> None:
        path = self._asker.paths.registration(worker, incarnation)

        def read(value: Any, error: Exception | None) -> None:
            if error is not None:
                if not isinstance(error, (*LOST_ANSWER, NoNodeError)):
                    log.error("registration_not_read", path=path, error=repr(error))
                return
            data, stat = value
            try:
                registration = decode(data, WorkerRegistration, path)
            except ZnodeDamaged as damage:
                log.error("znode_damaged", path=damage.path, problem=damage.problem)
            else:
                self._registered.setdefault(worker, {})[incarnation] = (stat.czxid, registration)

        self._ask(lambda client: client.get_async(path), read)

    def _tell(self) -> None:
        newest = {
            worker: max(registered.values(), key=lambda each: each[0])[1]
            for worker, registered in self._registered.items()
            if registered
        }
        if newest != self._told:
            self._told = newest
            self._found(newest)
