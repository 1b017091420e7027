"""The streams of a worker: one for each topology and task that it leads, as long as it leads there.

The driver of :class:`~stretto.worker.topology.machine.stream.Stream`: what happens is stepped at the end of
the loop's turn, when no replica is in the middle of anything; so an append is taken or refused on the spot.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, assert_never

import structlog

from stretto import control
from stretto.module.work import Timed
from stretto.network.stepping import Stepping
from stretto.options import Level
from stretto.pstate.changes import NO_CHANGES, Packed, joined
from stretto.replog.core.effects import Refusal
from stretto.specs.modules import TopologySpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Buffer, Epoch, Offset, TaskId
from stretto.worker.executors import protocol
from stretto.worker.executors.replies import Lost, Reply, Why
from stretto.worker.replica.tickets import Tickets
from stretto.worker.topology import host, rows
from stretto.worker.topology.entries import Entries
from stretto.worker.topology.hops import Asked, Called, Failures, Hops, Route, Told, only_step
from stretto.worker.topology.machine import effects, events
from stretto.worker.topology.machine.settings import Settings
from stretto.worker.topology.machine.stored import RecordKey, Stored
from stretto.worker.topology.machine.stream import Stream
from stretto.worker.topology.settling import Settled, Tally, led_no_more, not_led
from stretto.worker.topology.waiting import Where

if TYPE_CHECKING:
    from stretto.worker.replica.group import Group

log = structlog.get_logger()

RETRY_MS = 1_000
"""How long until what could not be read of the state is read again."""
FAILURES_SHOWN_MAX = 1_000
"""How many parked records of a group one answer shows."""


class Host(host.Host, Protocol):
    """The worker, as its streams see it."""

    @property
    def tickets(self) -> Tickets: ...

    @property
    def address(self) -> str:
        """The address where the worker listens."""
        ...

    def option(self, name: str) -> Any:
        """Return the value of an option that is in force for the module."""
        ...


@dataclass(slots=True, eq=False)
class _Led:
    """A stream that runs, and what of it is under way elsewhere."""

    group: Group
    epoch: Epoch
    task: TaskId
    spec: TopologySpec
    stream: Stream
    file: str
    routes: dict[TaskId, Route] = field(default_factory=dict)
    """The routes of its hops, by the task that they go to."""
    asked: Asked = field(default_factory=Asked)
    settling: dict[int, Settled] = field(default_factory=dict)
    timer: int | None = None
    is_over: bool = False


class Streams:
    """The streams of a worker. The loop owns them."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self.entries = Entries(worker.tickets)
        self.hops = Hops(worker, self._take)
        self._tickets = itertools.count(1)
        #: The epoch in which a group's streams run, or are about to; and the mark of that beginning, since
        #: they may begin again in the same epoch before the rows that the first one reads are there.
        self._epochs: dict[GroupKey, Epoch] = {}
        self._beginnings: dict[GroupKey, object] = {}
        #: Groups whose streams were restarted in this epoch: they begin when what is in the log by then is
        #: applied.
        self._unsettled: dict[GroupKey, tuple[Epoch, Offset]] = {}
        self._led: dict[tuple[GroupKey, TaskId], dict[str, _Led]] = {}
        self._put = Stepping[_Led, events.Event](worker.loop, self._step, events.Tick()).put

    @property
    def _specs(self) -> list[TopologySpec]:
        return [spec for spec in self._worker.description.topologies if spec.kind == "stream"]

    # Their lives.

    def looked(self, group: Group) -> None:
        """Begin or end the streams of a group, if the group's leader or epoch, or whether it serves, has
        changed."""
        leader = group.leader
        epoch = leader.epoch if leader is not None and leader.is_serving and not group.closed else None
        if self._epochs.get(group.key) != epoch:
            self.closed(group.key)
            if epoch is not None and self._specs and self._is_settled(group, epoch):
                self._begin(group, epoch)

    def _is_settled(self, group: Group, epoch: Epoch) -> bool:
        """Whether all that was appended before a restart is applied, so that the rows have how far the
        streams were."""
        led_then, end = self._unsettled.get(group.key, (epoch, Offset(0)))
        if led_then == epoch and group.replica.applied < end:
            return False
        self._unsettled.pop(group.key, None)
        return True

    def closed(self, key: GroupKey) -> None:
        """End all streams of a group."""
        if self._epochs.pop(key, None) is None:
            return
        self._beginnings.pop(key, None)
        for where in [where for where in self._led if where[0] == key]:
            for led in self._led.pop(where).values():
                self._end(led)
            self._worker.executors.forget(key, where[1])
        self._worker.waiters.ended(key)

    def restart(self) -> None:
        """Begin all streams anew, with other functions or other executors."""
        for group in list(self._worker.groups.values()):
            if group.leader is not None:
                self._unsettled[group.key] = (group.leader.epoch, group.replica.log_end)
            self.closed(group.key)
            self.looked(group)

    def _begin(self, group: Group, epoch: Epoch) -> None:
        self._epochs[group.key] = epoch
        beginning = self._beginnings[group.key] = object()
        state, specs, tasks = group.state, self._specs, group.plan.tasks

        def read() -> dict[tuple[TaskId, str], Stored]:
            now_us = time.time_ns() // 1_000
            return {
                (task, spec.name): rows.read(state, task, spec.name, now_us)
                for task in tasks
                for spec in specs
            }

        def begun(found: dict[tuple[TaskId, str], Stored] | Exception) -> None:
            if self._beginnings.get(group.key) is not beginning:
                return
            if isinstance(found, Exception):
                # What lacked may be there again, such as a reader's slot in a file.
                log.error("streams_not_begun", group=str(group.key), why=str(found), retry_ms=RETRY_MS)
                self._worker.loop.call_after(RETRY_MS, look)
            else:
                for task in tasks:
                    for spec in specs:
                        self._add(group, epoch, task, spec, found[task, spec.name])

        def look() -> None:
            if self._beginnings.get(group.key) is beginning and not group.closed:
                self._worker.applier.read(read, begun)

        look()

    def _add(self, group: Group, epoch: Epoch, task: TaskId, spec: TopologySpec, stored: Stored) -> None:
        stream = Stream(spec.depots, self._settings(spec), stored)
        file = str(group.state.folder(task).absolute())
        led = _Led(group, epoch, task, spec, stream, file)
        self._led.setdefault((group.key, task), {})[spec.name] = led
        for depot in spec.depots:
            self._put(led, events.Grown(depot, group.depot_ends.get((task, depot), DepotOffset(0))))

    def _end(self, led: _Led) -> None:
        led.is_over = True
        for route in led.routes.values():
            route.close()
        led.asked.refuse_all(Refusal.NOT_LEADER)
        for settled in led.settling.values():
            settled(led_no_more(self._worker.worker, led.group.key))

    def _settings(self, spec: TopologySpec) -> Settings:
        worker = self._worker
        level = Level.of(worker.config.module, topology=spec.name)

        def value(name: str) -> int:
            return int(worker.options.value(name, level))

        return Settings(
            retry=spec.retry,
            retries=value("topology.stream.retries"),
            records_max=value("topology.stream.batch.records"),
            bytes_max=value("topology.stream.batch.bytes"),
            parked_max=value("topology.failures.max"),
            is_paused=worker.is_paused or worker.holding.is_held,
            timeout_ms=int(worker.option("executor.timeout.millis")),
            takes_many=spec.batch,
        )

    def settings_changed(self) -> None:
        """Let all streams follow the options."""
        for streams in self._led.values():
            for led in streams.values():
                self._put(led, events.SettingsChanged(self._settings(led.spec)))

    def close(self) -> None:
        for key in list(self._epochs):
            self.closed(key)
        self.hops.close()

    # What happens.

    def grown(self, group: Group, depots: Mapping[tuple[TaskId, str], DepotOffset], end: Offset) -> None:
        """Report the growth of depots to the streams of their tasks, and what is applied to their entries."""
        if group.key in self._unsettled:
            self.looked(group)
        for (task, depot), depot_end in depots.items():
            for led in self._led.get((group.key, task), {}).values():
                if depot in led.spec.depots:
                    self._put(led, events.Grown(depot, depot_end))
        self.entries.applied(group, end)

    def processed_of(self, where: Where) -> dict[str, int] | None:
        """Return how far each stream has processed a depot; None if some of them do not run here."""
        group, task, depot = where
        names = [spec.name for spec in self._specs if depot in spec.depots]
        led = self._led.get((group, task), {})
        if any(name not in led for name in names):
            return None
        return {name: led[name].stream.processed[depot] for name in names}

    # For people.

    def look_at(self, group: Group) -> None:
        """Report how far a group's streams are, for telemetry."""
        for spec in self._specs if group.key in self._epochs else ():
            led = [self._led.get((group.key, task), {}).get(spec.name) for task in group.plan.tasks]
            streams = [each.stream for each in led if each is not None]
            group.meter.look_at_topology(
                spec.name,
                lag=sum(stream.lag for stream in streams),
                retrying=sum(stream.waiting for stream in streams),
                parked=sum(stream.parked for stream in streams),
            )

    @property
    def under_way(self) -> str:
        """Describe a stream that has begun records or calls, and is not done with them; empty if there is
        none."""
        for streams in self._led.values():
            for name, led in streams.items():
                if not led.stream.is_quiet:
                    return f"stream {name} is at work on task {led.task}"
        return ""

    def find_failures(
        self, call: control.Failures, then: Callable[[control.FailuresView | Exception], None]
    ) -> bool:
        """Find the parked records of a group; False if it is not led here."""
        key, after = call.group, call.after
        group = self._worker.groups.get(key)
        if group is None or group.leader is None:
            return False
        state, tasks = group.state, group.plan.tasks
        streams = tuple(
            control.TopologyView(
                topology=led.spec.name, task=task, lag=led.stream.lag, retrying=led.stream.waiting
            )
            for task in tasks
            for led in self._led.get((key, task), {}).values()
        )
        problems = tuple(self._worker.executors.problems)

        def read() -> control.FailuresView:
            parked, more = rows.failures_page(state, tasks, FAILURES_SHOWN_MAX, after)
            return control.FailuresView(parked=parked, more=more, streams=streams, problems=problems)

        self._worker.applier.read(read, then)
        return True

    def settle(self, call: control.SettleFailures, then: Settled) -> None:
        """Settle parked records of a group that is led here; ``then`` gets how many of them streams had
        parked."""
        known = {(spec.name, depot) for spec in self._specs for depot in spec.depots}
        by_stream: dict[tuple[TaskId, str], list[RecordKey]] = {}
        for each in call.keys:
            if (each.topology, each.depot) in known:
                by_stream.setdefault((each.task, each.topology), []).append((each.depot, each.offset))
        tally = Tally(len(by_stream), then)
        for (task, topology), keys in by_stream.items():
            led = self._led.get((call.group, task), {}).get(topology)
            if led is None:
                tally.add(not_led(self._worker.worker, call.group))
                continue
            ticket = next(self._tickets)
            led.settling[ticket] = tally.add
            self._put(led, events.Settle(tuple(keys), call.again, ticket))

    def _take(self, group: GroupKey, task: TaskId, topology: str, called: Called, told: Told) -> bool:
        led = self._led.get((group, task), {}).get(topology)
        if led is None:
            return False
        ticket = led.asked.add(next(self._tickets), called, told)
        self._put(
            led, events.Called(ticket, called.key, called.epoch, called.after, called.settled, called.calls)
        )
        return True

    def _step(self, led: _Led, event: events.Event) -> int | None:
        for effect in led.stream.step(event, self._worker.loop.now):
            self._carry_out(led, effect)
        return led.stream.next_deadline()

    # What is to be done.

    def _carry_out(self, led: _Led, effect: effects.Effect) -> None:
        match effect:
            case effects.RunRecords() | effects.RunCalls():
                self._run(led, effect)
            case effects.Append():
                self._append(led, effect)
            case effects.Hop():
                self._hop(led, effect)
            case effects.Answer(ticket=ticket, failures=failures):
                led.asked.answer(ticket, failures)
            case effects.Decline(ticket=ticket):
                led.asked.refuse(ticket, Refusal.NOT_READY)
            case effects.Settled(ticket=ticket, count=count):
                led.settling.pop(ticket)(count)
            case effects.Processed():
                self._worker.waiters.processed(led.group.key, led.task, led.spec.name, effect)
            case effects.Note(event=event, fields=fields):
                log.warning(event, group=str(led.group.key), task=led.task, topology=led.spec.name, **fields)
            case _:
                assert_never(effect)

    def _run(self, led: _Led, run: effects.RunRecords | effects.RunCalls) -> None:
        lane = protocol.Lane(led.spec.name, led.task, led.epoch, run.attempt)
        request: protocol.Request
        bodies: tuple[Buffer, ...] = ()
        if isinstance(run, effects.RunRecords):
            request = protocol.Run(
                number=0,
                lane=lane,
                file=led.file,
                batch=run.batch,
                applied=run.applied,
                depot=run.depot,
                offset=run.offset,
                records_max=run.records_max,
                bytes_max=run.bytes_max,
                stop_at_failure=run.stop_at_failure,
                is_aside=run.is_aside,
            )
        else:
            request = protocol.RunCalls(0, lane, led.file, run.batch, run.applied)
            bodies = (run.calls,)

        def then(reply: Reply, answered: list[bytes]) -> None:
            self._measure(led, run, reply)
            self._put(led, _event(run.batch, reply, answered))

        self._worker.executors.run(led.group.key, request, then, bodies=bodies)

    def _measure(self, led: _Led, run: effects.RunRecords | effects.RunCalls, reply: Reply) -> None:
        meter = led.group.meter
        match reply:
            case protocol.Ran(times=times, start=start, end=end):
                meter.called(times)
                if isinstance(run, effects.RunRecords):
                    meter.ran(led.spec.name, end - start)
            case Lost(why=Why.TIME_OUT, ran_ms=ran_ms):
                # Calls of several steps run one by one next, and then it is known which of them hangs.
                step = only_step(run.calls) if isinstance(run, effects.RunCalls) else None
                meter.called((Timed(step or led.spec.name, 0, 0, (ran_ms * 1_000_000,)),))
            case _:
                pass

    def _append(self, led: _Led, append: effects.Append) -> None:
        number = append.batch
        own = rows.packed(led.spec.name, append.entry, time.time_ns() // 1_000_000)
        is_in = self.entries.append(
            led.group,
            led.task,
            joined(append.changes, own),
            lambda: self._put(led, events.Applied(number)),
        )
        self._step(led, events.Accepted(number) if is_in else events.Refused(number))

    def _hop(self, led: _Led, hop: effects.Hop) -> None:
        def then(failures: Failures) -> None:
            notes = tuple(
                protocol.FailureNote(failure.origin, failure.error, failure.traceback) for failure in failures
            )
            self._put(led, events.HopAnswered(hop.number, notes))

        route = led.routes.get(hop.task)
        if route is None:
            route = self.hops.route(led.spec.name, led.task, led.epoch, hop.task)
            led.routes[hop.task] = route
        route.send(hop, then)


def _event(batch: int, reply: Reply, bodies: list[bytes]) -> events.Event:
    match reply:
        case protocol.Ran():
            return events.Ran(
                batch=batch,
                start=reply.start,
                end=reply.end,
                left=reply.left,
                changes=Packed(reply.pstates, bodies[0]) if reply.pstates else NO_CHANGES,
                hops=tuple(zip(reply.hops, bodies[1:], strict=True)),
                results=reply.results,
                failures=reply.failures,
                elapsed_us=reply.elapsed_us,
                delayed_us=reply.delayed_us,
            )
        case protocol.Failed(why=why, is_too_much=is_too_much):
            return events.NotRun(batch, None, why, is_too_much)
        case Lost(why=why_lost, sentence=sentence):
            return events.NotRun(batch, why_lost, sentence)
        case _:
            raise InvariantViolation("a stream hears what it did not ask for", {"reply": reply})
