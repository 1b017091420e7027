"""One ZooKeeper session, from opening to expiry, on kazoo's asynchronous calls.

A session has a client of its own and is never continued by another: what was asked under it can only be
carried out under it. Kazoo by itself would send what is in its queue under the next session.

What kazoo tells, and what it means:

- CONNECTED: for the first time, or again after SUSPENDED, which is *not* a loss: the session, its
  registration and its incarnation live on if it is reached again in time.
- LOST: the ensemble let the session expire. The client learns it only when it gets through again, so
  silence must never be taken for life: that is what the lease is for.

All of it arrives on kazoo's threads. One lock, shared with the owner, is held for moments only and never
while waiting for anything; LOST is taken in under it before kazoo empties its queues, so that no request
can slip from a dead session into kazoo's next one.

Requests go out in the order they were made (only the renewal of the lease goes before those that wait), at
most :data:`WINDOW` at a time: kazoo wakes its connection through a socket whose buffer holds few hundred
bytes, and a caller blocks when it is full. While there is no connection requests fail at once: the owner
asks again when there is one.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConfigurationError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    SessionExpiredError,
    ZookeeperError,
)
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from stretto.errors import RetriableError, UsageError
from stretto.vocabulary.types import Incarnation, Millis
from stretto.zk.sessions.credentials import Credentials, kazoo_options

log = structlog.get_logger()

#: Every failed attempt to connect is a warning to kazoo; here one line per transition is enough.
KAZOO_LOG = logging.getLogger("stretto.zk.kazoo")
KAZOO_LOG.setLevel(logging.ERROR)

WINDOW = 64

Send: TypeAlias = Callable[[KazooClient], Any]
"""Makes one asynchronous call; returns kazoo's result of it."""

Done: TypeAlias = Callable[[Any, Exception | None], None]
"""Takes the call's value, or why there is none. Called under the lock."""


class MetastoreUnavailable(RetriableError):
    """ZooKeeper could not be asked, or its answer was lost."""


class SessionOwner(Protocol):
    """What a session reports to its owner, under the lock, on kazoo's threads."""

    def connected(self, session: Session) -> None:
        """The session is connected, for the first time or again.

        Whatever was asked before and not answered must be asked anew.
        """

    def failed(self, error: BaseException) -> None:
        """Something went wrong on one of kazoo's threads that should not. Nobody else would notice."""

    def over(self, session: Session) -> None:
        """The session expired. Every request has been answered; nothing more will come of it."""


@dataclass(slots=True, eq=False)
class _Request:
    send: Send
    done: Done
    is_finished: bool = False


@dataclass(slots=True, eq=False)
class _Barrier:
    is_sent: bool = False
    error: Exception | None = None


class _Connection(ConnectionHandler):  # type: ignore[misc] # kazoo is published without types
    """Keeps the session time-out that the server granted, which kazoo forgets."""

    negotiated_timeout_ms: int = 0

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            self.negotiated_timeout_ms = answer[0].time_out
        return answer

    def drop(self) -> None:
        """Break the connection, so that another one is made."""
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class _Client(KazooClient):  # type: ignore[misc] # kazoo is published without types
    def __init__(self, hosts: str, timeout_ms: int, credentials: Credentials | None) -> None:
        super().__init__(
            hosts=hosts,
            timeout=timeout_ms / 1000,
            # As long as it takes, and often enough to be back before the session expires.
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=0.5),
            logger=KAZOO_LOG,
            **kazoo_options(credentials),
        )
        self._connection = _Connection(self, self._conn_retry.copy(), logger=self.logger)

    @property
    def negotiated_timeout_ms(self) -> int:
        negotiated: int = self._connection.negotiated_timeout_ms
        return negotiated

    def drop_connection(self) -> None:
        self._connection.drop()


