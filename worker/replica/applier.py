"""The thread that writes and reads the applied state, so that the loop never waits for LMDB.

It takes everything that is waiting, gathers what belongs to one replica into one call, and hands the results
back to the loop. Reads go through a second thread: a long transaction must not keep readers waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from stretto.errors import StorageError
from stretto.replog.core import events
from stretto.replog.frame import Frame, Kind
from stretto.state.environment import StateCorrupt
from stretto.vocabulary.types import Offset

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.worker.replica.group import Group


class Applier:
    """The applying thread and the reading thread of a worker, for all its replicas."""

    def __init__(self, loop: Loop, on_marker: Callable[[Group, Frame], None]) -> None:
        """Start both threads; ``on_marker`` is called on the applying one when a marker, and nothing after
        it, is applied."""
        self._loop = loop
        self._on_marker = on_marker
        self._todo: SimpleQueue[tuple[Group, Sequence[Frame] | None, Offset] | Callable[[], None] | None] = (
            SimpleQueue()
        )
        self._reads: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._apply_all, name="apply", daemon=True),
            threading.Thread(target=self._read_all, name="read", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # From the loop.

    def apply(self, group: Group, frames: Sequence[Frame], end: Offset) -> None:
        """Apply entries of a group, later; the replica gets the end that was reached."""
        self._todo.put((group, frames, end))

    def checkpoint(self, group: Group) -> None:
        """Make durable what is applied, later; the replica is notified."""
        self._todo.put((group, None, Offset(0)))

    def after_applied(self, function: Callable[[], None]) -> None:
        """Run a function on the loop once everything that waits to be applied is."""
        self._todo.put(function)

    def read(self, function: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run ``function`` off the loop and ``then`` on it, with its result or its exception."""
        self._reads.put((function, then))

    def close(self) -> None:
        """End both threads, after everything that is waiting."""
        self._todo.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join()

    # The threads.

    def _apply_all(self) -> None:
        try:
            self._apply_until_closed()
        except BaseException as error:  # noqa: BLE001 - the loop's thread ends the process with it
            self._loop.end_with(error)

    def _apply_until_closed(self) -> None:
        while True:
            batch = [self._todo.get()]
            while not self._todo.empty():
                batch.append(self._todo.get())
            work: dict[Group, list[Frame]] = {}
            ends: dict[Group, Offset] = {}
            for item in batch:
                if item is None:
                    self._apply(work, ends)
                    return
                if callable(item):
                    self._apply(work, ends)
                    work, ends = {}, {}
                    self._loop.call_soon(item)
                    continue
                group, frames, end = item
                if frames is None:
                    self._apply(work, ends)
                    work, ends = {}, {}
                    self._checkpoint(group)
                else:
                    work.setdefault(group, []).extend(frames)
                    ends[group] = end
            self._apply(work, ends)

    def _apply(self, work: dict[Group, list[Frame]], ends: dict[Group, Offset]) -> None:
        for group, frames in work.items():
            if group.apply_failed:
                continue
            try:
                for run in _up_to_markers(frames):
                    begun = time.perf_counter()
                    group.state.apply(run)
                    group.meter.applied_run(run, time.perf_counter() - begun)
                    if run[-1].header.kind is Kind.MARKER:
                        self._on_marker(group, run[-1])
            except StorageError as error:
                self._fail(group, error)
            else:
                self._loop.call_in_passing(group.on_applied, ends[group])
                if group.awaits_applied:
                    self._loop.wake()

    def _checkpoint(self, group: Group) -> None:
        if group.apply_failed or group.closed:
            return
        try:
            end = group.state.checkpoint()
        except StorageError as error:
            self._fail(group, error)
        else:
            self._loop.call_soon(group.step, events.StateSynced(end=end))

    def _fail(self, group: Group, error: StorageError) -> None:
        group.apply_failed = True
        suspect = isinstance(error, StateCorrupt)
        self._loop.call_soon(group.step, events.StorageFailed(why=str(error), suspect=suspect))

    def _read_all(self) -> None:
        while (item := self._reads.get()) is not None:
            self._loop.hand_back(*item)


def _up_to_markers(frames: list[Frame]) -> Iterator[list[Frame]]:
    """Split frames into runs that are applied at once: all in one, except that each marker ends a run."""
    start = 0
    for index, frame in enumerate(frames, start=1):
        if frame.header.kind is Kind.MARKER:
            yield frames[start:index]
            start = index
    if start < len(frames):
        yield frames[start:] if start else frames
