"""A worker's sockets: one that everybody connects to, and one to each peer it talks to.

So a pair of workers shares at most two connections, one per direction, whatever the number of groups.
Delivery is never trusted: a message that does not fit the high-water mark, or whose peer is unknown, is
dropped, and the replication core sends again what matters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import structlog
import zmq

from stretto import wire
from stretto.endpoint import Connection, Endpoint, OnMessage, configure
from stretto.errors import PeerError
from stretto.keys import ClusterKey, require_key
from stretto.loop import Loop
from stretto.replog.frame import Buffer
from stretto.types import Incarnation, WorkerId

__all__ = ["Connection", "Transport"]

HELLO_AGAIN_MS = 20

log = structlog.get_logger()


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
        self._loop = loop
        self._cluster = cluster
        self._worker = worker
        self._key = key
        self.incarnation = Incarnation("")
        self._endpoint = Endpoint(
            loop, address=address, cluster=cluster, name=f"worker {worker}", key=key, on_message=on_message
        )
        self.reply = self._endpoint.reply
        self.address = self._endpoint.address
        self._peers: dict[WorkerId, _Peer] = {}
        self.dropped = 0

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
        socket = self._endpoint.context.socket(zmq.DEALER)
        configure(socket)
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
        for peer in self._peers.values():
            self._disconnect(peer)
        self._endpoint.close()
