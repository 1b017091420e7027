"""Producers that retry until they know, and readers that remember what they may expect to see.

Every batch has a payload of its own, so that a lost or doubled one is told apart. A producer retries with
the same sequence until it gets an answer; one that is told it is unknown gives up its batches as *outcome
unknown* and opens a new id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.replog.core import events
from stretto.replog.core.effects import Acked, ReadServed, Refusal, Refused, Result
from stretto.replog.core.producers import new_producer_id
from stretto.replog.frame import Kind
from stretto.sim.replication.requests import Batch, Producer
from stretto.sim.replication.sinks import Attempt, Sink
from stretto.vocabulary.types import Epoch, Millis, Offset, ProducerId, TaskId

if TYPE_CHECKING:
    from stretto.sim.replication.node import Node
    from stretto.sim.replication.simulation import Simulation

CLIENT_TIMEOUT_MS = 900


@dataclass
class Session:
    """A reader that accepts slightly old state, and remembers what it has seen."""

    max_staleness_ms: int
    token: tuple[Epoch, Offset] = (Epoch(0), Offset(0))


@dataclass
class _Read:
    """A read under way, with the end that must be visible to it."""

    floor: Offset
    sampled: Offset | None = None
    session: Session | None = None
    after: Offset = Offset(0)


class Workload:
    """The clients: producers, readers and a sink."""

    def __init__(self, simulation: Simulation, producers: int) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.producers = [
            Producer(f"p{index}", simulation.workers[0], self._new_producer_id())
            for index in range(producers)
        ]
        self._requests: dict[int, tuple[Producer, Batch, int]] = {}
        self._reads: dict[int, _Read] = {}
        self.sessions = [Session(max_staleness_ms) for max_staleness_ms in (40, 150, 600)]
        self.read_results: dict[int, Result] = {}
        """Results of single reads made with :meth:`read_at`, for scenarios."""
        self._request = 0
        self._payload = 0
        self.running = True
        self.given_up = 0
        self.sink = Sink(self)

    def _new_producer_id(self) -> ProducerId:
        return new_producer_id(self.world.now, self.world.random.getrandbits(21))

    def begin(self) -> None:
        for producer in self.producers:
            self.world.after(self.world.random.randrange(50), self._produce, producer)
        self.world.after(100, self._read_somewhere)
        self.sink.begin()

    @property
    def is_settled(self) -> bool:
        return all(not producer.pending for producer in self.producers) and self.sink.is_settled

    # Producing.

    def _produce(self, producer: Producer) -> None:
        """Keep a few batches of a producer under way."""
        if self.running:
            idle_ms = self.simulation.plan.produce_every_ms
            self.world.after(1 + self.world.random.randrange(idle_ms), self._produce, producer)
            if self.world.chance(self.simulation.plan.nap):
                producer.asleep_until = self.world.now + self.world.random.randint(1_000, 6_000)
        if self.world.now < producer.asleep_until:
            return
        if not producer.is_open:
            if not producer.pending:
                self.submit(producer, Batch(Kind.PRODUCER_OPEN, TaskId(0), 0, 1, b""))
        elif self.running and len(producer.pending) < self.simulation.plan.max_pending:
            self.submit_new(producer, self.world.random.randint(1, 3))

    def submit_new(self, producer: Producer, count: int, payload: bytes | None = None) -> Batch:
        task = TaskId(self.world.random.randrange(2))
        sequence = producer.next_sequence.get(task, 0)
        producer.next_sequence[task] = sequence + count
        self._payload += 1
        payload = payload or f"{producer.name}-{self._payload}".encode()
        batch = Batch(Kind.DEPOT, task, sequence, count, payload)
        self.simulation.checkers.submitted(batch.payload)
        self.submit(producer, batch)
        return batch

    def submit(self, producer: Producer, batch: Batch) -> None:
        producer.pending.append(batch)
        self.send(producer, batch)

    def send(self, producer: Producer, batch: Batch) -> None:
        """Make one attempt at a batch; the answer, or its absence, decides about the next."""
        if batch not in producer.pending:
            return
        if self.world.now < producer.asleep_until and self.running:
            self.world.at(producer.asleep_until, self.send, producer, batch)
            return
        self.send_copy(producer, batch)

    def send_copy(self, producer: Producer, batch: Batch) -> None:
        batch.attempt += 1
        self._request += 1
        request = self._request
        self._requests[request] = (producer, batch, batch.attempt)
        event = events.Append(
            request=request,
            kind=batch.kind,
            task=batch.task,
            producer=producer.id if batch.producer is None else batch.producer,
            sequence=batch.sequence,
            count=batch.count,
            payload=batch.payload,
            timestamp_ms=self.world.now,
            until_applied=request % 3 == 0,
        )
        if self.world.is_traced:
            self.world.trace(producer.name, "sends", request, producer.leader, batch.payload, batch.attempt)
        self._travel(self.simulation.nodes[producer.leader].deliver, event)
        self.world.after(CLIENT_TIMEOUT_MS, self._timed_out, request)

    def _travel(self, arrive: Callable[..., None], *args: object) -> None:
        weather = self.simulation.network.weather
        if not self.world.chance(weather.loss):
            slow = self.world.chance(weather.slow)
            delay = 1 + self.world.random.randrange(weather.slow_ms if slow else weather.quick_ms)
            self.world.after(delay, arrive, *args)
            if self.world.chance(weather.doubling):
                self.world.after(delay + self.world.random.randrange(50), arrive, *args)

    def _timed_out(self, request: int) -> None:
        known = self._requests.pop(request, None)
        if known is not None:
            self._try_elsewhere(known[0])
            self._retry(*known)

    def _retry(self, producer: Producer, batch: Batch, attempt: int) -> None:
        if batch.attempt == attempt and batch in producer.pending:
            self.world.after(1 + self.world.random.randrange(60), self.send, producer, batch)

    def _try_elsewhere(self, producer: Producer) -> None:
        producer.leader = self.world.random.choice(self.simulation.workers)

    # Answers.

    def replied(self, node: Node, request: int, result: Result) -> None:
        if request in self._reads:
            self._read_replied(node, request, result)
        else:
            self.simulation.checkers.replied(node, request, result, self._requests.get(request))
            self._travel(self._answered, request, result)

    def _answered(self, request: int, result: Result) -> None:
        known = self._requests.get(request)
        if known is None or self.world.now < known[0].asleep_until:
            return
        del self._requests[request]
        producer, batch, attempt = known
        batch.answer = result
        match result:
            case Acked():
                self._acked(producer, batch)
            case Refused(reason=Refusal.CLAIMED):
                pass
            case Refused(reason=Refusal.UNKNOWN_PRODUCER):
                self.reopen(producer)
            case Refused(leader=leader):
                if leader is not None:
                    producer.leader = leader
                else:
                    self._try_elsewhere(producer)
                self._retry(producer, batch, attempt)
            case _:
                self._retry(producer, batch, attempt)
        if isinstance(producer, Attempt):
            self.sink.answered(producer, batch, result)

    def _acked(self, producer: Producer, batch: Batch) -> None:
        if batch in producer.pending:
            producer.pending.remove(batch)
            batch.acked = True
            if batch.kind is Kind.PRODUCER_OPEN:
                producer.is_open = True
            elif not isinstance(producer, Attempt):
                self.simulation.checkers.acknowledged(batch.payload)

    def reopen(self, producer: Producer) -> None:
        self.given_up += len(producer.pending)
        producer.pending.clear()
        producer.next_sequence.clear()
        producer.is_open = False
        producer.id = self._new_producer_id()

    # Reading.

    def _read_somewhere(self) -> None:
        if not self.running:
            return
        self.world.after(
            1 + self.world.random.randrange(self.simulation.plan.read_every_ms), self._read_somewhere
        )
        node = self.simulation.nodes[self.world.random.choice(self.simulation.workers)]
        if self.world.chance(0.5 if node.is_leader else 0.2):
            self.read_at(node)
        else:
            self.read_stale_at(node, self.world.random.choice(self.sessions))

    def read_at(self, node: Node) -> int:
        self._request += 1
        self._reads[self._request] = _Read(self.simulation.checkers.read_floor)
        # A driver samples when it is asked to, or before it reads the clock and asks.
        is_sampled = self._request % 2 == 0
        node.deliver(events.Read(request=self._request, is_sampled=is_sampled), fresh=is_sampled)
        return self._request

    def read_stale_at(self, node: Node, session: Session) -> int:
        self._request += 1
        epoch, after = session.token
        self._reads[self._request] = _Read(self.simulation.checkers.read_floor, session=session, after=after)
        node.deliver(
            events.Read(
                request=self._request,
                max_staleness_ms=Millis(session.max_staleness_ms),
                after=after,
                after_epoch=epoch,
            )
        )
        return self._request

    def sampled(self, request: int, applied: Offset) -> None:
        read = self._reads.get(request)
        if read is not None:
            read.sampled = applied

    def _read_replied(self, node: Node, request: int, result: Result) -> None:
        read = self._reads.pop(request)
        self.read_results[request] = result
        if isinstance(result, ReadServed) and read.session is not None:
            self._stale_read_served(node, read, read.session, result.epoch)
        elif isinstance(result, ReadServed):
            self.simulation.checkers.read_served(node, read.floor, read.sampled)
        elif isinstance(result, Refused) and result.reason is Refusal.TOO_STALE:
            self.simulation.totals["reads too stale"] += 1
        elif isinstance(result, Refused) and result.reason is Refusal.NO_LEASE:
            self.simulation.totals["stale-lease refusals"] += 1

    def _stale_read_served(self, node: Node, read: _Read, session: Session, epoch: Epoch) -> None:
        checkers = self.simulation.checkers
        self.simulation.totals["reads at followers"] += not node.is_leader
        if node.is_leader:
            # As of a moment since it was asked, however long it took.
            checkers.read_served(node, read.floor, read.sampled)
        else:
            checkers.stale_read_served(node, read.sampled, max_staleness_ms=session.max_staleness_ms)
        checkers.session_went_on(node, read.sampled, after=read.after)
        known, seen = session.token
        session.token = (max(known, epoch), max(seen, read.sampled or Offset(0)))
