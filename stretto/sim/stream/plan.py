"""What a seed decides, and what all runs share."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from stretto.vocabulary.types import TaskId
from stretto.worker.topology.machine.settings import Settings

TOPOLOGY = "words"
DEPOT = "sentences"


class Record(NamedTuple):
    """A record of the depot, by which its hops are named on every task that they reach."""

    task: TaskId
    offset: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a seed draws before anything happens."""

    seed: int
    tasks: int
    loss: float
    doubling: float
    delay_ms: int
    fault_every_ms: int
    zombie_ms: int
    append_ms: int
    resend_ms: int
    refused: float
    flaky: float
    poison: float
    cut: float
    """How often a run does not make all calls, because what they do fills an entry."""
    retries: int

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Draw the plan of a seed."""
        random = Random(seed)
        return cls(
            seed=seed,
            tasks=random.choice((2, 3, 4)),
            loss=random.choice((0, 0.02, 0.15)),
            doubling=random.choice((0, 0.05, 0.3)),
            delay_ms=random.choice((1, 5, 40, 150)),
            fault_every_ms=random.choice((40, 150, 600)),
            zombie_ms=random.choice((1, 50, 400, 1_500)),
            append_ms=random.choice((1, 3, 30, 80)),
            resend_ms=random.choice((20, 100, 300)),
            refused=random.choice((0, 0.05)),
            flaky=random.choice((0, 0.05)),
            poison=random.choice((0, 0.05)),
            cut=random.choice((0, 0.2)),
            retries=random.choice((0, 2)),
        )

    @property
    def settings(self) -> Settings:
        return Settings(
            retry="individual", retries=self.retries, records_max=5, bytes_max=1 << 20, parked_max=1_000_000
        )

    def describe(self) -> str:
        """Return the plan in words, for the person who runs the seed."""
        return (
            f"seed {self.seed}: {self.tasks} tasks\n"
            f"  network  loss {self.loss}, doubled {self.doubling}, up to {self.delay_ms} ms late, "
            f"sent again after {self.resend_ms} ms\n"
            f"  faults   every {self.fault_every_ms} ms; former leaders go on for {self.zombie_ms} ms\n"
            f"  entries  {self.append_ms} ms, refused {self.refused}; cut {self.cut}\n"
            f"  code     fails sometimes {self.flaky}, always {self.poison}; {self.retries} retries"
        )


@dataclass(frozen=True)
class Behaviour:
    """What the module does with one record."""

    targets: tuple[TaskId, ...]
    """The tasks that it hops to."""
    depth: int
    """How often a hop hops on, to the next task each time."""
    fails_at: int
    """Where it fails: on its own task (0), or where it hops to (1)."""
    chance: float
