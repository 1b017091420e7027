"""Where the workers are: the registrations of all of them, kept by watches.

One watch on the list of workers and one on each worker's incarnations; what a registration says of where its
process listens never changes, so it is read once. A watch that fires is answered by one read, which sets the
next; what fires while a read is under way costs one more read, however much it is. The whole is told when no
read is under way, if it is another than before. Of a worker with several incarnations, the one registered
last counts: the others are leftovers of processes that are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import WatchedEvent

from stretto.types import Incarnation, WorkerId
from stretto.zk.following import Asker
from stretto.zk.outcomes import LOST_ANSWER
from stretto.zk.records import WorkerRegistration, ZnodeDamaged, decode

log = structlog.get_logger()

Workers = dict[WorkerId, WorkerRegistration]
Found = Callable[[Workers], None]


class _Listing:
    """The children of one znode, as long as it is there."""

    def __init__(
        self,
        directory: WorkerDirectory,
        path: str,
        *,
        listed: Callable[[list[str]], None],
        gone: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._path = path
        self._listed = listed
        self._gone = gone
        self._watch = directory.asker.watch(self._fired)
        self._number = 0
        self._is_reading = False
        self._changed_meanwhile = False

    def restart(self) -> None:
        self._is_reading = False
        self._read()

    def _fired(self, _: WatchedEvent) -> None:
        self._read()

    def _read(self) -> None:
        if self._is_reading:
            self._changed_meanwhile = True
            return
        self._is_reading = True
        self._changed_meanwhile = False
        self._number += 1
        number = self._number

        def send(client: KazooClient) -> Any:
            return client.get_children_async(self._path, watch=self._watch)

        def answered(names: Any, error: Exception | None) -> None:
            if number != self._number:
                return
            self._is_reading = False
            if error is None:
                self._listed(names)
                if self._changed_meanwhile:
                    self._read()
            elif isinstance(error, NoNodeError):
                self._gone()
            elif not isinstance(error, LOST_ANSWER):
                log.error("workers_not_listed", path=self._path, error=repr(error))
                self._directory.asker.again_later(self._read)

        self._directory.ask(send, answered)


class WorkerDirectory:
    def __init__(self, asker: Asker, found: Found) -> None:
        self.asker = asker
        self._found = found
        self._told: Workers | None = None
        self._asking = 0
        # Our own registration is below it, so it is never gone.
        self._root = _Listing(self, asker.paths.workers, listed=self._workers_listed, gone=lambda: None)
        self._listings: dict[WorkerId, _Listing] = {}
        #: By incarnation, with the zxid of its creation.
        self._registered: dict[WorkerId, dict[Incarnation, tuple[int, WorkerRegistration]]] = {}

    def restart(self) -> None:
        """There is a connection (again): the watches of the one before are gone."""
        self._root.restart()
        for listing in list(self._listings.values()):
            listing.restart()

    def ask(self, send: Callable[[KazooClient], Any], done: Callable[[Any, Exception | None], None]) -> None:
        self._asking += 1

        def answered(value: Any, error: Exception | None) -> None:
            self._asking -= 1
            done(value, error)
            if self._asking == 0:
                self._tell()

        self.asker.ask(send, answered)

    def _workers_listed(self, names: list[str]) -> None:
        for name in names:
            worker = WorkerId(name)
            if worker not in self._listings:
                self._listings[worker] = self._list(worker)
                self._listings[worker].restart()

    def _list(self, worker: WorkerId) -> _Listing:
        def listed(names: list[str]) -> None:
            known = self._registered.setdefault(worker, {})
            for gone in known.keys() - set(names):
                del known[gone]
            for name in names:
                if Incarnation(name) not in known:
                    self._read(worker, Incarnation(name))

        def gone() -> None:
            self._listings.pop(worker, None)
            self._registered.pop(worker, None)

        return _Listing(self, self.asker.paths.worker(worker), listed=listed, gone=gone)

    def _read(self, worker: WorkerId, incarnation: Incarnation) -> None:
        path = self.asker.paths.registration(worker, incarnation)

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

        self.ask(lambda client: client.get_async(path), read)

    def _tell(self) -> None:
        newest = {
            worker: max(registered.values(), key=lambda each: each[0])[1]
            for worker, registered in self._registered.items()
            if registered
        }
        if newest != self._told:
            self._told = newest
            self._found(newest)
