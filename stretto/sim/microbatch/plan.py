"""What a seed decides, and what all runs share."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from stretto.vocabulary.types import Millis, TaskId
from stretto.worker.microbatch.machines.settings import Settings

TOPOLOGY = "transfers"
DEPOT = "requests"
SETTINGS = Settings(
    max_records=6,
    interval_ms=Millis(20),
    retries=1,
    retry_ms=Millis(60),
    patience_ms=Millis(900),
    poll_ms=Millis(150),
    gather_ms=Millis(2),
    backoff_max_ms=Millis(400),
)
State = dict[str, dict[bytes, bytes]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a seed draws before anything happens."""

    seed: int
    tasks: int
    loss: float
    doubling: float
    delay_ms: int
    fault_every_ms: int
    unknown: float
    zombie_ms: int
    belated: float
    append_ms: int
    flaky: float
    poison: float
    room: int
    """How many changes of a microbatch, and calls of a round, fit into one task. A record always fits."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Draw the plan of a seed."""
        random = Random(seed)
        return cls(
            seed=seed,
            tasks=random.choice((1, 2, 3, 4)),
            loss=random.choice((0, 0, 0.02, 0.15)),
            doubling=random.choice((0, 0.05, 0.3)),
            delay_ms=random.choice((1, 5, 40, 150)),
            fault_every_ms=random.choice((60, 200, 600, 4_000)),
            unknown=random.choice((0, 0.03, 0.3)),
            zombie_ms=random.choice((1, 50, 400, 1_500)),
            belated=random.choice((0, 0.5)),
            append_ms=random.choice((1, 3, 30, 80)),
            flaky=random.choice((0, 0.02)),
            poison=random.choice((0, 0.03)),
            room=random.choice((1_000, 1_000, 10, 6)),
        )

    def describe(self) -> str:
        """Return the plan in words, for the person who runs the seed."""
        return (
            f"seed {self.seed}: {self.tasks} tasks\n"
            f"  network  loss {self.loss}, doubled {self.doubling}, up to {self.delay_ms} ms late\n"
            f"  faults   every {self.fault_every_ms} ms; former leaders go on for {self.zombie_ms} ms; "
            f"new ones hear what was meant for them {self.belated}\n"
            f"  entries  {self.append_ms} ms, outcome unknown {self.unknown}\n"
            f"  code     fails sometimes {self.flaky}, always {self.poison}\n"
            f"  room     for {self.room} changes"
        )


@dataclass(frozen=True)
class Behaviour:
    """What the module does with one record."""

    target: TaskId | None
    hops: int
    fails_at: int
    chance: float
