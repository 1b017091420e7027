"""A daemon's own place in the metastore, and the few znodes that it follows, without ever blocking.

One session at a time, each with a fresh incarnation, under which the daemon registers; after an expiry it
registers again, whether or not the ephemeral of the earlier session is still there: that has another path.
A znode that is followed is told once it is known, and again with every change; while ZooKeeper cannot be
asked nothing is told, so that what is unknown is never taken for missing. What is to be deleted, or written,
is tried again until it is known to be so.

Everything is told on kazoo's threads, one call at a time and under the lock: whoever is told only enqueues.
Who plans over the whole tree, and may wait, has :mod:`stretto.zk.watches.tree`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TimedOut
from typing import Any, TypeAlias

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError, SessionExpiredError
from kazoo.protocol.states import EventType, WatchedEvent

from stretto.vocabulary.types import Incarnation
from stretto.zk.sessions.credentials import Credentials
from stretto.zk.sessions.outcomes import LOST_ANSWER, told
from stretto.zk.sessions.session import MetastoreUnavailable, Session
from stretto.zk.sessions.succession import OnFailure, Succession
from stretto.zk.znodes.paths import named

log = structlog.get_logger()

PULSES = 4
"""Signs of life per session time-out: they notice a dead connection, and a registration that was deleted."""
WAIT_SECONDS = 10.0

Read: TypeAlias = Callable[[KazooClient, str, Callable[[WatchedEvent], None]], Any]
Told: TypeAlias = Callable[[Any], None]


class WatchedPath:
    """A znode whose data or children are followed; one read at a time, however often it changes."""

    def __init__(self, view: DaemonSession, path: str, read: Read, told: Told) -> None:
        self._view = view
        self._path = path
        self._read_it = read
        self._told = told
        self._is_followed = True
        #: Number of the latest read; answers to others are void.
        self._number = 0
        self._is_reading = False
        self._changed_meanwhile = False

    def stop(self) -> None:
        with self._view.lock:
            self._is_followed = False
            self._view.followed.pop(self, None)

    def again(self) -> None:
        """Report the znode once more, as it is now."""
        with self._view.lock:
            self._read()

    def restart(self) -> None:
        """Read and watch again on a new connection: the watches of the one before are gone."""
        self._is_reading = False
        self._read()

    def _fired(self, event: WatchedEvent) -> None:
        with self._view.lock:
            if event.type != EventType.NONE:
                self._read()

    def _read(self) -> None:
        if not self._is_followed:
            return
        if self._is_reading:
            self._changed_meanwhile = True
            return
        self._ask(lambda client: self._read_it(client, self._path, self._fired), self._was_read)

    def _ask(self, send: Callable[[KazooClient], Any], then: Callable[[Any, Exception | None], None]) -> None:
        self._is_reading = True
        self._changed_meanwhile = False
        self._number += 1
        number = self._number

        def answered(value: Any, error: Exception | None) -> None:
            if number == self._number and self._is_followed:
                self._is_reading = False
                then(value, error)

        self._view.submit(send, answered)

    def _was_read(self, value: Any, error: Exception | None) -> None:
        if isinstance(error, NoNodeError):
            # A read of what is not there leaves no watch; a test does.
            self._ask(lambda client: client.exists_async(self._path, watch=self._fired), self._was_tested)
        elif error is not None:
            self._failed(error)
        else:
            self._tell(value)

    def _was_tested(self, stat: Any, error: Exception | None) -> None:
        if error is not None:
            self._failed(error)
        elif stat is not None:
            self._read()
        else:
            self._tell(None)

    def _tell(self, value: Any) -> None:
        self._told(value)
        if self._changed_meanwhile:
            self._read()

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, LOST_ANSWER):
            log.error("znode_not_read", path=self._path, error=told(error, self._path))
            self._view.again_later(self._read)


class DaemonSession(Succession):
    """A daemon's sessions, its registration under each, and the znodes that it follows."""

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int,
        registration: Callable[[Incarnation], tuple[str, bytes]],
        started: Callable[[Incarnation], None],
        credentials: Credentials | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """``registration`` says where and what to register; ``started`` is called when that is done."""
        super().__init__(
            hosts,
            session_timeout_ms=session_timeout_ms,
            credentials=credentials,
            tick_seconds=session_timeout_ms / 1_000 / PULSES,
            thread="metastore-pulse",
            on_failure=on_failure,
        )
        self._registration = registration
        self._started = started
        self.followed: dict[WatchedPath, None] = {}
        self._deleting: dict[str, list[Callable[[], None]]] = {}
        self._writing: dict[str, bytes] = {}

    def close(self) -> None:
        with self.lock:
            self.followed.clear()
        super().close()

    @property
    def is_connected(self) -> bool:
        with self.lock:
            return self._session is not None and self._session.is_connected

    # What is followed, and what is deleted.

    def follow_data(self, path: str, told: Callable[[bytes | None], None]) -> WatchedPath:
        """Report a znode's data once it is known and with every change; None if there is no such znode."""

        def read(client: KazooClient, path: str, watch: Callable[[WatchedEvent], None]) -> Any:
            return client.get_async(path, watch=watch)

        return self._follow(path, read, lambda value: told(None if value is None else value[0]))

    def follow_children(self, path: str, told: Callable[[list[str] | None], None]) -> WatchedPath:
        """Report a znode's children once known and with every change; None if there is no such znode."""

        def read(client: KazooClient, path: str, watch: Callable[[WatchedEvent], None]) -> Any:
            return client.get_children_async(path, watch=watch)

        return self._follow(path, read, lambda names: told(None if names is None else named(names)))

    def _follow(self, path: str, read: Read, told: Told) -> WatchedPath:
        with self.lock:
            followed = WatchedPath(self, path, read, told)
            self.followed[followed] = None
            followed.restart()
            return followed

    def delete(self, path: str, gone: Callable[[], None]) -> None:
        """Delete a znode, now or with the next connection; ``gone`` is called when it is gone."""
        with self.lock:
            waiting = self._deleting.setdefault(path, [])
            waiting.append(gone)
            if len(waiting) == 1:
                self._delete(path)

    def _delete(self, path: str) -> None:
        def answered(_: Any, error: Exception | None) -> None:
            if error is None or isinstance(error, NoNodeError):
                for gone in self._deleting.pop(path, ()):
                    gone()
            elif not isinstance(error, LOST_ANSWER):
                log.error("znode_not_deleted", path=path, error=repr(error))
                self.again_later(lambda: self._delete(path))

        if path in self._deleting:
            self.submit(lambda client: client.delete_async(path), answered, at_once=True)

    def write(self, path: str, data: bytes) -> None:
        """Create or replace a znode; sent until it is known to be there, or its parent not to be."""
        with self.lock:
            self._writing[path] = data
            self._write(path)

    def _write(self, path: str) -> None:
        data = self._writing.get(path)
        if data is None:
            return

        def done(error: Exception | None) -> None:
            if error is None or isinstance(error, NoNodeError):
                if self._writing.get(path) is data:
                    del self._writing[path]
            elif not isinstance(error, LOST_ANSWER):
                log.error("znode_not_written", path=path, error=repr(error))
                self.again_later(lambda: self._write(path))

        def created(_: Any, error: Exception | None) -> None:
            if isinstance(error, NodeExistsError):
                self.submit(lambda client: client.set_async(path, data), lambda _, error: done(error))
            else:
                done(error)

        self.submit(lambda client: client.create_async(path, data), created)

    # For threads that may wait.

    def data(self, path: str) -> bytes | None:
        """A znode's data as it is now; None if there is no such znode. Raises MetastoreUnavailable."""
        value = self._wait_for(lambda client: client.get_async(path))
        return None if value is None else value[0]

    def children(self, path: str) -> list[str]:
        """A znode's children as they are now. Raises MetastoreUnavailable."""
        return named(self._wait_for(lambda client: client.get_children_async(path)) or [])

    def _wait_for(self, send: Callable[[KazooClient], Any]) -> Any:
        future: Future[Any] = Future()

        def done(value: Any, error: Exception | None) -> None:
            if error is None or isinstance(error, NoNodeError):
                future.set_result(value)
            else:
                future.set_exception(error)

        with self.lock:
            if self._session is None:
                done(None, SessionExpiredError())
            self.submit(send, done)
        try:
            return future.result(WAIT_SECONDS)
        except (KazooException, TimedOut):
            raise MetastoreUnavailable(f"ZooKeeper at {self._hosts} did not answer; try again") from None

    def submit(
        self,
        send: Callable[[KazooClient], Any],
        done: Callable[[Any, Exception | None], None],
        *,
        at_once: bool = False,
    ) -> None:
        """Send a request, under the lock.

        Without a session it is not answered: everything is asked again when there is one.
        """
        if self._session is not None:
            self._session.submit(send, done, at_once=at_once)

    # The session.

    def connected(self, session: Session) -> None:
        if session is not self._session:
            return
        if not self._is_registered:
            self._register(session)
        for path in list(self._deleting):
            self._delete(path)
        for path in list(self._writing):
            self._write(path)
        for followed in list(self.followed):
            followed.restart()

    def _register(self, session: Session) -> None:
        """Create the registration, again on every connection until it is known to be there; idempotent."""
        if session is not self._session or self._is_registered:
            return
        path, data = self._registration(session.incarnation)

        def created(_: Any, error: Exception | None) -> None:
            if session is not self._session or self._is_registered:
                return
            # An incarnation is random: whoever finds it there has created it, and lost the answer.
            if error is None or isinstance(error, NodeExistsError):
                session.registration_path = path
                self._is_registered = True
                self._started(session.incarnation)
            elif not isinstance(error, LOST_ANSWER):
                log.error("registration_failed", path=path, error=told(error, path))
                self.again_later(lambda: self._register(session))

        session.submit(lambda client: client.create_async(path, data, ephemeral=True, makepath=True), created)

    def _expired(self) -> None:
        """Do nothing: all that is followed is read again when there is another session."""

    def _ticked(self, session: Session) -> None:
        if session.is_connected:
            self._expect_answers(session)
            session.pulse(lambda *_: None)
