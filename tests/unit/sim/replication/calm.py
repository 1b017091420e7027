"""A simulated group in which nothing goes wrong by itself, for tests that make one thing go wrong."""

from __future__ import annotations

from collections.abc import Callable

from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.replica import Replica
from stretto.replog.frame import Kind
from stretto.sim.replication.node import Node
from stretto.sim.replication.requests import Batch
from stretto.sim.replication.scenario import calm_plan
from stretto.sim.replication.simulation import Simulation
from stretto.vocabulary.types import TaskId, WorkerId

DEADLINE_MS = 20_000


class Calm(Simulation):
    """Started; w0 leads, and a producer is admitted."""

    def __init__(self, factor: int = 3) -> None:
        super().__init__(calm_plan(factor))
        self.producer = self.workload.producers[0]
        self.begin()
        self.run_until(lambda: self.leader.is_leader and self.leader_role.is_serving)
        batch = Batch(Kind.PRODUCER_OPEN, TaskId(0), 0, 1, b"")
        self.producer.pending.append(batch)
        self.workload.send(self.producer, batch)
        self.run_until(lambda: batch.acked)

    @property
    def leader(self) -> Node:
        return self.nodes[WorkerId("w0")]

    @property
    def follower(self) -> Node:
        return self.nodes[WorkerId("w1")]

    @property
    def leader_role(self) -> Leader:
        role = replica_of(self.leader).role
        assert isinstance(role, Leader)
        return role

    def run_until(self, condition: Callable[[], bool]) -> None:
        deadline = self.world.now + DEADLINE_MS
        while not condition():
            assert self.world.now < deadline
            assert self.world.advance()

    def run_for(self, duration_ms: int) -> None:
        end = self.world.now + duration_ms
        while self.world.next_time is not None and self.world.next_time <= end:
            self.world.advance()
        self.world.now = end

    def append(self, payload: bytes) -> Batch:
        """Acknowledged, and applied everywhere."""
        batch = self.workload.submit_new(self.producer, 1, payload)
        self.run_until(lambda: batch.acked)
        self.settle()
        return batch

    def settle(self) -> None:
        end = replica_of(self.leader).log_end
        self.run_until(lambda: all(replica_of(node).applied == end for node in self.nodes.values()))


def replica_of(node: Node) -> Replica:
    assert node.replica is not None
    return node.replica
