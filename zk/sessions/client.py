"""A ZooKeeper client for daemons that may wait: a conductor, a supervisor.

Workers have :mod:`stretto.zk.metastore` instead, which never blocks.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import ConfigurationError, ConnectionLoss
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from stretto.errors import UsageError
from stretto.zk.sessions.credentials import Credentials, kazoo_options
from stretto.zk.sessions.session import KAZOO_LOG

log = structlog.get_logger()

PATIENCE_SECONDS = 1.0
REMINDER_SECONDS = 5.0
LOOK_SECONDS = 0.1


class _Client(KazooClient):  # type: ignore[misc] # kazoo is published without types
    """A client whose calls fail at once without a connection.

    Kazoo's own keeps them for the next connection, however long that takes.
    """

    def _call(self, request: Any, async_object: Any) -> Any:
        if self._state == KeeperState.CONNECTING:
            async_object.set_exception(ConnectionLoss())
            return False
        return super()._call(request, async_object)


def new_client(hosts: str, session_timeout_ms: int, credentials: Credentials | None = None) -> KazooClient:
    """A client that is not connected yet.

    Connecting, it tries for ever; a call without a connection fails at once.
    """
    try:
        return _Client(
            hosts,
            timeout=session_timeout_ms / 1_000,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
            command_retry=KazooRetry(max_tries=3, delay=0.1, max_delay=1.0),
            logger=KAZOO_LOG,
            **kazoo_options(credentials),
        )
    except (ValueError, ConfigurationError):
        raise UsageError(f"--zookeeper takes HOST:PORT[,HOST:PORT...], not {hosts!r}") from None


def await_connection(client: KazooClient, hosts: str, stop: threading.Event) -> bool:
    """Wait until ZooKeeper answers, with a warning every now and then; False if told to stop first."""
    connected = client.start_async()
    tell_at = time.monotonic() + PATIENCE_SECONDS
    while not connected.wait(LOOK_SECONDS):
        if stop.is_set():
            return False
        if time.monotonic() > tell_at:
            tell_at = time.monotonic() + REMINDER_SECONDS
            log.warning("metastore_unreachable", hosts=hosts, advice="start it; we keep trying")
    return not stop.is_set()


def close(client: KazooClient) -> None:
    """End the session, if there is anybody to end it with."""
    try:
        client.stop()
    except KazooTimeoutError:
        log.warning("metastore_session_left_behind")
    client.close()
