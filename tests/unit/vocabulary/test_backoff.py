from __future__ import annotations

from stretto.vocabulary.backoff import Backoff


def delays_ms(backoff: Backoff, count: int) -> list[int]:
    found = []
    for _ in range(count):
        found.append(backoff.delay_ms)
        backoff = backoff.next()
    return found


def test_delays_double_up_to_the_most() -> None:
    assert delays_ms(Backoff(first_ms=20, most_ms=100), 5) == [20, 40, 80, 100, 100]


def test_delays_grow_by_the_factor() -> None:
    assert delays_ms(Backoff(first_ms=1, most_ms=50, factor=3), 5) == [1, 3, 9, 27, 50]


def test_no_delay_is_longer_than_the_most() -> None:
    assert delays_ms(Backoff(first_ms=70, most_ms=50), 2) == [50, 50]


def test_the_first_failures_may_be_followed_by_no_delay() -> None:
    assert delays_ms(Backoff(first_ms=500, most_ms=2_000, at_once=2), 5) == [0, 0, 500, 1_000, 2_000]


def test_a_success_begins_with_the_first_delay_anew() -> None:
    failing = Backoff(first_ms=20, most_ms=100, at_once=1).next().next()
    assert delays_ms(failing.reset(), 3) == [0, 20, 40]


def test_a_value_does_not_change() -> None:
    first = Backoff(first_ms=20, most_ms=100)
    first.next()
    assert first.delay_ms == 20
    assert first.next() == first.next()


def test_the_delay_after_so_many_failures_is_that_of_who_counted_them() -> None:
    backoff = Backoff(first_ms=5, most_ms=200, at_once=1)
    assert [backoff.after(failures) for failures in range(8)] == delays_ms(backoff, 8)


def test_failures_for_years_are_a_delay_all_the_same() -> None:
    assert Backoff(first_ms=1, most_ms=30_000).after(1_000_000_000) == 30_000
