from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from stretto.network.loop import Loop
from stretto.network.repeating import Repeating


class Clock:
    def __init__(self) -> None:
        self.now = 0
        self.timers: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []

    def call_after(self, delay_ms: int, function: Callable[..., None], *args: Any) -> None:
        self.timers.append((self.now + delay_ms, function, args))

    def run_until(self, end: int) -> None:
        while due := [timer for timer in self.timers if timer[0] <= end]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now, function, args = first
            function(*args)
        self.now = end


def test_a_new_interval_counts_at_once_and_replaces_the_old_one() -> None:
    clock, done = Clock(), []
    interval_ms = 1_000
    repeating = Repeating(cast(Loop, clock), lambda: interval_ms, lambda: done.append(clock.now))
    repeating.retime()
    clock.run_until(2_500)
    assert done == [1_000, 2_000]
    interval_ms = 100
    repeating.retime()
    clock.run_until(2_800)
    assert done == [1_000, 2_000, 2_600, 2_700, 2_800]
    interval_ms = 1_000
    repeating.retime()
    clock.run_until(4_000)
    assert done[5:] == [3_800]


def test_the_same_interval_again_changes_nothing() -> None:
    clock, done = Clock(), []
    repeating = Repeating(cast(Loop, clock), lambda: 1_000, lambda: done.append(clock.now))
    for at in range(100, 3_000, 100):
        repeating.retime()
        clock.run_until(at)
    assert done == [1_000, 2_000]
