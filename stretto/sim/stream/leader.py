"""The leader of a task in one epoch: it steps the real stream and carries out what that wants."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from stretto.pstate.changes import NO_CHANGES, Changes, Packed, joined, pack_part
from stretto.sim.stream.plan import DEPOT, TOPOLOGY, Record
from stretto.vocabulary.types import Epoch, TaskId
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.executors.replies import Why
from stretto.worker.topology import rows
from stretto.worker.topology.machine import effects, events
from stretto.worker.topology.machine.stored import Stored
from stretto.worker.topology.machine.stream import Stream

if TYPE_CHECKING:
    from stretto.sim.stream.group import Group
    from stretto.sim.stream.simulation import StreamSimulation


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A call on another task."""

    record: Record
    target: TaskId
    depth: int
    origin: int


_decode_calls = msgspec.msgpack.Decoder(list[Call]).decode
_encode = msgspec.msgpack.Encoder().encode


class Leader:
    """The leader of a task in one epoch, as its worker sees it; it may be deposed without knowing."""

    def __init__(self, sim: StreamSimulation, group: Group, epoch: Epoch, stored: Stored) -> None:
        self.sim = sim
        self.group = group
        self.epoch = epoch
        self.is_alive = True
        self._requests: deque[effects.RunRecords | effects.RunCalls] = deque()
        self._positions: int | None = None
        #: Hops that are not answered yet, in the order of their numbers.
        self._unanswered: dict[int, effects.Hop] = {}
        #: Where to send the answer to a hop: the leader that sent it, and the number of the hop.
        self._tickets: dict[int, tuple[Leader, int, bytes]] = {}
        self._tickets_given = 0
        self._deadline: int | None = None
        self.stream = Stream((DEPOT,), sim.plan.settings, replace(stored, ends={DEPOT: 0}), sim.guards)
        self.grown()
        sim.world.after(sim.plan.resend_ms, self._send_again)

    def die(self) -> None:
        self.is_alive = False

    def grown(self) -> None:
        self.step(events.Grown(DEPOT, self.group.depot_end))

    def step(self, event: events.Event) -> None:
        """Step the stream, and carry out the effects."""
        if not self.is_alive:
            return
        world = self.sim.world
        world.trace(f"task {self.group.task}", "steps", event)
        for effect in self.stream.step(event, world.now):
            world.trace(f"task {self.group.task}", "wants", effect)
            self._carry_out(effect)
        deadline = self.stream.next_deadline()
        if deadline is not None and deadline != self._deadline:
            self._deadline = deadline
            world.at(max(deadline, world.now + 1), self._tick, deadline)

    def _tick(self, deadline: int) -> None:
        if self._deadline == deadline:
            self._deadline = None
            self.step(events.Tick())

    def _carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.RunRecords() | effects.RunCalls():
                self._requests.append(effect)
                self.sim.world.after(1 + self.sim.draw(10), self._execute)
            case effects.Append(batch=batch, changes=changed, entry=entry):
                payload = joined(changed, rows.packed(TOPOLOGY, entry, self.sim.world.now))
                is_in = self.group.append(self, payload, lambda: self.step(events.Applied(batch)))
                self.step(events.Accepted(batch) if is_in else events.Refused(batch))
            case effects.Hop(number=number):
                self._unanswered[number] = effect
                self._send(effect)
            case effects.Answer(ticket=ticket, failures=failures):
                sender, number, calls = self._tickets.pop(ticket)
                origins = [call.origin for call in _decode_calls(calls)]
                notes = tuple(FailureNote(origins[note.index], note.error) for note in failures)
                for travel_ms in self.sim.travel_ms():
                    self.sim.world.after(travel_ms, sender.answered, number, notes)
            case effects.Decline(ticket=ticket):
                self.sim.totals["declined"] += 1
                del self._tickets[ticket]
            case effects.Processed() | effects.Settled() | effects.Note():
                pass

    # Hops.

    def _send(self, hop: effects.Hop) -> None:
        before = [each.number for each in self._unanswered.values() if each.task == hop.task]
        after = max((number for number in before if number < hop.number), default=0)
        for travel_ms in self.sim.travel_ms():
            self.sim.world.after(travel_ms, self._deliver, hop, after)

    def _send_again(self) -> None:
        if self.is_alive:
            for hop in self._unanswered.values():
                self.sim.totals["sent again"] += 1
                self._send(hop)
            self.sim.world.after(self.sim.plan.resend_ms, self._send_again)

    def _deliver(self, hop: effects.Hop, after: int) -> None:
        """Deliver a hop to the leader of its task, or to a former one."""
        self.sim.steps += 1
        group = self.sim.groups[hop.task]
        former = group.former
        if former is not None and former.is_alive and self.sim.world.chance(0.4):
            former.called(self, hop, after)
        elif group.leader is not None:
            group.leader.called(self, hop, after)

    def called(self, sender: Leader, hop: effects.Hop, after: int) -> None:
        if self.is_alive:
            self._tickets_given += 1
            self._tickets[self._tickets_given] = (sender, hop.number, hop.calls)
            key = (sender.group.task, hop.number)
            self.step(events.Called(self._tickets_given, key, sender.epoch, after, hop.settled, hop.calls))

    def answered(self, number: int, notes: tuple[FailureNote, ...]) -> None:
        if self._unanswered.pop(number, None) is not None:
            self.step(events.HopAnswered(number, notes))

    # The executor.

    def executor_dies(self) -> None:
        requests, self._requests, self._positions = list(self._requests), deque(), None
        for index, request in enumerate(requests):
            why = Why.BYSTANDER if index else Why.CRASH
            self.step(events.NotRun(request.batch, why, "it crashed"))

    def _execute(self) -> None:
        if not self.is_alive or not self._requests:
            return
        request = self._requests.popleft()
        if isinstance(request, effects.RunCalls):
            self._run_calls(request)
        else:
            self._run_records(request)

    def _run_records(self, request: effects.RunRecords) -> None:
        start = self._positions if request.offset is None else request.offset
        if not request.is_aside:
            self._positions = None
        if start is None:
            self.step(events.Ran(batch=request.batch, start=0, end=0))
            return
        end = min(start + 1 + self.sim.draw(request.records_max), self.group.depot_end)
        if request.is_aside:
            end = start + 1
        else:
            self._positions = end
        run = _Run(self)
        for index, offset in enumerate(range(start, end)):
            run.record(index, Record(self.group.task, offset))
        self.step(run.ran(request.batch, start, end))

    def _run_calls(self, request: effects.RunCalls) -> None:
        calls = _decode_calls(request.calls)
        end = len(calls)
        if end > 1 and self.sim.world.chance(self.sim.plan.cut):
            end = 1 + self.sim.draw(end - 1)
            self.sim.totals["cut"] += 1
        run = _Run(self)
        for index, call in enumerate(calls[:end]):
            run.call(index, call)
        self.step(run.ran(request.batch, 0, end, left=len(calls) - end))


