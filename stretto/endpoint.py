"""The socket that a daemon listens on: a worker's, a supervisor's, a conductor's.

A ROUTER that everybody connects to. Each connection begins with a hello that names protocol and cluster, and
nothing else is answered before it. Delivery is never trusted: a reply that does not fit the high-water mark
is dropped, and whoever waits for it asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import structlog
import zmq
from zmq.backend import Socket as SocketBase

from stretto import wire
from stretto.errors import PeerError, UsageError
from stretto.keys import ClusterKey, require_key
from stretto.loop import Loop
from stretto.replog.frame import Buffer
from stretto.types import WorkerId

MESSAGE_BYTES_MAX = 80 * 1024 * 1024
HIGH_WATER_MARK = 1_000
GREETED_MAX = 10_000
COPIED_BYTES = 8 * 1024
"""What is larger is not copied when it is received: it has, more or less, a buffer to itself."""
HEARTBEAT_MS = 2_000
HEARTBEAT_TIMEOUT_MS = 8_000

# Plain numbers: pyzmq's enums take longer to combine than a small message to send.
_NO_WAIT = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)

#: Past pyzmq's own method, which is Python and only looks at arguments that we never give.
_send = SocketBase.send

log = structlog.get_logger()

Connection: TypeAlias = bytes
"""The routing id of whoever is connected to us."""

OnMessage: TypeAlias = Callable[[Connection, "WorkerId | None", wire.ToWorker, list[memoryview]], None]
"""From whom, which worker that is (None: a client), what, and the bodies that came with it."""


_EVERYWHERE = {"0.0.0.0", "*", "::"}  # noqa: S104 - refused, not listened on


def advertised(listening: str, advertise: str | None) -> str:
    """Where others reach who listens there; ``advertise`` is HOST, with the listener's port, or HOST:PORT.

    Raises UsageError for what nobody can connect to.
    """
    host, _, port = listening.rpartition(":")
    if advertise is not None:
        host, colon, given = advertise.rpartition(":")
        host, port = (host, port if given == "0" else given) if colon else (advertise, port)
    if host.strip("[]") in _EVERYWHERE:
        raise UsageError(
            f"others cannot connect to {host}:{port}; name an address of this machine, "
            "or say with --advertise HOST where they reach it"
        )
    return f"{host}:{port}"


def configure(socket: zmq.Socket[bytes]) -> None:
    """Explicit bounds, and heartbeats that notice a peer that is gone without a word."""
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = HIGH_WATER_MARK
    socket.maxmsgsize = MESSAGE_BYTES_MAX
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)


def send(socket: zmq.Socket[bytes], parts: Sequence[Buffer]) -> None:
    """All parts or nothing. Raises ZMQError if the queue is full or nobody is there.

    Copied: to pass a buffer on as it is costs pyzmq a word between threads, which is more than the copy.
    """
    for part in parts[:-1]:
        _send(socket, part, _MORE)
    _send(socket, parts[-1], _NO_WAIT)


def receive(socket: zmq.Socket[bytes]) -> list[Buffer]:
    """All parts of one message, or what is left of it. Raises Again if there is none.

    What is small is copied: ZeroMQ reads many messages into one buffer, which a view of any of them would
    keep for as long as a replog keeps an entry in memory. A frame knows whether it is the last: to ask the
    socket takes longer than to make an object for it.
    """
    parts: list[Buffer] = []
    while True:
        frame = socket.recv(_NO_WAIT, copy=False)
        parts.append(frame.bytes if len(frame) < COPIED_BYTES else frame.buffer)
        if not frame.more:
            return parts


class Endpoint:
    """All methods are the loop's. ``name`` is who answers, for the reader of a welcome."""

    def __init__(
        self,
        loop: Loop,
        *,
        address: str,
        cluster: str,
        name: str,
        key: ClusterKey | None,
        on_message: OnMessage,
    ) -> None:
        require_key(address, key)
        self._loop = loop
        self._cluster = cluster
        self._name = name
        self._on_message = on_message
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = key.authenticator(self.context) if key is not None else None
        self._router = self.context.socket(zmq.ROUTER)
        configure(self._router)
        self._router.router_mandatory = True
        if key is not None:
            key.serve_with(self._router)
        #: Who said hello: a worker, or a client (None).
        self._greeted: dict[Connection, WorkerId | None] = {}
        self.dropped = 0
        self.address = self._bind(address)
        loop.register(self._router, self._receive)

    def _bind(self, address: str) -> str:
        try:
            self._router.bind(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise UsageError(f"cannot listen on {address}: {error.strerror}; choose another") from None
        endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        return endpoint.rstrip("\0").removeprefix("tcp://")

    def _receive(self) -> bool:
        try:
            # Behind the routing id there is always a message.
            sender = self._router.recv(_NO_WAIT)
        except zmq.Again:
            return False
        parts = receive(self._router)
        try:
            message = wire.decode_to_worker(parts[0])
            bodies = [memoryview(part) for part in parts[1:]] if len(parts) > 1 else []
            if sender in self._greeted and type(message) is not wire.Hello:
                self._on_message(sender, self._greeted[sender], message, bodies)
            else:
                self._begin(sender, message)
        except PeerError as error:
            self._greeted.pop(sender, None)
            log.warning("malformed_message", why=str(error))
        return True

    def _begin(self, sender: Connection, message: wire.ToWorker) -> None:
        if isinstance(message, wire.Hello):
            self._greet(sender, message)
        else:
            self.reply(sender, wire.HelloRefused("say hello first"))

    def _greet(self, sender: Connection, hello: wire.Hello) -> None:
        if hello.version != wire.PROTOCOL_VERSION:
            why = f"{self._name} speaks protocol {wire.PROTOCOL_VERSION}, not {hello.version}"
            self.reply(sender, wire.HelloRefused(why))
        elif hello.cluster not in ("", self._cluster):
            why = f"{self._name} belongs to cluster {self._cluster}, not {hello.cluster}"
            self.reply(sender, wire.HelloRefused(why))
        else:
            self._greeted[sender] = hello.worker or None
            if len(self._greeted) > GREETED_MAX:
                # Nobody tells which are gone. Whoever is not says hello again when it is told to.
                del self._greeted[next(iter(self._greeted))]
            self.reply(sender, wire.Welcome(self._cluster, self._name))

    def reply(self, to: Connection, message: wire.ToClient, bodies: Sequence[Buffer] = ()) -> bool:
        """False if nobody is there who would hear it."""
        try:
            send(self._router, (to, wire.encode(message), *bodies))
        except zmq.ZMQError:
            # Gone, or too slow to read its replies: it asks again.
            self._greeted.pop(to, None)
            self.dropped += 1
            return False
        finally:
            self._loop.used(self._router)
        return True

    def close(self) -> None:
        self._loop.unregister(self._router)
        self._router.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self.context.destroy(0)
