"""A worker's sockets: one that everybody connects to, and one to each peer it talks to.

So a pair replicates over at most two connections, one per direction, whatever the number of groups.
Delivery is never trusted: a message that does not fit the high-water mark, or whose peer is unknown, is
dropped, and the replication core sends again what matters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import structlog
import zmq

from stretto.errors import PeerError, StrettoError
from stretto.network.dealer import Dealer
from stretto.network.endpoint import Connection, Endpoint, OnMessage
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.vocabulary.backoff import Backoff
from stretto.vocabulary.types import Buffer, Incarnation, WorkerId
from stretto.wire import messages as wire

__all__ = ["Connection", "Transport"]

RECONNECT = Backoff(first_ms=20, most_ms=1_000)

log = structlog.get_logger()


class _Peer:
    __slots__ = ("address", "backoff", "dealer", "incarnation", "is_registered")

    def __init__(self, address: str, incarnation: Incarnation) -> None:
        self.address = address
        self.incarnation = incarnation
        self.dealer: Dealer | None = None
        self.backoff = RECONNECT
        self.is_registered = True


class Transport:
    """The sockets of a worker; only the loop's thread calls it."""

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

    def know(self, worker: WorkerId, address: str, incarnation: Incarnation) -> None:
        """Connect to a peer at its address; a new incarnation counts as a new process."""
        known = self._peers.get(worker)
        if worker == self._worker or (known and (known.address, known.incarnation) == (address, incarnation)):
            return
        if known is not None and known.dealer is not None:
            known.dealer.close()
        peer = self._peers[worker] = _Peer(address, incarnation)
        self._connect(worker, peer)

    def forget(self, worker: WorkerId) -> None:
        """Note that a peer has no registration; a connection that stands is kept, and not made again."""
        peer = self._peers.get(worker)
        if peer is not None:
            peer.is_registered = False
            if peer.dealer is None:
                del self._peers[worker]

    def hello(self) -> wire.Hello:
        """The message with which this worker begins a connection."""
        return wire.Hello(wire.PROTOCOL_VERSION, self._cluster, self._worker, self.incarnation)

    def address_of(self, worker: WorkerId) -> str | None:
        peer = self._peers.get(worker)
        return peer.address if peer is not None else None

    def _connect(self, worker: WorkerId, peer: _Peer) -> None:
        if self._peers.get(worker) is not peer:
            return
        try:
            peer.dealer = Dealer(
                self._loop,
                self._endpoint.context,
                peer.address,
                self._key,
                self.hello(),
                receive=lambda parts: self._heard(worker, peer, parts),
                lost=lambda: self._lost(worker, peer),
            )
        except (StrettoError, zmq.ZMQError) as error:
            log.error("peer_cannot_be_reached", peer=worker, address=peer.address, why=str(error))

    def _lost(self, worker: WorkerId, peer: _Peer) -> None:
        if peer.dealer is not None and peer.dealer.was_up:
            peer.backoff = peer.backoff.reset()
        peer.dealer = None
        if not peer.is_registered:
            self._peers.pop(worker, None)
            return
        self._loop.call_after(peer.backoff.delay_ms, self._connect, worker, peer)
        peer.backoff = peer.backoff.next()

    def _heard(self, worker: WorkerId, peer: _Peer, parts: list[Buffer]) -> None:
        """Take the answer of a peer, which answers only to refuse us."""
        with contextlib.suppress(PeerError):
            refusal = wire.decode_to_client(parts[0])
            if isinstance(refusal, wire.HelloRefused) and peer.dealer is not None:
                log.info("peer_refused_us", peer=worker, why=refusal.why)
                peer.dealer.close()
                self._lost(worker, peer)

    def send(self, to: WorkerId, message: wire.ToWorker, bodies: Sequence[Buffer] = ()) -> None:
        """Send a message to a peer; it is dropped if the peer is unknown or its queue is full."""
        peer = self._peers.get(to)
        if peer is None or peer.dealer is None or not peer.dealer.send(message, bodies):
            self.dropped += 1

    def close(self) -> None:
        for peer in self._peers.values():
            if peer.dealer is not None:
                peer.dealer.close()
        self._endpoint.close()
