"""A world for microbatches: the real coordinator and participants, on groups that are only a model.

A group here is a log of entries that are applied one after the other, by the real
:func:`stretto.worker.microbatch.entries.resolve`. What the replication core promises is taken for granted:
an entry is applied only if its leader's epoch lasts until it is decided, and a new leader begins with all
that was applied. Everything else goes wrong: messages are lost, doubled, late and out of order; leaders
change and forget, and the old ones go on for a while without knowing; outcomes of entries are not known;
groups stall; executors die with what they keep; functions fail, and never do the same thing twice.

The module under test has on every task a list of what it did and counters that hops add to. Each record draws
a word that nobody can guess and leaves it on two tasks, so that two runs of one record cannot be mixed
unseen. At the end, everything must be as if each record had been run once, and nothing had ever failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import msgspec

from stretto.pstate import changes as state_changes
from stretto.pstate.changes import Changes
from stretto.sim.simulation import Verdict
from stretto.sim.world import Trace, Violation, World
from stretto.types import Epoch, Millis, TaskId
from stretto.worker.microbatch import entries, machine, messages
from stretto.worker.microbatch.coordinator import Coordinator
from stretto.worker.microbatch.entries import Source, Version
from stretto.worker.microbatch.guards import GUARDS, Guards
from stretto.worker.microbatch.messages import Speaker
from stretto.worker.microbatch.participant import Participant

TOPOLOGY = "transfers"
DEPOT = "requests"
RUN_MS = 12_000
HEALING_MS = 60_000
SETTINGS = machine.Settings(
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
    """What a seed decides before anything happens."""

    seed: int
    tasks: int
    loss: float
    doubling: float
    delay_ms: int
    fault_every_ms: int
    unknown: float
    zombie_ms: int
    append_ms: int
    flaky: float
    poison: float

    @classmethod
    def draw(cls, seed: int) -> Plan:
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
            append_ms=random.choice((1, 3, 30, 80)),
            flaky=random.choice((0, 0.02)),
            poison=random.choice((0, 0.03)),
        )

    def describe(self) -> str:
        return (
            f"seed {self.seed}: {self.tasks} tasks\n"
            f"  network  loss {self.loss}, doubled {self.doubling}, up to {self.delay_ms} ms late\n"
            f"  faults   every {self.fault_every_ms} ms; former leaders go on for {self.zombie_ms} ms\n"
            f"  entries  {self.append_ms} ms, outcome unknown {self.unknown}\n"
            f"  code     fails sometimes {self.flaky}, always {self.poison}"
        )


class Leader:
    """One epoch of one group, as its worker sees it. It may be a thing of the past without knowing."""

    def __init__(self, sim: MicrobatchSimulation, group: Group, epoch: Epoch) -> None:
        self.sim = sim
        self.group = group
        self.epoch = epoch
        self.alive = True
        #: What it has applied; no longer the group's own once another one leads.
        self.state = group.state
        self.machines: list[Coordinator | Participant] = []
        self.kept: dict[Version, _Kept] = {}
        participant = Participant(TOPOLOGY, group.task, sim.next_speaker(), SETTINGS, sim.guards)
        self.machines.append(participant)
        if group.task == 0:
            self.machines.append(Coordinator(TOPOLOGY, (DEPOT,), sim.plan.tasks, SETTINGS, sim.guards))
        for each in self.machines:
            self.step(each, machine.Started())
        self.grown()

    def grown(self) -> None:
        self.step(self.machines[0], machine.Grown(bounds={DEPOT: (0, self.group.depot_end)}))

    def receive(self, message: messages.AnyMessage, body: bytes) -> None:
        if not self.alive:
            return
        is_for_coordinator = isinstance(message, messages.ToCoordinator)
        if is_for_coordinator and len(self.machines) < 2:
            return
        self.step(self.machines[is_for_coordinator], machine.Received(message=message, body=body))

    def step(self, each: Coordinator | Participant, event: machine.Event) -> None:
        if not self.alive:
            return
        world = self.sim.world
        world.trace(f"task {self.group.task}", f"epoch {self.epoch}", event)
        for effect in each.step(event, world.now):
            self.carry_out(each, effect)
        deadline = each.next_deadline()
        if deadline is not None:
            world.at(max(deadline, world.now + 1), self.tick, each, deadline)

    def tick(self, each: Coordinator | Participant, deadline: int) -> None:
        if each.next_deadline() == deadline:
            self.step(each, machine.Tick())

    def carry_out(self, each: Coordinator | Participant, effect: machine.Effect) -> None:
        sim = self.sim
        match effect:
            case machine.Send(task=task, message=message, body=body):
                sim.send(task, message, body)
            case machine.Load(token=token):
                sim.world.after(sim.draw(3), self.load, each, token)
            case machine.Append(token=token, entry=entry):
                self.group.append(self, entry, partial(self.appended, each, token))
            case machine.Execute():
                sim.world.after(1 + sim.draw(20), self.execute, each, effect)
            case machine.Collect():
                sim.world.after(sim.draw(5), self.collect, each, effect)
            case machine.Miss(version=version):
                raise Violation(f"task {self.group.task} missed what it had staged for {version}")
            case machine.Discard(version=version):
                for key in [key for key in self.kept if key <= version]:
                    del self.kept[key]
            case machine.Note(event="microbatch_retried"):
                sim.totals["retries"] += 1
            case machine.Note(event="microbatch_has_nothing_staged"):
                raise Violation(
                    f"task {self.group.task} was told to roll what it has not staged: {effect.fields}"
                )
            case machine.Note():
                pass

    def load(self, each: Coordinator | Participant, token: int) -> None:
        get = self.get
        batch, rolled = entries.batch_of(TOPOLOGY, get), entries.rolled_of(TOPOLOGY, get)
        self.step(each, machine.Loaded(token=token, batch=batch, rolled=rolled))

    def get(self, key: bytes) -> bytes | None:
        return self.state.get(entries.DATABASE, {}).get(key)

    def appended(self, each: Coordinator | Participant, token: int, *, applied: bool, why: str = "") -> None:
        self.step(each, machine.Appended(token=token, applied=applied, why=why))

    # The executor.

    def executor_dies(self) -> None:
        self.kept.clear()
        self.sim.totals["dead executors"] += 1

    def execute(self, each: Coordinator | Participant, effect: machine.Execute) -> None:
        if not self.alive:
            return
        kept = self.kept.get(effect.version)
        if kept is None and effect.after == 0:
            kept = self.kept[effect.version] = _Kept()
        if kept is None or kept.rounds != effect.after:
            self.step(each, machine.ExecutionFailed(version=effect.version, why="an executor died"))
            return
        kept.rounds += 1
        run = Run(self.sim, self.group.task, self.state, kept)
        if effect.round == 0:
            left_out = {each.source for each in effect.left_out}
            for span in effect.spans:
                for offset in range(span.start, span.end):
                    source = Source(DEPOT, self.group.task, offset)
                    if source not in left_out:
                        run.record(source)
        for body in effect.calls:
            for call in msgspec.msgpack.decode(body, type=list[Call]):
                run.call(call)
        calls = {task: (len(each), msgspec.msgpack.encode(each)) for task, each in run.calls.items()}
        executed = machine.Executed(
            version=effect.version, round=effect.round, calls=calls, failures=tuple(run.failures)
        )
        self.sim.world.after(self.sim.draw(20), self.step, each, executed)

    def collect(self, each: Coordinator | Participant, effect: machine.Collect) -> None:
        kept = self.kept.get(effect.version)
        if kept is None or kept.rounds != effect.after:
            self.step(each, machine.ExecutionFailed(version=effect.version, why="an executor died"))
            return
        puts = {name: tuple(sorted(rows.items())) for name, rows in kept.rows.items()}
        progress = tuple((span.depot.encode(), str(span.end).encode()) for span in effect.spans)
        failed = tuple((str(out.source.offset).encode(), b"") for out in effect.left_out)
        changes = {name: Changes(puts=rows) for name, rows in puts.items()}
        changes["$progress"] = Changes(puts=progress)
        changes["$failures"] = Changes(puts=failed)
        packed = state_changes.pack(changes)
        self.step(each, machine.Collected(version=effect.version, changes=packed))


@dataclass
class _Kept:
    """Of a version, in an executor."""

    rounds: int = 0
    rows: State = field(default_factory=dict)


class Call(msgspec.Struct, frozen=True, array_like=True):
    source: Source
    word: str
    value: int
    hops: int


class Run:
    """The module's code, over one batch."""

    def __init__(self, sim: MicrobatchSimulation, task: TaskId, state: State, kept: _Kept) -> None:
        self.sim = sim
        self.task = task
        self._state = state
        self._kept = kept
        self.calls: dict[TaskId, list[Call]] = {}
        self.failures: list[messages.Failure] = []

    def get(self, name: str, key: str, default: str = "") -> str:
        for rows in (self._kept.rows, self._state):
            found = rows.get(name, {}).get(key.encode())
            if found is not None:
                return found.decode()
        return default

    def put(self, name: str, key: str, value: object) -> None:
        self._kept.rows.setdefault(name, {})[key.encode()] = str(value).encode()

    def record(self, source: Source) -> None:
        kind = self.sim.kind_of(source)
        if kind.fails_at == 0 and self.sim.fails(kind):
            self._fail(source)
            return
        word = f"{self.sim.world.random.getrandbits(48):x}"
        self.put("words", f"{source.task}.{source.offset}", word)
        self.put("done", "list", self.get("done", "list") + f"{source.offset} ")
        # What is read here decides what happens elsewhere: it must be the truth.
        count = int(self.get("done", "count", "0")) + 1
        self.put("done", "count", count)
        if kind.target is not None:
            self._hop(kind.target, Call(source, word, count, kind.hops))

    def call(self, call: Call) -> None:
        kind = self.sim.kind_of(call.source)
        if kind.fails_at > 0 and call.hops == 1 and self.sim.fails(kind):
            self._fail(call.source)
            return
        name = f"{call.source.task}.{call.source.offset}.{call.hops}"
        self.put("words", name, call.word)
        self.put("seen", name, call.value)
        self.put("counters", f"{call.source.task}", int(self.get("counters", f"{call.source.task}", "0")) + 1)
        if call.hops > 1:
            target = TaskId((self.task + 1) % self.sim.plan.tasks)
            self._hop(target, msgspec.structs.replace(call, hops=call.hops - 1))

    def _hop(self, task: TaskId, call: Call) -> None:
        self.calls.setdefault(task, []).append(call)

    def _fail(self, source: Source) -> None:
        self.failures.append(messages.Failure(source, "does not work", "line 1"))


