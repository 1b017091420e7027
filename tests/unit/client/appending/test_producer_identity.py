"""A producer whose id a group does not know (any more), against a worker that says exactly that."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stretto import connect
from stretto.client import Client
from stretto.errors import ModulePaused, NotAppended, OutcomeUnknown, StrettoError, UsageError
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.vocabulary.types import Epoch, TaskId
from stretto.wire import messages as wire
from tests.unit.client.workers import GROUPS, MODULE, WORKER, FakeWorker, refused


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


@pytest.mark.parametrize("record", ["text", {"a": 1}, None, 7])
def test_what_is_no_bytes_is_refused_to_its_caller_and_harms_nobody_else(
    worker: FakeWorker, client: Client, record: object
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=0)
    with pytest.raises(UsageError, match=f"a record is bytes, not {type(record).__name__}; encode it"):
        _ = producer.append(record, task=0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a record is bytes"):
        _ = producer.append_batch([b"good", record], task=0)  # type: ignore[list-item]
    producer.append(b"good", task=0).result(10)
    assert [records for _, _, _, records in worker.taken] == [[b"good"]]


def test_an_id_that_one_group_finds_too_old_is_replaced_there_alone(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=0)
    producer.append(b"0", task=0).result(10)
    (kept,) = {number for group, number in worker.opened if group == GROUPS[0]}
    old: list[int] = []

    def too_old_at_first(message: wire.AppendBatch) -> wire.ToClient | None:
        if message.group == GROUPS[1] and message.kind is Kind.PRODUCER_OPEN and not old:
            old.append(message.producer)
            return refused(message, Refusal.UNKNOWN_PRODUCER)
        return None

    worker.answer = too_old_at_first
    producer.append(b"1", task=1).result(10)
    producer.append(b"2", task=0).result(10)
    assert [number for group, number in worker.opened if group == GROUPS[1]] != old
    assert {number for group, number, *_ in worker.taken if group == GROUPS[0]} == {kept}


def test_a_producer_that_was_forgotten_while_idle_goes_on_under_another_id(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=0)
    producer.append(b"0", task=0).result(10)
    worker.opened.clear()
    for ack in [producer.append(b"%d" % number, task=0) for number in range(1, 4)]:
        ack.result(10)
    assert [record for *_, records in worker.taken for record in records] == [b"0", b"1", b"2", b"3"]
    assert worker.taken[1][2] == 0, "sequences begin anew under a new id"


def test_a_batch_sent_before_it_was_forgotten_has_an_unknown_outcome(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=0)
    producer.append(b"0", task=0).result(10)
    seen: list[int] = []

    def unknown_then_forgotten(message: wire.AppendBatch) -> wire.ToClient | None:
        if message.kind is Kind.DEPOT and len(seen) < 2:
            seen.append(message.request)
            if len(seen) == 1:
                return wire.Unknown(message.request)
            worker.opened.clear()
        return None

    worker.answer = unknown_then_forgotten
    with pytest.raises(OutcomeUnknown, match="forgot"):
        producer.append(b"1", task=0).result(10)
    producer.append(b"2", task=0).result(10)
    assert [record for *_, records in worker.taken for record in records] == [b"0", b"2"]


def test_after_a_batch_that_was_given_up_a_producer_goes_on_under_another_id(
    worker: FakeWorker, client: Client
) -> None:
    """Its sequence was never used, so the leader would wait for it for good."""
    producer = client.producer(MODULE, "d", linger_ms=0)
    producer.append(b"0", task=0).result(10)
    [(_, before, *_)] = worker.taken
    patience_ms = producer._timeout_ms

    def busy(message: wire.AppendBatch) -> wire.ToClient | None:
        # Its time is over when it is to be sent again.
        producer._timeout_ms = -1
        return refused(message, Refusal.OVERLOADED)

    worker.answer = busy
    with pytest.raises(NotAppended, match="nothing was appended"):
        producer.append_batch([b"1"], task=0).result(10)
    producer._timeout_ms = patience_ms

    def awaits_what_was_given_up(message: wire.AppendBatch) -> wire.ToClient | None:
        return refused(message, Refusal.SEQUENCE_GAP) if message.producer == before else None

    worker.answer = awaits_what_was_given_up
    for number in (2, 3):
        producer.append_batch([b"%d" % number], task=0).result(10)
    assert [record for *_, records in worker.taken for record in records] == [b"0", b"2", b"3"]
    assert worker.taken[1][2] == 0, "sequences begin anew under a new id"


def test_what_was_sent_before_a_batch_that_can_never_be_taken_is_not_given_up(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=0)
    producer.append(b"0", task=0).result(10)
    held: list[wire.AppendBatch] = []

    def slow_and_then_never(message: wire.AppendBatch) -> wire.ToClient | None:
        if message.sequence == 1 and not held:
            held.append(message)
            return wire.Refused(message.request, Refusal.OVERLOADED, WORKER, Epoch(1))
        never = wire.Failed(message.request, "never", wire.Fault.USAGE)
        return never if message.sequence == 2 else None

    worker.answer = slow_and_then_never
    first, second = (producer.append_batch([record], task=0) for record in (b"1", b"2"))
    first.result(10)
    with pytest.raises(UsageError, match="never"):
        second.result(10)


def test_a_worker_that_fails_is_not_taken_for_a_caller_who_erred(worker: FakeWorker, client: Client) -> None:
    worker.answer = lambda message: wire.Failed(message.request, "the state is damaged")
    with pytest.raises(StrettoError, match="the state is damaged") as refusal:
        client.producer(MODULE, "d", linger_ms=0).append(b"0", task=0).result(10)
    assert not isinstance(refusal.value, UsageError)


def paused(message: wire.AppendBatch) -> wire.ToClient | None:
    return refused(message, Refusal.PAUSED)


def test_a_paused_module_refuses_at_once_and_the_same_producer_goes_on_when_it_is_resumed(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=0)
    producer.append(b"0", task=0).result(10)
    worker.answer = paused
    for ack in [producer.append_batch([b"%d" % number], task=0) for number in range(1, 9)]:
        with pytest.raises(ModulePaused, match="stretto deploy resume m"):
            ack.result(10)
    [(_, before, *_)] = worker.taken

    def a_late_batch_finds_a_gap(message: wire.AppendBatch) -> wire.ToClient | None:
        return refused(message, Refusal.SEQUENCE_GAP) if message.producer == before else None

    worker.answer = a_late_batch_finds_a_gap
    producer.append(b"9", task=0).result(10)
    assert [record for *_, records in worker.taken for record in records] == [b"0", b"9"]


def test_a_producer_that_finds_its_module_paused_is_not_admitted_before_it_is_resumed(
    worker: FakeWorker, client: Client
) -> None:
    worker.answer = paused
    producer = client.producer(MODULE, "d", linger_ms=0)
    for number in range(3):
        with pytest.raises(ModulePaused):
            producer.append(b"%d" % number, task=0).result(10)
    worker.answer = lambda _: None
    producer.append(b"3", task=0).result(10)
    assert [records for *_, records in worker.taken] == [[b"3"]]
    assert len(worker.opened) == 1


def test_what_was_stored_before_the_pause_is_acknowledged_and_what_follows_it_refused(
    worker: FakeWorker, client: Client
) -> None:
    producer = client.producer(MODULE, "d", linger_ms=0)
    producer.append(b"0", task=0).result(10)
    # What is appended after the refusal is known goes out under another id.
    all_appended = threading.Event()

    def paused_from_the_third_on(message: wire.AppendBatch) -> wire.ToClient | None:
        assert all_appended.wait(10)
        match message.sequence:
            case 2:
                return refused(message, Refusal.PAUSED)
            case 3 | 4:
                return refused(message, Refusal.SEQUENCE_GAP)
            case _:
                return None

    worker.answer = paused_from_the_third_on
    first, *others = [producer.append_batch([b"%d" % number], task=0) for number in range(1, 5)]
    all_appended.set()
    first.result(10)
    for ack in others:
        with pytest.raises(ModulePaused):
            ack.result(10)


def test_a_lost_connection_is_noticed_at_once(worker: FakeWorker, client: Client) -> None:
    asked = threading.Event()
    lost = threading.Event()

    def send() -> None:
        message = wire.AppendBatch(99, GROUPS[0], Kind.DEPOT, TaskId(0), 1, 0, 1)  # type: ignore[arg-type]
        client._network.request(
            worker.address, 99, message, (b"",), lambda reply, _: lost.set(), timeout_ms=60_000
        )

    def die(_: wire.AppendBatch) -> wire.ToClient:
        asked.set()
        return wire.Welcome("c", WORKER)

    worker.answer = die
    client._network.call(send)
    assert asked.wait(10)
    assert not lost.is_set()
    worker._loop.call_soon(worker._endpoint.close)
    assert lost.wait(10), "what was under way on a lost connection stays unanswered"


class Directory(FakeWorker):
    """Knows where the worker is, and is no worker itself."""

    def __init__(self, worker: FakeWorker) -> None:
        self.told = worker.address
        super().__init__()

    def _metadata(self, request: int) -> wire.Metadata:
        told = super()._metadata(request)
        return wire.Metadata(request, {WORKER: self.told}, told.groups)


def test_workers_that_have_all_moved_are_found_through_the_addresses_given_at_first() -> None:
    first = FakeWorker()
    directory = Directory(first)
    client = connect([directory.address])
    try:
        client.producer(MODULE, "d", linger_ms=0).append(b"before", task=0).result(10)
        first.close()
        second = FakeWorker()
        directory.told = second.address
        try:
            client.producer(MODULE, "d", linger_ms=0).append(b"after", task=0).result(20)
            assert [records for *_, records in second.taken] == [[b"after"]]
        finally:
            second.close()
    finally:
        client.close()
        directory.close()


def test_who_is_told_of_an_outcome_may_append_and_may_fail(worker: FakeWorker, client: Client) -> None:
    producer = client.producer(MODULE, "d", linger_ms=0)
    followed = threading.Event()

    def fail() -> None:
        raise RuntimeError("the caller's loop is closed")

    def follow() -> None:
        producer.append(b"1", task=0).add_done_callback(followed.set)

    held = threading.Event()

    def when_all_wait(message: wire.AppendBatch) -> wire.ToClient | None:
        assert held.wait(10)
        return None

    worker.answer = when_all_wait
    first = producer.append(b"0", task=0)
    first.add_done_callback(fail)
    first.add_done_callback(follow)
    held.set()
    assert followed.wait(10)
    producer.append(b"2", task=0).result(10)
    producer.flush(10)
    assert [record for *_, records in worker.taken for record in records] == [b"0", b"1", b"2"]
