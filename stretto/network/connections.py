"""The client's connections to workers: requests go out on them, and each is answered exactly once.

The answer is its reply; or None, when its time is over or its connection is lost, which is noticed at once.
The next request makes a new connection.

Everything here runs on the client's own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import zmq

from stretto.errors import PeerError, UsageError
from stretto.network.dealer import Dealer
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Buffer, Incarnation, WorkerId
from stretto.wire import messages as wire

OnReply: TypeAlias = Callable[["wire.ToClient | None", list[memoryview]], None]

SWEEP_MS = 100
SUSPECT_MS = 500
"""How long an answer may take before the client asks whether another worker leads the group by now."""
DOWN_MS = 50
"""How long an address where nobody listened is left alone."""


class _Request:
    __slots__ = ("deadline", "group", "on_reply", "suspect_at")

    def __init__(self, on_reply: OnReply, group: GroupKey | None, deadline: int, suspect_at: int) -> None:
        self.on_reply = on_reply
        self.group = group
        self.deadline = deadline
        self.suspect_at: int | None = suspect_at if group is not None else None


class _Connection:
    __slots__ = ("address", "dealer", "is_welcome", "requests")

    def __init__(self, address: str) -> None:
        self.address = address
        self.dealer: Dealer
        self.is_welcome = False
        self.requests: dict[int, _Request] = {}


class Connections:
    """Connections to workers, one for each address, and the requests that wait for a reply on them."""

    def __init__(
        self,
        loop: Loop,
        key: ClusterKey | None,
        on_suspicion: Callable[[GroupKey], None],
        worker: WorkerId = WorkerId(""),
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        """``worker`` names this process, if it is a worker; a ``context`` that is given stays its owner's."""
        self._loop = loop
        self._worker = worker
        self._key = key
        self._on_suspicion = on_suspicion
        self.context: zmq.Context[zmq.Socket[bytes]] = context or zmq.Context()
        self._owns_context = context is None
        self._connections: dict[str, _Connection] = {}
        self._down_until: dict[str, int] = {}
        self._sweeping = False
        #: Why an endpoint refused this process, or an address cannot be connected to; the latest reason.
        self.refusal: str | None = None

    def request(
        self,
        address: str,
        number: int,
        message: wire.ToWorker,
        bodies: Sequence[Buffer],
        on_reply: OnReply,
        *,
        timeout_ms: int,
        group: GroupKey | None = None,
        wait_ms: int = 0,
    ) -> None:
        """Send a request to an address; ``on_reply`` is called once, with the reply or None.

        ``wait_ms`` is how long the answer may be held back; the time-out begins after it.
        """
        try:
            connection = self._connections.get(address) or self._connect(address)
        except (UsageError, zmq.ZMQError) as error:
            self.refusal = str(error)
            self._down_until[address] = self._loop.now + DOWN_MS
            self._loop.call_soon(on_reply, None, [])
            return
        expected = self._loop.now + wait_ms
        connection.requests[number] = _Request(on_reply, group, expected + timeout_ms, expected + SUSPECT_MS)
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_after(SWEEP_MS, self._sweep)
        if not connection.dealer.send(message, bodies):
            self._loop.call_soon(self._lose_one, connection, number)

    def is_down(self, address: str) -> bool:
        """Whether nobody listened at an address a moment ago."""
        return self._down_until.get(address, 0) > self._loop.now

    def cancel(self, number: int) -> None:
        """Drop a request whose answer nobody waits for any more, and send the worker a Cancel."""
        for connection in self._connections.values():
            if connection.requests.pop(number, None) is not None:
                connection.dealer.send(wire.Cancel(number))

    def give_up(self, group: GroupKey, but: str | None) -> None:
        """Answer with None all requests about a group that went to another address than ``but``."""
        for connection in list(self._connections.values()):
            if connection.address != but:
                for number, request in list(connection.requests.items()):
                    if request.group == group:
                        self._lose_one(connection, number)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.dealer.close()
        if self._owns_context:
            self.context.destroy(0)

    # Connections.

    def _connect(self, address: str) -> _Connection:
        connection = _Connection(address)
        connection.dealer = Dealer(
            self._loop,
            self.context,
            address,
            self._key,
            wire.Hello(wire.PROTOCOL_VERSION, "", self._worker, Incarnation("")),
            receive=lambda parts: self._received(connection, parts),
            lost=lambda: self._lose(connection),
        )
        self._connections[address] = connection
        return connection

    def _lose(self, connection: _Connection) -> None:
        if self._connections.get(connection.address) is not connection:
            return
        del self._connections[connection.address]
        if not connection.is_welcome:
            self._down_until[connection.address] = self._loop.now + DOWN_MS
        connection.dealer.close()
        for number in list(connection.requests):
            self._lose_one(connection, number)

    # Answers.

    def _received(self, connection: _Connection, parts: list[Buffer]) -> None:
        try:
            message = wire.decode_to_client(parts[0])
        except PeerError:
            return
        if isinstance(message, wire.Welcome | wire.HelloRefused | wire.QueryGoesOn):
            self._told(connection, message)
            return
        request = connection.requests.pop(message.request, None)
        if request is not None:
            request.on_reply(message, [memoryview(part) for part in parts[1:]] if len(parts) > 1 else [])

    def _told(
        self, connection: _Connection, message: wire.Welcome | wire.HelloRefused | wire.QueryGoesOn
    ) -> None:
        """Take a message that answers no request."""
        if isinstance(message, wire.Welcome):
            connection.is_welcome = True
        elif isinstance(message, wire.HelloRefused):
            self.refusal = message.why
            connection.is_welcome = False
            self._lose(connection)

    def _lose_one(self, connection: _Connection, number: int) -> None:
        request = connection.requests.pop(number, None)
        if request is not None:
            request.on_reply(None, [])

    def _sweep(self) -> None:
        now = self._loop.now
        self._sweeping = False
        suspects: set[GroupKey] = set()
        for connection in list(self._connections.values()):
            for number, request in list(connection.requests.items()):
                if request.deadline <= now:
                    self._lose_one(connection, number)
                elif request.suspect_at is not None and request.suspect_at <= now and request.group:
                    request.suspect_at = None
                    suspects.add(request.group)
        for group in suspects:
            self._on_suspicion(group)
        if not self._sweeping and any(connection.requests for connection in self._connections.values()):
            self._sweeping = True
            self._loop.call_after(SWEEP_MS, self._sweep)
