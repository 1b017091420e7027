"""Machines that wait for the end of the turn, and for their time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stretto.network.loop import Loop
from stretto.network.stepping import Stepping


@dataclass
class Machine:
    deadline: int | None = None
    timer: int | None = None
    is_over: bool = False


class Desk:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.stepped: list[str] = []
        self.then: dict[str, str] = {}
        self.put = Stepping[Machine, str](loop, self._step, "tick").put

    def _step(self, machine: Machine, event: str) -> int | None:
        self.stepped.append(event)
        if event in self.then:
            self.put(machine, self.then[event])
            self.stepped.append(f"end of {event}")
        if event == "tick":
            self.loop.stop()
        return machine.deadline if event != "tick" else None


@pytest.fixture
def desk() -> Desk:
    return Desk(Loop())


def run(desk: Desk) -> None:
    desk.loop.call_after(5_000, desk.loop.stop)
    desk.loop.run()


def test_what_happens_to_a_machine_while_it_is_stepped_comes_after(desk: Desk) -> None:
    desk.then = {"one": "two"}
    desk.loop.call_soon(desk.put, Machine(), "one")
    desk.loop.call_after(10, desk.loop.stop)
    run(desk)
    assert desk.stepped == ["one", "end of one", "two"]


def test_a_deadline_is_told_once_however_often_it_was_seen(desk: Desk) -> None:
    machine = Machine(deadline=desk.loop.now + 20)
    for event in ("one", "two"):
        desk.loop.call_soon(desk.put, machine, event)
    run(desk)
    assert desk.stepped == ["one", "two", "tick"]
    assert machine.timer is None


def test_a_machine_that_is_over_is_stepped_no_more(desk: Desk) -> None:
    machine = Machine(deadline=desk.loop.now + 5)
    desk.loop.call_soon(desk.put, machine, "one")
    desk.loop.call_soon(setattr, machine, "is_over", True)
    desk.loop.call_after(20, desk.loop.stop)
    run(desk)
    assert desk.stepped == []
