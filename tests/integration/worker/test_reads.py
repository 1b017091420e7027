"""What is appended is read back: by offset, by time, as a tail; committed and uncommitted."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
import time
from collections.abc import Callable

import pytest

from stretto.client import Ack, Client, connect_async
from stretto.client.reading.depot import Slice
from stretto.errors import UsageError
from stretto.vocabulary.records import RECORD_BYTES_MAX
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire
from tests.support.cluster import MODULE, Cluster
from tests.support.waiting import wait_until
from tests.support.wires import Wire


@pytest.fixture
def depot() -> str:
    """Of its own for each test, as they share a cluster."""
    return f"events-{secrets.token_hex(4)}"


@pytest.fixture
def client(calm: Cluster) -> Client:
    return calm.connect()


def append(client: Client, depot: str, records: list[bytes], task: int = 0) -> None:
    client.producer(MODULE, depot, linger_ms=0).append_batch(records, task=task).result(30)


def test_records_are_read_back_from_any_offset(client: Client, depot: str) -> None:
    records = [b"record %d" % number for number in range(2_500)]
    producer = client.producer(MODULE, depot)
    acks = [producer.append(record, task=1) for record in records]
    for ack in acks:
        ack.result(30)
    reader = client.reader(MODULE, depot)
    assert reader.bounds(1) == (0, len(records))
    for offset in (0, 1, 999, 1_000, 1_001, 2_499):
        found, next_offset = reader.read(1, offset)
        assert [record.data for record in found] == records[offset : offset + len(found)]
        assert [record.offset for record in found] == list(range(offset, next_offset))
        assert found
    assert reader.read(1, len(records)).records == []
    assert [record.data for record in reader.read_all()] == records


def test_a_read_is_cut_at_batches_and_says_where_to_go_on(client: Client, depot: str) -> None:
    for start in range(0, 40, 10):
        append(client, depot, [b"%04d" % number + bytes(1_000) for number in range(start, start + 10)])
    reader = client.reader(MODULE, depot)
    at, seen = 0, []
    for _ in range(4):
        records, at = reader.read(0, at, max_bytes=1)
        assert len(records) == 10
        seen += [int(record.data[:4]) for record in records]
    assert seen == list(range(40))
    assert reader.read(0, at) == ([], at)


def test_whoever_reads_after_an_acknowledgement_sees_the_record(calm: Cluster, depot: str) -> None:
    """Acknowledged before they are applied, one at a time, and read by somebody else at once."""
    producer = calm.connect().producer(MODULE, depot, linger_ms=0)
    reader = calm.connect().reader(MODULE, depot)
    for number in range(200):
        producer.append(b"%d" % number, task=0).result(30)
        assert reader.bounds(0) == (0, number + 1)
        assert [record.data for record in reader.read(0, number).records] == [b"%d" % number]


def test_a_depot_without_records_is_empty_and_not_an_error(client: Client, depot: str) -> None:
    reader = client.reader(MODULE, depot)
    assert reader.bounds(0) == (0, 0)
    assert reader.read(0, 0) == ([], 0)
    assert list(reader.read_all()) == []
    assert reader.offset_at(0, 0) == 0


def test_records_are_found_by_the_time_of_their_append(client: Client, depot: str) -> None:
    append(client, depot, [b"early"] * 3)
    reader = client.reader(MODULE, depot)
    early_ms = reader.read(0, 0).records[0].timestamp_ms
    wait_until("the clock goes on", lambda: time.time_ns() // 1_000_000 > early_ms + 1)
    append(client, depot, [b"late"] * 3)
    late_ms = reader.read(0, 3).records[0].timestamp_ms
    assert late_ms > early_ms
    assert reader.offset_at(0, 0) == 0
    assert reader.offset_at(0, early_ms) == 0
    assert reader.offset_at(0, early_ms + 1) == 3
    assert reader.offset_at(0, late_ms) == 3
    assert reader.offset_at(0, late_ms + 1) == 6


def test_a_tail_gets_what_was_there_and_what_comes(client: Client, depot: str) -> None:
    append(client, depot, [b"before"])
    tail = client.reader(MODULE, depot).tail()
    assert next(tail).data == b"before"
    appending = threading.Thread(target=append, args=(client, depot, [b"after-1", b"after-2"], 1))
    appending.start()
    assert [record.data for record in itertools.islice(tail, 2)] == [b"after-1", b"after-2"]
    appending.join()
    resumed = client.reader(MODULE, depot).tail(start={0: 1, 1: 1})
    assert next(resumed).data == b"after-2"


def read_at(calm: Cluster, caller: Wire, depot: str, offset: int, wait_ms: int) -> wire.ReadDepot:
    return wire.ReadDepot(
        caller.number(), calm.key_of(0), TaskId(0), depot, offset, 1 << 20, committed=True, wait_ms=wait_ms
    )


def test_a_read_at_the_end_waits_until_the_depot_grows(calm: Cluster, client: Client, depot: str) -> None:
    with Wire(calm.leader().address) as caller:
        caller.send(read_at(calm, caller, depot, 0, wait_ms=10_000))
        append(client, depot, [b"elsewhere"], task=1)
        assert caller.receive_if_any(0.3) is None, "it was answered before there was anything"
        append(client, depot, [b"new"])
        answer = caller.receive(5)
        assert isinstance(answer, wire.DepotBatches)
        assert (answer.bases, answer.end) == ((0,), 1)


def test_a_read_that_waits_in_vain_is_answered_in_time(calm: Cluster, depot: str) -> None:
    with Wire(calm.leader().address) as caller:
        began = time.monotonic()
        answer = caller.ask(read_at(calm, caller, depot, 0, wait_ms=500))
        assert time.monotonic() - began >= 0.5
        assert isinstance(answer, wire.DepotBatches)
        assert answer.bases == ()


def test_reads_that_wait_end_with_the_leadership(start: Callable[..., Cluster], depot: str) -> None:
    cluster = start()
    leader = cluster.leader()
    with Wire(leader.address) as caller:
        caller.send(read_at(cluster, caller, depot, 0, wait_ms=10_000))
        assert caller.receive_if_any(0.2) is None
        leader.terminate()
        answer = caller.receive(8)
        assert isinstance(answer, wire.Refused), f"it answered {answer}"


@pytest.mark.parametrize("wait_ms", [0, 10_000])
def test_a_negative_offset_is_refused_even_of_an_empty_depot(
    calm: Cluster, client: Client, depot: str, wait_ms: int
) -> None:
    with pytest.raises(UsageError, match="no offset"):
        client.reader(MODULE, depot).read(0, -1)
    with Wire(calm.leader().address) as caller:
        answer = caller.ask(read_at(calm, caller, depot, -1, wait_ms))
        assert isinstance(answer, wire.Failed)
        assert "no offset" in answer.why


def test_records_without_a_task_go_to_all_tasks_in_turn(client: Client, depot: str) -> None:
    producer = client.producer(MODULE, depot, batch_records=10)
    acks = [producer.append(b"%d" % number) for number in range(100)]
    for ack in acks:
        ack.result(30)
    reader = client.reader(MODULE, depot)
    assert [reader.bounds(task)[1] for task in reader.tasks] == [50, 50]


def test_every_worker_can_introduce_a_client_to_the_cluster(calm: Cluster, depot: str) -> None:
    for number, name in enumerate(calm.workers):
        client = calm.connect([name])
        wait_until(f"{name} knows all addresses", lambda client=client: knows_all(client, calm))  # type: ignore[misc]
        append(client, depot, [b"through %d" % number])
        for group in client.groups():
            record = calm.record(group.key.group)
            assert (group.leader, group.epoch) == (record.leader, record.epoch)
            assert set(group.isr) == set(calm.workers)


def test_a_worker_that_holds_nothing_of_a_module_introduces_clients_to_it(
    start: Callable[..., Cluster], depot: str
) -> None:
    cluster = start(workers=4, tasks=1, groups=1)
    assert "w3" not in cluster.plans[0].replicas
    client = cluster.connect(["w3"])
    append(client, depot, [b"through w3"])
    assert data(client.reader(MODULE, depot).read(0, 0)) == [b"through w3"]
    record = cluster.record()
    (group,) = client.groups()
    assert (group.leader, group.epoch) == (record.leader, record.epoch)
    with Wire(cluster.workers["w3"].address) as caller:
        for module, groups in ((MODULE, 1), ("another", 0), (None, 1)):
            answer = caller.ask(wire.GetMetadata(caller.number(), module=module))
            assert isinstance(answer, wire.Metadata)
            assert len(answer.groups) == groups


def knows_all(client: Client, cluster: Cluster) -> bool:
    client.refresh()
    return len(client._network.view.addresses) == len(cluster.workers)


def test_the_async_client_appends_and_reads(calm: Cluster, depot: str) -> None:
    async def scenario() -> list[bytes]:
        async with await connect_async(calm.addresses()) as client:
            producer = await client.producer(MODULE, depot, linger_ms=1)
            await asyncio.gather(*(acked(producer.append(b"%d" % n, task=0)) for n in range(100)))
            found, _ = await client.reader(MODULE, depot).read(0, 0)
            return [record.data for record in found]

    async def acked(ack: Ack) -> None:
        await ack

    assert asyncio.run(scenario()) == [b"%d" % number for number in range(100)]


def test_an_entry_without_enough_replicas_is_seen_by_uncommitted_reads_only(
    calm: Cluster, client: Client, depot: str
) -> None:
    # Admitted before: that takes enough replicas too.
    producer = client.producer(MODULE, depot, linger_ms=0)
    producer.append(b"committed", task=0).result(30)
    reader = client.reader(MODULE, depot)
    followers = calm.followers()
    for follower in followers:
        follower.pause()
    try:
        ack = producer.append(b"uncommitted", task=0)
        wait_until(
            "an uncommitted read sees the entry",
            lambda: data(reader.read(0, 0, committed=False)) == [b"committed", b"uncommitted"],
        )
        assert data(reader.read(0, 0)) == [b"committed"]
        assert not ack.done()
    finally:
        for follower in followers:
            follower.resume()
    ack.result(40)
    assert data(reader.read(0, 0)) == [b"committed", b"uncommitted"]
    assert data(reader.read(0, 0, committed=False)) == [b"committed", b"uncommitted"]
    calm.wait_healed()


def data(found: Slice) -> list[bytes]:
    return [record.data for record in found.records]


def test_what_can_never_work_is_refused_at_once(client: Client, depot: str) -> None:
    producer = client.producer(MODULE, depot)
    with pytest.raises(UsageError, match="beyond the limit"):
        producer.append(bytes(RECORD_BYTES_MAX + 1)).result(0)
    with pytest.raises(UsageError, match="has tasks 0 to 1, not 7"):
        producer.append(b"", task=7).result(0)
    with pytest.raises(UsageError, match="no module 'nothing'"):
        client.producer("nothing", depot)
    with pytest.raises(UsageError, match="no task 9"):
        client.reader(MODULE, depot).read(9, 0)
    producer.append(b"still works", task=0).result(30)
    with pytest.raises(UsageError, match="no offset"):
        client.reader(MODULE, depot).read(0, -1)


def test_the_largest_record_is_taken_and_read_back(client: Client, depot: str) -> None:
    record = secrets.token_bytes(RECORD_BYTES_MAX)
    client.producer(MODULE, depot).append(record, task=0).result(60)
    assert client.reader(MODULE, depot).read(0, 0).records[0].data == record


def test_a_producer_goes_on_after_a_batch_that_was_too_large(client: Client, depot: str) -> None:
    producer = client.producer(MODULE, depot)
    with pytest.raises(UsageError, match="split it"):
        producer.append_batch([bytes(RECORD_BYTES_MAX)] * 5, task=0).result(0)
    producer.append(b"small", task=0).result(30)
    assert client.reader(MODULE, depot).bounds(0) == (0, 1)
