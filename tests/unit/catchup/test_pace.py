"""When a question counts as lost."""

from __future__ import annotations

from stretto.catchup.machines.fetch.pace import Pace
from stretto.vocabulary.types import Millis


def pace() -> Pace:
    return Pace(Millis(100), Millis(4_000), window_max=6)


def answer(of: Pace, *, asked_at: int, now: int) -> None:
    of.heard(Millis(now))
    of.answered(Millis(asked_at), Millis(now))


def test_a_question_is_not_lost_while_others_are_answered() -> None:
    link = pace()
    for now in range(50, 3_000, 50):
        answer(link, asked_at=now - 50, now=now)
        assert link.lost_at(Millis(0)) > now


def test_a_question_is_lost_when_one_that_was_asked_much_later_is_answered() -> None:
    link = pace()
    answer(link, asked_at=150, now=200)
    assert not link.is_overtaken(Millis(100))
    assert link.is_overtaken(Millis(50))


def test_a_slow_answer_makes_silences_longer_and_a_quick_one_shorter() -> None:
    link = pace()
    answer(link, asked_at=0, now=1_000)
    assert link.lost_at(Millis(1_000)) == 3_000
    answer(link, asked_at=1_990, now=2_000)
    assert link.lost_at(Millis(2_000)) == 2_100


def test_each_silence_is_twice_as_long_up_to_a_bound() -> None:
    link = pace()
    silences = []
    for _ in range(8):
        silences.append(link.lost_at(Millis(0)))
        link.was_silent()
    assert silences == [100, 200, 400, 800, 1_600, 3_200, 4_000, 4_000]


def test_one_question_is_under_way_after_a_silence_and_one_more_with_each_answer() -> None:
    link = pace()
    assert link.window == 6
    link.was_silent()
    windows = []
    for now in range(8):
        windows.append(link.window)
        answer(link, asked_at=0, now=now)
    assert windows == [1, 2, 3, 4, 5, 6, 6, 6]
