"""How a daemon answers calls: each on a thread of a pool, so that it may wait for a disk or the metastore.

Calls wait for a thread in a :class:`~stretto.network.call_queue.CallQueue`, where connections take turns;
whoever has too many there is told at once to try again.

A handler returns the result of the call, or raises a StrettoError whose sentence the asker reads. Pieces of
files travel beside calls and answers as bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from stretto import control
from stretto.errors import StrettoError
from stretto.network.call_queue import CallQueue, WaitingCall
from stretto.network.endpoint import Connection, Endpoint
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.process.logs import Sparing
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import Buffer, WorkerId
from stretto.wire import messages as wire

log = structlog.get_logger()

THREADS = 4


@dataclass(frozen=True, slots=True)
class WithBody:
    """A result that comes with a piece of a file."""

    result: object
    bodies: Sequence[Buffer] = field(default=())


Handler: TypeAlias = Callable[[control.AnyCall, list[memoryview]], object]
"""Carries out a call and returns its result, on any thread of the pool, several at a time."""

Metadata: TypeAlias = Callable[[int, "str | None"], wire.ToClient]
"""Answers a request for metadata, by its number, about one module or (None) all of them."""


class Service:
    """Answers the calls to a daemon; only the loop's thread calls it."""

    def __init__(
        self,
        loop: Loop,
        *,
        address: str,
        cluster: str,
        name: str,
        key: ClusterKey | None,
        handle: Handler,
        metadata: Metadata | None = None,
    ) -> None:
        self._loop = loop
        self._name = name
        self._handle = handle
        self._metadata = metadata
        self._pool = ThreadPoolExecutor(THREADS, "call")
        self._queue = CallQueue(THREADS)
        self._sparing = Sparing(log)
        self._endpoint = Endpoint(
            loop,
            address=address,
            cluster=cluster,
            name=name,
            key=key,
            on_message=self._received,
            on_gone=self._queue.forget,
        )
        self.address = self._endpoint.address

    @property
    def waiting(self) -> int:
        """Calls that no thread has begun yet."""
        return len(self._queue)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._endpoint.close()

    def _received(
        self, sender: Connection, _: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        match message:
            case wire.Ask(request=request, call=raw):
                try:
                    call = control.decode_call(raw)
                except MALFORMED as error:
                    self._endpoint.reply(
                        sender, wire.Failed(request, f"{self._name}: no such call ({error})")
                    )
                    return
                why = self._queue.put(WaitingCall(sender, request, call, bodies))
                if why is not None:
                    busy = f"{self._name} is busy: {why}; try again"
                    self._endpoint.reply(sender, wire.Failed(request, busy, wire.Fault.PASSING))
                self._begin_next()
            case wire.GetMetadata(request=request, module=module) if self._metadata is not None:
                self._endpoint.reply(sender, self._metadata(request, module))
            case wire.Hello() | wire.Replicate() | wire.Catchup():
                self._sparing.warning("not_for_us", message=type(message).__name__)
            case _:
                why = f"{self._name} holds no data; ask a worker"
                self._endpoint.reply(sender, wire.Failed(message.request, why))

    def _begin_next(self) -> None:
        while (waiting := self._queue.take()) is not None:
            self._pool.submit(self._answer, waiting)

    def _answer(self, waiting: WaitingCall) -> None:
        """Carry out a call, on a thread of the pool."""
        request, call = waiting.request, waiting.call
        try:
            result = self._handle(call, waiting.bodies)
            if not isinstance(result, WithBody):
                result = WithBody(result)
            reply: wire.ToClient = wire.Answer(request, control.encode(result.result))
            beside = result.bodies
        except StrettoError as error:
            reply, beside = wire.Failed(request, str(error), wire.Fault.of(error)), ()
        except Exception:
            log.exception("call_failed", call=type(call).__name__)
            reply, beside = wire.Failed(request, f"{self._name} failed at this; see its log"), ()
        except BaseException as error:  # noqa: BLE001 - a broken invariant ends the process, not this thread
            self._loop.end_with(error)
            return
        self._loop.call_soon(self._answered, waiting.sender, reply, beside)

    def _answered(self, to: Connection, reply: wire.ToClient, bodies: Sequence[Buffer]) -> None:
        self._queue.done(to)
        self._endpoint.reply(to, reply, bodies)
        self._begin_next()
