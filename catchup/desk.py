"""A worker's transfers of state: those it serves as a leader and those it receives as a follower.

The driver of :mod:`stretto.catchup`, on the worker's loop, with threads of its own for copying, hashing,
reading and writing. Messages travel on the connections that replication uses, except blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from stretto import control
from stretto.catchup.receiving import StateReceiving
from stretto.catchup.serving import StateServing
from stretto.replog.core import effects
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Offset, WorkerId
from stretto.wire import catchup
from stretto.wire import messages as wire

if TYPE_CHECKING:
    from stretto.worker.process import Worker
    from stretto.worker.replica.group import Group

THREADS = 6

T = TypeVar("T")


class CatchupDesk:
    """All methods are the loop's."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = worker.loop
        self._pool = ThreadPoolExecutor(THREADS, "catchup")
        self._closed = False
        self._serving = StateServing(worker, self)
        self._receiving = StateReceiving(worker, self)

    def close(self) -> None:
        self._closed = True
        self._serving.end()
        self._pool.shutdown(cancel_futures=True)
        self._receiving.close()
        self._serving.close()

    def on_thread(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        """``then`` is called on the loop, unless the worker has ended."""
        if not self._closed:
            self._pool.submit(self._loop.hand_back, work, then)

    def send(
        self, to: WorkerId, group: GroupKey, message: catchup.AnyMessage, body: bytes | memoryview = b""
    ) -> None:
        self._worker.transport.send(to, wire.Catchup(group, message), (body,) if len(body) else ())

    def received(self, sender: WorkerId, wrapped: wire.Catchup, bodies: list[memoryview]) -> None:
        group = self._worker.groups.get(wrapped.group)
        if group is None:
            return
        body = bodies[0] if bodies else memoryview(b"")
        message = wrapped.message
        match message:
            case (
                catchup.AskImage()
                | catchup.AskHashes()
                | catchup.AskBlocks()
                | catchup.AskEntries()
                | catchup.Working()
                | catchup.NoRoom()
                | catchup.Finished()
            ):
                self._serving.heard(group, sender, message)
            case _:
                self._receiving.heard(group, sender, message, body)

    def options_changed(self) -> None:
        self._serving.options_changed()

    def group_closed(self, key: GroupKey) -> None:
        self._receiving.group_closed(key)
        self._serving.group_closed(key)

    def looked(self, group: Group) -> None:
        self._receiving.looked(group)

    def serve_state(self, group: Group, effect: effects.ServeState) -> None:
        self._serving.serve_state(group, effect)

    def stop_serving(self, group: Group, to: WorkerId) -> None:
        self._serving.stop_serving(group, to)

    def fetch_state(self, group: Group, effect: effects.FetchState) -> None:
        self._receiving.fetch_state(group, effect)

    def install(self, group: Group, end: Offset) -> None:
        self._receiving.install(group, end)

    def view(self, key: GroupKey) -> control.CatchupView | None:
        return self._receiving.view(key)
