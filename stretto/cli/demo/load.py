"""A load that keeps account: what was acknowledged, how long the longest silence was, and what is there.

One thread appends sentences without pause; a second appends one at a time, and feels every gap.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from stretto.client.api import Client
from stretto.client.appending.acks import Ack
from stretto.errors import StrettoError
from stretto.examples.wordcount.sentences import sentences
from stretto.module.partition import Partitioner
from stretto.specs.modules import DepotSpec

WINDOW = 2_000
"""Most records under way: enough to keep the cluster busy, few enough to be gentle with one machine."""
PAUSE_SECONDS = 0.002
RECENT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Account:
    acknowledged: int
    failed: int
    unknown: int
    per_second: float
    longest_gap_ms: float
    """Longest time between two acknowledgements of the one-at-a-time appends, in the last seconds."""
    last_problem: str


class Load:
    def __init__(self, client: Client, module: str, depot: DepotSpec, tasks: int) -> None:
        self._client = client
        self._module = module
        self._depot = depot.name
        self._partitioner = Partitioner(depot, tasks)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._acknowledged = 0
        self._failed = 0
        self._unknown = 0
        self._problem = ""
        self._rates: deque[tuple[float, int]] = deque(maxlen=64)
        self._gaps: deque[tuple[float, float]] = deque()
        self._threads = [
            threading.Thread(target=self._append_many, name="load", daemon=True),
            threading.Thread(target=self._append_singly, name="pulse", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def account(self) -> Account:
        now = time.monotonic()
        with self._lock:
            while self._gaps and self._gaps[0][0] < now - RECENT_SECONDS:
                self._gaps.popleft()
            self._rates.append((now, self._acknowledged))
            then, before = next(
                (each for each in self._rates if each[0] > now - RECENT_SECONDS), self._rates[-1]
            )
            rate = (self._acknowledged - before) / (now - then) if now > then else 0.0
            gap = max((gap for _, gap in self._gaps), default=0.0)
            return Account(self._acknowledged, self._failed, self._unknown, rate, gap * 1_000, self._problem)

    # The threads.

    def _append_many(self) -> None:
        under_way: deque[Ack] = deque()
        producer = self._client.producer(self._module, self._depot)
        for record, task in map(self._partitioner.place, sentences(seed=1)):
            if self._stop.is_set():
                break
            under_way.append(producer.append(record, task=task))
            while under_way and (len(under_way) >= WINDOW or under_way[0].done()):
                self._settle(under_way.popleft())
            if len(under_way) % 100 == 0:
                self._stop.wait(PAUSE_SECONDS)
        for ack in under_way:
            self._settle(ack)
        producer.close()

    def _append_singly(self) -> None:
        producer = self._client.producer(self._module, self._depot)
        last = time.monotonic()
        for record, task in map(self._partitioner.place, sentences(seed=2)):
            if self._stop.is_set():
                break
            ack = producer.append(record, task=task)
            producer.flush()
            self._settle(ack)
            now = time.monotonic()
            with self._lock:
                self._gaps.append((now, now - last))
            last = now
        producer.close()

    def _settle(self, ack: Ack) -> None:
        try:
            ack.result(60)
        except TimeoutError:
            with self._lock:
                self._unknown += 1
        except StrettoError as error:
            with self._lock:
                self._failed += 1
                self._problem = str(error)
        else:
            with self._lock:
                self._acknowledged += 1

    def read_back(self) -> int:
        """Return how many records are visible in all tasks."""
        reader = self._client.reader(self._module, self._depot)
        return sum(reader.bounds(task)[1] for task in reader.tasks)
