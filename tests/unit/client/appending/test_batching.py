"""When a producer sends what it gathers, and what it says of what it cannot take."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stretto import connect
from stretto.client import Client
from stretto.errors import UsageError
from stretto.specs.modules import DepotSpec
from stretto.wire import messages as wire
from tests.unit.client.workers import MODULE, FakeWorker

SECONDS = 20.0
LONG_MS = 10_000_000


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    worker = FakeWorker()
    yield worker
    worker.close()


@pytest.fixture
def client(worker: FakeWorker) -> Iterator[Client]:
    client = connect([worker.address])
    yield client
    client._network.close()


def batches(worker: FakeWorker) -> list[list[bytes]]:
    return [records for *_, records in worker.taken]


def test_a_batch_goes_out_when_it_has_so_many_records(worker: FakeWorker, client: Client) -> None:
    producer = client.producer(MODULE, "d", linger_ms=LONG_MS, batch_records=3)
    acks = [producer.append(b"%d" % number, task=0) for number in range(7)]
    acks[5].result(SECONDS)
    assert batches(worker) == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]
    assert not acks[6].done()
    producer.flush(SECONDS)
    assert acks[6].done()
    assert batches(worker)[-1] == [b"6"]


def test_a_batch_goes_out_when_it_has_so_many_bytes(worker: FakeWorker, client: Client) -> None:
    producer = client.producer(MODULE, "d", linger_ms=LONG_MS, batch_bytes=10)
    first = producer.append(b"12345", task=0)
    _ = producer.append(b"1234", task=0)
    third = producer.append(b"1", task=0)
    third.result(SECONDS)
    assert first.done()
    assert batches(worker) == [[b"12345", b"1234", b"1"]]


def test_what_lingers_goes_out_by_itself(worker: FakeWorker, client: Client) -> None:
    for linger_ms in (0, 1):
        producer = client.producer(MODULE, "d", linger_ms=linger_ms)
        producer.append(b"a", task=0).result(SECONDS)
        producer.append(b"b", task=0).result(SECONDS)
    assert batches(worker) == [[b"a"], [b"b"], [b"a"], [b"b"]]


def test_leaving_a_producer_sends_what_it_has_and_closes_it(worker: FakeWorker, client: Client) -> None:
    with client.producer(MODULE, "d", linger_ms=LONG_MS) as producer:
        ack = producer.append(b"a", task=1)
    assert ack.done()
    assert batches(worker) == [[b"a"]]
    with pytest.raises(UsageError, match="the producer is closed"):
        _ = producer.append(b"b")


def test_records_of_no_task_go_to_the_tasks_in_turn_a_batch_to_each(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=LONG_MS, batch_records=2)
    for number in range(8):
        _ = producer.append(b"%d" % number)
    producer.flush(SECONDS)
    by_group: dict[int, list[bytes]] = {0: [], 1: []}
    for group, _, _, records in worker.taken:
        by_group[group.group] += records
    assert by_group == {0: [b"0", b"1", b"4", b"5"], 1: [b"2", b"3", b"6", b"7"]}


@pytest.mark.parametrize("task", [-1, 2])
def test_a_task_that_there_is_not_is_refused(client: Client, task: int) -> None:
    producer = client.producer(MODULE, "d")
    with pytest.raises(UsageError, match=rf"module m has tasks 0 to 1, not {task}"):
        _ = producer.append(b"a", task=task)
    with pytest.raises(UsageError, match="there is no module 'other'"):
        client.producer("other", "d")


def test_a_callback_cannot_wait_to_be_told_how_the_depot_is_declared(client: Client) -> None:
    producer = client.producer(MODULE, "d", declared=lambda: DepotSpec(name="d"))
    told: list[str] = []
    done = threading.Event()

    def on_own_thread() -> None:
        try:
            _ = producer.append(b"a")
        except UsageError as error:
            told.append(str(error))
        done.set()

    client._network.call(on_own_thread)
    assert done.wait(SECONDS)
    assert told == ["a callback says task=... with what it appends: it cannot wait to be told"]
    assert producer.learn_declaration() == DepotSpec(name="d")


def test_who_appends_more_than_fits_waits_for_room(worker: FakeWorker, client: Client) -> None:
    producer = client.producer(MODULE, "d", linger_ms=0, max_buffered_bytes=4)
    acks = [producer.append(b"12345", task=number % 2) for number in range(20)]
    for ack in acks:
        ack.result(SECONDS)
    assert sum(map(len, batches(worker))) == 20


def test_who_waits_for_everything_for_ever_goes_on_when_it_is_done(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=LONG_MS)
    acks = [producer.append(b"%d" % number, task=number % 2) for number in range(6)]
    producer.flush(None)
    assert all(ack.done() for ack in acks)
    assert sum(map(len, batches(worker))) == 6


def test_what_can_never_be_taken_ends_the_producer_and_all_that_waits_behind_it(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=LONG_MS, batch_records=1, max_in_flight=1)
    producer.append(b"first", task=0).result(SECONDS)
    appended = threading.Event()

    def refuse(message: wire.AppendBatch) -> wire.Failed:
        appended.wait(SECONDS)
        return wire.Failed(message.request, "it is too old", wire.Fault.USAGE)

    worker.answer = refuse
    acks = [producer.append(b"%d" % number, task=0) for number in range(3)]
    appended.set()
    for ack in acks:
        with pytest.raises(UsageError, match="it is too old"):
            ack.result(SECONDS)
    producer.flush(SECONDS)
    with pytest.raises(UsageError, match="the producer is closed"):
        _ = producer.append(b"later", task=0)
    assert batches(worker) == [[b"first"]]
