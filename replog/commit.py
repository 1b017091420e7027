"""Group commit: the disk always works on everything that was waiting when it became free.

One thread serves any number of logs. Their owner (an event loop) appends, calls
:meth:`GroupCommit.submit`, and goes on; the thread does one writev and one fdatasync for all that had
been appended to that log, and while it does, more gathers for the next round. So the slower the disk,
the larger the groups, and an append waits for two rounds at most.

Nothing here locks. A log belongs to its owner; the thread only ever runs
:meth:`Replog.write <stretto.replog.log.Replog.write>`, which touches nothing of the owner's, and hands
the finished write back: ``deliver`` (``loop.call_soon_threadsafe``, say) gets a function and must have
it called on the owner's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from stretto.errors import StorageError
from stretto.invariants import check
from stretto.replog.log import Pending, Replog
from stretto.types import Offset

OnDurable: TypeAlias = Callable[[Replog, Offset | StorageError], None]
"""Told, on the owner's thread, the new durable end of a log, or why it will never move again."""

Deliver: TypeAlias = Callable[[Callable[[], None]], object]


class _Lane:
    """What is known of one log while it has a write in flight."""

    __slots__ = ("actions", "again", "durable")

    def __init__(self) -> None:
        #: Submitted again since the write in flight was taken.
        self.again = False
        #: Whether one of those submissions asked for durability.
        self.durable = False
        #: Run before the next write is taken.
        self.actions: list[Callable[[], None]] = []


class GroupCommit:
    """A committer thread. All methods are the owner's; none but :meth:`close` waits for the disk."""

    def __init__(self, on_durable: OnDurable, *, deliver: Deliver, name: str = "replog-commit") -> None:
        self._on_durable = on_durable
        self._deliver = deliver
        #: Logs with a write in flight.
        self._lanes: dict[Replog, _Lane] = {}
        self._todo: SimpleQueue[tuple[Replog, Pending] | None] = SimpleQueue()
        self._done: deque[tuple[Replog, Pending, BaseException | None]] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._commit, name=name, daemon=True)
        self._thread.start()

    def submit(self, log: Replog, *, durable: bool = True) -> None:
        """Write what was appended to ``log``; without ``durable``, leave it to the page cache for now."""
        check(not self._closed, "a log is submitted to a closed group commit")
        lane = self._lanes.get(log)
        if lane is None:
            self._take(log, durable=durable)
        else:
            lane.again = True
            lane.durable |= durable

    def when_quiet(self, log: Replog, action: Callable[[], None]) -> None:
        """Run ``action`` while no write of ``log`` is in flight: now, or as soon as the current one is done.

        For what changes the files under a writer: truncate, reset, close.
        """
        lane = self._lanes.get(log)
        if lane is None:
            action()
        else:
            lane.actions.append(action)

    def close(self) -> None:
        """Wait for the writes in flight and report them. What was appended since stays unwritten."""
        if not self._closed:
            self._closed = True
            self._todo.put(None)
            self._thread.join()
            self._drain()

    def _take(self, log: Replog, *, durable: bool) -> None:
        pending = log.take_pending(durable=durable)
        if pending is not None:
            self._lanes[log] = _Lane()
            self._todo.put((log, pending))

    def _commit(self) -> None:
        while (item := self._todo.get()) is not None:
            log, pending = item
            failure: BaseException | None = None
            try:
                log.write(pending)
            except BaseException as error:  # noqa: BLE001 - raised again where the owner sees it
                failure = error
            self._done.append((log, pending, failure))
            self._deliver(self._drain)

    def _drain(self) -> None:
        while self._done:
            self._finish(*self._done.popleft())

    def _finish(self, log: Replog, pending: Pending, failure: BaseException | None) -> None:
        lane = self._lanes.pop(log)
        if failure is not None:
            if not isinstance(failure, StorageError):
                raise failure
            self._on_durable(log, failure)
            return
        log.written(pending)
        for action in lane.actions:
            action()
        durable_end = log.durable_end_offset
        if lane.again and not self._closed:
            self._take(log, durable=lane.durable)
        self._on_durable(log, durable_end)