@dataclass(frozen=True)
class Behaviour:
    """What the module does with a record."""

    target: TaskId | None
    hops: int
    fails_at: int
    chance: float


class Group:
    """The log of one task, and who leads it."""

    def __init__(self, sim: MicrobatchSimulation, task: TaskId) -> None:
        self.sim = sim
        self.task = task
        self.state: State = {}
        self.depot_end = 0
        self.epoch = Epoch(0)
        self.stalled = False
        #: In the log and not applied: entry, and how to tell.
        self.pending: list[tuple[entries.Entry, Any]] = []
        self.leader: Leader | None = None

    def elect(self) -> None:
        """Of what was not applied some beginning survives, and is applied before the new leader serves."""
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
        """The same leader in the same epoch, which remembers nothing; its entries are in the log."""
        if self.leader is not None:
            self.leader.alive = False
            self.leader = Leader(self.sim, self, self.epoch)

    def _dies(self, former: Leader) -> None:
        former.alive = False

    def _serve(self, epoch: Epoch) -> None:
        if epoch == self.epoch:
            self.leader = Leader(self.sim, self, epoch)

    def append(self, leader: Leader, entry: entries.Entry, tell: Any) -> None:
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

    def _decide(self, epoch: Epoch, slot: tuple[entries.Entry, Any]) -> None:
        """In the order of the log: what lies before it is decided too."""
        if epoch != self.epoch or slot not in self.pending:
            return
        if self.stalled:
            self.sim.world.after(20, self._decide, epoch, slot)
            return
        while slot in self.pending:
            entry, tell = self.pending.pop(0)
            self._apply(entry)
            tell(applied=True)

    def _apply(self, entry: entries.Entry) -> None:
        rows = self.state.setdefault(entries.DATABASE, {})
        effect = entries.resolve(entry, rows.get, self.sim.guards)
        self.sim.applied(self, entry, effect)
        for name, changes in effect.items():
            target = self.state.setdefault(name, {})
            for key in changes.deletes:
                target.pop(key, None)
            target.update(changes.puts)


