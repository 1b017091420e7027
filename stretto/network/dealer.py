"""One connection to somebody's endpoint, on a loop, used until it is lost.

It is thrown away with its queue then (:mod:`stretto.network.link`); who still wants to talk makes another,
which says hello first. This is also why nothing here is ZMQ_IMMEDIATE: what is sent while the connection is
being made waits behind the hello, and is gone with the connection if that never comes about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import zmq

from stretto.network.endpoint import receive, send
from stretto.network.keys import ClusterKey, require_key
from stretto.network.link import Link
from stretto.network.loop import Loop
from stretto.vocabulary.types import Buffer
from stretto.wire import messages as wire


class Dealer:
    """A connection to an endpoint, used until it is lost; only the loop's thread calls it.

    ``lost`` is called once, after everything that came in was received.
    """

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
        self._link = Link(context)
        self._socket = self._link.socket
        try:
            self._connect(key, hello)
        except BaseException:
            # A caller that is interrupted, too.
            self.close()
            raise

    def _connect(self, key: ClusterKey | None, hello: wire.Hello) -> None:
        monitor = self._link.connect(self.address, key)
        # If it is lost already, there is nowhere to send to, and the monitor tells.
        self.send(hello)
        self._loop.register(self._socket, self._receive_one)
        self._loop.register(monitor, self._observe)

    @property
    def was_up(self) -> bool:
        """Whether an endpoint with the right key was connected."""
        return self._link.was_up

    def send(self, message: wire.ToWorker, bodies: Sequence[Buffer] = ()) -> bool:
        """Send a message and its bodies; False if the queue is full."""
        try:
            send(self._socket, (wire.encode(message), *bodies))
        except zmq.ZMQError:
            return False
        finally:
            # Also in vain: ZeroMQ has looked then at what came in, and the descriptor tells only once.
            self._loop.used(self._socket)
        return True

    def close(self) -> None:
        """Close the connection; ``lost`` is not called for it."""
        if not self.is_closed:
            self.is_closed = True
            self._loop.unregister(self._socket)
            if self._link.monitor is not None:
                self._loop.unregister(self._link.monitor)
            self._link.close()

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
        if self.is_closed or not self._link.observe():
            return False
        if not self._link.is_lost:
            return True
        while self._receive_one():
            pass
        if not self.is_closed:
            self.close()
            self._lost()
        return False
