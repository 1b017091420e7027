"""A world for streams that hop: the real machine on every task, on groups that are only a model.

A group here is the log of one task, whose entries are applied one after the other to the rows that a worker
has (:mod:`stretto.worker.topology.rows`). What the replication core promises is taken for granted: an entry
is applied only if its leader's epoch lasts until it is decided, and a new leader begins with all that was
applied. Everything else goes wrong: messages are lost, doubled, late and out of order; leaders change and
forget, and the old ones go on for a while without knowing; entries are refused; executors die; functions
fail.

At the end, every record that never failed must have been run once, here and wherever it hopped to, in the
order of the records; and one that failed must be done, or parked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

from stretto.sim.replication.simulation import Verdict
from stretto.sim.stream.group import Group
from stretto.sim.stream.plan import Behaviour, Plan, Record
from stretto.sim.virtual.world import Trace, Violation, World
from stretto.vocabulary.types import TaskId
from stretto.worker.topology.machine.guards import GUARDS, Guards

RUN_MS = 6_000
HEALING_MS = 20_000
STEPS_MAX = 200_000
"""Most messages in a run; a run that sends more will not end."""


class StreamSimulation:
    """One seed of streams that hop, from its start to a verdict."""

    def __init__(self, plan: Plan, guards: Guards = GUARDS, trace: Trace | None = None) -> None:
        self.plan = plan
        self.guards = guards
        self.world = World(plan.seed, trace)
        self.totals: Counter[str] = Counter()
        self.steps = 0
        self.healed = False
        self.groups = [Group(self, TaskId(task)) for task in range(plan.tasks)]
        #: Records that a function failed on, anywhere: they may be run again whole.
        self.failed: set[Record] = set()
        self._behaviours: dict[Record, Behaviour] = {}

    def draw(self, below: int) -> int:
        return self.world.random.randrange(max(1, below))

    def behaviour_of(self, record: Record) -> Behaviour:
        """Return what the module does with a record; it is the same in every run."""
        if record not in self._behaviours:
            random = Random(f"{self.plan.seed}/{record}")
            others = [task for task in range(self.plan.tasks) if task != record.task]
            targets = random.sample(others, random.randint(0, len(others))) if random.random() < 0.8 else []
            chance = 1.0 if random.random() < self.plan.poison else self.plan.flaky
            self._behaviours[record] = Behaviour(
                tuple(TaskId(task) for task in targets),
                random.choice((0, 0, 1, 2)),
                random.choice((0, 1, 1)) if targets else 0,
                chance,
            )
        return self._behaviours[record]

    def fails(self, record: Record, at: int) -> bool:
        behaviour = self.behaviour_of(record)
        if behaviour.fails_at != at:
            return False
        fails = behaviour.chance >= 1.0 or (not self.healed and self.world.chance(behaviour.chance))
        if fails:
            self.failed.add(record)
            self.totals["failures"] += 1
        return fails

    # The network.

    def travel_ms(self) -> Iterator[int]:
        """Yield the delay of each copy of a message that arrives."""
        if self.healed:
            yield 1 + self.draw(2)
        elif not self.world.chance(self.plan.loss):
            for _ in range(1 + self.world.chance(self.plan.doubling)):
                late = self.draw(1_000) if self.world.chance(0.01) else 0
                yield 1 + self.draw(self.plan.delay_ms) + late

    # A run.

    def run(self) -> Verdict:
        try:
            for group in self.groups:
                group.elect()
            self.world.after(1, self._produce)
            self.world.after(self.plan.fault_every_ms, self._fault)
            while self.world.now < RUN_MS and self.world.advance():
                pass
            self.healed = True
            for group in self.groups:
                group.heal()
            while self._may_go_on() and not self._is_done() and self.world.advance():
                pass
            self._finish()
        except Violation as violation:
            return Verdict(self.plan.seed, self.steps, self.totals, str(violation))
        return Verdict(self.plan.seed, self.steps, self.totals)

    def _produce(self) -> None:
        if self.world.now < RUN_MS - 500:
            group = self.world.random.choice(self.groups)
            group.grow(1 + self.draw(6))
            self.world.after(1 + self.draw(80), self._produce)

    def _fault(self) -> None:
        if self.healed:
            return
        group = self.world.random.choice(self.groups)
        match self.world.random.choice(("elect", "elect", "executor", "restart")):
            case "elect":
                group.elect()
                self.totals["elections"] += 1
            case "restart":
                group.restart()
                self.totals["restarts"] += 1
            case _ if group.leader is not None:
                group.leader.executor_dies()
                self.totals["dead executors"] += 1
            case _:
                pass
        self.world.after(1 + self.draw(2 * self.plan.fault_every_ms), self._fault)

    def _may_go_on(self) -> bool:
        return self.world.now < RUN_MS + HEALING_MS and self.steps < STEPS_MAX

    def _is_done(self) -> bool:
        return all(group.is_done for group in self.groups)

    # What must be true.

    def _finish(self) -> None:
        if not self._is_done():
            waits = [str(group.task) for group in self.groups if not group.is_done]
            raise Violation(
                f"tasks {', '.join(waits)} are not done after {self.world.now - RUN_MS} ms without faults, "
                f"and {self.steps} messages"
            )
        for group in self.groups:
            for offset in range(group.depot_end):
                self._check(Record(group.task, offset), is_parked=offset in group.parked)
        self._check_order()

    def _check(self, record: Record, *, is_parked: bool) -> None:
        self.totals["records"] += 1
        counts = {(task, name): self.groups[task].done[name] for task, name in self._effects(record)}
        if record not in self.failed:
            wrong = {where: count for where, count in counts.items() if count != 1}
            if wrong or is_parked:
                raise Violation(f"{record} never failed and was run {wrong}; parked: {is_parked}")
        elif not is_parked and not all(counts.values()):
            raise Violation(f"{record} failed, is not parked, and was run {counts}")
        self.totals["parked"] += is_parked

    def _effects(self, record: Record) -> Iterator[tuple[TaskId, str]]:
        """Yield the tasks that a record is run on, each with the name of the run."""
        behaviour = self.behaviour_of(record)
        yield record.task, f"{record.task}.{record.offset}"
        for target in behaviour.targets:
            task = target
            for depth in range(behaviour.depth, -1, -1):
                yield task, f"{record.task}.{record.offset}.{target}.{depth}"
                task = TaskId((task + 1) % self.plan.tasks)

    def _check_order(self) -> None:
        """Check that calls from one task to another ran in the order of their records, except failed ones."""
        for group in self.groups:
            for source, offsets in group.order.items():
                kept = [offset for offset in offsets if Record(source, offset) not in self.failed]
                if kept != sorted(kept):
                    raise Violation(f"task {group.task} ran hops of task {source} in the order {kept}")


def run_seed(seed: int, guards: Guards = GUARDS, trace: Trace | None = None) -> Verdict:
    return StreamSimulation(Plan.draw(seed), guards, trace).run()
