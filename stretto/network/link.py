"""A socket that is connected once, and tells when its connection is up and when it is over.

ZeroMQ would connect again by itself and send what has waited meanwhile, to a process that has not heard our
hello and may not be the one we meant. So a connection that breaks, or is refused, is told at once (by the
socket's monitor) and thrown away with its queue; who still wants to talk makes another. A :class:`Link` waits
for nothing: a :class:`~stretto.network.dealer.Dealer` is one that a loop looks at, and a caller that blocks
polls its two sockets.
"""

from __future__ import annotations

import itertools
import sys

import zmq

from stretto.network.keys import ClusterKey
from stretto.network.listener import configure

_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_monitors = itertools.count()


class Link:
    """A socket that is connected once, with the monitor that tells when it is up and when it is lost.

    Close it whatever happens, also while :meth:`connect` is interrupted: ZeroMQ's thread waits until
    somebody takes the monitor's events, and all other connections wait with it.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.monitor: zmq.Socket[bytes] | None = None
        #: Whether an endpoint with the right key was connected.
        self.was_up = False
        #: Whether the connection was refused, or broke.
        self.is_lost = False

    def connect(self, address: str, key: ClusterKey | None) -> zmq.Socket[bytes]:
        """Begin to connect, and return the monitor."""
        configure(self.socket)
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        if key is not None:
            key.connect_with(self.socket)
        self.monitor = self.socket.get_monitor_socket(_EVENTS, f"inproc://monitor-{next(_monitors)}")
        self.socket.connect(f"tcp://{address}")
        return self.monitor

    def observe(self) -> bool:
        """Take the monitor's next event, that the link is up, or lost; False if there is none."""
        if self.monitor is None:
            return False
        try:
            event, _ = self.monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        if int.from_bytes(event[:2], sys.byteorder) == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.was_up = True
        else:
            self.is_lost = True
        return True

    def close(self) -> None:
        """Close the socket and its monitor, and throw away what was not sent."""
        if self.socket.closed:
            return
        if self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close(0)
        self.socket.close(0)
