"""A group as a model: the log of one task, entries applied one after the other, under leaders that change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import msgspec

from stretto.pstate import changes, ordered
from stretto.pstate.memory import MemoryRows
from stretto.sim.stream.leader import Leader
from stretto.sim.stream.plan import DEPOT, TOPOLOGY
from stretto.vocabulary.types import Epoch, TaskId
from stretto.worker.topology import rows
from stretto.worker.topology.machine.stored import Stored

if TYPE_CHECKING:
    from stretto.sim.stream.simulation import StreamSimulation
    from stretto.state.applied import AppliedState

DONE = "done"
"""The PState of the module: names of what was run."""


class Group:
    """The log of one task, and its leader."""

    def __init__(self, sim: StreamSimulation, task: TaskId) -> None:
        self.sim = sim
        self.task = task
        self.depot_end = 0
        #: How often each call was run here, by name.
        self.done: Counter[str] = Counter()
        #: Offsets of the records whose hops were run here, in that order, by their task.
        self.order: dict[TaskId, list[int]] = {}
        self.leader: Leader | None = None
        self.former: Leader | None = None
        self._epoch = 0
        self._rows: dict[str, MemoryRows] = {}
        #: Entries that are in the log and not applied: the payload, and the callback for its leader.
        self._pending: list[tuple[bytes, Callable[[], None]]] = []

    # Leaders.

    def elect(self) -> None:
        """Elect a new leader; of the unapplied entries a prefix survives, and is applied before it serves."""
        if self.leader is not None:
            self._retire(self.leader)
        for payload, _ in self._pending[: self.sim.world.random.randint(0, len(self._pending))]:
            self._apply(payload)
        self._pending.clear()
        self._epoch += 1
        self.leader = None
        self.sim.world.after(self.sim.draw(100), self._serve, self._epoch)

    def _retire(self, leader: Leader) -> None:
        """Let a leader go on for a while without knowing that it is deposed."""
        if self.former is not None:
            self.former.is_alive = False
        self.former = leader
        self.sim.world.after(self.sim.draw(self.sim.plan.zombie_ms), leader.die)

    def restart(self) -> None:
        """Restart the leader, as with other code: it begins anew when all that is in its log is applied."""
        if self.leader is not None:
            self.leader.is_alive = False
            for payload, _ in self._pending:
                self._apply(payload)
            self._pending.clear()
            self.leader = Leader(self.sim, self, Epoch(self._epoch), self._stored())

    def heal(self) -> None:
        if self.former is not None:
            self.former.is_alive = False
        if self.leader is None:
            self._serve(self._epoch)

    def _serve(self, epoch: int) -> None:
        if epoch == self._epoch and self.leader is None:
            self.leader = Leader(self.sim, self, Epoch(self._epoch), self._stored())

    def grow(self, count: int) -> None:
        """Add records to the depot."""
        self.depot_end += count
        if self.leader is not None:
            self.leader.grown()

    # The log.

    def append(self, leader: Leader, payload: bytes, then: Callable[[], None]) -> bool:
        """Append an entry; False if it is refused. An entry of a former leader is never applied."""
        if not self.sim.healed and self.sim.world.chance(self.sim.plan.refused):
            return False
        if leader is self.leader:
            self._pending.append((payload, then))
            self.sim.world.after(1 + self.sim.draw(self.sim.plan.append_ms), self._decide, self._epoch)
        return True

    def _decide(self, epoch: int) -> None:
        if epoch == self._epoch and self._pending:
            payload, then = self._pending.pop(0)
            self._apply(payload)
            then()

    # The applied state.

    def _apply(self, payload: bytes) -> None:
        for name, each in changes.parse(payload).items():
            if name == DONE:
                self._run(each.puts)
            else:
                self._rows.setdefault(name, MemoryRows()).apply(each)

    def _run(self, puts: tuple[tuple[bytes, bytes], ...]) -> None:
        for _, value in puts:
            for name, source, offset in msgspec.msgpack.decode(value):
                self.done[name] += 1
                if source != self.task:
                    self.order.setdefault(source, []).append(offset)

    @contextmanager
    def reading_pstate(self, _task: TaskId, name: str) -> Iterator[MemoryRows]:
        yield self._rows.setdefault(name, MemoryRows())

    def _stored(self) -> Stored:
        return rows.read(cast("AppliedState", self), self.task, TOPOLOGY, self.sim.world.now)

    @property
    def parked(self) -> set[int]:
        found = self._rows.get(rows.FAILURES, MemoryRows())
        before = len(rows.key_of(TOPOLOGY, DEPOT))
        return {ordered.decode_at(key, before)[0] for key in found.keys(*ordered.EVERYTHING)}

    @property
    def is_done(self) -> bool:
        leader = self.leader
        if leader is None or self._pending:
            return False
        return (
            leader.stream.is_quiet
            and not leader.stream.waiting
            and leader.stream.processed[DEPOT] == (self.depot_end)
        )
