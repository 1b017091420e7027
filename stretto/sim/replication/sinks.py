"""A sink that writes rounds of records under a name, by attempts that die, overlap and repeat each other.

This is what Spark does with a sink: a task that failed is run again, one that is slow is run twice at once, a
whole batch is computed anew after a restart, and sometimes what is computed differs. An attempt claims its
round with a digest of what it has, and then sends all of it at once. Whatever happens, a round is visible
once, whole when an attempt has succeeded, and from one computation only.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.replog.core.effects import Acked, Refusal, Refused, Result
from stretto.replog.core.producers import DIGEST_BITS, named_producer_id, sequence_in
from stretto.replog.frame import Kind
from stretto.sim.replication.requests import Batch, Producer
from stretto.vocabulary.types import TaskId

if TYPE_CHECKING:
    from stretto.sim.replication.workload import Workload

COMPUTATIONS = 2
HOME = TaskId(0)
TASKS = 2

_CLAIMS = named_producer_id(1, lasting=True)
_RECORDS = named_producer_id(2, lasting=True)


@dataclass
class Attempt(Producer):
    """One attempt at a round; ``batches`` are the computed ones, in order for each task."""

    round: int = 0
    batches: tuple[Batch, ...] = ()


class Sink:
    """The named producer, which writes one round after the other."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.world = workload.world
        self._round = 0
        self._attempts: list[Attempt] = []
        self._asleep_until = 0

    @property
    def is_settled(self) -> bool:
        return not any(attempt.pending for attempt in self._attempts)

    def begin(self) -> None:
        self._compute()
        self.world.after(1 + self.world.random.randrange(100), self._tick)

    def _compute(self) -> None:
        """Draw what attempts at the current round may compute; mostly they compute the same."""
        random = self.world.random
        self._computed = [
            [(TaskId(random.randrange(TASKS)), random.randint(1, 3)) for _ in range(random.randint(1, 4))]
            for _ in range(COMPUTATIONS)
        ]

    def _tick(self) -> None:
        if not self.workload.running:
            return
        world = self.world
        world.after(1 + world.random.randrange(300), self._tick)
        if world.chance(0.01):
            self._asleep_until = world.now + world.random.randint(1_000, 6_000)
        if world.now < self._asleep_until:
            return
        if self._attempts and world.chance(0.15):
            self._attempts.pop(world.random.randrange(len(self._attempts))).pending.clear()
        if len(self._attempts) < 2 and (not self._attempts or world.chance(0.2)):
            self._begin_attempt(self._round, int(world.chance(0.2)))
        elif self._round and world.chance(0.05):
            self._begin_attempt(self._round - 1, world.random.randrange(COMPUTATIONS))

    def _begin_attempt(self, round_: int, computation: int) -> None:
        computed = self._computed if round_ == self._round else self._computed_before
        contents = [
            (task, count, f"sink-{round_}-{computation}-{number}".encode())
            for number, (task, count) in enumerate(computed[computation])
        ]
        self.attempt(round_, contents, computation)

    def attempt(self, round_: int, contents: list[tuple[TaskId, int, bytes]], computation: int = 0) -> None:
        """Claim a round, and write it if the claim is granted."""
        batches, ends = [], dict.fromkeys(range(TASKS), 0)
        for task, count, content in contents:
            sequence = sequence_in(round_, ends[task])
            batches.append(Batch(Kind.DEPOT, task, sequence, count, content, producer=_RECORDS))
            ends[task] += count
            self.workload.simulation.checkers.submitted_in(round_, computation, content)
        digest = zlib.crc32(repr(contents).encode()) >> (32 - DIGEST_BITS)
        claim = Batch(Kind.CLAIM, HOME, sequence_in(round_, digest), 1, b"", producer=_CLAIMS)
        leader = self.world.random.choice(self.workload.simulation.workers)
        attempt = Attempt(f"sink@{round_}", leader, _RECORDS, round=round_, batches=tuple(batches))
        self._attempts.append(attempt)
        self.workload.submit(attempt, claim)

    def answered(self, attempt: Attempt, batch: Batch, result: Result) -> None:
        if attempt not in self._attempts:
            return
        match result:
            case Refused(reason=Refusal.CLAIMED):
                attempt.pending.clear()
                self._attempts.remove(attempt)
            case Acked() if batch.kind is Kind.CLAIM:
                for each in attempt.batches:
                    self.workload.submit(attempt, each)
            case Acked() if not attempt.pending:
                self._attempts.remove(attempt)
                self._succeeded(attempt)
            case _:
                pass

    def _succeeded(self, attempt: Attempt) -> None:
        for batch in attempt.batches:
            self.workload.simulation.checkers.acknowledged(batch.payload)
        self.workload.simulation.totals["rounds written"] += 1
        if attempt.round == self._round:
            self._round += 1
            self._computed_before = self._computed
            self._compute()
