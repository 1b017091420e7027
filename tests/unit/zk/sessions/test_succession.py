"""The thread that renews a lease outlives what goes wrong on it, and a broken invariant ends its owner."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stretto.vocabulary.invariants import InvariantViolation
from stretto.zk.sessions.session import Session
from stretto.zk.sessions.succession import Succession

DEADLINE_SECONDS = 30.0


class Ticking(Succession):
    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        super().__init__(
            "127.0.0.1:1",
            session_timeout_ms=1_000,
            credentials=None,
            tick_seconds=0.01,
            thread="ticking",
            on_failure=self.failures.append,
        )
        self.ticked = threading.Semaphore(0)

    def await_ticks(self) -> None:
        """Two that begin from now on, at least."""
        while self.ticked.acquire(blocking=False):
            pass
        for _ in range(3):
            assert self.ticked.acquire(timeout=DEADLINE_SECONDS)

    def connected(self, session: Session) -> None:
        pass

    def _expired(self) -> None:
        pass

    def _ticked(self, session: Session) -> None:
        self.ticked.release()


@pytest.fixture
def ticking() -> Iterator[Ticking]:
    ticking = Ticking()
    ticking.start()
    yield ticking
    ticking.close()


def test_a_lease_is_renewed_though_something_cannot_be_tried_again(ticking: Ticking) -> None:
    done = threading.Event()

    def fail() -> None:
        raise ValueError("no number")

    with ticking.lock:
        ticking.again_later(fail)
        ticking.again_later(done.set)
    assert done.wait(DEADLINE_SECONDS)
    ticking.await_ticks()
    assert ticking.failures == []


def test_a_broken_invariant_is_told_to_who_must_end(ticking: Ticking) -> None:
    violation = InvariantViolation("two leaders", {})

    def fail() -> None:
        raise violation

    with ticking.lock:
        ticking.again_later(fail)
    ticking.await_ticks()
    assert ticking.failures == [violation]
