"""Group commit: the disk always works on everything that was waiting when it became free.

One thread, the writer of any number of logs. Their owner (an event loop) appends, calls
:meth:`GroupCommit.submit`, and goes on; the thread does one writev and one fdatasync for all that had
been appended to that log by then, and while it does, more gathers for the next round. So the slower the
disk, the larger the groups, and an append waits for two rounds at most. From one round to the next the
thread needs nothing from the owner, who may be busy.

Nothing here locks. A submission is a token in the thread's queue, unless one is already waiting there:
a flag says so, which the thread takes down *before* it takes the frames, so that whoever finds it up
knows that the frames just appended will be taken. Every token comes back: ``deliver``
(``loop.call_soon_threadsafe``, say) gets a function, and must have it called on the owner's thread.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from stretto.errors import StorageError
from stretto.replog.log import Pending, Replog
from stretto.vocabulary.invariants import check
from stretto.vocabulary.types import Offset

OnDurable: TypeAlias = Callable[[Replog, Offset | StorageError], None]
"""Called on the owner's thread with the durable end of a log after a write, or why it never moves again."""

Deliver: TypeAlias = Callable[[Callable[[], None]], object]


class _Wanted(enum.IntEnum):
    NOTHING = 0
    WRITE = 1
    SYNC = 2


class _Lane:
    """What a committer keeps of a log that has tokens outstanding."""

    __slots__ = ("actions", "again", "awaited", "failed", "is_held", "log", "outstanding", "waiting")

    def __init__(self, log: Replog) -> None:
        self.log = log
        #: Number of tokens that have not come back, and of holds. Only the owner counts.
        self.outstanding = 0
        #: Whether nothing is written meanwhile: submissions wait in ``again``.
        self.is_held = False
        #: What a token will do that the thread has not seen yet: raised by the owner, lowered by the thread.
        self.waiting = _Wanted.NOTHING
        #: Actions to be run when no token is outstanding; until then, submissions wait in ``again``.
        self.actions: list[Callable[[], None]] = []
        self.again = _Wanted.NOTHING
        #: Whether the owner is to be woken when a write is done.
        self.awaited = True
        self.failed = False


_Done: TypeAlias = tuple[_Lane, Pending | None, BaseException | None]


class GroupCommit:
    """A thread that writes and syncs logs for their owner, many appends at a time.

    All methods are called by the owner; none but :meth:`close` waits for the disk.
    """

    def __init__(
        self,
        on_durable: OnDurable,
        *,
        deliver: Deliver,
        wake: Callable[[], object] = lambda: None,
        name: str = "replog-commit",
    ) -> None:
        """Start the thread; ``wake`` is called after ``deliver`` if a sleeping owner is to know at once."""
        self._on_durable = on_durable
        self._deliver = deliver
        self._wake = wake
        self._lanes: dict[Replog, _Lane] = {}
        self._todo: SimpleQueue[tuple[_Lane, _Wanted] | None] = SimpleQueue()
        self._done: deque[_Done] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._commit, name=name, daemon=True)
        self._thread.start()

    def submit(self, log: Replog, *, durable: bool = True) -> None:
        """Write what was appended to ``log``; without ``durable``, leave it to the page cache for now."""
        check(not self._closed, "a log is submitted to a closed group commit")
        wanted = _Wanted.SYNC if durable else _Wanted.WRITE
        lane = self._lane(log)
        if lane.actions or lane.is_held:
            lane.again = max(lane.again, wanted)
        elif lane.waiting < wanted:
            lane.waiting = wanted
            lane.outstanding += 1
            self._todo.put((lane, wanted))

    def expect(self, log: Replog, *, awaited: bool) -> None:
        """Say whether the owner waits for what is being written; if not, it is not woken for that."""
        lane = self._lanes.get(log)
        if lane is not None:
            lane.awaited = awaited

    def when_quiet(self, log: Replog, action: Callable[[], None]) -> None:
        """Run ``action`` while nothing of ``log`` is being written: now, or as soon as that is so.

        For what changes files under the writer: truncate, reset, close. What takes long is done elsewhere,
        under a :meth:`hold` that the action takes.
        """
        lane = self._lanes.get(log)
        if lane is None:
            action()
        else:
            lane.actions.append(action)

    def hold(self, log: Replog, *, writes: bool) -> Callable[[], None]:
        """Keep the log from being quiet, until the owner calls the function that is returned.

        Meanwhile another thread works on its files. Without ``writes``, for which the log must be quiet,
        nothing is written meanwhile.
        """
        lane = self._lane(log)
        check(writes or not lane.outstanding, "a log is held that is not quiet")
        lane.outstanding += 1
        lane.is_held = lane.is_held or not writes

        def release() -> None:
            lane.outstanding -= 1
            lane.is_held = lane.is_held and writes
            if not lane.outstanding:
                self._quiet(lane)

        return release

    def close(self) -> None:
        """Wait until everything submitted is written, and report it."""
        if not self._closed:
            self._closed = True
            self._todo.put(None)
            self._thread.join()
            self._drain()

    def _lane(self, log: Replog) -> _Lane:
        lane = self._lanes.get(log)
        if lane is None:
            lane = self._lanes[log] = _Lane(log)
        return lane

    def _commit(self) -> None:
        while (token := self._todo.get()) is not None:
            lane, wanted = token
            pending: Pending | None = None
            failure: BaseException | None = None
            lane.waiting = _Wanted.NOTHING
            try:
                pending = lane.log.take_pending(durable=wanted is _Wanted.SYNC)
                if pending is not None:
                    lane.log.write(pending)
            except BaseException as error:  # noqa: BLE001 - raised again where the owner sees it
                failure = error
            self._done.append((lane, pending, failure))
            # Delivered before the look: an owner who begins to wait for it meanwhile finds it there.
            self._deliver(self._drain)
            if lane.awaited or lane.actions or failure is not None:
                self._wake()

    def _drain(self) -> None:
        while self._done:
            self._finish(*self._done.popleft())

    def _finish(self, lane: _Lane, pending: Pending | None, failure: BaseException | None) -> None:
        lane.outstanding -= 1
        if failure is not None and not isinstance(failure, StorageError):
            raise failure
        if failure is None and pending is not None:
            lane.log.written(pending)
        if not lane.outstanding:
            self._quiet(lane)
        if failure is None and pending is not None:
            self._on_durable(lane.log, lane.log.durable_end_offset)
        elif failure is not None and not lane.failed:
            lane.failed = True
            self._on_durable(lane.log, failure)

    def _quiet(self, lane: _Lane) -> None:
        del self._lanes[lane.log]
        for done, action in enumerate(lane.actions, start=1):
            action()
            busy = self._lanes.get(lane.log)
            if busy is not None:
                # By this action: the others wait until it is quiet again.
                busy.actions[:0] = lane.actions[done:]
                busy.again = max(busy.again, lane.again)
                return
        if lane.again and not self._closed:
            self.submit(lane.log, durable=lane.again is _Wanted.SYNC)
