"""A record that its caller waits for: sent by the caller's own hands, and settled by the client's thread
whenever it is not simply acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stretto import connect
from stretto.client import Client
from stretto.client.appending import producer as producer_module
from stretto.client.appending.producer import Producer
from stretto.errors import ModulePaused, OutcomeUnknown, UsageError
from stretto.network.endpoint import Connection
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.specs.modules import DepotSpec
from stretto.testing import eventually
from stretto.vocabulary.records import RECORD_BYTES_MAX
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire
from tests.unit.client.workers import GROUPS, MODULE, WORKER, FakeWorker, refused

SECONDS = 10


class OneGroup(FakeWorker):
    """Leads one group of two tasks, and may keep a client waiting while it answers others."""

    def __init__(self) -> None:
        #: Who appended, one for each message.
        self.senders: list[Connection] = []
        self.holds: Callable[[wire.AppendBatch], bool] = lambda _: False
        self.held = threading.Event()
        self._kept: list[Callable[[], None]] = []
        super().__init__()

    def release(self) -> None:
        self.holds = lambda _: False
        for answer in self._kept:
            self._loop.call_soon(answer)

    def _received(
        self, sender: Connection, worker: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        if isinstance(message, wire.AppendBatch):
            self.senders.append(sender)
            if self.holds(message):
                kept = [memoryview(bytes(body)) for body in bodies]
                self._kept.append(lambda: super(OneGroup, self)._received(sender, worker, message, kept))
                self.held.set()
                return
        super()._received(sender, worker, message, bodies)

    def _metadata(self, request: int) -> wire.Metadata:
        tasks = (TaskId(0), TaskId(1))
        view = wire.GroupView(GROUPS[0], tasks, (WORKER,), Epoch(1), WORKER, (WORKER,), len(tasks))
        return wire.Metadata(request, {WORKER: self.address}, (view,))


@pytest.fixture
def worker() -> Iterator[OneGroup]:
    worker = OneGroup()
    yield worker
    worker.close()


@pytest.fixture
def client(worker: OneGroup) -> Iterator[Client]:
    client = connect([worker.address])
    yield client
    client._network.close()


@pytest.fixture
def producer(client: Client) -> Producer:
    """Admitted, and idle."""
    producer = client.producer(MODULE, "d", linger_ms=0)
    for task in range(2):
        producer.append(b"first", task=task).result(SECONDS)
    return producer


def overloaded(number: int) -> wire.ToClient:
    return wire.Refused(number, Refusal.OVERLOADED, WORKER, Epoch(1))


def taken(worker: FakeWorker) -> list[bytes]:
    return [record for *_, records in worker.taken for record in records]


def test_it_goes_over_a_connection_of_its_own_and_sequences_go_on(
    worker: OneGroup, producer: Producer
) -> None:
    before = set(worker.senders)
    assert producer.append_and_wait(b"second", task=0) == {}
    producer.append(b"third", task=0).result(SECONDS)
    assert producer.append_and_wait(b"fourth", task=0) == {}
    assert [sender in before for sender in worker.senders[-3:]] == [False, True, False]
    assert [(sequence, *records) for _, _, sequence, records in worker.taken[2:]] == [
        (1, b"second"),
        (2, b"third"),
        (3, b"fourth"),
    ]


def test_one_that_is_not_admitted_yet_and_one_that_waits_for_streams_take_the_long_way(
    worker: OneGroup, client: Client
) -> None:
    assert client.producer(MODULE, "d").append_and_wait(b"a") == {}
    assert client.producer(MODULE, "d", ack="all").append_and_wait(b"b") == {}
    nowhere = client.producer(MODULE, "d", ack="none")
    assert nowhere.append_and_wait(b"c") == {}
    nowhere.flush(SECONDS)
    assert taken(worker) == [b"a", b"b", b"c"]
    assert len(set(worker.senders)) == 1


def test_a_level_of_acknowledgement_that_there_is_not_is_refused_with_those_that_there_are(
    worker: OneGroup, client: Client
) -> None:
    with pytest.raises(UsageError, match="ack is one of all, streams, append, none; 'al' is none of them"):
        client.producer(MODULE, "d", ack="al")


def test_what_is_appended_meanwhile_follows_in_order(worker: OneGroup, producer: Producer) -> None:
    worker.holds = lambda message: message.sequence == 1
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(producer.append_and_wait, b"1", task=0)
        assert worker.held.wait(SECONDS)
        others = [producer.append_batch([b"%d" % number], task=0) for number in (2, 3)]
        with pytest.raises(TimeoutError):
            producer.flush(0.05)
        assert taken(worker) == [b"first", b"first"]
        worker.release()
        assert waiting.result(SECONDS) == {}
    for ack in others:
        ack.result(SECONDS)
    assert taken(worker)[2:] == [b"1", b"2", b"3"]
    producer.close(SECONDS)


@pytest.mark.parametrize("lost", [wire.Unknown, overloaded])
def test_one_without_an_answer_is_repeated_under_its_number(
    worker: OneGroup, producer: Producer, lost: Callable[[int], wire.ToClient]
) -> None:
    seen: list[int] = []

    def lost_at_first(message: wire.AppendBatch) -> wire.ToClient | None:
        seen.append(message.sequence)
        return lost(message.request) if len(seen) == 1 else None

    worker.answer = lost_at_first
    assert producer.append_and_wait(b"second", task=0) == {}
    assert producer.append_and_wait(b"third", task=0) == {}
    assert (seen, taken(worker)[2:]) == ([1, 1, 2], [b"second", b"third"])


def test_a_connection_that_breaks_is_no_end(worker: OneGroup, client: Client, producer: Producer) -> None:
    worker.holds = lambda _: True
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(producer.append_and_wait, b"second", task=0)
        assert worker.held.wait(SECONDS)
        # What is heard when its worker dies.
        for connection in list(client._network.direct._connections._connections.values()):
            client._network.direct._loop.call_soon(  # type: ignore[union-attr]
                client._network.direct._connections._lose, connection
            )
        worker.holds = lambda _: False
        assert waiting.result(SECONDS) == {}
    assert taken(worker)[2:] == [b"second"]


def test_a_lane_that_somebody_else_has_is_not_waited_for(
    worker: OneGroup, client: Client, producer: Producer
) -> None:
    with client._network.direct._taken:
        assert producer.append_and_wait(b"second", task=0) == {}
    assert producer.append_and_wait(b"third", task=0) == {}
    assert [sequence for _, _, sequence, _ in worker.taken[2:]] == [1, 2]


def test_an_interrupted_caller_leaves_a_record_that_is_settled_all_the_same(
    worker: OneGroup, client: Client, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = client._network.direct.ask

    def interrupted(*args: object) -> None:
        ask(*args)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    seen: list[int] = []

    def noted(message: wire.AppendBatch) -> wire.ToClient | None:
        seen.append(message.sequence)
        return None

    worker.answer = noted
    monkeypatch.setattr(client._network.direct, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.append_and_wait(b"second", task=0)
    monkeypatch.undo()
    producer.flush(SECONDS)
    assert producer.append_and_wait(b"third", task=0) == {}
    assert seen == [1, 1, 2], "it was sent again under its number, for nobody heard what became of it"


@pytest.mark.parametrize("where", ["pack", "boot_time_ms", "_lend", "_acknowledged"])
def test_an_interrupt_anywhere_leaves_a_producer_that_goes_on(
    worker: OneGroup, producer: Producer, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    of = producer if hasattr(producer, where) else producer_module
    real = getattr(of, where)

    def interrupted(*args: object) -> None:
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(of, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.append_and_wait(b"second", task=0)
    monkeypatch.undo()
    producer.flush(SECONDS)
    assert producer.append_and_wait(b"third", task=0) == {}
    producer.append(b"fourth", task=0).result(SECONDS)
    assert taken(worker)[-2:] == [b"third", b"fourth"]
    sequences = [sequence for *_, sequence, _ in worker.taken[2:]]
    assert sequences == list(range(1, len(sequences) + 1))


def test_a_queue_whose_batches_wait_for_another_attempt_is_not_appended_to_directly(
    worker: OneGroup, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "BUSY_MS", 1_500)
    queue = producer._queues[TaskId(0)]

    def overloaded_meanwhile(message: wire.AppendBatch) -> wire.ToClient | None:
        is_busy = message.task == 0 and message.kind is Kind.DEPOT and (queue.retrying or not refused_once)
        refused_once.append(message.sequence)
        return overloaded(message.request) if is_busy else None

    refused_once: list[int] = []
    worker.answer = overloaded_meanwhile
    first = producer.append(b"first", task=0)
    eventually(lambda: queue.retrying, what="it is tried again later")
    # Now nothing is on its way, because the other task's id ended, and this one's with it.
    worker.opened.clear()
    producer.append(b"other", task=1).result(SECONDS)
    assert queue.retrying
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(producer.append_and_wait, b"second", task=0).result(SECONDS) == {}
    # It was refused, so it is appended once under the next id.
    assert first.result(SECONDS) == {}
    assert taken(worker)[2:] == [b"other", b"first", b"second"]


def test_a_producer_that_was_forgotten_goes_on_under_another_id(worker: OneGroup, producer: Producer) -> None:
    worker.opened.clear()
    assert producer.append_and_wait(b"second", task=0) == {}
    assert producer.append_and_wait(b"third", task=0) == {}
    assert [(sequence, *records) for _, _, sequence, records in worker.taken[2:]] == [
        (0, b"second"),
        (1, b"third"),
    ]


def test_an_id_that_ends_for_another_task_is_kept_until_the_record_is_settled(
    worker: OneGroup, producer: Producer
) -> None:
    worker.holds = lambda message: message.task == 0 and message.kind is Kind.DEPOT
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(producer.append_and_wait, b"second", task=0)
        assert worker.held.wait(SECONDS)
        admitted = list(worker.opened)
        worker.opened.clear()
        other = producer.append(b"other", task=1)
        with pytest.raises(TimeoutError):
            other.result(0.1)
        assert worker.opened == [], "a new id was admitted while a record of the old one is on its way"
        worker.opened.extend(admitted)
        worker.release()
        assert waiting.result(SECONDS) == {}
        other.result(SECONDS)
    assert producer.append_and_wait(b"third", task=0) == {}
    assert [(sequence, *records) for _, _, sequence, records in worker.taken[2:]] == [
        (1, b"second"),
        (0, b"other"),
        (0, b"third"),
    ]


def test_one_sent_before_it_was_forgotten_has_an_unknown_outcome(
    worker: OneGroup, producer: Producer
) -> None:
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
        producer.append_and_wait(b"second", task=0)
    assert producer.append_and_wait(b"third", task=0) == {}
    assert taken(worker)[2:] == [b"third"]


def test_what_can_never_be_taken_is_told_at_once(worker: OneGroup, producer: Producer) -> None:
    with pytest.raises(UsageError, match="a record is bytes, not str; encode it"):
        producer.append_and_wait("text")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="beyond the limit"):
        producer.append_and_wait(bytes(RECORD_BYTES_MAX + 1))
    with pytest.raises(UsageError, match="has tasks 0 to 1, not 7"):
        producer.append_and_wait(b"x", task=7)
    worker.answer = lambda message: refused(message, Refusal.PAUSED)
    with pytest.raises(ModulePaused):
        producer.append_and_wait(b"x", task=0)
    worker.answer = lambda message: wire.Failed(message.request, "never", wire.Fault.USAGE)
    with pytest.raises(UsageError, match="never"):
        producer.append_and_wait(b"x", task=0)
    with pytest.raises(UsageError, match="the producer is closed"):
        producer.append_and_wait(b"x", task=0)


def test_another_thread_may_learn_the_declaration_at_the_same_time(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DepotSpec(name="d")

    def somebody_else_learns_it(_: object) -> bool:
        producer._declared = spec
        return False

    producer._declared = lambda: spec
    monkeypatch.setattr(type(producer._network), "is_own_thread", property(somebody_else_learns_it))
    assert producer.learn_declaration() == spec
