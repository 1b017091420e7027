"""Which point reads a leader's loop answers itself, when, and which it leaves to others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from stretto.errors import UsageError
from stretto.replog.core import effects
from stretto.replog.core.effects import Refusal
from stretto.state.environment import WouldWait
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId
from stretto.wire import messages as wire
from stretto.worker.reads.page_residency import ENOUGH_KEYS
from stretto.worker.reads.point_reads import LOOP_KEYS_MAX, Asked, PointReads

KEY = GroupKey("counts", 1, 0)
SERVED = effects.ReadServed(epoch=Epoch(3))


class State:
    """Each key's value is the key, reversed."""

    applied = Offset(7)

    def __init__(self) -> None:
        self.would_wait = False

    def look_up(
        self, task: TaskId, _: str, keys: tuple[bytes, ...], **__: object
    ) -> tuple[list[bytes], Offset]:
        if self.would_wait:
            raise WouldWait
        if task != 0:
            raise UsageError(f"task {task} is not in this group")
        return [key[::-1] for key in keys], Offset(7)


class Subject:
    def __init__(self) -> None:
        self.replies: list[tuple[bytes, wire.ToClient]] = []
        self.left: list[list[Asked]] = []
        self.steps = 0
        self.result: effects.Result = SERVED
        self.state = State()
        self.group = SimpleNamespace(
            state=self.state, answers_at_once=True, answer_sampled=self._answer_sampled
        )
        self._turn_end: list[Callable[[], None]] = []
        self.loop = SimpleNamespace(turns=1, at_turn_end=self._turn_end.append, look_at_clock=lambda: None)
        worker = SimpleNamespace(
            loop=self.loop,
            groups={KEY: self.group},
            transport=SimpleNamespace(reply=lambda *reply: self.replies.append(reply)),
        )
        self.points = PointReads(cast(Any, worker), lambda: 1, lambda _, asked: self.left.append(asked))
        self.points.residence.looked_up(ENOUGH_KEYS, waits=0)

    def _answer_sampled(self, _: int) -> effects.Result:
        self.steps += 1
        return self.result

    def read(self, request: int, *keys: bytes, task: int = 0, stale: wire.Stale | None = None) -> None:
        keys = keys or (b"ab",)
        message = wire.ReadRows(request, KEY, "counts", (TaskId(task),) * len(keys), keys, stale)
        self.points.received(b"client", message)

    def end_turn(self) -> None:
        functions, self._turn_end[:] = list(self._turn_end), []
        for function in functions:
            function()
        self.loop.turns += 1

    @property
    def answered(self) -> list[int]:
        return [cast(Any, reply).request for _, reply in self.replies]


@pytest.fixture
def subject() -> Subject:
    return Subject()


def test_the_first_of_a_turn_is_answered_at_once_and_the_others_together(subject: Subject) -> None:
    for request in (1, 2, 3):
        subject.read(request)
    assert subject.answered == [1]
    subject.end_turn()
    assert subject.answered == [1, 2, 3]
    assert subject.steps == 2
    subject.read(4)
    assert subject.answered == [1, 2, 3, 4]
    assert subject.replies[0] == (b"client", wire.RowValues(1, (b"ba",), Epoch(3), Offset(7)))


def test_what_the_core_refuses_is_refused(subject: Subject) -> None:
    subject.result = effects.Refused(reason=Refusal.NO_LEASE, leader=None, epoch=Epoch(3))
    subject.read(1)
    assert subject.replies == [(b"client", wire.Refused(1, Refusal.NO_LEASE, None, Epoch(3)))]


def test_one_that_can_never_be_answered_fails_alone(subject: Subject) -> None:
    subject.read(1)
    subject.read(2, task=9)
    subject.read(3)
    subject.end_turn()
    assert [type(reply) for _, reply in subject.replies] == [wire.RowValues, wire.Failed, wire.RowValues]


def test_what_might_have_to_wait_goes_the_way_of_any_read(subject: Subject) -> None:
    subject.state.would_wait = True
    subject.read(1)
    subject.end_turn()
    subject.state.would_wait = False
    subject.group.answers_at_once = False
    subject.read(2)
    subject.end_turn()
    subject.group.answers_at_once = True
    subject.points.residence.looked_up(1, waits=1)
    subject.read(3)
    subject.end_turn()
    assert subject.replies == []
    assert [[message.request for _, message in asked] for asked in subject.left] == [[1], [2], [3]]


def test_old_answers_and_many_keys_are_others_work(subject: Subject) -> None:
    subject.read(1, stale=wire.Stale(100))
    subject.read(2, *[b"%d" % number for number in range(LOOP_KEYS_MAX + 1)])
    subject.read(3, stale=wire.Stale(200))
    subject.end_turn()
    assert subject.replies == []
    assert sorted(message.request for asked in subject.left for _, message in asked) == [1, 2, 3]
    assert len(subject.left) == 3, "those of one age together"


def test_as_many_keys_as_the_loop_takes_are_its_own_work(subject: Subject) -> None:
    subject.read(1, *[b"%d" % number for number in range(LOOP_KEYS_MAX)])
    subject.end_turn()
    assert (subject.answered, subject.left) == ([1], [])


def test_how_long_a_look_on_the_loop_took_is_remembered(subject: Subject) -> None:
    """By that it is known whether the next would wait for the disk."""
    residence = subject.points.residence = MagicMock(is_likely=True)
    subject.read(1, b"ab", b"cd")
    [told] = residence.glanced.call_args_list
    assert told.args[0] == 2
    assert told.args[1] >= 0
    subject.state.would_wait = True
    subject.read(2)
    subject.end_turn()
    assert residence.glanced.call_count == 1
