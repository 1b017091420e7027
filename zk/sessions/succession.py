"""One session after the other, for as long as the process that needs them lives.

What a worker (:mod:`stretto.zk.metastore`) and the other daemons (:mod:`stretto.zk.watches.daemon_session`)
have in common: a session that expired is followed by a fresh one; one whose server says nothing for too long
is sent to another server; what could not be done is tried again with the next tick; and a silence is told to
people.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import structlog

from stretto.vocabulary.invariants import present
from stretto.zk.sessions.credentials import Credentials
from stretto.zk.sessions.session import Session

REOPEN_SECONDS = 0.2
SILENCE_SECONDS = 5.0


OnFailure: TypeAlias = Callable[[BaseException], None]


class Succession(ABC):
    """One session after the other, for a process that needs one for as long as it lives.

    Whatever begins with ``_`` and is overridden is called under the lock.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int,
        credentials: Credentials | None,
        tick_seconds: float,
        thread: str,
        on_failure: OnFailure | None,
        **logged: Any,
    ) -> None:
        """``thread`` names the thread that ticks; ``logged`` goes with every line of the log.

        ``on_failure`` gets a broken invariant, from any thread: the process must end with it.
        """
        self._hosts = hosts
        self._on_failure = on_failure
        self._session_timeout_ms = session_timeout_ms
        self._credentials = credentials
        self._tick_seconds = tick_seconds
        self._log = structlog.get_logger().bind(**logged)
        #: Guards everything here, and every session. Held for moments only.
        self.lock = threading.RLock()
        self._closing = threading.Event()
        #: The present session; None between two.
        self._session: Session | None = self._new_session()
        #: Whether the registration of the present session is there and was reported.
        self._is_registered = False
        self._later: list[Callable[[], None]] = []
        self._silent_since = time.monotonic()
        self._reopening: threading.Thread | None = None
        self._ticker = threading.Thread(target=self._tick, name=thread, daemon=True)

    def start(self) -> None:
        """Begin to connect, and go on until :meth:`close`."""
        present(self._session, "session").open()
        self._ticker.start()

    def close(self) -> None:
        """End the session, and its registration with it; nothing is reported any more. Blocks."""
        with self.lock:
            self._closing.set()
            self._is_registered = False
            session, self._session = self._session, None
        if session is not None:
            session.close()
        for thread in (self._reopening, self._ticker):
            if thread is not None and thread.is_alive():
                thread.join()

    def again_later(self, again: Callable[[], None]) -> None:
        """Run ``again`` with the next tick, under the lock, as this call is."""
        self._later.append(again)

    @abstractmethod
    def connected(self, session: Session) -> None: ...

    def over(self, session: Session) -> None:
        if session is not self._session:
            return
        was_registered = self._is_registered
        self._session = None
        self._is_registered = False
        self._log.warning("session_expired", incarnation=session.incarnation)
        if was_registered:
            self._expired()
        # Closing a client waits for the thread that we are on. One that never got as far as to register is
        # not followed in haste.
        self._reopening = threading.Thread(target=self._reopen, args=(session, was_registered), daemon=True)
        self._reopening.start()

    @abstractmethod
    def _expired(self) -> None:
        """A session that had registered is over."""

    @abstractmethod
    def _ticked(self, session: Session) -> None:
        """Send a sign of life, and call :meth:`_expect_answers`; called with each tick."""

    def _new_session(self) -> Session:
        return Session(
            self._hosts,
            timeout_ms=self._session_timeout_ms,
            credentials=self._credentials,
            lock=self.lock,
            owner=self,
        )

    def _reopen(self, old: Session, at_once: bool) -> None:
        if at_once or not self._closing.wait(REOPEN_SECONDS):
            fresh = self._new_session()
            with self.lock:
                is_wanted = not self._closing.is_set()
                if is_wanted:
                    self._session = fresh
            if is_wanted:
                fresh.open()
        old.close()

    def failed(self, error: BaseException) -> None:
        """Log an error; only a broken invariant ends the process.

        An ordinary error is of one znode or one request: all else goes on.
        """
        self._log.error("metastore_failed", error=repr(error), exc_info=error)
        if not isinstance(error, Exception) and self._on_failure is not None:
            self._on_failure(error)

    def _tick(self) -> None:
        while not self._closing.wait(self._tick_seconds):
            with self.lock:
                later, self._later = self._later, []
                for again in [*later, self._tick_session, self._complain]:
                    try:
                        again()
                    except BaseException as error:  # noqa: BLE001 - the lease is renewed on this thread
                        self.failed(error)

    def _tick_session(self) -> None:
        session = self._session
        if session is not None:
            self._ticked(session)

    def _expect_answers(self, session: Session) -> None:
        """Try another server after a silence of two thirds of the time-out, while the session still lives."""
        silent_ms = session.silent_ms
        if session.is_connected and silent_ms * 3 > session.negotiated_timeout_ms * 2:
            self._log.warning("metastore_silent", hosts=self._hosts, silent_ms=silent_ms)
            session.drop_connection()

    def _complain(self) -> None:
        if self._session is not None and self._session.is_connected:
            self._silent_since = time.monotonic()
        elif time.monotonic() - self._silent_since > SILENCE_SECONDS:
            self._silent_since = time.monotonic()
            self._log.warning("metastore_unreachable", hosts=self._hosts, advice="start it; we keep trying")