class Session:
    """A ZooKeeper session, from :meth:`open` to its expiry or :meth:`close`; all else needs the lock."""

    def __init__(
        self,
        hosts: str,
        *,
        timeout_ms: int,
        credentials: Credentials | None,
        lock: threading.RLock,
        owner: SessionOwner,
    ) -> None:
        self.incarnation = Incarnation(secrets.token_hex(8))
        self.is_connected = False
        self.is_over = False
        #: The owner's registration under this session, once it exists.
        self.registration_path: str | None = None
        self._hosts = hosts
        self._lock = lock
        self._owner = owner
        self._waiting: deque[_Request] = deque()
        self._in_flight: dict[_Request, None] = {}
        #: When an answer last came, or a request was sent while no other was under way.
        self._heard_at = 0.0
        #: The latest barrier made. As long as it waits here, it is a barrier for whatever is asked.
        self._barrier = _Barrier(is_sent=True)
        try:
            self._client = _Client(hosts, timeout_ms, credentials)
        except (ValueError, ConfigurationError) as error:
            raise UsageError(
                f"{hosts!r} is not a ZooKeeper connection string ({error}); write host:port,host:port"
            ) from None
        self._client.add_listener(self._state_changed)

    def open(self) -> None:
        """Begin to connect, and go on until the session is closed."""
        with self._lock:
            if not self.is_over:
                self._client.start_async()

    def close(self) -> None:
        """End the session, in the ensemble too, if it is reached. Blocks; to be called without the lock."""
        with self._lock:
            self._end()
        try:
            self._client.stop()
            self._client.close()
        except KazooException as error:
            log.warning("metastore_client_not_closed", hosts=self._hosts, error=repr(error))

    @property
    def negotiated_timeout_ms(self) -> Millis:
        """The session time-out that the server granted; 0 before the first connection."""
        return Millis(self._client.negotiated_timeout_ms)

    @property
    def session_id(self) -> int | None:
        client_id = self._client.client_id
        return None if client_id is None else client_id[0]

    @property
    def silent_ms(self) -> int:
        """How long requests have waited without an answer to any."""
        return int((time.monotonic() - self._heard_at) * 1000) if self._in_flight else 0

    def drop_connection(self) -> None:
        """Break a connection that is known to be dead: kazoo takes whatever it *sends* for a sign of life."""
        self._client.drop_connection()

    # Requests.

    def submit(self, send: Send, done: Done, *, at_once: bool = False) -> None:
        """Send a request; ``done`` is called once, immediately if there is no connection."""
        if self.is_over:
            done(None, SessionExpiredError())
        elif not self.is_connected:
            done(None, ConnectionLoss())
        else:
            request = _Request(send, done)
            if at_once:
                self._waiting.appendleft(request)
            else:
                self._waiting.append(request)
            self._pump()

    def submit_synced(self, send: Send, done: Done) -> None:
        """Send a read that sees all that was committed when it was asked for.

        ZooKeeper's ``sync`` does not promise that: a leader that was deposed and does not know it yet
        answers it too. A *write* only a leader with a quorum can acknowledge, and a session's later
        reads are answered after it; so the barrier is :meth:`pulse`. Reads that wait share one.
        """
        barrier = self._barrier
        if barrier.is_sent:
            barrier = self._raise_barrier()

        def answered(value: Any, error: Exception | None) -> None:
            done(value if barrier.error is None else None, barrier.error or error)

        self.submit(send, answered)

    def _raise_barrier(self) -> _Barrier:
        self._barrier = barrier = _Barrier()

        def send(client: KazooClient) -> Any:
            barrier.is_sent = True
            return self._write(client)

        def done(value: Any, error: Exception | None) -> None:
            barrier.is_sent = True
            barrier.error = error or self._refusal(value)

        self.submit(send, done)
        return barrier

    def pulse(self, done: Done) -> None:
        """Send the smallest write through the ensemble; it changes nothing and wakes nobody.

        A transaction of a single check, which also proves that our registration is still there. It goes
        before whatever waits: a lease must not lapse because much is asked.
        """

        def answered(value: Any, error: Exception | None) -> None:
            done(None, error or self._refusal(value))

        self.submit(self._write, answered, at_once=True)

    def _write(self, client: KazooClient) -> Any:
        transaction = client.transaction()
        transaction.check(self.registration_path or "/", -1)
        return transaction.commit_async()

    def _refusal(self, results: list[Any]) -> Exception | None:
        error = next((each for each in results if isinstance(each, Exception)), None)
        if isinstance(error, NoNodeError) and self.registration_path is not None and not self.is_over:
            # Somebody declared this incarnation dead. It is then, whatever we think.
            log.error("registration_deleted", path=self.registration_path)
            self._lose()
        return error

    def _pump(self) -> None:
        while self._waiting and len(self._in_flight) < WINDOW:
            request = self._waiting.popleft()
            if not self._in_flight:
                self._heard_at = time.monotonic()
            self._in_flight[request] = None
            try:
                result = request.send(self._client)
            except ZookeeperError as error:
                self._finish(request, None, error)
            else:
                result.rawlink(lambda result, request=request: self._answered(request, result))

    def _answered(self, request: _Request, result: Any) -> None:
        with self._lock, self._guarding():
            self._heard_at = time.monotonic()
            try:
                if result.successful():
                    self._finish(request, result.value, None)
                else:
                    self._finish(request, None, result.exception)
            finally:
                if self.is_connected:
                    self._pump()

    def _finish(self, request: _Request, value: Any, error: Exception | None) -> None:
        self._in_flight.pop(request, None)
        if not request.is_finished:
            request.is_finished = True
            request.done(value, error)

    def _fail_waiting(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            self._finish(request, None, error)

    # States.

    def _state_changed(self, state: str) -> None:
        with self._lock, self._guarding():
            if self.is_over:
                return
            if state == KazooState.CONNECTED:
                self.is_connected = True
                log.info("metastore_connected", hosts=self._hosts, incarnation=self.incarnation)
                self._owner.connected(self)
            elif state == KazooState.SUSPENDED:
                self.is_connected = False
                log.warning("metastore_suspended", hosts=self._hosts, incarnation=self.incarnation)
                self._fail_waiting(ConnectionLoss())
            else:
                self._lose()

    @contextlib.contextmanager
    def _guarding(self) -> Iterator[None]:
        """Pass errors to the owner: kazoo's threads would end without a word."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - told to who knows what to do about it
            self._owner.failed(error)

    def give_up(self) -> None:
        """End the session as if it had expired, since its registration is gone."""
        self._lose()

    def _lose(self) -> None:
        if not self.is_over:
            self._end()
            self._owner.over(self)

    def _end(self) -> None:
        self.is_over = True
        self.is_connected = False
        self._fail_waiting(SessionExpiredError())
        for request in list(self._in_flight):
            self._finish(request, None, SessionExpiredError())