class _Run:
    """One run of the module's code over one batch."""

    def __init__(self, leader: Leader) -> None:
        self._sim = leader.sim
        self._task = leader.group.task
        self._done: list[tuple[str, TaskId, int]] = []
        self._calls: dict[TaskId, list[Call]] = {}
        self._failures: list[FailureNote] = []

    def record(self, index: int, record: Record) -> None:
        if self._sim.fails(record, 0):
            self._failures.append(FailureNote(index, "does not work"))
            return
        self._done.append((f"{record.task}.{record.offset}", record.task, record.offset))
        behaviour = self._sim.behaviour_of(record)
        for target in behaviour.targets:
            self._calls.setdefault(target, []).append(Call(record, target, behaviour.depth, index))

    def call(self, index: int, call: Call) -> None:
        record = call.record
        if call.depth == 0 and self._sim.fails(record, 1):
            self._failures.append(FailureNote(index, "does not work there"))
            return
        name = f"{record.task}.{record.offset}.{call.target}.{call.depth}"
        is_first = call.depth == self._sim.behaviour_of(record).depth
        # Only what its own task sent has an order.
        self._done.append((name, record.task if is_first else self._task, record.offset))
        if call.depth:
            following = TaskId((self._task + 1) % self._sim.plan.tasks)
            on = Call(record, call.target, call.depth - 1, index)
            self._calls.setdefault(following, []).append(on)

    def ran(self, batch: int, start: int, end: int, left: int = 0) -> events.Ran:
        changed: Packed = NO_CHANGES
        if self._done:
            changed = pack_part({"done": Changes(puts=((b"x", _encode(self._done)),))})
        return events.Ran(
            batch=batch,
            start=start,
            end=end,
            left=left,
            changes=changed,
            hops=tuple((task, _encode(calls)) for task, calls in self._calls.items()),
            failures=tuple(self._failures),
        )
