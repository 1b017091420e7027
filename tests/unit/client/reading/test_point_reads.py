"""Point reads of a client, against a worker that says what it was asked and answers when it is told to."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from stretto.client.asking.followers import Seen
from stretto.client.reading.point_reads import READ_KEYS, PointReads
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.network.endpoint import Connection, Endpoint
from stretto.network.loop import Loop
from stretto.network.routing import Network
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId, WorkerId
from stretto.wire import messages as wire

MODULE, PSTATE = "m", "counts"
WORKER = WorkerId("w0")
NEXT = WorkerId("w1")
TASKS = tuple(TaskId(number) for number in range(4))
SECONDS = 20.0


def two_groups(generation: int) -> dict[GroupKey, tuple[TaskId, ...]]:
    return {GroupKey(MODULE, generation, group): TASKS[2 * group : 2 * group + 2] for group in range(2)}


class FakeWorker:
    """Every row is its key, upside down; there is none for those that begin with x."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._endpoint = Endpoint(
            self._loop, address="127.0.0.1:0", cluster="c", name="fake", key=None, on_message=self._received
        )
        self.address = self._endpoint.address
        self.groups = two_groups(1)
        self.asked: list[wire.ReadRows] = []
        self.answers_max = READ_KEYS
        #: What to say instead of an answer.
        self.instead: Callable[[wire.ReadRows], wire.ToClient | None] = lambda _: None
        self._held: list[tuple[Connection, wire.ReadRows]] | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop.run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon(self._loop.stop)
        self._thread.join()
        self._endpoint.close()
        self._loop.close()

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for sender, message in held:
            self._loop.call_soon(self._answer, sender, message)

    def wait_asked(self, condition: Callable[[list[wire.ReadRows]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.asked), SECONDS), self.asked

    def _received(
        self, sender: Connection, _: WorkerId | None, message: wire.ToWorker, bodies: list[memoryview]
    ) -> None:
        if isinstance(message, wire.GetMetadata):
            views = [
                wire.GroupView(key, tasks, (WORKER,), Epoch(1), WORKER, (WORKER,), len(TASKS))
                for key, tasks in self.groups.items()
            ]
            metadata = wire.Metadata(message.request, {WORKER: self.address}, tuple(views))
            self._endpoint.reply(sender, metadata)
        elif isinstance(message, wire.ReadRows):
            with self._changed:
                self.asked.append(message)
                self._changed.notify_all()
            if self._held is not None:
                self._held.append((sender, message))
            else:
                self._answer(sender, message)

    def _answer(self, sender: Connection, message: wire.ReadRows) -> None:
        values = tuple(None if key.startswith(b"x") else key[::-1] for key in message.keys)
        reply = self.instead(message) or wire.RowValues(
            message.request, values[: self.answers_max], Epoch(1), Offset(7)
        )
        self._endpoint.reply(sender, reply)


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    worker = FakeWorker()
    yield worker
    worker.close()


@pytest.fixture
def network(worker: FakeWorker) -> Iterator[Network]:
    network = Network([worker.address], None)
    refresh(network)
    yield network
    network.close()


@pytest.fixture
def points(network: Network) -> PointReads:
    return PointReads(network, MODULE, PSTATE, SECONDS, seen=Seen())


def refresh(network: Network) -> None:
    heard = threading.Event()
    network.call(network.refresh, heard.set)
    assert heard.wait(SECONDS)


def test_a_read_has_the_value_or_none(points: PointReads) -> None:
    assert points.get(TASKS[0], b"ab") == b"ba"
    assert points.get(TASKS[3], b"xb") is None


def test_a_read_of_who_waits_alone_does_without_the_clients_thread(
    network: Network, points: PointReads
) -> None:
    let_go = threading.Event()

    def hold_up() -> None:
        let_go.wait(SECONDS)

    network.call(hold_up)
    try:
        assert points.get(TASKS[0], b"ab") == b"ba"
        assert points.get_many({TASKS[2]: [b"cd", b"x"], TASKS[3]: [b"ef"]}) == {
            TASKS[2]: (b"dc", None),
            TASKS[3]: (b"fe",),
        }
    finally:
        let_go.set()


def test_who_comes_while_another_waits_is_asked_for_at_once(worker: FakeWorker, points: PointReads) -> None:
    worker.hold()
    found: dict[bytes, bytes | None] = {}

    def read(key: bytes) -> None:
        found[key] = points.get(TASKS[0], key)

    threads = [threading.Thread(target=read, args=(key,)) for key in (b"ab", b"cd")]
    for thread in threads:
        thread.start()
    worker.wait_asked(lambda asked: len(asked) == len(threads))
    worker.release()
    for thread in threads:
        thread.join(SECONDS)
    assert found == {b"ab": b"ba", b"cd": b"dc"}


def test_a_read_that_waits_for_a_leader_asks_the_next_one_when_there_is_one(
    worker: FakeWorker, network: Network, points: PointReads
) -> None:
    worker.hold()
    next_worker = FakeWorker()
    found: list[bytes | None] = []
    reading = threading.Thread(target=lambda: found.append(points.get(TASKS[0], b"ab")), daemon=True)
    reading.start()
    worker.wait_asked(lambda asked: len(asked) == 1)
    views = tuple(
        wire.GroupView(key, tasks, (WORKER, NEXT), Epoch(2), NEXT, (NEXT,), len(TASKS))
        for key, tasks in worker.groups.items()
    )

    def elect() -> None:
        network.view.take(wire.Metadata(0, {NEXT: next_worker.address}, views))

    network.call(elect)
    reading.join(SECONDS)
    assert found == [b"ba"]
    assert [message.keys for message in next_worker.asked] == [(b"ab",)]
    next_worker.close()


class Interrupted(Exception):
    pass


def test_an_interrupted_read_leaves_nothing_to_the_next(worker: FakeWorker, points: PointReads) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    def when_asked() -> None:
        worker.wait_asked(lambda asked: len(asked) == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        worker.hold()
        interrupting = threading.Thread(target=when_asked)
        interrupting.start()
        with pytest.raises(Interrupted):
            points.get(TASKS[0], b"ab")
        interrupting.join(SECONDS)
    finally:
        signal.signal(signal.SIGUSR1, before)
    worker.release()
    assert points.get(TASKS[0], b"cd") == b"dc"


def test_reads_that_are_made_at_the_same_time_travel_together(worker: FakeWorker, points: PointReads) -> None:
    async def read() -> list[bytes | None]:
        return await asyncio.gather(*(points.begin(TASKS[n % 4], b"%d" % n) for n in range(200)))

    assert asyncio.run(read()) == [(b"%d" % n)[::-1] for n in range(200)]
    # One for each group would do; how many there are depends on how far the client's thread got meanwhile.
    assert len(worker.asked) < 50
    assert sum(len(message.keys) for message in worker.asked) == 200


def test_reads_of_threads_are_answered_each_with_its_own(worker: FakeWorker, points: PointReads) -> None:
    found: dict[int, list[bytes | None]] = {}

    def read(thread: int) -> None:
        found[thread] = [points.get(TASKS[n % 4], b"%d-%d" % (thread, n)) for n in range(50)]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert found == {t: [(b"%d-%d" % (t, n))[::-1] for n in range(50)] for t in range(8)}


def test_all_groups_are_asked_before_any_has_answered(worker: FakeWorker, points: PointReads) -> None:
    worker.hold()
    found: list[dict[TaskId, tuple[bytes | None, ...]]] = []
    reading = threading.Thread(
        target=lambda: found.append(points.get_many({task: [b"a%d" % task, b"x"] for task in TASKS}))
    )
    reading.start()
    worker.wait_asked(lambda asked: {message.group for message in asked} == set(worker.groups))
    # One request for each group, with all its tasks.
    assert sorted(message.tasks for message in worker.asked) == [(0, 0, 1, 1), (2, 2, 3, 3)]
    worker.release()
    reading.join(SECONDS)
    assert found == [{task: (b"%da" % task, None) for task in TASKS}]


def test_nothing_is_asked_for_without_keys(worker: FakeWorker, points: PointReads) -> None:
    assert points.get_many({}) == {}
    assert worker.asked == []


@pytest.mark.parametrize("tasks", [TASKS, TASKS[:2], TASKS[:1]], ids=["two groups", "one group", "one task"])
def test_what_did_not_fit_an_answer_is_asked_for_again(
    worker: FakeWorker, points: PointReads, tasks: tuple[TaskId, ...]
) -> None:
    worker.answers_max = 7
    wanted = {task: [b"%d.%d" % (task, n) for n in range(20)] for task in tasks}
    assert points.get_many(wanted) == {
        task: tuple(key[::-1] for key in keys) for task, keys in wanted.items()
    }


def test_more_keys_than_a_request_holds_take_several(worker: FakeWorker, points: PointReads) -> None:
    wanted = {TASKS[0]: [b"%d" % n for n in range(2 * READ_KEYS + 1)]}
    assert points.get_many(wanted)[TASKS[0]] == tuple(key[::-1] for key in wanted[TASKS[0]])
    assert max(len(message.keys) for message in worker.asked) == READ_KEYS


def test_what_can_never_be_read_is_told_to_who_asked(worker: FakeWorker, points: PointReads) -> None:
    worker.instead = lambda message: wire.Failed(message.request, "there is no such thing", wire.Fault.USAGE)
    with pytest.raises(UsageError, match="no such thing"):
        points.get(TASKS[0], b"a")
    with pytest.raises(RetriableError, match="task 9 of m cannot be found"):
        points.get(TaskId(9), b"a")


def test_an_answer_without_values_or_to_something_else_is_not_taken(
    worker: FakeWorker, points: PointReads
) -> None:
    answers: list[Callable[[int], wire.ToClient]] = [
        lambda request: wire.RowValues(request, (), Epoch(1), Offset(7)),
        lambda request: wire.DepotOffsets(request, 0, 0, None),
    ]
    for answer in answers:
        worker.instead = lambda message, answer=answer: answer(message.request)  # type: ignore[misc]
        with pytest.raises(RetriableError, match="an unexpected answer came"):
            points.get(TASKS[0], b"a")


@pytest.mark.parametrize("fault", list(wire.Fault))
def test_a_failed_read_raises_what_went_wrong(
    worker: FakeWorker, points: PointReads, fault: wire.Fault
) -> None:
    worker.instead = lambda message: wire.Failed(message.request, "it went wrong", fault)
    with pytest.raises(StrettoError, match="it went wrong") as failure:
        points.get(TASKS[0], b"a")
    assert type(failure.value) is type(fault.error(""))


def test_reads_follow_tasks_that_were_grouped_anew(
    worker: FakeWorker, network: Network, points: PointReads
) -> None:
    before = dict(worker.groups)
    after: dict[GroupKey, tuple[TaskId, ...]] = {GroupKey(MODULE, 2, task): (task,) for task in TASKS}

    def gone(message: wire.ReadRows) -> wire.ToClient | None:
        if message.group not in before:
            return None
        worker.groups = after
        network.call(network.refresh, lambda: None)
        return wire.Refused(message.request, Refusal.NOT_LEADER, None, Epoch(0))

    worker.instead = gone
    wanted = {task: [b"%d" % task, b"%d." % task] for task in TASKS}
    assert points.get_many(wanted) == {
        task: tuple(key[::-1] for key in keys) for task, keys in wanted.items()
    }
    answered = [message for message in worker.asked if message.group in after]
    assert sorted(message.tasks for message in answered) == [(task, task) for task in TASKS]
