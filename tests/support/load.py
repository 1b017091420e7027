"""Producers that write down what they were promised, and the check that every promise was kept.

Each record names its producer, its task and its number there. An acknowledged one must be read exactly once;
one of unknown outcome at most once; one that was refused never; and the numbers that are read of one
producer on one task ascend. Most producers append and go on; the last one waits for most of its records, each
by itself.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Self

from stretto.client import Ack, Client, Record
from stretto.errors import OutcomeUnknown, StrettoError
from tests.support.cluster import DEPOT, MODULE, Cluster

SETTLE_SECONDS = 60.0
_WINDOW = 400


class Waited:
    """The outcome of a record whose producer waits for it."""

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._error: StrettoError | None = None

    def call(self, append: Callable[[], object]) -> None:
        try:
            append()
        except StrettoError as error:
            self._error = error
        self._settled.set()

    def done(self) -> bool:
        return self._settled.is_set()

    def result(self, timeout: float) -> None:
        assert self._settled.wait(timeout), "a producer still waits for its record"
        if self._error is not None:
            raise self._error


class Load:
    """Producers that append during its ``with`` block; at its end everything that was sent is settled."""

    def __init__(
        self, client: Client, *, producers: int = 2, depot: str = DEPOT, pause_seconds: float = 0.002
    ) -> None:
        self._client = client
        self._depot = depot
        self._pause_seconds = pause_seconds
        self.sent: list[tuple[bytes, Ack | Waited]] = []
        self.errors: list[Exception] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"load-{number}", daemon=True)
            for number in range(producers)
        ]
        self._threads.append(
            threading.Thread(target=self._run_waiting, args=(producers,), name="load-waiting", daemon=True)
        )

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping.set()
        if kind is None:
            self.settle()

    def settle(self) -> None:
        for thread in self._threads:
            thread.join(SETTLE_SECONDS)
            assert not thread.is_alive(), f"{thread.name} still waits for room to append"
        assert not self.errors, f"appending failed: {self.errors[0]!r}"

    def acked_so_far(self) -> int:
        assert not self.errors, f"appending failed: {self.errors[0]!r}"
        with self._lock:
            sent = list(self.sent)
        return sum(ack.done() and _outcome(ack) == "acked" for _, ack in sent)

    def outcomes(self) -> dict[bytes, str]:
        return {payload: _outcome(ack) for payload, ack in self.sent}

    def _run(self, number: int) -> None:
        try:
            with self._client.producer(MODULE, self._depot, linger_ms=2, batch_records=50) as producer:
                tasks = self._client.reader(MODULE, self._depot).tasks
                pending: list[Ack] = []
                for at in range(1 << 40):
                    if self._stopping.wait(self._pause_seconds):
                        break
                    for task in tasks:
                        payload = b"%d/%d/%d" % (number, task, at)
                        ack = producer.append(payload, task=task)
                        with self._lock:
                            self.sent.append((payload, ack))
                        pending.append(ack)
                    if len(pending) >= _WINDOW:
                        pending = self._wait_for_half(pending)
        except Exception as error:  # noqa: BLE001 - told by settle(), on the test's thread
            self.errors.append(error)

    def _run_waiting(self, number: int) -> None:
        try:
            with self._client.producer(MODULE, self._depot, linger_ms=0) as producer:
                tasks = self._client.reader(MODULE, self._depot).tasks
                for at in range(1 << 40):
                    if self._stopping.wait(self._pause_seconds):
                        break
                    task = tasks[at % len(tasks)]
                    payload = b"%d/%d/%d" % (number, task, at)
                    if at % 7 == 0:
                        # What comes next finds this one on its way.
                        with self._lock:
                            self.sent.append((payload, producer.append(payload, task=task)))
                        continue
                    waited = Waited()
                    with self._lock:
                        self.sent.append((payload, waited))
                    waited.call(lambda: producer.append_and_wait(payload, task=task))  # noqa: B023
        except Exception as error:  # noqa: BLE001 - told by settle(), on the test's thread
            self.errors.append(error)

    def _wait_for_half(self, pending: list[Ack]) -> list[Ack]:
        while not pending[_WINDOW // 2].done() and not self._stopping.wait(0.01):
            pass
        return [ack for ack in pending if not ack.done()]


def _outcome(ack: Ack | Waited) -> str:
    try:
        ack.result(SETTLE_SECONDS)
    except OutcomeUnknown:
        return "unknown"
    except StrettoError:
        return "failed"
    return "acked"


def check_history(cluster: Cluster, *loads: Load) -> Counter[str]:
    """Heal, read everything back and compare it; then stop all workers and compare the replicas."""
    cluster.heal()
    client = cluster.connect()
    tally: Counter[str] = Counter()
    for load in loads:
        records = client.reader(MODULE, load._depot).read_all()
        tally += check_records(load.outcomes(), records)
    cluster.check_replicas_agree()
    return tally


def check_records(outcomes: dict[bytes, str], records: Iterable[Record]) -> Counter[str]:
    """Check records by the rules of this file, and return how many had which outcome."""
    times: Counter[bytes] = Counter()
    order: defaultdict[tuple[bytes, int], list[int]] = defaultdict(list)
    for record in records:
        times[record.data] += 1
        producer, task, at = record.data.split(b"/")
        assert int(task) == record.task, f"{record} is on another task than it was sent to"
        order[producer, record.task].append(int(at))
    invented = sorted(times.keys() - outcomes.keys())
    assert not invented, f"{len(invented)} records were never sent: {invented[:5]}"
    lost = [payload for payload, outcome in outcomes.items() if outcome == "acked" and not times[payload]]
    assert not lost, f"{len(lost)} acknowledged records are lost: {lost[:5]}"
    doubled = [payload for payload, count in times.items() if count > 1]
    assert not doubled, f"{len(doubled)} records are there more than once: {doubled[:5]}"
    undead = [payload for payload in times if outcomes[payload] == "failed"]
    assert not undead, f"{len(undead)} records were refused and are there: {undead[:5]}"
    for lane, numbers in order.items():
        assert numbers == sorted(numbers), f"records of producer and task {lane} are out of order"
    return Counter(outcomes.values())
