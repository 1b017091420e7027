"""Holds: what a worker tells of itself while it is held, until when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from stretto import control
from stretto.worker.topology.hold import Holding


class Topologies:
    under_way = ""

    def __init__(self) -> None:
        self.changes = 0

    def settings_changed(self) -> None:
        self.changes += 1


class Loop:
    now = 0

    def __init__(self) -> None:
        self.timers: list[tuple[int, Any, tuple[Any, ...]]] = []

    def call_at(self, at: int, function: Any, *args: Any) -> None:
        self.timers.append((at, function, args))

    def go_to(self, now: int) -> None:
        self.now = now
        due, self.timers = (
            [timer for timer in self.timers if timer[0] <= now],
            [timer for timer in self.timers if timer[0] > now],
        )
        for _, function, args in due:
            function(*args)


def test_a_worker_says_whether_its_hold_was_in_force_when_it_was_asked() -> None:
    loop, streams = Loop(), Topologies()
    worker = SimpleNamespace(loop=loop, streams=streams, microbatches=Topologies(), groups={}, worker="w0")
    holding = Holding(cast(Any, worker))

    def ask(token: str = "ours", hold_ms: int = 1_000) -> bool:
        return holding.asked(control.HoldTopologies(token=token, hold_ms=hold_ms)).was_held

    assert not ask("theirs", 5_000)
    assert not ask(), "the hold of somebody else may end before ours begins"
    assert ask()
    loop.go_to(999)
    assert ask()
    loop.go_to(1_998)
    assert ask()
    loop.go_to(2_998)
    assert not ask(), "it had ended meanwhile"
    assert ask(hold_ms=0)
    assert not ask()
    loop.go_to(10_000)
    assert not holding.is_held
    assert streams.changes == 2
