"""A client whose groups move to workers that it has never heard of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stretto.client import Client, connect
from stretto.network.endpoint import Connection
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire
from tests.unit.client.workers import GROUPS, MODULE, WORKER, FakeWorker

OTHER = WorkerId("other")


class Left(FakeWorker):
    """Led the groups, and has given up its replicas to another worker without a word to anybody."""

    def __init__(self, other: FakeWorker) -> None:
        self.other = other
        self.has_left = False
        super().__init__()

    def _received(
        self, sender: Connection, worker: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        if self.has_left and isinstance(message, wire.GetMetadata) and message.awaited is not None:
            self._endpoint.reply(sender, wire.Metadata(message.request, self._addresses, ()))
        elif self.has_left and isinstance(message, wire.AppendBatch):
            refused = wire.Refused(message.request, Refusal.NOT_LEADER, None, Epoch(0))
            self._endpoint.reply(sender, refused)
        else:
            super()._received(sender, worker, message, bodies)

    @property
    def _addresses(self) -> dict[WorkerId, str]:
        return {WORKER: self.address, OTHER: self.other.address}

    def _metadata(self, request: int) -> wire.Metadata:
        if not self.has_left:
            return super()._metadata(request)
        views = tuple(
            wire.GroupView(key, (TaskId(key.group),), (OTHER,), Epoch(2), OTHER, (OTHER,), 2)
            for key in GROUPS
        )
        return wire.Metadata(request, self._addresses, views)


@pytest.fixture
def other() -> Iterator[FakeWorker]:
    worker = FakeWorker()
    yield worker
    worker.close()


@pytest.fixture
def left(other: FakeWorker) -> Iterator[Left]:
    worker = Left(other)
    yield worker
    worker.close()


@pytest.fixture
def client(left: Left) -> Iterator[Client]:
    with connect([left.address]) as client:
        yield client


def test_groups_whose_replicas_have_all_moved_are_found(
    left: Left, other: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=0)
    producer.append(b"0", task=0).result(10)
    # Every group admits ids for itself, wherever it is.
    other.opened = left.opened
    left.has_left = True
    producer.append(b"1", task=0).result(30)
    assert [records for *_, records in other.taken] == [[b"1"]]


class Regrouped(FakeWorker):
    """Its two groups became one of the next grouping before it admitted anybody."""

    next = GroupKey(MODULE, 2, 0)
    has_refused = False

    def _received(
        self, sender: Connection, worker: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        if isinstance(message, wire.GetMetadata) and message.awaited is not None:
            self._endpoint.reply(sender, wire.Metadata(message.request, {WORKER: self.address}, ()))
        elif isinstance(message, wire.AppendBatch) and message.group != self.next:
            self.has_refused = True
            self._endpoint.reply(sender, wire.Refused(message.request, Refusal.NOT_LEADER, None, Epoch(0)))
        else:
            super()._received(sender, worker, message, bodies)

    def _metadata(self, request: int) -> wire.Metadata:
        if not self.has_refused:
            return super()._metadata(request)
        tasks = (TaskId(0), TaskId(1))
        view = wire.GroupView(self.next, tasks, (WORKER,), Epoch(5), WORKER, (WORKER,), 2)
        return wire.Metadata(request, {WORKER: self.address}, (view,))


def test_an_id_whose_group_is_over_before_it_admits_it_is_admitted_by_the_next_one() -> None:
    """Nothing else is appended: nobody but who opens the id knows that the batch waits."""
    worker = Regrouped()
    try:
        with connect([worker.address]) as client:
            producer = client.producer(MODULE, "d", linger_ms=0)
            producer.append(b"0", task=0).result(10)
            producer.append(b"1", task=1).result(10)
    finally:
        worker.close()
    assert [(group, records) for group, *_, records in worker.taken] == [
        (Regrouped.next, [b"0"]),
        (Regrouped.next, [b"1"]),
    ]
