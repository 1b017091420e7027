"""A connection to somebody's endpoint, over a real socket."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from stretto.network import dealer
from stretto.network.dealer import Dealer
from stretto.network.loop import Loop
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.wire import messages as wire

HELLO = wire.Hello(wire.PROTOCOL_VERSION, "", WorkerId(""), Incarnation(""))


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(0)


def test_a_socket_is_looked_at_after_a_message_that_did_not_fit(
    loop: Loop, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ looks at what came in before it refuses to send, and its descriptor tells of that only once."""
    listening = context.socket(zmq.ROUTER)
    port = listening.bind_to_random_port("tcp://127.0.0.1")
    connection = Dealer(
        loop, context, f"127.0.0.1:{port}", None, HELLO, receive=lambda _: None, lost=lambda: None
    )
    loop._used.clear()

    def full(*_: object) -> None:
        raise zmq.Again

    monkeypatch.setattr(dealer, "send", full)
    assert not connection.send(HELLO)
    assert loop._used == {connection._socket}
    connection.close()
    listening.close(0)


def test_one_that_is_interrupted_while_it_connects_keeps_no_other_waiting(
    loop: Loop, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ's one thread would wait for ever to tell a monitor that nobody has any more."""
    listening = context.socket(zmq.ROUTER)
    address = f"127.0.0.1:{listening.bind_to_random_port('tcp://127.0.0.1')}"

    def connect() -> Dealer:
        return Dealer(loop, context, address, None, HELLO, receive=lambda _: None, lost=lambda: None)

    really = zmq.Socket.connect

    def interrupted(socket: zmq.Socket[bytes], to: str) -> Any:
        made = really(socket, to)
        if to.startswith("tcp:"):
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(zmq.Socket, "connect", interrupted)
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            connect()
    monkeypatch.undo()
    gc.collect()
    connection = connect()
    assert listening.poll(10_000), "nothing goes out any more"
    assert wire.decode_to_worker(listening.recv_multipart()[1]) == HELLO
    assert len(loop._sockets) == 2, "those that were interrupted are still registered"
    connection.close()
    listening.close(0)
