"""Threads for what is done to the files of replicas: opened, closed, cut, truncated, deleted.

All of it takes as long as a disk does, and a closing waits for whoever still reads: for minutes, while an
image is copied. So it is left neither to the loop nor to the threads that apply and read: the other replicas
of the worker go on meanwhile. What must not meet on the same files comes one after the other, by ``then``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stretto.network.loop import Loop

THREADS = 10
"""More than images are copied at a time (:mod:`stretto.catchup.threads`): what takes a moment finds a thread,
though closings wait for copies."""

T = TypeVar("T")


class DiskThreads:
    """All methods are the loop's."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(THREADS, "disk")
        self._closed = False

    def run(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        """``work`` off the loop, ``then`` on it, unless the worker has ended."""
        if not self._closed:
            self._pool.submit(self._loop.hand_back, work, then)

    def close(self) -> None:
        """After what is being done; what waits is given up."""
        self._closed = True
        self._pool.shutdown(cancel_futures=True)
