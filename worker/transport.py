"""A worker's sockets: one that everybody connects to, and one to each peer it talks to.

So a pair of workers shares at most two connections, one per direction, whatever the number of groups.
Delivery is never trusted: a message that does not fit the high-water mark, or whose peer is unknown, is
dropped, and the replication core sends again what matters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

import structlog
import zmq

from stretto import wire
from stretto.errors import PeerError, UsageError
from stretto.keys import ClusterKey, require_key
from stretto.loop import Loop
from stretto.replog.frame import Buffer
from stretto.types import Incarnation, WorkerId

MESSAGE_BYTES_MAX = 80 * 1024 * 1024
HIGH_WATER_MARK = 1_000
HELLO_AGAIN_MS = 20
HEARTBEAT_MS = 2_000
HEARTBEAT_TIMEOUT_MS = 8_000

log = structlog.get_logger()

Connection: TypeAlias = bytes
"""The routing id of whoever is connected to us."""

OnMessage: TypeAlias = Callable[[Connection, "WorkerId | None", wire.ToWorker, list[memoryview]], None]


class _Peer:
    __slots__ = ("address", "socket")

    def __init__(self, address: str, socket: zmq.Socket[bytes]) -> None:
        self.address = address
        self.socket = socket


class Transport:
    """All methods are the loop's."""

    def __init__(
        self,
        loop: Loop,
        *,
        address: str,
        cluster: str,
        worker: WorkerId,
        key: ClusterKey | None,
        on_message: OnMessage,
    ) -> None:
        require_key(address, key)
        self._loop = loop
        self._cluster = cluster
        self._worker = worker
        self._key = key
        self._on_message = on_message
        self.incarnation = Incarnation("")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = key.authenticator(self._context) if key is not None else None
        self._router = self._context.socket(zmq.ROUTER)
        self._configure(self._router)
        self._router.router_mandatory = True
        if key is not None:
            key.serve_with(self._router)
        #: Who said hello: a worker, or a client (None).
        self._greeted: dict[Connection, WorkerId | None] = {}
        self._peers: dict[WorkerId, _Peer] = {}
        self.dropped = 0
        self.address = self._bind(address)
        loop.register(self._router, self._receive)

    def _configure(self, socket: zmq.Socket[bytes]) -> None:
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = HIGH_WATER_MARK
        socket.maxmsgsize = MESSAGE_BYTES_MAX
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)

    def _bind(self, address: str) -> str:
        try:
            self._router.bind(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise UsageError(f"cannot listen on {address}: {error.strerror}; choose another") from None
        endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        return endpoint.rstrip("\0").removeprefix("tcp://")

    # Receiving.

    def _receive(self) -> bool:
        try:
            connection, *parts = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        sender = connection.bytes
        if not parts:
            return True
        try:
            message = wire.decode_to_worker(parts[0].buffer)
            self._dispatch(sender, message, [part.buffer for part in parts[1:]])
        except PeerError as error:
            self._greeted.pop(sender, None)
            log.warning("malformed_message", why=str(error))
        return True

    def _dispatch(self, sender: Connection, message: wire.ToWorker, bodies: list[memoryview]) -> None:
        if isinstance(message, wire.Hello):
            self._greet(sender, message)
        elif sender in self._greeted:
            self._on_message(sender, self._greeted[sender], message, bodies)
        else:
            self.reply(sender, wire.HelloRefused("say hello first"))

    def _greet(self, sender: Connection, hello: wire.Hello) -> None:
        if hello.version != wire.PROTOCOL_VERSION:
            why = f"this worker speaks protocol {wire.PROTOCOL_VERSION}, not {hello.version}"
            self.reply(sender, wire.HelloRefused(why))
        elif hello.cluster not in ("", self._cluster):
            why = f"this worker belongs to cluster {self._cluster}, not {hello.cluster}"
            self.reply(sender, wire.HelloRefused(why))
        else:
            self._greeted[sender] = hello.worker or None
            if not hello.worker:
                self.reply(sender, wire.Welcome(self._cluster, self._worker))

    # Sending.

    def reply(self, to: Connection, message: wire.ToClient, bodies: Sequence[Buffer] = ()) -> None:
        try:
            self._router.send_multipart([to, wire.encode(message), *bodies], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            # Gone, or too slow to read its replies: it asks again.
            self._greeted.pop(to, None)
            self.dropped += 1

    def know(self, worker: WorkerId, address: str | None) -> None:
        """Where a peer is; None if it is nowhere any more."""
        known = self._peers.get(worker)
        if known is not None and known.address != address:
            self._disconnect(known)
            del self._peers[worker]
            known = None
        if known is None and address is not None and worker != self._worker:
            self._peers[worker] = _Peer(address, self._connect(address))

    def _disconnect(self, peer: _Peer) -> None:
        self._loop.unregister(peer.socket)
        peer.socket.close(0)

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        require_key(address, self._key)
        socket = self._context.socket(zmq.DEALER)
        self._configure(socket)
        if self._key is not None:
            self._key.connect_with(socket)
        socket.connect(f"tcp://{address}")
        self._say_hello(socket)
        self._loop.register(socket, lambda: self._hear(socket))
        return socket

    def _say_hello(self, socket: zmq.Socket[bytes]) -> None:
        hello = wire.Hello(wire.PROTOCOL_VERSION, self._cluster, self._worker, self.incarnation)
        with contextlib.suppress(zmq.ZMQError):
            socket.send(wire.encode(hello), zmq.NOBLOCK)

    def _hear(self, socket: zmq.Socket[bytes]) -> bool:
        """A peer answers only to refuse us: it restarted, and has not heard our hello."""
        try:
            answer = socket.recv(zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        with contextlib.suppress(PeerError):
            refusal = wire.decode_to_client(answer)
            if isinstance(refusal, wire.HelloRefused):
                log.info("peer_refused_us", why=refusal.why)
                self._loop.call_after(HELLO_AGAIN_MS, self._say_hello, socket)
        return True

    def send(self, to: WorkerId, message: wire.ToWorker, bodies: Sequence[Buffer] = ()) -> None:
        peer = self._peers.get(to)
        if peer is None:
            self.dropped += 1
            return
        try:
            peer.socket.send_multipart([wire.encode(message), *bodies], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            self.dropped += 1

    def close(self) -> None:
        self._loop.unregister(self._router)
        self._router.close(0)
        for peer in self._peers.values():
            self._disconnect(peer)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(0)
