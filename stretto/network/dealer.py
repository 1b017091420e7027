"""One connection to somebody's endpoint, used until it is lost.

ZeroMQ would connect again by itself and send what has waited meanwhile, to a process that has not heard our
hello and may not be the one we meant. So a connection that breaks, or is refused, is told at once (by the
socket's monitor) and thrown away with its queue; who still wants to talk makes another, which says hello
first. This is also why nothing here is ZMQ_IMMEDIATE: what is sent while the connection is being made waits
behind the hello, and is gone with the connection if that never comes about.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence

import zmq

from stretto.network.endpoint import receive, send
from stretto.network.keys import ClusterKey, require_key
from stretto.network.listener import configure
from stretto.network.loop import Loop
from stretto.vocabulary.types import Buffer
from stretto.wire import messages as wire

_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_monitors = itertools.count()


class Dealer:
    """All methods are the loop's. ``lost`` is called once, after everything that came in was received."""

    def __init__(
        self,
        loop: Loop,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        key: ClusterKey | None,
        hello: wire.Hello,
        *,
        receive: Callable[[list[Buffer]], None],
        lost: Callable[[], None],
    ) -> None:
        require_key(address, key)
        self._loop = loop
        self._receive = receive
        self._lost = lost
        self.address = address
        self.is_closed = False
        #: Somebody with the right key listened there.
        self.was_up = False
        self._monitor: zmq.Socket[bytes] | None = None
        self._socket = context.socket(zmq.DEALER)
        try:
            self._connect(key, hello)
        except BaseException:
            # A caller that is interrupted, too. If nobody closes it, ZeroMQ's thread waits until somebody
            # takes the monitor's events, and all other connections wait with it.
            self.close()
            raise

    def _connect(self, key: ClusterKey | None, hello: wire.Hello) -> None:
        configure(self._socket)
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        if key is not None:
            key.connect_with(self._socket)
        self._monitor = self._socket.get_monitor_socket(_EVENTS, f"inproc://monitor-{next(_monitors)}")
        self._socket.connect(f"tcp://{self.address}")
        # If it is lost already, there is nowhere to send to, and the monitor tells.
        self.send(hello)
        self._loop.register(self._socket, self._receive_one)
        self._loop.register(self._monitor, self._observe)

    def send(self, message: wire.ToWorker, bodies: Sequence[Buffer] = ()) -> bool:
        """False if its queue is full."""
        try:
            send(self._socket, (wire.encode(message), *bodies))
        except zmq.ZMQError:
            return False
        finally:
            # Also in vain: ZeroMQ has looked then at what came in, and the descriptor tells only once.
            self._loop.used(self._socket)
        return True

    def close(self) -> None:
        """It is not told as a loss."""
        if not self.is_closed:
            self.is_closed = True
            self._loop.unregister(self._socket)
            if self._monitor is not None:
                self._loop.unregister(self._monitor)
                self._socket.disable_monitor()
                self._monitor.close(0)
            self._socket.close(0)

    def _receive_one(self) -> bool:
        if self.is_closed:
            return False
        try:
            parts = receive(self._socket)
        except zmq.ZMQError:
            return False
        self._receive(parts)
        return True

    def _observe(self) -> bool:
        if self.is_closed or self._monitor is None:
            return False
        try:
            event, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        if int.from_bytes(event[:2], sys.byteorder) == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.was_up = True
            return True
        while self._receive_one():
            pass
        if not self.is_closed:
            self.close()
            self._lost()
        return False
