"""The client's side of the wire: connections to workers, requests and their replies, who leads what.

Everything here runs on the client's own thread. A request is sent to one worker and answered once: by its
reply, or, when that does not come in time, with None. What to do then is up to who asked.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import zmq

from stretto import wire
from stretto.errors import PeerError, UsageError
from stretto.keys import ClusterKey, require_key
from stretto.loop import Loop
from stretto.replog.frame import Buffer
from stretto.types import Incarnation, TaskId, WorkerId
from stretto.wire import GroupView
from stretto.zk.paths import GroupKey

OnReply: TypeAlias = Callable[["wire.ToClient | None", list[memoryview]], None]

METADATA_TIMEOUT_MS = 1_000
METADATA_RETRY_MS = 100


@dataclass
class ClusterView:
    """Who leads what, as last heard."""

    addresses: dict[WorkerId, str] = field(default_factory=dict)
    groups: dict[GroupKey, GroupView] = field(default_factory=dict)
    of_task: dict[tuple[str, TaskId], GroupKey] = field(default_factory=dict)
    tasks: dict[str, list[TaskId]] = field(default_factory=dict)

    def take(self, metadata: wire.Metadata) -> None:
        self.addresses.update(metadata.addresses)
        for view in metadata.groups:
            known = self.groups.get(view.key)
            if known is not None and known.epoch > view.epoch:
                continue
            self.groups[view.key] = view
            newest = self.of_task.get((view.key.module, view.tasks[0]))
            if newest is None or newest.generation <= view.key.generation:
                for task in view.tasks:
                    self.of_task[(view.key.module, task)] = view.key
        for module in {view.key.module for view in metadata.groups}:
            self.tasks[module] = sorted(task for name, task in self.of_task if name == module)


class _Connection:
    __slots__ = ("address", "socket")

    def __init__(self, address: str, socket: zmq.Socket[bytes]) -> None:
        self.address = address
        self.socket = socket


class Network:
    """Its thread runs :attr:`loop`; :meth:`call` is the way in."""

    def __init__(self, bootstrap: Sequence[str], key: ClusterKey | None) -> None:
        if not bootstrap:
            raise UsageError("connect() needs the address of at least one worker, as host:port")
        for address in bootstrap:
            require_key(address, key)
        self._bootstrap = list(bootstrap)
        self._key = key
        self.loop = Loop()
        self.view = ClusterView()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connections: dict[str, _Connection] = {}
        self._requests: dict[int, OnReply] = {}
        self._numbers = itertools.count(1)
        self._asked = itertools.count()
        self._refreshing: list[Callable[[], None]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="stretto-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.loop.run()
        for connection in self._connections.values():
            connection.socket.close(0)
        self._context.destroy(0)
        self.loop.close()

    def call(self, function: Callable[..., None], *args: object) -> None:
        """From any thread."""
        self.loop.call_soon(function, *args)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.call(self.loop.stop)
            self._thread.join()

    # Requests.

    def next_request(self) -> int:
        return next(self._numbers)

    def request(
        self,
        address: str,
        number: int,
        message: wire.ToWorker,
        bodies: Sequence[Buffer],
        on_reply: OnReply,
        *,
        timeout_ms: int,
    ) -> None:
        self._requests[number] = on_reply
        self.loop.call_after(timeout_ms, self._time_out, number)
        connection = self._connection(address)
        try:
            connection.socket.send_multipart([wire.encode(message), *bodies], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            self.loop.call_after(10, self._time_out, number)

    def to_leader(
        self,
        group: GroupKey,
        number: int,
        message: wire.ToWorker,
        bodies: Sequence[Buffer],
        on_reply: OnReply,
        *,
        timeout_ms: int,
    ) -> bool:
        """False, and nothing is sent, if nobody is known to lead the group."""
        view = self.view.groups.get(group)
        address = self.view.addresses.get(view.leader) if view is not None and view.leader else None
        if address is None:
            return False
        self.request(address, number, message, bodies, on_reply, timeout_ms=timeout_ms)
        return True

    def _time_out(self, number: int) -> None:
        on_reply = self._requests.pop(number, None)
        if on_reply is not None:
            on_reply(None, [])

    def _connection(self, address: str) -> _Connection:
        known = self._connections.get(address)
        if known is not None:
            return known
        require_key(address, self._key)
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 10_000
        socket.setsockopt(zmq.HEARTBEAT_IVL, 2_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 8_000)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        if self._key is not None:
            self._key.connect_with(socket)
        socket.connect(f"tcp://{address}")
        connection = self._connections[address] = _Connection(address, socket)
        self._say_hello(connection)
        self.loop.register(socket, lambda: self._receive(connection))
        return connection

    def _say_hello(self, connection: _Connection) -> None:
        hello = wire.Hello(wire.PROTOCOL_VERSION, "", WorkerId(""), Incarnation(""))
        with contextlib.suppress(zmq.ZMQError):
            connection.socket.send(wire.encode(hello), zmq.NOBLOCK)

    def _receive(self, connection: _Connection) -> bool:
        try:
            parts = connection.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            return False
        with contextlib.suppress(PeerError):
            message = wire.decode_to_client(parts[0].buffer)
            if isinstance(message, wire.HelloRefused):
                self._say_hello(connection)
            elif not isinstance(message, wire.Welcome):
                on_reply = self._requests.pop(message.request, None)
                if on_reply is not None:
                    on_reply(message, [part.buffer for part in parts[1:]])
        return True

    # Metadata.

    def refresh(self, then: Callable[[], None]) -> None:
        """Ask some worker who leads what; ``then`` runs when one has answered, however long that takes."""
        self._refreshing.append(then)
        if len(self._refreshing) == 1:
            self._ask()

    def _ask(self) -> None:
        """One after the other, so that a dead address delays the answer and does not prevent it."""
        addresses = list(dict.fromkeys([*self.view.addresses.values(), *self._bootstrap]))
        address = addresses[next(self._asked) % len(addresses)]
        number = self.next_request()
        self.request(
            address, number, wire.GetMetadata(number), (), self._heard, timeout_ms=METADATA_TIMEOUT_MS
        )

    def _heard(self, reply: wire.ToClient | None, _bodies: list[memoryview]) -> None:
        if not isinstance(reply, wire.Metadata):
            self.loop.call_after(METADATA_RETRY_MS, self._ask)
            return
        self.view.take(reply)
        waiting, self._refreshing = self._refreshing, []
        for then in waiting:
            then()
