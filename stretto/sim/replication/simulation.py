"""One seed from start to verdict: a safety phase in which things break, then healing, then liveness."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from stretto.errors import StrettoError
from stretto.replog.core import events
from stretto.replog.core.guards import GUARDS, Guards
from stretto.replog.core.messages import AnyMessage
from stretto.replog.core.producers import ProducerTable
from stretto.replog.core.record import GroupRecord, Member
from stretto.replog.core.settings import Settings
from stretto.sim.replication.checkers import Checkers
from stretto.sim.replication.faults import Faults, Plan
from stretto.sim.replication.metastore import Metastore
from stretto.sim.replication.network import Network
from stretto.sim.replication.node import Node
from stretto.sim.replication.workload import Workload
from stretto.sim.virtual.world import Trace, Violation, World
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.types import Epoch, Millis, WorkerId
from stretto.wire import catchup

STEPS = 2_000
LOAD_AFTER_HEALING_MS = 1_500
HEALING_MS = 30_000

FAILURES = (Violation, InvariantViolation, StrettoError)
"""Errors that end a run: a checker, the core, or the log found something that cannot be."""

TOTALS = (
    "elections",
    "truncations",
    "shrinks",
    "expansions",
    "expiries",
    "wipes",
    "stalls",
    "hand-overs",
    "stale-lease refusals",
    "assignments",
    "retirements",
    "reads at followers",
    "reads too stale",
    "rounds written",
    "seals",
    "seals taken back",
)
"""What a campaign must have exercised; the other totals are for information."""

SETTINGS = Settings(
    max_time_lag_ms=Millis(400),
    max_near_lag=20,
    append_timeout_ms=Millis(1_500),
    max_unapplied=16,
    early_bytes=400,
    producer_expiry_ms=Millis(60_000),
    retry_ms=Millis(60),
    follower_read_wait_ms=Millis(50),
    resign_timeout_ms=Millis(700),
    state_timeout_ms=Millis(900),
    max_batch_bytes=300,
    max_in_flight_messages=3,
)


@dataclass
class Verdict:
    """The outcome of one run."""

    seed: int
    steps: int
    totals: Counter[str]
    violation: str | None = None
    story: tuple[str, ...] = ()


class Simulation:
    """One seed in the world of replicas, from start to verdict."""

    def __init__(self, plan: Plan, guards: Guards = GUARDS, trace: Trace | None = None) -> None:
        self.plan = plan
        self.guards = guards
        self.world = World(plan.seed, trace)
        self.settings = replace(
            SETTINGS, max_near_lag=plan.max_near_lag, max_time_lag_ms=Millis(plan.max_time_lag_ms)
        )
        self.steps = 0
        self.totals: Counter[str] = Counter()
        self._ids = 0
        self._tables: list[ProducerTable] = []
        self.story: list[str] = []
        #: The lists of replicas, each in force until the next; its position is the number of the assignment.
        self.plans: list[tuple[WorkerId, ...]] = [tuple(_worker(index) for index in range(plan.factor))]
        #: What assignments say of groupings, each in force until the next.
        self.groupings = [events.Regrouping(present=1)]
        self.network = Network(self.world, plan.weather, plan.link_bytes)
        self.metastore = Metastore(self.world, plan.manners)
        self.checkers = Checkers(self)
        self.metastore.on_commit = self._committed
        self.nodes = {worker: Node(self, worker) for worker in self.plans[0]}
        self.workload = Workload(self, plan.producers)
        self.faults = Faults(self)

    @property
    def workers(self) -> list[WorkerId]:
        """The workers that have a replica."""
        return [worker for worker, node in self.nodes.items() if not node.retired]

    @property
    def assigned(self) -> tuple[WorkerId, ...]:
        """The workers of the newest assignment."""
        return self.plans[-1]

    def next_worker(self, after: int = 0) -> WorkerId:
        return _worker(len(self.nodes) + after)

    def assign(self, replicas: tuple[WorkerId, ...]) -> None:
        """Change the group's replicas, as the conductor does; a worker that is new is started."""
        self.plans.append(replicas)
        self.totals["assignments"] += 1
        self.tell("assignment", "conductor", len(self.plans) - 1, *replicas)
        for worker in replicas:
            if worker not in self.nodes:
                node = self.nodes[worker] = Node(self, worker, len(self.plans) - 1)
                self.world.after(1 + self.world.random.randrange(300), node.start)
        for node in list(self.nodes.values()):
            node.tell_plan()

    def regroup(self, said: events.Regrouping) -> None:
        """Change the grouping as the conductor does: ask for seals, close in on the next, or abandon it."""
        self.groupings.append(said)
        self.tell("grouping", "conductor", said)
        for node in list(self.nodes.values()):
            node.tell_grouping()

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    # A run.

    def run(self) -> Verdict:
        try:
            self.begin()
            self.workload.begin()
            self.faults.begin()
            while self.steps < self.plan.steps and self.world.advance():
                pass
            self.heal_and_settle()
            self.checkers.finish()
        except FAILURES as violation:
            return self.verdict(str(violation))
        return self.verdict(None)

    def verdict(self, violation: str | None) -> Verdict:
        self.totals["expiries"] = self.metastore.expiries
        story = tuple(self.story[-60:]) if violation else ()
        return Verdict(self.plan.seed, self.steps, self.totals, violation, story)

    def begin(self) -> None:
        """Start all replicas, and create the record with their storage ids, as the conductor does."""
        for node in self.nodes.values():
            node.start()
        members = tuple(sorted(Member(node.worker, node.storage) for node in self.nodes.values()))
        self.metastore.create(
            GroupRecord(
                epoch=Epoch(0), leader=None, leader_incarnation=None, isr=members, factor=len(members)
            )
        )

    def heal_and_settle(self) -> None:
        """Heal all faults, and run until everything has recovered or the time for that is over."""
        self.world.trace("sim", "heals")
        self.faults.heal()
        healed_at = self.world.now
        while self.world.now < healed_at + LOAD_AFTER_HEALING_MS and self.world.advance():
            pass
        self.workload.running = False
        while not self._is_quiet() and self.world.now < healed_at + HEALING_MS and self.world.advance():
            pass

    def _is_quiet(self) -> bool:
        """Whether the run may be over, by a cheap test of what the checkers demand at the end."""
        record = self.metastore.record
        alive = [node for node in self.nodes.values() if not node.dead_for_good and not node.retired]
        if not self.checkers.may_stay_unassigned() and any(not node.is_assigned for node in alive):
            return False
        leader = self.nodes.get(record.leader) if record.leader is not None else None
        if leader is None or not leader.is_leader:
            return False
        if (record.plan, record.factor) != (len(self.plans) - 1, len(self.assigned)):
            return False
        if len(record.isr) < len(alive) or not self.workload.is_settled:
            return False
        replicas = [node.replica for node in alive]
        ends = {(replica.log_end, replica.applied) if replica is not None else None for replica in replicas}
        if len(ends) != 1:
            return False
        end = ends.pop()
        return (
            end is not None
            and end[0] == end[1]
            and all(Member(node.worker, node.storage) in record.isr for node in alive)
        )

    # Between the parts.

    def send(self, sender: WorkerId, receiver: WorkerId, message: AnyMessage, blob: bytes) -> None:
        self.network.send(sender, receiver, self.nodes[receiver].receive, sender, message, blob)

    def send_catchup(
        self, sender: WorkerId, receiver: WorkerId, message: catchup.AnyMessage, body: bytes
    ) -> None:
        deliver = self.nodes[receiver].receive_catchup
        self.network.send(sender, receiver, deliver, sender, message, body, size_bytes=len(body))

    def keep_table(self, table: ProducerTable) -> int:
        """Keep a producer table, and return the number by which an image names it."""
        if not self._tables or self._tables[-1] != table:
            self._tables.append(table.copy())
        return len(self._tables) - 1

    def table(self, number: int) -> ProducerTable:
        return self._tables[number].copy() if 0 <= number < len(self._tables) else ProducerTable({})

    def change_settings(self, settings: Settings) -> None:
        self.settings = settings
        self.totals["option changes"] += 1
        for node in self.nodes.values():
            self.world.after(1 + self.world.random.randrange(900), node.options_changed)

    # What people read.

    def _committed(self, before: GroupRecord | None, after: GroupRecord, who: WorkerId | None) -> None:
        self.tell("record", who or "conductor", after.epoch, after.leader, [m.worker for m in after.isr])
        self.checkers.committed(before, after, who)
        if who is not None:
            self.faults.committed(self.nodes[who])
        if before is not None:
            self.totals["shrinks"] += bool(set(before.isr) - set(after.isr))
            self.totals["expansions"] += bool(set(after.isr) - set(before.isr))
            self.totals["elections"] += after.epoch > before.epoch

    def noted(self, node: Node, event: str, fields: dict[str, Any]) -> None:
        """Trace what a replica notes, count it, and let the checkers judge it."""
        self.tell(event, node.worker, *(f"{name}={value}" for name, value in fields.items()))
        replica = node.replica
        if replica is None:
            return
        if event == "leads":
            self.checkers.leads(node, replica)
        elif event == "serves":
            self.checkers.began_serving(node, replica)
        elif event == "lets_go":
            self.checkers.let_go(replica)
        elif event == "resigning":
            self.checkers.resigning(node, Epoch(fields["epoch"]))
        elif event == "truncates":
            self.totals["truncations"] += 1
        elif event == "stalled":
            self.totals["stalls"] += 1

    def tell(self, event: str, who: str, *details: Any) -> None:
        self.story.append(f"{self.world.now:>8} {who:<10} {event} " + " ".join(str(each) for each in details))
        if len(self.story) > 400:
            del self.story[:200]


def _worker(index: int) -> WorkerId:
    return WorkerId(f"w{index}")


def run_seed(seed: int, guards: Guards = GUARDS, steps: int = STEPS, trace: Trace | None = None) -> Verdict:
    return Simulation(Plan.draw(seed, steps), guards, trace).run()
