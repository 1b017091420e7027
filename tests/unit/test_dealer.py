"""A connection to somebody's endpoint, over a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from stretto import dealer, wire
from stretto.dealer import Dealer
from stretto.loop import Loop
from stretto.types import Incarnation, WorkerId

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
