"""What became of records: a batch of them on its way, and an Ack for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from stretto.errors import ProcessingFailed, ResultUnknown, StrettoError
from stretto.replog.core.effects import Refusal
from stretto.wire import messages as wire


class Batch:
    """Records of one task that are sent together, their outcome, and the callers that wait for it."""

    __slots__ = (
        "body",
        "callbacks",
        "count",
        "doubts",
        "error",
        "is_settled",
        "latch",
        "lost",
        "offset",
        "refusal",
        "request",
        "sealed_at",
        "sequence",
        "streams",
        "times_sent",
    )

    def __init__(self) -> None:
        self.body = b""
        self.count = 0
        #: Sequence number, given at the first send: a batch that expires before that leaves no gap.
        self.sequence: int | None = None
        self.request = 0
        self.sealed_at = 0
        self.times_sent = 0
        #: How many sends were not refused: each of these may have been stored, for ever.
        self.doubts = 0
        #: Reason of the last refusal.
        self.refusal: Refusal | None = None
        self.offset: int | None = None
        self.error: StrettoError | None = None
        #: What topologies returned, as JSON, or how they failed, by position of the record in the batch.
        self.streams: dict[int, list[tuple[str, bytes | None, str]]] = {}
        #: Topologies whose results for this batch were lost.
        self.lost: list[str] = []
        self.is_settled = False
        #: Lock that callers wait on, held until the outcome is known.
        self.latch: threading.Lock | None = None
        #: Callbacks that run on the client's thread when the outcome is known.
        self.callbacks: list[Callable[[], object]] = []

    def processed(self, streams: tuple[wire.StreamResult, ...]) -> None:
        """Note what topologies returned for the records of this batch."""
        for each in streams:
            if each.is_lost:
                self.lost.append(each.topology)
            for index, result in each.results:
                self.streams.setdefault(index, []).append((each.topology, result, ""))
            for index, why in each.failures:
                self.streams.setdefault(index, []).append((each.topology, None, why))

    def settle(self, error: StrettoError | None) -> None:
        """Note the outcome, an error or None, and release the callers that wait for it."""
        self.error = error
        self.is_settled = True
        if self.latch is not None:
            self.latch.release()


class Ack:
    """The outcome of one appended record, now or later: ``.result()`` waits for it, and so does ``await``.

    It is cheap, since the batch does the work for all its records.
    """

    __slots__ = ("_batch", "_index", "_lock")

    def __init__(self, batch: Batch, lock: threading.Lock, index: int = 0) -> None:
        self._batch = batch
        self._lock = lock
        self._index = index

    def done(self) -> bool:
        """Whether the outcome is known, well or not, so that ``result()`` does not wait."""
        return self._batch.is_settled

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Return once the record is what the producer's ``ack`` asks for.

        With ``all`` and ``streams``, it tells what each topology that was waited for returned for the record,
        by name, as far as it returned anything. Raises OutcomeUnknown if the outcome cannot be known,
        ProcessingFailed if a topology failed on the record, NotAppended if it was certainly not appended,
        another StrettoError if it was refused for good, TimeoutError if it is still under way,
        ResultUnknown if it is processed and its result is lost, as when the leader dies that ran it.
        """
        batch = self._batch
        if not batch.is_settled:
            latch = self._latch()
            if not latch.acquire(timeout=-1 if timeout is None else max(0, timeout)):
                raise TimeoutError("the record is still on its way")
            latch.release()
        if batch.error is not None:
            raise batch.error
        returned = self._returned(batch.streams.get(self._index, ()))
        if batch.lost:
            raise ResultUnknown(
                f"the record is appended and processed, but what {' and '.join(batch.lost)} made of it is "
                "lost with the leader that ran it; look at the state instead of appending it again"
            )
        return returned

    @staticmethod
    def _returned(streams: Sequence[tuple[str, bytes | None, str]]) -> dict[str, Any]:
        for topology, _, why in streams:
            if why:
                raise ProcessingFailed(f"{topology} failed on the record: {why}")
        return {topology: msgspec.json.decode(result) for topology, result, _ in streams if result}

    def _latch(self) -> threading.Lock:
        """Return the lock to wait on, which the first caller makes: most batches are never waited for."""
        batch = self._batch
        with self._lock:
            if batch.latch is None:
                batch.latch = threading.Lock()
                if not batch.is_settled:
                    batch.latch.acquire()
            return batch.latch

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Run ``callback`` once the outcome is known: on the client's thread, which it must not keep."""
        with self._lock:
            if not self._batch.is_settled:
                self._batch.callbacks.append(callback)
                return
        callback()

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self._awaited().__await__()

    async def _awaited(self) -> dict[str, Any]:
        import asyncio  # noqa: PLC0415 - only those load it who await an acknowledgement

        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        self.add_done_callback(lambda: loop.call_soon_threadsafe(settle))
        await done
        return self.result(0)


#: A settled batch for producers with ``ack="none"``, whose callers do not wait for an outcome.
SENT = Batch()
SENT.is_settled = True
