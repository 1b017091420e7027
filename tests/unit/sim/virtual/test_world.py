from __future__ import annotations

from stretto.sim.virtual.world import World


def test_things_happen_in_the_order_of_their_time_then_of_their_scheduling() -> None:
    world = World(0)
    seen: list[tuple[int, str]] = []
    for time, name in ((5, "c"), (1, "a"), (5, "d"), (3, "b")):
        world.at(time, lambda name=name: seen.append((world.now, name)))
    while world.advance():
        pass
    assert seen == [(1, "a"), (3, "b"), (5, "c"), (5, "d")]
    assert world.next_time is None


def test_nothing_happens_in_the_past() -> None:
    world = World(0)
    seen: list[int] = []
    world.at(10, lambda: world.at(3, lambda: seen.append(world.now)))
    while world.advance():
        pass
    assert seen == [10]


def test_chance_of_zero_draws_nothing_from_the_seed() -> None:
    world, same = World(7), World(7)
    assert not world.chance(0.0)
    assert world.random.random() == same.random.random()


def test_a_trace_line_tells_when_who_and_what() -> None:
    lines: list[str] = []
    world = World(0, lines.append)
    world.at(12, lambda: world.trace("w0", "crashes", "power", 3))
    world.advance()
    assert [line.split() for line in lines] == [["12", "w0", "crashes", "power", "3"]]