class MicrobatchSimulation:
    def __init__(self, plan: Plan, guards: Guards = GUARDS, trace: Trace | None = None) -> None:
        self.plan = plan
        self.guards = guards
        self.world = World(plan.seed, trace)
        self.totals: Counter[str] = Counter()
        self.steps = 0
        self.healed = False
        self.groups = [Group(self, TaskId(task)) for task in range(plan.tasks)]
        #: By id: what task 0 has committed.
        self.committed: dict[int, tuple[Version, tuple[TaskId, ...]]] = {}
        #: Which ids took effect, by task.
        self.rolled: dict[TaskId, list[int]] = {group.task: [] for group in self.groups}
        self._kinds: dict[Source, Behaviour] = {}
        self._zombies: dict[TaskId, Leader] = {}
        self._speakers = 0

    def next_speaker(self) -> Speaker:
        self._speakers += 1
        return Speaker(self._speakers)

    def draw(self, below: int) -> int:
        return self.world.random.randrange(max(1, below))

    def kind_of(self, source: Source) -> Behaviour:
        """The same for a record in every run."""
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
        copies = 1
        if not self.healed:
            copies = 0 if self.world.chance(self.plan.loss) else 1 + self.world.chance(self.plan.doubling)
        for _ in range(copies):
            delay = 1 + (self.draw(2) if self.healed else self.draw(self.plan.delay_ms))
            if not self.healed and self.world.chance(0.01):
                delay += self.draw(2_000)
            self.world.after(delay, self._deliver, task, message, body)

    def _deliver(self, task: TaskId, message: messages.AnyMessage, body: bytes) -> None:
        """To the leader, or to one that was."""
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
        """All input is committed, and has taken effect everywhere."""
        batch = entries.batch_of(TOPOLOGY, self.groups[0].state.get(entries.DATABASE, {}).get)
        if batch is None or not batch.committed:
            return not any(group.depot_end for group in self.groups)
        done = batch.progress_after().get(DEPOT, {})
        return all(
            done.get(group.task, 0) >= group.depot_end
            and (group.task not in (batch.tasks or ()) or batch.version.id in self.rolled[group.task])
            for group in self.groups
        )

    # What must be true.

    def applied(self, group: Group, entry: entries.Entry, effect: dict[str, Changes]) -> None:
        if not effect:
            return
        if isinstance(entry, entries.Commit):
            self.totals["commits"] += 1
            if entry.version.id in self.committed:
                raise Violation(f"{entry.version.id} was committed twice")
            self.committed[entry.version.id] = (entry.version, entry.tasks)
        elif isinstance(entry, entries.Roll):
            self._rolls(group.task, entry.version)
        elif set(effect) - {entries.DATABASE}:
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
        """Which tasks a record reaches, and under which name."""
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
