"""Connections to peers: made, made anew with another incarnation, kept while they stand, and given up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto.errors import StrettoError
from stretto.network import transport as transport_module
from stretto.network.transport import RECONNECT, Transport
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.wire import messages as wire
from tests.support.turns import StillLoop

ME, PEER = WorkerId("a"), WorkerId("b")
ONE, TWO = Incarnation("one"), Incarnation("two")
MESSAGE = cast(Any, wire.GetMetadata(1))


class FakeDealer:
    """A connection that the test lets fail."""

    def __init__(
        self,
        _loop: object,
        _context: object,
        address: str,
        key: object,
        hello: wire.Hello,
        *,
        receive: Callable[[list[bytes]], None],
        lost: Callable[[], None],
    ) -> None:
        if address == "nowhere":
            raise StrettoError("no such address")
        self.address = address
        self.hello = hello
        self.receive = receive
        self.lost = lost
        self.was_up = False
        self.is_closed = False
        self.sent: list[tuple[Any, Any]] = []
        self.has_room = True

    def close(self) -> None:
        self.is_closed = True

    def send(self, message: Any, bodies: Any) -> bool:
        self.sent.append((message, bodies))
        return self.has_room


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dealers: list[FakeDealer] = []

        def dealer(*args: Any, **more: Any) -> FakeDealer:
            self.dealers.append(made := FakeDealer(*args, **more))
            return made

        endpoint = SimpleNamespace(reply=None, address="here:1", context=None, close=lambda: None)
        monkeypatch.setattr(transport_module, "Dealer", dealer)
        monkeypatch.setattr(transport_module, "Endpoint", lambda *_, **__: endpoint)
        self.loop = StillLoop()
        self.transport = Transport(
            cast(Any, self.loop),
            worker=ME,
            address="here:1",
            cluster="c",
            key=None,
            on_message=cast(Any, None),
        )
        self.transport.incarnation = Incarnation("mine")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_peer_is_connected_once_and_anew_when_it_is_another_process(world: World) -> None:
    transport = world.transport
    transport.know(PEER, "there:1", ONE)
    transport.know(PEER, "there:1", ONE)
    [first] = world.dealers
    assert first.address == transport.address_of(PEER) == "there:1"
    assert first.hello == wire.Hello(wire.PROTOCOL_VERSION, "c", ME, Incarnation("mine"))
    transport.know(PEER, "there:1", TWO)
    assert first.is_closed
    assert len(world.dealers) == 2
    transport.know(PEER, "there:2", TWO)
    assert world.dealers[1].is_closed
    assert world.dealers[2].address == "there:2"
    transport.know(ME, "here:1", Incarnation("mine"))
    assert len(world.dealers) == 3, "nobody connects to itself"


def test_a_lost_connection_is_made_again_with_patience(world: World) -> None:
    world.transport.know(PEER, "there:1", ONE)
    waited = []
    for _ in range(15):
        before = len(world.dealers)
        world.dealers[-1].lost()
        elapsed = 0
        while len(world.dealers) == before:
            world.loop.pass_ms(1)
            elapsed += 1
            assert elapsed <= RECONNECT.most_ms
        waited.append(elapsed)
    assert waited[:3] == [RECONNECT.first_ms, 2 * RECONNECT.first_ms, 4 * RECONNECT.first_ms]
    assert waited[-1] == RECONNECT.most_ms
    assert waited == sorted(waited)
    world.dealers[-1].was_up = True
    before = len(world.dealers)
    world.dealers[-1].lost()
    world.loop.pass_ms(RECONNECT.first_ms)
    assert len(world.dealers) == before + 1, "one that was up begins anew"


def test_a_connection_of_an_earlier_process_is_not_made_again(world: World) -> None:
    world.transport.know(PEER, "there:1", ONE)
    old = world.dealers[0]
    old.lost()
    world.transport.know(PEER, "there:1", TWO)
    world.loop.pass_ms(RECONNECT.most_ms)
    assert [each.address for each in world.dealers] == ["there:1", "there:1"]


def test_a_peer_without_a_registration_is_kept_while_its_connection_stands(world: World) -> None:
    transport = world.transport
    transport.know(PEER, "there:1", ONE)
    transport.forget(PEER)
    assert transport.address_of(PEER) == "there:1"
    world.dealers[0].lost()
    assert transport.address_of(PEER) is None
    world.loop.pass_ms(RECONNECT.most_ms)
    assert len(world.dealers) == 1
    transport.forget(PEER)
    transport.know(PEER, "there:1", TWO)
    world.dealers[1].lost()
    transport.forget(PEER)
    assert transport.address_of(PEER) is None, "there is no connection to keep"
    world.loop.pass_ms(RECONNECT.most_ms)
    assert len(world.dealers) == 2


def test_a_peer_that_refuses_us_is_tried_again_later(world: World) -> None:
    world.transport.know(PEER, "there:1", ONE)
    [dealer] = world.dealers
    dealer.receive([b"no message"])
    dealer.receive([wire.encode(wire.Unknown(1))])
    world.loop.pass_ms(RECONNECT.most_ms)
    assert len(world.dealers) == 1
    dealer.receive([wire.encode(wire.HelloRefused("another cluster"))])
    assert dealer.is_closed
    world.loop.pass_ms(RECONNECT.first_ms)
    assert len(world.dealers) == 2


def test_an_address_that_cannot_be_is_no_reason_to_end(world: World) -> None:
    world.transport.know(PEER, "nowhere", ONE)
    world.transport.send(PEER, MESSAGE)
    assert world.dealers == []
    world.transport.know(PEER, "there:1", ONE)
    assert len(world.dealers) == 1


def test_what_is_sent_goes_to_the_peer_or_is_counted_as_dropped(world: World) -> None:
    transport = world.transport
    transport.send(PEER, MESSAGE)
    assert transport.dropped == 1
    transport.know(PEER, "there:1", ONE)
    transport.send(PEER, MESSAGE, (b"body",))
    assert world.dealers[0].sent == [(MESSAGE, (b"body",))]
    assert transport.dropped == 1
    world.dealers[0].has_room = False
    transport.send(PEER, MESSAGE)
    assert transport.dropped == 2
    world.dealers[0].lost()
    transport.send(PEER, MESSAGE)
    assert transport.dropped == 3
    transport.know(WorkerId("c"), "there:3", ONE)
    transport.close()
    assert world.dealers[1].is_closed
