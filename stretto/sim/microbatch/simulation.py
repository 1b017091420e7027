"""A world for microbatches: the real coordinator and participants, on groups that are only a model.

A group here is a log of entries that are applied one after the other, by the real
:func:`stretto.state.microbatch_entries.resolve`. What the replication core promises is taken for granted:
an entry is applied only if its leader's epoch lasts until it is decided, and a new leader begins with all
that was applied. Everything else goes wrong: messages are lost, doubled, late and out of order; leaders
change and forget, and the old ones go on for a while without knowing; outcomes of entries are not known;
groups stall; executors die with what they keep; functions fail, and never do the same thing twice.

At the end, everything must be as if each record had been run once, and nothing had ever failed. Appenders
that wait are told of a record only when all that it leads to shows on all tasks, and then what the run
returned that took effect, or that this is not known.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from random import Random

from stretto.pstate.changes import Changes
from stretto.sim.microbatch.group import Group
from stretto.sim.microbatch.leader import Leader
from stretto.sim.microbatch.plan import DEPOT, TOPOLOGY, Behaviour, Plan
from stretto.sim.replication.simulation import Verdict
from stretto.sim.virtual.world import Trace, Violation, World
from stretto.state import microbatch_entries
from stretto.state.microbatch_entries import Source, Version
from stretto.vocabulary.types import TaskId
from stretto.worker.microbatch.machines import effects, messages
from stretto.worker.microbatch.machines.guards import GUARDS, Guards
from stretto.worker.microbatch.machines.messages import Speaker

RUN_MS = 12_000
RECENT = 12
"""Number of messages to a task that may be delivered again after an election."""
HEALING_MS = 200_000


class MicrobatchSimulation:
    """One seed of microbatches, from its start to a verdict."""

    def __init__(self, plan: Plan, guards: Guards = GUARDS, trace: Trace | None = None) -> None:
        self.plan = plan
        self.guards = guards
        self.world = World(plan.seed, trace)
        self.totals: Counter[str] = Counter()
        self.steps = 0
        self.healed = False
        self.groups = [Group(self, TaskId(task)) for task in range(plan.tasks)]
        #: The microbatches that task 0 has committed, by id, with the tasks that they change.
        self.committed: dict[int, tuple[Version, tuple[TaskId, ...]]] = {}
        #: The ids that took effect, by task, in that order.
        self.rolled: dict[TaskId, list[int]] = {group.task: [] for group in self.groups}
        self._kinds: dict[Source, Behaviour] = {}
        self._zombies: dict[TaskId, Leader] = {}
        self._speakers = 0
        #: The latest messages to each task; some are delivered again, to its next leader.
        self._recent: dict[TaskId, deque[tuple[messages.AnyMessage, bytes]]] = {
            group.task: deque(maxlen=RECENT) for group in self.groups
        }

    def next_speaker(self) -> Speaker:
        self._speakers += 1
        return Speaker(self._speakers)

    def draw(self, below: int) -> int:
        return self.world.random.randrange(max(1, below))

    def kind_of(self, source: Source) -> Behaviour:
        """Return what the module does with a record; it is the same in every run."""
        if source not in self._kinds:
            random = Random(f"{self.plan.seed}/{source}")
            target = TaskId(random.randrange(self.plan.tasks)) if random.random() < 0.7 else None
            hops = random.choice((1, 1, 2, 3))
            chance = 1.0 if random.random() < self.plan.poison else self.plan.flaky
            fails_at = random.choice((0, 1)) if target is not None else 0
            self._kinds[source] = Behaviour(target, hops, fails_at, chance)
        return self._kinds[source]

    def fails(self, kind: Behaviour) -> bool:
        return kind.chance >= 1.0 or (not self.healed and self.world.chance(kind.chance))

    # The network.

    def send(self, task: TaskId, message: messages.AnyMessage, body: bytes) -> None:
        """Send a message to a task's leader: it may be late, lost or doubled."""
        self._recent[task].append((message, body))
        copies = 1
        if not self.healed:
            copies = 0 if self.world.chance(self.plan.loss) else 1 + self.world.chance(self.plan.doubling)
        for _ in range(copies):
            delay = 1 + (self.draw(2) if self.healed else self.draw(self.plan.delay_ms))
            if not self.healed and self.world.chance(0.01):
                delay += self.draw(2_000)
            self.world.after(delay, self._deliver, task, message, body)

    def led_anew(self, task: TaskId) -> None:
        """Deliver to a new leader some messages that were meant for the one before, in their order."""
        if not self.healed and self.world.chance(self.plan.belated):
            for message, body in list(self._recent[task]):
                if self.world.chance(0.5):
                    self.totals["belated"] += 1
                    self.world.after(1 + self.draw(30), self._deliver, task, message, body)

    def _deliver(self, task: TaskId, message: messages.AnyMessage, body: bytes) -> None:
        """Deliver a message to the leader of a task, or to a former one."""
        group = self.groups[task]
        self.steps += 1
        former = self._zombies.get(task)
        if former is not None and former.alive and self.world.chance(0.4):
            former.receive(message, body)
        elif group.leader is not None:
            group.leader.receive(message, body)

    # A run.

    def run(self) -> Verdict:
        try:
            for group in self.groups:
                group.elect()
            self.world.after(1, self._produce)
            self.world.after(self.plan.fault_every_ms, self._fault)
            while self.world.now < RUN_MS and self.world.advance():
                pass
            self._heal()
            while self.world.now < RUN_MS + HEALING_MS and not self._is_done() and self.world.advance():
                pass
            self._finish()
        except Violation as violation:
            return Verdict(self.plan.seed, self.steps, self.totals, str(violation))
        return Verdict(self.plan.seed, self.steps, self.totals)

    def _produce(self) -> None:
        if self.world.now < RUN_MS - 1_000:
            group = self.world.random.choice(self.groups)
            group.depot_end += 1 + self.draw(5)
            if group.leader is not None:
                group.leader.grown()
                if self.world.chance(0.5):
                    group.leader.await_records()
            self.world.after(1 + self.draw(250), self._produce)

    def _fault(self) -> None:
        if self.healed:
            return
        random = self.world.random
        group = random.choice(self.groups)
        match random.choice(("elect", "elect", "executor", "stall", "restart")):
            case "elect":
                if group.leader is not None:
                    self._zombies[group.task] = group.leader
                group.elect()
            case "restart":
                group.restart()
                self.totals["restarts"] += 1
            case "executor" if group.leader is not None:
                group.leader.executor_dies()
            case "stall":
                group.stalled = True
                self.totals["stalls"] += 1
                self.world.after(self.draw(1_500), self._unstall, group)
            case _:
                pass
        self.world.after(1 + self.draw(2 * self.plan.fault_every_ms), self._fault)

    def _unstall(self, group: Group) -> None:
        group.stalled = False

    def _heal(self) -> None:
        self.healed = True
        for group in self.groups:
            group.stalled = False
        for former in self._zombies.values():
            former.alive = False

    def _is_done(self) -> bool:
        """Whether all input is committed, has taken effect everywhere, and was reported to appenders."""
        if any(
            group.leader is None or group.leader.advertised_end < group.depot_end for group in self.groups
        ):
            return False
        batch = microbatch_entries.batch_of(
            TOPOLOGY, self.groups[0].state.get(microbatch_entries.DATABASE, {}).get
        )
        if batch is None or not batch.committed:
            return not any(group.depot_end for group in self.groups)
        done = batch.progress_after().get(DEPOT, {})
        return all(
            done.get(group.task, 0) >= group.depot_end
            and (group.task not in (batch.tasks or ()) or batch.version.id in self.rolled[group.task])
            for group in self.groups
        )

    # What must be true.

    def applied(self, group: Group, entry: microbatch_entries.Entry, effect: dict[str, Changes]) -> None:
        """Check an entry when it is applied: each id commits once, and only commits take effect."""
        if not effect:
            return
        if isinstance(entry, microbatch_entries.Commit):
            self.totals["commits"] += 1
            if entry.version.id in self.committed:
                raise Violation(f"{entry.version.id} was committed twice")
            self.committed[entry.version.id] = (entry.version, entry.tasks)
        elif isinstance(entry, microbatch_entries.Roll):
            self._rolls(group.task, entry.version)
        elif set(effect) - {microbatch_entries.DATABASE}:
            raise Violation(f"{entry} changed what is visible")

    def _rolls(self, task: TaskId, version: Version) -> None:
        committed = self.committed.get(version.id)
        if committed is None or committed[0] != version:
            raise Violation(f"{version} took effect on task {task}, and {committed} is committed")
        if self.rolled[task] and version.id <= self.rolled[task][-1]:
            raise Violation(f"{version} took effect on task {task} after {self.rolled[task][-1]}")
        for earlier, (_, tasks) in self.committed.items():
            late = [other for other in tasks if earlier < version.id and earlier not in self.rolled[other]]
            if late:
                raise Violation(f"{version} took effect on task {task}, and {earlier} not yet on {late}")
        self.rolled[task].append(version.id)

    def told(self, group: Group, processed: effects.Processed) -> None:
        """Check what is reported to the appenders of these records."""
        self.totals["told" if processed.results is not None else "results lost"] += 1
        left_out = {int(key) for key in group.state.get("$failures", {})}
        for offset in range(processed.start, processed.end):
            if offset not in left_out:
                self._check_visible(Source(DEPOT, group.task, offset))
        if processed.results is None:
            return
        returned = dict(processed.results)
        failed = {offset for offset, _ in processed.failures}
        for offset in range(processed.start, processed.end):
            if (offset in failed) != (offset in left_out):
                raise Violation(f"record {offset} of task {group.task} is told to have failed wrongly")
            if offset not in left_out:
                word = group.state.get("words", {}).get(f"{group.task}.{offset}".encode())
                self._same(f"what record {offset} of task {group.task} returned", returned.get(offset), word)

    def _check_visible(self, source: Source) -> None:
        here = self.groups[source.task].state.get("words", {}).get(f"{source.task}.{source.offset}".encode())
        if here is None:
            raise Violation(f"{source} is told to be processed, and is not")
        for task, name in self._effects(source):
            there = self.groups[task].state.get("words", {}).get(name.encode())
            self._same(f"what {source} did on task {task} when it was told", there, here)

    def _finish(self) -> None:
        if not self._is_done():
            raise Violation(f"after {HEALING_MS} ms without faults not all input has taken effect")
        expected: Counter[tuple[TaskId, str]] = Counter()
        for group in self.groups:
            self._check_task(group, expected)
        found = Counter(
            {
                (group.task, key.decode()): int(value)
                for group in self.groups
                for key, value in group.state.get("counters", {}).items()
            }
        )
        self._same("the counters", found, expected)

    def _check_task(self, group: Group, expected: Counter[tuple[TaskId, str]]) -> None:
        left_out = {int(key) for key in group.state.get("$failures", {})}
        self.totals["left out"] += len(left_out)
        for offset in left_out:
            if not self.kind_of(Source(DEPOT, group.task, offset)).chance:
                raise Violation(f"record {offset} of task {group.task} was left out, and never failed")
        done = [offset for offset in range(group.depot_end) if offset not in left_out]
        listed = group.state.get("done", {}).get(b"list", b"").decode().split()
        self._same(f"list of task {group.task}", listed, [str(offset) for offset in done])
        for position, offset in enumerate(done, start=1):
            source = Source(DEPOT, group.task, offset)
            for task, name in self._effects(source):
                state = self.groups[task].state
                expected[task, str(group.task)] += 1
                here = group.state.get("words", {}).get(f"{group.task}.{offset}".encode())
                there = state.get("words", {}).get(name.encode())
                self._same(f"word {name} of task {task}", there, here)
                self._same(
                    f"what {name} saw", state.get("seen", {}).get(name.encode()), str(position).encode()
                )

    def _effects(self, source: Source) -> Iterator[tuple[TaskId, str]]:
        """Yield the tasks that a record reaches, each with the name of what it does there."""
        kind = self.kind_of(source)
        if kind.target is None:
            return
        task = kind.target
        for hops in range(kind.hops, 0, -1):
            yield task, f"{source.task}.{source.offset}.{hops}"
            task = TaskId((task + 1) % self.plan.tasks)

    def _same(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            raise Violation(f"{what} is {found!r}, and should be {wanted!r}")


def run_seed(seed: int, guards: Guards = GUARDS, trace: Trace | None = None) -> Verdict:
    return MicrobatchSimulation(Plan.draw(seed), guards, trace).run()
