"""A client that says exactly what a test wants said, well-formed or not."""

from __future__ import annotations

import itertools
from typing import Self

import msgspec
import zmq

from stretto import control
from stretto.network.keys import ClusterKey
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.wire import messages as wire

ANSWER_SECONDS = 20.0
NO_TEXT = msgspec.Raw(bytes(control.encode(control.Destroy(module="XX"))).replace(b"XX", b"\xff\xfe"))
"""A call with a name that is no UTF-8."""


class Wire:
    """One connection to one worker; without ``hello`` it sends nothing by itself."""

    def __init__(self, address: str, *, hello: bool = True, worker: str = "", key: ClusterKey | None = None):
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        if key is not None:
            key.connect_with(self._socket)
        self._socket.connect(f"tcp://{address}")
        self._numbers = itertools.count(1)
        if hello:
            try:
                self.send(wire.Hello(wire.PROTOCOL_VERSION, "", WorkerId(worker), Incarnation("")))
                assert isinstance(self.receive(), wire.Welcome)
            except BaseException:
                # Nobody else would, and a context that is collected with its socket waits for that for ever.
                self._context.destroy(0)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(0)

    def number(self) -> int:
        return next(self._numbers)

    def send(self, message: wire.Any, *bodies: bytes) -> None:
        self.send_raw(wire.encode(message), *bodies)

    def send_raw(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def receive(self, timeout_seconds: float = ANSWER_SECONDS) -> wire.ToClient:
        answer = self.receive_if_any(timeout_seconds)
        assert answer is not None, f"no answer within {timeout_seconds} s"
        return answer

    def receive_if_any(self, timeout_seconds: float) -> wire.ToClient | None:
        if not self._socket.poll(int(timeout_seconds * 1000)):
            return None
        return wire.decode_to_client(self._socket.recv_multipart()[0])

    def ask(self, message: wire.Any, *bodies: bytes) -> wire.ToClient:
        self.send(message, *bodies)
        return self.receive()
