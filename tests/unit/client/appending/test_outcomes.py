"""What is told of a record that nobody confirmed: that it is not appended, if that is certain."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stretto import connect
from stretto.client import Client, Producer
from stretto.client.appending import producer as producer_module
from stretto.errors import NotAppended, NotEnoughReplicas, OutcomeUnknown, StrettoError, UsageError
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.wire import messages as wire
from tests.unit.client.workers import MODULE, FakeWorker, refused

SECONDS = 10
TIMEOUT_MS = 400

Said = Refusal | str
SILENT, UNKNOWN = "silent", "unknown"


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    worker = FakeWorker()
    yield worker
    worker.close()


@pytest.fixture
def client(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(producer_module, "REQUEST_TIMEOUT_MS", 60)
    monkeypatch.setattr(producer_module, "BUSY_MS", 5)
    client = connect([worker.address])
    yield client
    client._network.close()


@pytest.fixture
def producer(client: Client) -> Producer:
    """One that is admitted, and gives up soon."""
    producer = client.producer(MODULE, "d", linger_ms=0, timeout_ms=TIMEOUT_MS)
    producer.append(b"0", task=0).result(SECONDS)
    return producer


def answering(*said: Said) -> Callable[[wire.AppendBatch], wire.ToClient | None]:
    """Each time the next of these, and then the last one again and again."""
    left = list(said)

    def answer(message: wire.AppendBatch) -> wire.ToClient | None:
        told = left.pop(0) if len(left) > 1 else left[0]
        match told:
            case Refusal():
                return refused(message, told)
            case "unknown":
                return wire.Unknown(message.request)
            case _:
                # To a question that nobody asked.
                return wire.Unknown(1 << 60)

    return answer


CERTAIN = [
    (Refusal.STALLED,),
    (Refusal.NOT_READY, Refusal.HANDING_OVER, Refusal.STALLED),
    (Refusal.OVERLOADED,),
    (Refusal.SEALED,),
    (Refusal.NOT_LEADER,),
    (Refusal.NOT_READY,),
    (Refusal.HANDING_OVER,),
]
DOUBTFUL = [
    (SILENT,),
    (UNKNOWN,),
    (SILENT, Refusal.STALLED),
    (Refusal.STALLED, SILENT, Refusal.STALLED),
    (Refusal.NOT_LEADER, UNKNOWN, Refusal.NOT_LEADER, Refusal.STALLED),
]


@pytest.mark.parametrize("said", CERTAIN)
def test_what_was_refused_every_time_is_told_not_to_be_appended(
    worker: FakeWorker, producer: Producer, said: tuple[Said, ...]
) -> None:
    worker.answer = answering(*said)
    acks = [producer.append_batch([record], task=0) for record in (b"1", b"2")]
    for ack in acks:
        with pytest.raises(NotAppended, match="nothing was appended") as told:
            ack.result(SECONDS)
        assert isinstance(told.value, NotEnoughReplicas) == (said[-1] is Refusal.STALLED)
        assert not isinstance(told.value, OutcomeUnknown)
    worker.answer = lambda _: None
    producer.append(b"3", task=0).result(SECONDS)
    assert [record for *_, records in worker.taken for record in records] == [b"0", b"3"]


@pytest.mark.parametrize("said", DOUBTFUL)
def test_what_may_have_been_stored_once_may_be_applied_whatever_is_answered_later(
    worker: FakeWorker, producer: Producer, said: tuple[Said, ...]
) -> None:
    worker.answer = answering(*said)
    with pytest.raises(OutcomeUnknown, match="may be applied"):
        producer.append(b"1", task=0).result(SECONDS)


@pytest.mark.parametrize(
    ("said", "error"), [((Refusal.STALLED,), NotEnoughReplicas), ((UNKNOWN, Refusal.STALLED), OutcomeUnknown)]
)
def test_a_record_that_its_caller_sends_by_its_own_hands_is_told_of_likewise(
    worker: FakeWorker, producer: Producer, said: tuple[Said, ...], error: type[StrettoError]
) -> None:
    worker.answer = answering(*said)
    with pytest.raises(error):
        producer.append_and_wait(b"1", task=0)


def test_a_producer_that_is_not_admitted_by_a_stalled_group_says_why(
    worker: FakeWorker, client: Client
) -> None:
    worker.answer = answering(Refusal.STALLED)
    producer = client.producer(MODULE, "d", linger_ms=0, timeout_ms=TIMEOUT_MS)
    with pytest.raises(NotEnoughReplicas, match=r"had too few replicas in sync for 0\.4 s"):
        producer.append(b"1", task=0).result(SECONDS)


def test_what_can_never_be_taken_may_be_applied_if_it_was_sent_before(
    worker: FakeWorker, producer: Producer
) -> None:
    sent: list[int] = []

    def silent_and_then_never(message: wire.AppendBatch) -> wire.ToClient | None:
        sent.append(message.sequence)
        if len(sent) == 1:
            return wire.Unknown(message.request)
        return wire.Failed(message.request, "there is no such depot any more", wire.Fault.USAGE)

    worker.answer = silent_and_then_never
    with pytest.raises(OutcomeUnknown, match="it may be applied, but there is no such depot any more"):
        producer.append(b"1", task=0).result(SECONDS)


def test_what_can_never_be_taken_is_told_so(worker: FakeWorker, producer: Producer) -> None:
    worker.answer = lambda message: wire.Failed(message.request, "no such depot", wire.Fault.USAGE)
    with pytest.raises(UsageError, match=r"^no such depot$"):
        producer.append(b"1", task=0).result(SECONDS)


def test_what_was_refused_before_its_producer_was_forgotten_is_appended_under_the_next_id(
    worker: FakeWorker, producer: Producer
) -> None:
    refusals: list[int] = []

    def stalled_and_then_forgotten(message: wire.AppendBatch) -> wire.ToClient | None:
        if message.kind is Kind.DEPOT and not refusals:
            refusals.append(message.sequence)
            worker.opened.clear()
            return refused(message, Refusal.STALLED)
        return None

    worker.answer = stalled_and_then_forgotten
    producer.append(b"1", task=0).result(SECONDS)
    assert [record for *_, records in worker.taken for record in records] == [b"0", b"1"]
