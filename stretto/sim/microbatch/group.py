"""A group as a model: entries applied one after the other, under leaders that change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stretto.sim.microbatch.leader import Leader
from stretto.sim.microbatch.plan import State
from stretto.state import microbatch_entries
from stretto.vocabulary.types import Epoch, TaskId

if TYPE_CHECKING:
    from stretto.sim.microbatch.simulation import MicrobatchSimulation


class Group:
    """The log of one task, and its leader."""

    def __init__(self, sim: MicrobatchSimulation, task: TaskId) -> None:
        self.sim = sim
        self.task = task
        self.state: State = {}
        self.depot_end = 0
        self.epoch = Epoch(0)
        self.stalled = False
        #: Entries that are in the log and not applied, each with the callback that reports its outcome.
        self.pending: list[tuple[microbatch_entries.Entry, Any]] = []
        self.leader: Leader | None = None

    def elect(self) -> None:
        """Elect a new leader; of the unapplied entries a prefix survives, and is applied before it serves."""
        former = self.leader
        if former is not None:
            former.state = {name: dict(rows) for name, rows in self.state.items()}
            lives_ms = self.sim.draw(self.sim.plan.zombie_ms)
            self.sim.totals["zombies"] += lives_ms > 1
            self.sim.world.after(lives_ms, self._dies, former)
        survives = self.sim.world.random.randint(0, len(self.pending))
        for entry, _ in self.pending[:survives]:
            self._apply(entry)
        self.pending.clear()
        self.epoch = Epoch(self.epoch + 1)
        self.sim.totals["elections"] += 1
        self.leader = None
        self.sim.world.after(self.sim.draw(100), self._serve, self.epoch)

    def restart(self) -> None:
        """Restart the leader in the same epoch: it remembers nothing, and its entries stay in the log."""
        if self.leader is not None:
            self.leader.alive = False
            self.leader = Leader(self.sim, self, self.epoch)

    def _dies(self, former: Leader) -> None:
        former.alive = False

    def _serve(self, epoch: Epoch) -> None:
        if epoch == self.epoch:
            self.leader = Leader(self.sim, self, epoch)
            self.sim.led_anew(self.task)

    def append(self, leader: Leader, entry: microbatch_entries.Entry, tell: Any) -> None:
        """Append an entry for a leader; ``tell`` is called with the outcome, which may be unknown."""
        sim = self.sim
        if leader is not self.leader:
            sim.world.after(sim.draw(300), partial(tell, applied=False, why="outcome unknown"))
        elif self.stalled:
            sim.world.after(sim.draw(5), partial(tell, applied=False, why="stalled"))
        else:
            slot = (entry, tell)
            self.pending.append(slot)
            if sim.world.chance(sim.plan.unknown):
                sim.totals["unknown outcomes"] += 1
                sim.world.after(
                    sim.draw(sim.plan.append_ms), partial(tell, applied=False, why="outcome unknown")
                )
                sim.world.after(sim.draw(4 * sim.plan.append_ms), self._decide, self.epoch, slot)
            else:
                sim.world.after(1 + sim.draw(sim.plan.append_ms), self._decide, self.epoch, slot)

    def _decide(self, epoch: Epoch, slot: tuple[microbatch_entries.Entry, Any]) -> None:
        """Apply an entry, and those before it in the log."""
        if epoch != self.epoch or slot not in self.pending:
            return
        if self.stalled:
            self.sim.world.after(20, self._decide, epoch, slot)
            return
        while slot in self.pending:
            entry, tell = self.pending.pop(0)
            self._apply(entry)
            tell(applied=True)

    def _apply(self, entry: microbatch_entries.Entry) -> None:
        rows = self.state.setdefault(microbatch_entries.DATABASE, {})
        effect = microbatch_entries.resolve(entry, rows.get, self.sim.guards)
        self.sim.applied(self, entry, effect)
        for name, changes in effect.items():
            target = self.state.setdefault(name, {})
            for key in changes.deletes:
                target.pop(key, None)
            target.update(changes.puts)
