from __future__ import annotations

import pytest

from stretto.sim.replication.network import Network, Weather
from stretto.sim.virtual.world import World
from tests.support.core_group import W0, W1, W2


class Wire:
    """A network, and what arrived over it with its time."""

    def __init__(self, seed: int = 0, **weather: float) -> None:
        self.world = World(seed)
        self.network = Network(self.world, Weather(**weather))  # type: ignore[arg-type]
        self.arrived: list[tuple[int, str]] = []

    def send(
        self, text: str, sender: str = W0, receiver: str = W1, *, bulk: bool = False, size_bytes: int = 0
    ) -> None:
        self.network.send(sender, receiver, self._arrive, text, bulk=bulk, size_bytes=size_bytes)  # type: ignore[arg-type]

    def _arrive(self, text: str) -> None:
        self.arrived.append((self.world.now, text))

    def run(self) -> list[str]:
        while self.world.advance():
            pass
        return [text for _, text in self.arrived]


def test_in_fine_weather_every_message_arrives_once_and_soon() -> None:
    for seed in range(50):
        wire = Wire(seed)
        wire.send("a")
        assert wire.run() == ["a"]
        assert 1 <= wire.arrived[0][0] <= 6


def test_messages_overtake_each_other() -> None:
    orders = set()
    for seed in range(50):
        wire = Wire(seed)
        wire.send("a")
        wire.send("b")
        orders.add(tuple(wire.run()))
    assert orders == {("a", "b"), ("b", "a")}


def test_weather_loses_and_doubles() -> None:
    lossy = Wire(loss=1.0)
    lossy.send("a")
    assert lossy.run() == []
    doubling = Wire(doubling=1.0)
    doubling.send("a")
    assert doubling.run() == ["a", "a"]


def test_what_is_held_is_delivered_on_release_in_order() -> None:
    wire = Wire()
    wire.network.hold(W0, W1)
    for text in "abc":
        wire.send(text)
    wire.send("other way", W1, W0)
    assert wire.run() == ["other way"]
    wire.network.release(W0, W1)
    assert wire.run() == ["other way", "a", "b", "c"]
    wire.send("d")
    assert wire.run()[-1] == "d"


def test_what_is_held_can_be_released_newest_first() -> None:
    wire = Wire()
    wire.network.hold(W0, W1)
    for text in "abc":
        wire.send(text)
    wire.network.release(W0, W1, newest_first=True)
    assert wire.run() == ["c", "b", "a"]


def test_a_block_is_one_way_and_loses_also_what_is_under_way() -> None:
    wire = Wire()
    wire.send("under way")
    wire.network.block(W0, W1)
    wire.send("blocked")
    wire.send("other way", W1, W0)
    wire.send("other link", W0, W2)
    assert sorted(wire.run()) == ["other link", "other way"]


def test_a_link_blocked_twice_needs_two_unblocks() -> None:
    wire = Wire()
    wire.network.block(W0, W1)
    wire.network.block(W0, W1)
    wire.network.unblock(W0, W1)
    assert wire.network.is_blocked(W0, W1)
    wire.network.unblock(W0, W1)
    assert not wire.network.is_blocked(W0, W1)
    wire.network.unblock(W0, W1)
    wire.network.block(W0, W1)
    assert wire.network.is_blocked(W0, W1)


def test_a_reset_loses_what_is_under_way_both_ways_and_nothing_later() -> None:
    wire = Wire()
    wire.send("lost")
    wire.send("lost too", W1, W0)
    wire.send("other link", W0, W2)
    wire.network.reset(W0, W1)
    wire.send("later")
    assert sorted(wire.run()) == ["later", "other link"]


@pytest.mark.parametrize("bulk", [True, False])
def test_a_lagging_link_and_bulk_take_as_long_as_slow_messages(bulk: bool) -> None:
    times = []
    for seed in range(50):
        wire = Wire(seed, slow_ms=1_000)
        if not bulk:
            wire.network.lag(W0, W1, until=100)
        wire.send("a", bulk=bulk)
        wire.run()
        times.append(wire.arrived[0][0])
    assert max(times) > 500


def test_healing_unblocks_releases_and_ends_bad_weather() -> None:
    wire = Wire(loss=1.0)
    wire.network.block(W0, W1)
    wire.network.hold(W1, W0)
    wire.send("held", W1, W0)
    wire.network.heal()
    wire.send("after")
    assert sorted(wire.run()) == ["after", "held"]


def test_a_link_with_a_speed_carries_one_after_the_other() -> None:
    wire = Wire(quick_ms=1)
    wire.network.bytes_per_second = 1_000
    for text in "abc":
        wire.send(text, size_bytes=200)
    wire.send("small")
    wire.send("other link", W0, W2, size_bytes=200)
    wire.run()
    assert wire.arrived == [
        (1, "small"),
        (201, "a"),
        (201, "other link"),
        (401, "b"),
        (601, "c"),
    ]


def test_a_reset_empties_a_slow_link() -> None:
    wire = Wire(quick_ms=1)
    wire.network.bytes_per_second = 1_000
    wire.send("lost", size_bytes=5_000)
    wire.network.reset(W0, W1)
    wire.send("later", size_bytes=100)
    wire.run()
    assert wire.arrived == [(101, "later")]
