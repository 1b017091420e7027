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
"""How many threads there are: more than images are copied at a time (:mod:`stretto.catchup.threads`), so that
short work finds a thread, though closings wait for copies."""

T = TypeVar("T")


class DiskThreads:
    """A pool of threads for work on files. All methods are to be called on the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(THREADS, "disk")
        self._closed = False

    def run(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        """Run ``work`` off the loop, then ``then`` on it with its result or its exception, unless the worker
        has ended."""
        if not self._closed:
            self._pool.submit(self._loop.hand_back, work, then)

    def close(self) -> None:
        """Stop, after what is being done; what waits is given up."""
        self._closed = True
        self._pool.shutdown(cancel_futures=True)
