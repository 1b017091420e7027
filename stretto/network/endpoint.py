"""The socket that a daemon listens on: a worker's, a supervisor's, a conductor's.

A ROUTER that everybody connects to. Each connection begins with a hello that names protocol and cluster, and
nothing else is answered before it. Delivery is never trusted: a reply that does not fit the high-water mark
is dropped, and the process that waits for it asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import structlog
import zmq
from zmq.backend import Socket as SocketBase

from stretto.errors import PeerError, StrettoError, UsageError
from stretto.network.keys import ClusterKey
from stretto.network.listener import Listener
from stretto.network.loop import Loop
from stretto.process.logs import Sparing
from stretto.vocabulary.types import Buffer, WorkerId
from stretto.wire import messages as wire

GREETED_MAX = 10_000
"""Connections whose hello is remembered; the oldest is forgotten first, and has to say hello again."""
COPIED_BYTES = 8 * 1024
"""Size from which a part is not copied when it is received: it has, more or less, a buffer to itself."""

# Plain numbers: pyzmq's enums take longer to combine than a small message to send.
_NO_WAIT = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)

#: The method below pyzmq's own, which is Python and only looks at arguments that we never give.
_send = SocketBase.send

log = structlog.get_logger()

Connection: TypeAlias = bytes
"""The routing id of a connection to an endpoint."""

OnMessage: TypeAlias = Callable[[Connection, "WorkerId | None", wire.ToWorker, list[memoryview]], None]
"""Takes the sender's connection, its worker id (None for a client), the message and its bodies."""


_EVERYWHERE = {"0.0.0.0", "*", "::"}  # noqa: S104 - refused, not listened on


def advertised(listening: str, advertise: str | None) -> str:
    """The address by which others reach a listener.

    ``advertise`` is HOST, with the listener's port, or HOST:PORT. Raises UsageError for
    what nobody can connect to.
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


def send(socket: zmq.Socket[bytes], parts: Sequence[Buffer]) -> None:
    """Send all parts of a message or none. Raises ZMQError if the queue is full or nobody is there.

    They are copied: to pass a buffer on as it is costs pyzmq a word between threads, which is more
    than the copy.
    """
    for part in parts[:-1]:
        _send(socket, part, _MORE)
    _send(socket, parts[-1], _NO_WAIT)


def receive(socket: zmq.Socket[bytes]) -> list[Buffer]:
    """Receive all parts of one message, or what is left of it. Raises Again if there is none."""
    return received(socket, socket.recv(_NO_WAIT, copy=False))


def received(socket: zmq.Socket[bytes], frame: zmq.Frame) -> list[Buffer]:
    """All parts of a message whose first frame this is.

    What is small is copied: ZeroMQ reads many messages into one buffer, which a view of any of them would
    keep for as long as a replog keeps an entry in memory. A frame knows whether it is the last: to ask the
    socket takes longer than to make an object for it.
    """
    parts: list[Buffer] = []
    while True:
        parts.append(frame.bytes if len(frame) < COPIED_BYTES else frame.buffer)
        if not frame.more:
            return parts
        frame = socket.recv(_NO_WAIT, copy=False)


class Endpoint:
    """The socket that a daemon listens on; only the loop's thread calls it.

    ``name`` is how the daemon calls itself in a welcome.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        address: str,
        cluster: str,
        name: str,
        key: ClusterKey | None,
        on_message: OnMessage,
        on_gone: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        """``on_gone`` is called with a connection that was heard and is gone, some moments later."""
        self._loop = loop
        self._cluster = cluster
        self._name = name
        self._on_message = on_message
        self._on_gone = on_gone
        self._sparing = Sparing(log)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._listener = Listener(self.context, address, key, loop.now, self._forget)
        except BaseException:
            self.context.destroy(0)
            raise
        self._router = self._listener.router
        self._heard = self._listener.heard
        self.address = self._listener.address
        #: Connections that said hello, each with its worker id; None for a client.
        self._greeted: dict[Connection, WorkerId | None] = {}
        self.dropped = 0
        self._is_closed = False
        self._is_looking = False
        loop.register(self._router, self._receive)
        loop.register(self._listener.zap, self._admit)
        loop.register(self._listener.monitor, self._accepted)

    def _admit(self) -> bool:
        is_answered = self._listener.admit()
        self._loop.used(self._listener.zap)
        return is_answered

    def _accepted(self) -> bool:
        is_somebody = self._listener.accepted()
        if not self._is_looking:
            self._is_looking = True
            self._look()
        return is_somebody

    def _look(self) -> None:
        """Let the listener look at its connections, repeatedly for as long as there are any."""
        if self._is_closed:
            return
        again_ms = self._listener.look(self._loop.now)
        self._is_looking = again_ms is not None
        # What was looked at may have messages that nobody will tell of again.
        self._loop.used(self._router)
        self._loop.used(self._listener.monitor)
        if again_ms is not None:
            self._loop.call_after(again_ms, self._look)

    def _receive(self) -> bool:
        try:
            # Behind the routing id there is always a message.
            sender = self._router.recv(_NO_WAIT)
        except zmq.Again:
            return False
        first = self._router.recv(_NO_WAIT, copy=False)
        parts = received(self._router, first)
        if sender in self._greeted or self._listener.is_peer(sender, first):
            self._heard.add(sender)
            self._hear(sender, parts)
        return True

    def _hear(self, sender: Connection, parts: list[Buffer]) -> None:
        """Handle a message; whatever it raises is answered or dropped, so no peer can end the process by one.

        A broken invariant does.
        """
        message: wire.ToWorker | None = None
        try:
            message = wire.decode_to_worker(parts[0])
            bodies = [memoryview(part) for part in parts[1:]] if len(parts) > 1 else []
            if sender in self._greeted and type(message) is not wire.Hello:
                self._on_message(sender, self._greeted[sender], message, bodies)
            else:
                self._begin(sender, message)
        except PeerError as error:
            self._greeted.pop(sender, None)
            self._sparing.warning("malformed_message", why=str(error))
        except StrettoError as error:
            self._refuse(sender, message, str(error), wire.Fault.of(error))
        except Exception:  # noqa: BLE001 - whatever it is, the next message is somebody else's
            self._sparing.exception("message_failed", message=type(message).__name__)
            self._refuse(sender, message, f"{self._name} failed at this; see its log", wire.Fault.OTHER)

    def _refuse(self, sender: Connection, message: wire.ToWorker | None, why: str, fault: wire.Fault) -> None:
        request = getattr(message, "request", None)
        if request is not None:
            self.reply(sender, wire.Failed(request, why, fault))

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
                # Whoever that is says hello again when it is told to.
                del self._greeted[next(iter(self._greeted))]
            self.reply(sender, wire.Welcome(self._cluster, self._name))

    def _forget(self, sender: Connection) -> None:
        self._greeted.pop(sender, None)
        self._on_gone(sender)

    def reply(self, to: Connection, message: wire.ToClient, bodies: Sequence[Buffer] = ()) -> bool:
        """Send a reply; False if the connection is gone, or too slow to read its replies."""
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
        self._is_closed = True
        for each in self._listener.sockets:
            self._loop.unregister(each)
        self._listener.close()
        self.context.destroy(0)
