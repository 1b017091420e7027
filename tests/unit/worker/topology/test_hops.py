"""Steps for other tasks: sent in order, again if need be, and refused when they cannot be taken."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from stretto.errors import PeerError
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire
from stretto.worker.topology.hops import Asked, Called, Failures, Hops, Told
from stretto.worker.topology.machine import effects
from stretto.worker.topology.machine.inbox import ASKED_MAX

GROUP = GroupKey("m", 1, 0)
CODE = "1f"
CALLS = memoryview(msgspec.msgpack.encode([]))


class Here:
    """A worker that leads task 0 itself, or does not."""

    def __init__(self) -> None:
        self.leads = True
        self.taken: list[tuple[Called, Told]] = []
        self.later: list[Callable[[], None]] = []
        self.replies: list[wire.ToClient] = []
        self.of_task: dict[tuple[str, TaskId], GroupKey] = {("m", TaskId(0)): GROUP}
        self.worker = SimpleNamespace(
            config=SimpleNamespace(module="m"),
            worker=WorkerId("w0"),
            artifact=CODE,
            loop=SimpleNamespace(
                call_after=lambda _ms, refresh, then: self.later.append(lambda: refresh(then))
            ),
            transport=SimpleNamespace(reply=lambda _sender, reply: self.replies.append(reply)),
        )
        self.hops = Hops(cast(Any, self.worker), self._take)
        self.hops._network = cast(
            Any,
            SimpleNamespace(
                view=SimpleNamespace(of_task=self.of_task, epoch=lambda _: Epoch(1)),
                refresh=lambda then: then(),
                next_request=lambda: 1,
                to_leader=lambda *_, **__: False,
                when_led_anew=lambda _group, then, **_: self.later.append(then),
            ),
        )

    def _take(self, _group: GroupKey, _task: TaskId, _topology: str, called: Called, told: Told) -> bool:
        if self.leads:
            self.taken.append((called, told))
        return self.leads

    @property
    def numbers(self) -> list[int]:
        return [called.key[1] for called, _ in self.taken]

    def receive(self, number: int, *, code: str = CODE, calls: memoryview = CALLS, source: int = 4) -> None:
        message = wire.RunSteps(number, GROUP, TaskId(0), "t", TaskId(source), Epoch(2), number, 0, 0, code)
        self.hops.received(cast(Any, "sender"), message, [calls])


def hop(number: int) -> effects.Hop:
    return effects.Hop(number, TaskId(0), 1, b"")


def test_what_comes_is_answered_with_what_became_of_it_or_refused() -> None:
    here = Here()
    here.receive(7)
    here.receive(8)
    failures: Failures = (wire.StepFailure(0, "no", ""),)
    here.taken[0][1](failures)
    here.taken[1][1](Refusal.NOT_READY)
    here.leads = False
    here.receive(9)
    assert here.replies == [
        wire.StepsRun(7, failures),
        wire.Refused(8, Refusal.NOT_READY, None, Epoch(0)),
        wire.Refused(9, Refusal.NOT_LEADER, None, Epoch(0)),
    ]


def test_calls_of_other_code_are_refused_until_both_go_by_the_same() -> None:
    here = Here()
    here.receive(7, code="of an update")
    assert here.taken == []
    (refused,) = here.replies
    assert isinstance(refused, wire.Refused)
    here.worker.artifact = "of an update"
    here.receive(7, code="of an update")
    assert here.numbers == [7]


@pytest.mark.parametrize(
    ("number", "source", "calls"),
    [(0, 4, CALLS), (1 << 63, 4, CALLS), (1, -1, CALLS), (1, 1 << 40, CALLS), (1, 4, memoryview(b"\xc1"))],
)
def test_what_no_worker_sends_is_refused_before_it_gets_to_a_stream(
    number: int, source: int, calls: memoryview
) -> None:
    here = Here()
    with pytest.raises(PeerError, match="malformed"):
        here.receive(number, source=source, calls=calls)
    assert here.taken == []


def test_hops_go_out_in_the_order_of_sending_also_while_nobody_knows_where_to() -> None:
    here = Here()
    here.of_task.clear()
    route = here.hops.route("t", TaskId(4), Epoch(2), TaskId(0))
    route.send(hop(1), lambda _: None)
    route.send(hop(2), lambda _: None)
    here.later.pop()()
    assert (here.numbers, len(here.later)) == ([], 1)
    here.of_task["m", TaskId(0)] = GROUP
    route.send(hop(3), lambda _: None)
    assert here.numbers == []
    here.later.pop()()
    assert here.numbers == [1, 2, 3]


def test_if_one_is_refused_all_behind_it_are_sent_again_behind_it() -> None:
    here = Here()
    answers: list[int] = []
    route = here.hops.route("t", TaskId(4), Epoch(2), TaskId(0))
    for number in (1, 2, 3):
        route.send(hop(number), lambda _, number=number: answers.append(number))  # type: ignore[misc]
    told = {called.key[1]: tell for called, tell in here.taken}
    told[2](Refusal.NOT_LEADER)
    told[3](Refusal.NOT_LEADER)
    route.send(hop(4), lambda _: answers.append(4))
    told[1](())
    assert (answers, len(here.later)) == ([1], 1), "what is sent again is, once"
    here.later.pop()()
    assert here.numbers == [1, 2, 3, 2, 3, 4]
    assert [called.after for called, _ in here.taken] == [0, 1, 2, 0, 2, 3], "1 is answered, so it has run"
    told[3](Refusal.NOT_LEADER)
    assert here.later == [], "what is heard of an earlier time says nothing"
    for called, tell in here.taken[3:]:
        tell(())
        tell(())
        assert answers[-1] == called.key[1]
    assert answers == [1, 2, 3, 4]


def test_nobody_hears_of_a_route_that_is_closed() -> None:
    here = Here()
    route = here.hops.route("t", TaskId(4), Epoch(2), TaskId(0))
    route.send(hop(1), lambda _: pytest.fail("nobody waits for it"))
    route.close()
    ((_, tell),) = here.taken
    tell(())
    tell(Refusal.NOT_LEADER)
    assert here.later == []


def test_a_hop_that_is_asked_for_again_and_again_keeps_its_calls_once_and_the_latest_askers() -> None:
    asked = Asked()
    told: list[tuple[int, object]] = []
    for ticket in range(ASKED_MAX + 3):
        called = Called((TaskId(4), 7), Epoch(2), 0, 7, b"\x90")
        asked.add(ticket, called, lambda what, ticket=ticket: told.append((ticket, what)))  # type: ignore[misc]
    assert len(asked._calls) == 1
    for ticket in range(ASKED_MAX + 3):
        asked.answer(ticket, ())
    assert told == [(ticket, ()) for ticket in range(3, ASKED_MAX + 3)]
    assert (asked._calls, asked._tickets) == ({}, {})
