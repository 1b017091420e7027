"""A client that outlives a module: it was destroyed, and launched again under its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stretto.client import Client, connect
from stretto.errors import UsageError
from stretto.network.endpoint import Connection
from stretto.network.routing import ClusterView
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire
from tests.unit.client.workers import MODULE, WORKER, FakeWorker


def launched(generation: int, tasks: int, *, epoch: int = 1) -> wire.Metadata:
    """Groups of two tasks each."""
    groups = tuple(
        wire.GroupView(
            GroupKey(MODULE, generation, number),
            (TaskId(2 * number), TaskId(2 * number + 1)),
            (WORKER,),
            Epoch(epoch),
            WORKER,
            (WORKER,),
            tasks,
        )
        for number in range(tasks // 2)
    )
    return wire.Metadata(1, {WORKER: "127.0.0.1:1"}, groups)


@pytest.fixture
def view() -> ClusterView:
    view = ClusterView()
    view.take(launched(1, 4, epoch=7))
    return view


def test_the_leaders_of_the_next_launch_are_found_although_its_epochs_begin_anew(view: ClusterView) -> None:
    view.take(launched(2, 4))
    group = view.of_task[MODULE, TaskId(0)]
    assert (group.generation, view.epoch(group)) == (2, 1)
    assert {key.generation for key in view.groups} == {2}


def test_tasks_that_the_next_launch_does_not_have_are_forgotten(view: ClusterView) -> None:
    view.take(launched(2, 2))
    assert view.tasks[MODULE] == [0, 1]
    assert [task for _, task in view.of_task] == [0, 1]
    assert list(view.groups) == [GroupKey(MODULE, 2, 0)]


def test_what_is_still_told_of_the_launch_before_changes_nothing(view: ClusterView) -> None:
    view.take(launched(2, 2))
    assert view.take(launched(1, 4, epoch=9)) == []
    assert view.tasks[MODULE] == [0, 1]
    assert list(view.groups) == [GroupKey(MODULE, 2, 0)]


def test_a_task_whose_new_group_was_not_heard_of_yet_stays_where_it_was(view: ClusterView) -> None:
    whole = launched(2, 4)
    view.take(wire.Metadata(1, whole.addresses, whole.groups[:1]))
    assert view.of_task[MODULE, TaskId(3)] == GroupKey(MODULE, 1, 1)
    assert view.tasks[MODULE] == [0, 1, 2, 3]


class Relaunched(FakeWorker):
    """Its two groups are gone; there is a module of that name again, with other tasks."""

    tasks: int | None = None

    def _received(
        self, sender: Connection, worker: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        if self.tasks is not None and isinstance(message, wire.GetMetadata) and message.awaited is not None:
            self._endpoint.reply(sender, wire.Metadata(message.request, {WORKER: self.address}, ()))
        elif self.tasks is not None and isinstance(message, wire.AppendBatch | wire.FindOffset):
            refused = wire.Refused(message.request, Refusal.NOT_LEADER, None, Epoch(0))
            self._endpoint.reply(sender, refused)
        else:
            super()._received(sender, worker, message, bodies)

    def _metadata(self, request: int) -> wire.Metadata:
        if self.tasks is None:
            return super()._metadata(request)
        return wire.Metadata(request, {WORKER: self.address}, launched(2, self.tasks).groups)


@pytest.fixture
def worker() -> Iterator[Relaunched]:
    worker = Relaunched()
    yield worker
    worker.close()


@pytest.fixture
def client(worker: Relaunched) -> Iterator[Client]:
    with connect([worker.address]) as client:
        yield client


def test_a_producer_of_the_launch_before_says_that_the_tasks_are_others(
    worker: Relaunched, client: Client
) -> None:
    """It would put records on tasks that their readers do not look at."""
    producer = client.producer(MODULE, "d", linger_ms=0)
    producer.append(b"0", task=0).result(10)
    worker.tasks = 4
    with pytest.raises(UsageError, match="m was launched anew with 4 tasks"):
        producer.append(b"1", task=0).result(10)


def test_a_question_that_the_launch_before_did_not_answer_says_that_the_tasks_are_others(
    worker: Relaunched, client: Client
) -> None:
    reader = client.reader(MODULE, "d", timeout=10)
    worker.tasks = 4
    with pytest.raises(UsageError, match="m was launched anew with 4 tasks"):
        reader.bounds(1)
