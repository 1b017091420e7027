"""A road between two workers on which large messages are changed, a byte in each, as often as told."""

from __future__ import annotations

import contextlib
import threading
from typing import Self

import zmq

from stretto.errors import PeerError
from stretto.wire import catchup
from stretto.wire import messages as wire


class Spoiler:
    """Passes messages between ZeroMQ sockets: what connects here is connected to ``target``, one for one."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self._front.linger = 0
        self.address = f"127.0.0.1:{self._front.bind_to_random_port('tcp://127.0.0.1')}"
        self._backs: dict[bytes, zmq.Socket[bytes]] = {}
        self._left = 0
        self.spoilt = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._context.destroy(0)

    def spoil(self, times: int) -> None:
        self._left = times

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        while not self._stopping.is_set():
            for ready, _ in poller.poll(50):
                if ready is self._front:
                    self._forward(poller)
                else:
                    who = next(key for key, back in self._backs.items() if back is ready)
                    with contextlib.suppress(zmq.ZMQError):
                        self._front.send_multipart([who, *ready.recv_multipart()])

    def _forward(self, poller: zmq.Poller) -> None:
        who, *parts = self._front.recv_multipart()
        back = self._backs.get(who)
        if back is None:
            back = self._backs[who] = self._context.socket(zmq.DEALER)
            back.linger = 0
            back.connect(f"tcp://{self._target}")
            poller.register(back, zmq.POLLIN)
        if self._left and len(parts) > 1 and _has_blocks(parts[0]):
            self._left -= 1
            self.spoilt += 1
            parts[1] = parts[1][:-1] + bytes([parts[1][-1] ^ 1])
        back.send_multipart(parts)


def _has_blocks(header: bytes) -> bool:
    try:
        message = wire.decode_to_worker(header)
    except PeerError:
        return False
    return isinstance(message, wire.Catchup) and isinstance(message.message, catchup.Blocks)
