"""The leader of a group's task in one epoch: it steps the real machines and carries out what they want."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from stretto.pstate import changes as state_changes
from stretto.pstate.changes import Changes
from stretto.sim.microbatch.functions import Call, Kept, Run
from stretto.sim.microbatch.plan import DEPOT, SETTINGS, TOPOLOGY
from stretto.sim.virtual.world import Violation
from stretto.state import microbatch_entries
from stretto.state.microbatch_entries import Source, Version
from stretto.vocabulary.types import Epoch
from stretto.worker.microbatch.machines import effects, events, messages
from stretto.worker.microbatch.machines.coordinator import Coordinator
from stretto.worker.microbatch.machines.participant import Participant

if TYPE_CHECKING:
    from stretto.sim.microbatch.group import Group
    from stretto.sim.microbatch.simulation import MicrobatchSimulation


class Leader:
    """The leader of one group in one epoch, as its worker sees it; it may be deposed without knowing."""

    def __init__(self, sim: MicrobatchSimulation, group: Group, epoch: Epoch) -> None:
        self.sim = sim
        self.group = group
        self.epoch = epoch
        self.alive = True
        #: The state that it has applied; a copy once another one leads.
        self.state = group.state
        self.machines: list[Coordinator | Participant] = []
        self.kept: dict[Version, Kept] = {}
        self.participant = Participant(TOPOLOGY, group.task, sim.next_speaker(), SETTINGS, sim.guards)
        self.machines.append(self.participant)
        if group.task == 0:
            self.machines.append(Coordinator(TOPOLOGY, (DEPOT,), sim.plan.tasks, SETTINGS, sim.guards))
        for each in self.machines:
            self.step(each, events.Started())
        self.grown()

    def grown(self) -> None:
        """Report the records of the depot to the machine."""
        self.step(self.machines[0], events.Grown(bounds={DEPOT: (0, self.group.depot_end)}))

    def await_records(self) -> None:
        """Let an appender wait for all records that are there."""
        self.step(self.machines[0], events.Awaited(depot=DEPOT, end=self.group.depot_end))

    @property
    def advertised_end(self) -> int:
        """End of the records whose processing was reported to the appenders that wait."""
        return self.participant.processed.get(DEPOT, 0)

    def receive(self, message: messages.AnyMessage, body: bytes) -> None:
        if not self.alive:
            return
        is_for_coordinator = isinstance(message, messages.ToCoordinator)
        if is_for_coordinator and len(self.machines) < 2:
            return
        self.step(self.machines[is_for_coordinator], events.Received(message=message, body=body))

    def step(self, each: Coordinator | Participant, event: events.Event) -> None:
        """Step a machine, and carry out the effects."""
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
            self.step(each, events.Tick())

    def carry_out(self, each: Coordinator | Participant, effect: effects.Effect) -> None:
        sim = self.sim
        match effect:
            case effects.Send(task=task, message=message, body=body):
                sim.send(task, message, body)
            case effects.Load():
                sim.world.after(sim.draw(3), self.load, each, effect)
            case effects.Append(token=token, entry=entry):
                self.group.append(self, entry, partial(self.appended, each, token))
            case effects.Execute():
                sim.world.after(1 + sim.draw(20), self.execute, each, effect)
            case effects.Collect():
                sim.world.after(sim.draw(5), self.collect, each, effect)
            case effects.Miss(version=version):
                raise Violation(f"task {self.group.task} missed what it had staged for {version}")
            case effects.Processed():
                sim.told(self.group, effect)
            case effects.Discard(version=version):
                for key in [key for key in self.kept if key <= version]:
                    del self.kept[key]
            case effects.Note(event="microbatch_retried"):
                sim.totals["retries"] += 1
            case effects.Note(event="microbatch_has_nothing_staged"):
                raise Violation(
                    f"task {self.group.task} was told to roll what it has not staged: {effect.fields}"
                )
            case effects.Note():
                pass

    def load(self, each: Coordinator | Participant, load: effects.Load) -> None:
        get = self.get
        batch, rolled = (
            microbatch_entries.batch_of(TOPOLOGY, get),
            microbatch_entries.rolled_of(TOPOLOGY, get),
        )
        progress = {depot.decode(): int(end) for depot, end in self.state.get("$progress", {}).items()}
        self.step(
            each,
            events.Loaded(
                token=load.token,
                batch=batch,
                rolled=rolled,
                returned=microbatch_entries.returned_of(TOPOLOGY, get),
                progress=progress if load.with_progress else None,
            ),
        )

    def get(self, key: bytes) -> bytes | None:
        return self.state.get(microbatch_entries.DATABASE, {}).get(key)

    def appended(self, each: Coordinator | Participant, token: int, *, applied: bool, why: str = "") -> None:
        self.step(each, events.Appended(token=token, applied=applied, why=why))

    # The executor.

    def executor_dies(self) -> None:
        self.kept.clear()
        self.sim.totals["dead executors"] += 1

    def execute(self, each: Coordinator | Participant, effect: effects.Execute) -> None:
        if not self.alive:
            return
        kept = self.kept.get(effect.version)
        if kept is None and effect.after == 0:
            kept = self.kept[effect.version] = Kept()
        if kept is None or kept.rounds != effect.after:
            self.step(each, events.ExecutionFailed(version=effect.version, why="an executor died"))
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
        if sum(map(len, run.calls.values())) > self.sim.plan.room:
            self.too_large(each, effect.version)
            return
        calls = {task: (len(each), msgspec.msgpack.encode(each)) for task, each in run.calls.items()}
        executed = events.Executed(
            version=effect.version,
            round=effect.round,
            calls=calls,
            failures=tuple(run.failures),
            results=tuple(run.results),
        )
        self.sim.world.after(self.sim.draw(20), self.step, each, executed)

    def too_large(self, each: Coordinator | Participant, version: Version) -> None:
        self.sim.totals["too large"] += 1
        self.step(each, events.ExecutionFailed(version=version, why="too large", too_large=True))

    def collect(self, each: Coordinator | Participant, effect: effects.Collect) -> None:
        kept = self.kept.get(effect.version)
        if kept is None or kept.rounds != effect.after:
            self.step(each, events.ExecutionFailed(version=effect.version, why="an executor died"))
            return
        if len(kept.rows.get("words", {})) > self.sim.plan.room:
            self.too_large(each, effect.version)
            return
        puts = {name: tuple(sorted(rows.items())) for name, rows in kept.rows.items()}
        progress = tuple((span.depot.encode(), str(span.end).encode()) for span in effect.spans)
        failed = tuple((str(out.source.offset).encode(), b"") for out in effect.left_out)
        changes = {name: Changes(puts=rows) for name, rows in puts.items()}
        changes["$progress"] = Changes(puts=progress)
        changes["$failures"] = Changes(puts=failed)
        packed = state_changes.pack(changes)
        self.step(each, events.Collected(version=effect.version, changes=packed))
