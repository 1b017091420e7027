"""Links between workers: they delay, lose, double and reorder messages, part one or both ways, and reset.

What has a size takes its turn on a link that has a speed. A slow link is no fault: healing does not mend it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stretto.sim.virtual.world import World
from stretto.vocabulary.types import WorkerId


@dataclass
class Weather:
    """How badly the network behaves: probabilities per message, and delays in milliseconds."""

    loss: float = 0.0
    doubling: float = 0.0
    slow: float = 0.0
    """How often a message takes up to ``slow_ms`` instead of up to ``quick_ms``."""
    quick_ms: int = 6
    slow_ms: int = 400


class Network:
    """The links between workers, each way by itself."""

    def __init__(self, world: World, weather: Weather, bytes_per_second: int = 0) -> None:
        self.world = world
        self.weather = weather
        #: Bytes that each link carries in a second; 0 if there is no limit.
        self.bytes_per_second = bytes_per_second
        #: When a link will have carried all that was sent.
        self._free_at: dict[tuple[WorkerId, WorkerId], int] = {}
        self._blocked: dict[tuple[WorkerId, WorkerId], int] = {}
        self._resets: dict[tuple[WorkerId, WorkerId], int] = {}
        self._lagging: dict[tuple[WorkerId, WorkerId], int] = {}
        self._held: dict[tuple[WorkerId, WorkerId], list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}

    def lag(self, sender: WorkerId, receiver: WorkerId, until: int) -> None:
        """Slow a link down: until then its messages take as long as the weather's slowest ones."""
        self._lagging[(sender, receiver)] = until

    def hold(self, sender: WorkerId, receiver: WorkerId) -> None:
        """Keep what is sent over a link until it is released."""
        self._held.setdefault((sender, receiver), [])

    def release(self, sender: WorkerId, receiver: WorkerId, *, newest_first: bool = False) -> None:
        """Deliver what was kept on a link."""
        held = self._held.pop((sender, receiver), [])
        for deliver, args in reversed(held) if newest_first else held:
            self.world.after(1, deliver, *args)

    def block(self, sender: WorkerId, receiver: WorkerId) -> None:
        link = (sender, receiver)
        self._blocked[link] = self._blocked.get(link, 0) + 1

    def unblock(self, sender: WorkerId, receiver: WorkerId) -> None:
        link = (sender, receiver)
        self._blocked[link] = max(0, self._blocked.get(link, 0) - 1)

    def is_blocked(self, sender: WorkerId, receiver: WorkerId) -> bool:
        return self._blocked.get((sender, receiver), 0) > 0

    def reset(self, one: WorkerId, other: WorkerId) -> None:
        """Lose the messages that are under way between two workers."""
        for link in ((one, other), (other, one)):
            self._resets[link] = self._resets.get(link, 0) + 1
            self._free_at.pop(link, None)

    def heal(self) -> None:
        self._blocked.clear()
        self._lagging.clear()
        for link in list(self._held):
            self.release(*link)
        self.weather = Weather()

    def send(
        self,
        sender: WorkerId,
        receiver: WorkerId,
        deliver: Callable[..., None],
        *args: Any,
        bulk: bool = False,
        size_bytes: int = 0,
    ) -> None:
        """Deliver a message after a while, perhaps twice, perhaps never."""
        weather, random = self.weather, self.world.random
        held = self._held.get((sender, receiver))
        if held is not None:
            held.append((deliver, args))
            return
        if self.world.chance(weather.loss):
            return
        copies = 2 if self.world.chance(weather.doubling) else 1
        for _ in range(copies):
            lags = self._lagging.get((sender, receiver), 0) > self.world.now
            slow = bulk or lags or self.world.chance(weather.slow)
            delay = 1 + random.randrange(weather.slow_ms if slow else weather.quick_ms)
            delay += self._carry_ms((sender, receiver), size_bytes)
            reset = self._resets.get((sender, receiver), 0)
            self.world.after(delay, self._arrive, sender, receiver, reset, deliver, args)

    def _carry_ms(self, link: tuple[WorkerId, WorkerId], size_bytes: int) -> int:
        """Return how long a link takes until it has carried a message, behind those that were sent before."""
        if not self.bytes_per_second or not size_bytes:
            return 0
        begins = max(self._free_at.get(link, 0), self.world.now)
        self._free_at[link] = begins + size_bytes * 1_000 // self.bytes_per_second
        return self._free_at[link] - self.world.now

    def _arrive(
        self,
        sender: WorkerId,
        receiver: WorkerId,
        reset: int,
        deliver: Callable[..., None],
        args: tuple[Any, ...],
    ) -> None:
        link = (sender, receiver)
        if not self.is_blocked(sender, receiver) and self._resets.get(link, 0) == reset:
            deliver(*args)
