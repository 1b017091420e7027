"""How a daemon answers calls: each on a thread of a pool, so that it may wait for a disk or the metastore.

A handler returns the result of the call, or raises a StrettoError whose sentence the asker reads. Pieces of
files travel beside calls and answers as bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from stretto import admin, wire
from stretto.decoding import MALFORMED
from stretto.endpoint import Connection, Endpoint
from stretto.errors import StrettoError
from stretto.keys import ClusterKey
from stretto.loop import Loop
from stretto.replog.frame import Buffer
from stretto.types import WorkerId

log = structlog.get_logger()

THREADS = 4


@dataclass(frozen=True, slots=True)
class WithBody:
    """A result that comes with a piece of a file."""

    result: object
    bodies: Sequence[Buffer] = field(default=())


Handler: TypeAlias = Callable[[admin.AnyCall, list[memoryview]], object]
"""Called on any thread of the pool, several at a time."""

Metadata: TypeAlias = Callable[[int, "str | None"], wire.ToClient]
"""The answer to a request number, about one module or all of them."""


class Service:
    """All methods are the loop's."""

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
        self._endpoint = Endpoint(
            loop, address=address, cluster=cluster, name=name, key=key, on_message=self._received
        )
        self.address = self._endpoint.address

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._endpoint.close()

    def _received(
        self, sender: Connection, _: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        match message:
            case wire.Ask(request=request, call=raw):
                try:
                    call = admin.decode_call(raw)
                except MALFORMED as error:
                    self._endpoint.reply(
                        sender, wire.Failed(request, f"{self._name}: no such call ({error})")
                    )
                    return
                self._pool.submit(self._answer, sender, request, call, bodies)
            case wire.GetMetadata(request=request, module=module) if self._metadata is not None:
                self._endpoint.reply(sender, self._metadata(request, module))
            case wire.Hello() | wire.Replicate() | wire.Catchup():
                log.warning("not_for_us", message=type(message).__name__)
            case _:
                why = f"{self._name} holds no data; ask a worker"
                self._endpoint.reply(sender, wire.Failed(message.request, why))

    def _answer(
        self, sender: Connection, request: int, call: admin.AnyCall, bodies: list[memoryview]
    ) -> None:
        try:
            result = self._handle(call, bodies)
            if not isinstance(result, WithBody):
                result = WithBody(result)
            reply: wire.ToClient = wire.Answer(request, admin.encode(result.result))
            beside = result.bodies
        except StrettoError as error:
            reply, beside = wire.Failed(request, str(error), wire.Fault.of(error)), ()
        except Exception:
            log.exception("call_failed", call=type(call).__name__)
            reply, beside = wire.Failed(request, f"{self._name} failed at this; see its log"), ()
        self._loop.call_soon(self._reply, sender, reply, beside)

    def _reply(self, to: Connection, reply: wire.ToClient, bodies: Sequence[Buffer]) -> None:
        self._endpoint.reply(to, reply, bodies)
