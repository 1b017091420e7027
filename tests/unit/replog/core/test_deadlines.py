"""A replica never asks to be woken at a moment that has passed: its driver would spin."""

from __future__ import annotations

import pytest

from stretto.replog.core.effects import Effect
from stretto.replog.core.events import Event, Tick
from stretto.replog.core.replica import Replica
from stretto.sim.replication import node
from stretto.sim.replication.simulation import run_seed
from stretto.vocabulary.types import Millis


class PunctualReplica(Replica):
    """Checks after each Tick that the next deadline lies ahead."""

    ticks = 0

    def step(self, event: Event, now: Millis) -> list[Effect]:
        happened = super().step(event, now)
        if isinstance(event, Tick):
            PunctualReplica.ticks += 1
            deadline = self.next_deadline()
            assert deadline is None or deadline > now, f"{self.role_name} asks for {deadline} at {now}"
        return happened


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_after_a_tick_the_next_deadline_lies_ahead(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "Replica", PunctualReplica)
    PunctualReplica.ticks = 0
    for seed in range(first, first + 4):
        verdict = run_seed(seed)
        assert verdict.violation is None, f"stretto sim --seeds 1 --seed {seed}"
    assert PunctualReplica.ticks > 400
