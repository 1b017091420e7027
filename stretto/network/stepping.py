"""Steps pure state machines on a loop: events wait for the end of the loop's turn, deadlines for their time.

What happens to a machine while another is stepped joins the same inbox, so that no machine is ever entered
twice. Each has one timer at most, for the earliest deadline that it was seen to have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from stretto.network.loop import Loop


class Stepped(Protocol):
    """What surrounds a machine that is stepped: its timer, and whether it is over."""

    timer: int | None
    is_over: bool


Led = TypeVar("Led", bound=Stepped)
Event = TypeVar("Event")


class Stepping(Generic[Led, Event]):
    """Steps machines at the end of each turn; only the loop's thread calls it."""

    def __init__(self, loop: Loop, step: Callable[[Led, Event], int | None], tick: Event) -> None:
        """``step`` steps a machine by an event, carries out the effects, and returns its next deadline.

        ``tick`` is the event of a deadline that has passed.
        """
        self._loop = loop
        self._step_one = step
        self._tick_event = tick
        self._inbox: deque[tuple[Led, Event]] = deque()
        self._is_awaited = False

    def put(self, led: Led, event: Event) -> None:
        """Step a machine by an event at the end of this turn."""
        self._inbox.append((led, event))
        if not self._is_awaited:
            self._is_awaited = True
            self._loop.at_turn_end(self._step_all)

    def _step_all(self) -> None:
        self._is_awaited = False
        while self._inbox:
            led, event = self._inbox.popleft()
            if led.is_over:
                continue
            deadline = self._step_one(led, event)
            if deadline is not None and (led.timer is None or deadline < led.timer):
                led.timer = deadline
                self._loop.call_at(deadline, self._tick, led, deadline)

    def _tick(self, led: Led, deadline: int) -> None:
        if led.timer == deadline:
            led.timer = None
            self.put(led, self._tick_event)
