"""A worker that leads, and answers as it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stretto import control
from stretto.network.endpoint import Connection, Endpoint
from stretto.network.loop import Loop
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import RecordBatch
from stretto.vocabulary.types import Epoch, Offset, TaskId, WorkerId
from stretto.wire import messages as wire

MODULE = "m"
GROUPS = tuple(GroupKey(MODULE, 1, number) for number in range(2))
WORKER = WorkerId("w0")

Answer = Callable[[wire.AppendBatch], wire.ToClient | None]


class FakeWorker:
    """Leads both groups, of one task each, and keeps what it acknowledges."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._endpoint = Endpoint(
            self._loop, address="127.0.0.1:0", cluster="c", name="fake", key=None, on_message=self._received
        )
        self.address = self._endpoint.address
        self.opened: list[tuple[GroupKey, int]] = []
        self.taken: list[tuple[GroupKey, int, int, list[bytes]]] = []
        #: What the module is, for who asks; None: nobody answers that.
        self.description: control.ModuleDescription | None = control.ModuleDescription(tasks=2, depots=None)
        self.asked = 0
        #: Asked first; None: as a good worker would.
        self.answer: Answer = lambda _: None
        self._thread = threading.Thread(target=self._loop.run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon(self._loop.stop)
        self._thread.join()
        self._endpoint.close()
        self._loop.close()

    def _received(
        self, sender: Connection, _: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        if isinstance(message, wire.GetMetadata):
            if message.awaited is None:
                self._endpoint.reply(sender, self._metadata(message.request))
        elif isinstance(message, wire.Ask) and self.description is not None:
            call = control.decode_call(message.call)
            assert isinstance(call, control.Describe)
            self.asked += 1
            self._endpoint.reply(sender, wire.Answer(message.request, control.encode(self.description)))
        elif isinstance(message, wire.AppendBatch):
            answer = self.answer(message)
            if answer is None:
                answer = self._take(message, bodies)
            self._endpoint.reply(sender, answer)

    def _metadata(self, request: int) -> wire.Metadata:
        views = tuple(
            wire.GroupView(key, (TaskId(key.group),), (WORKER,), Epoch(1), WORKER, (WORKER,), 2)
            for key in GROUPS
        )
        return wire.Metadata(request, {WORKER: self.address}, views)

    def _take(self, message: wire.AppendBatch, bodies: list[memoryview]) -> wire.ToClient:
        if message.kind is Kind.PRODUCER_OPEN:
            self.opened.append((message.group, message.producer))
        elif (message.group, message.producer) not in self.opened:
            return refused(message, Refusal.UNKNOWN_PRODUCER)
        else:
            records = RecordBatch.parse(bodies[0]).records()
            self.taken.append((message.group, message.producer, message.sequence, records))
        return wire.Appended(message.request, Offset(0))


def refused(message: wire.AppendBatch, reason: Refusal) -> wire.Refused:
    return wire.Refused(message.request, reason, WORKER, Epoch(1))
