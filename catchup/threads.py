"""Threads for what transfers of state do to files: copying, hashing, reading, writing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stretto.network.loop import Loop

THREADS = 6

T = TypeVar("T")


class CatchupThreads:
    """Threads that work on files for transfers of state; only the loop calls them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(THREADS, "catchup")
        self._ended = False

    def run(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        """Do ``work`` off the loop and call ``then`` on it, unless the worker has ended."""
        if not self._ended:
            self._pool.submit(self._loop.hand_back, work, then)

    def end(self) -> None:
        """Begin no more work."""
        self._ended = True

    def close(self) -> None:
        """Return after the work that is being done; work that waits is given up."""
        self.end()
        self._pool.shutdown(cancel_futures=True)
