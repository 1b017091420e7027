"""The microbatches of a worker: a participant for each topology and task that it leads, as long as it leads
there, and the coordinators of task 0.

The driver of both machines: what happens is stepped at the end of the loop's turn, when no replica is in the
middle of anything; so an entry is taken or refused on the spot. A message that cannot be delivered is
dropped, and whoever waits for its answer sends it again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, assert_never

import msgspec
import structlog

from stretto import control
from stretto.errors import PeerError, RetriableError
from stretto.module.work import Timed
from stretto.network.stepping import Stepping
from stretto.options import Level
from stretto.pstate.changes import Packed, joined
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.specs.modules import TopologySpec
from stretto.state import microbatch_entries
from stretto.state.microbatch_entries import LeftOut, Source, Span
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Epoch, Millis, TaskId
from stretto.wire import messages as wire
from stretto.worker.executors import protocol
from stretto.worker.executors.replies import Lost, Reply, Why
from stretto.worker.microbatch.machines import effects, events, messages
from stretto.worker.microbatch.machines.coordinator import Coordinator, Phase
from stretto.worker.microbatch.machines.messages import Speaker
from stretto.worker.microbatch.machines.participant import COORDINATOR, Participant
from stretto.worker.microbatch.machines.settings import Settings
from stretto.worker.topology import host, rows
from stretto.worker.topology.machine.effects import Entry, Parked
from stretto.worker.topology.machine.stored import RecordKey
from stretto.worker.topology.settling import Settled, Tally, led_no_more
from stretto.worker.topology.waiting import Where

if TYPE_CHECKING:
    from stretto.network.routing import Network
    from stretto.network.transport import Connection
    from stretto.state.applied import AppliedState
    from stretto.worker.replica.group import Group
    from stretto.worker.topology.streams import Streams

DELIVERY_MS = 2_000
RETRY_MS = 1_000
"""How long until what could not be read of the state is read again."""
RESTARTS_MAX = 1 << 20

log = structlog.get_logger()

_encode = msgspec.msgpack.Encoder().encode
_messages: msgspec.msgpack.Decoder[messages.AnyMessage] = msgspec.msgpack.Decoder(messages.AnyMessage)
_decode_calls = msgspec.msgpack.Decoder(list[protocol.SourcedCall]).decode


class Host(host.Host, Protocol):
    """The worker, as its microbatches see it."""

    @property
    def streams(self) -> Streams:
        """The worker's streams, whose entries and network all topologies use."""
        ...


@dataclass(slots=True, eq=False)
class _Led:
    """A coordinator or participant that runs."""

    group: Group
    task: TaskId
    spec: TopologySpec
    lane: protocol.Lane
    file: str
    machine: Coordinator | Participant
    timer: int | None = None
    is_over: bool = False


class Microbatches:
    """The microbatches of a worker. The loop owns them."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        #: The epoch in which a group's microbatches run.
        self._epochs: dict[GroupKey, Epoch] = {}
        self._restarts = itertools.count()
        self._participants: dict[tuple[GroupKey, TaskId], dict[str, _Led]] = {}
        self._coordinators: dict[str, _Led] = {}
        self._put = Stepping[_Led, events.Event](worker.loop, self._step, events.Tick()).put
        #: Parked records that are being forgotten: task, topology, records, and the callback.
        self._forgets = itertools.count()
        self._forgetting: dict[GroupKey, dict[int, tuple[TaskId, str, list[RecordKey], Settled]]] = {}
        #: How many records were left out for good, as last counted, by group and topology.
        self._parked: dict[GroupKey, dict[str, int]] = {}

    @property
    def _specs(self) -> list[TopologySpec]:
        return [spec for spec in self._worker.description.topologies if spec.kind == "microbatch"]

    # Their lives.

    def looked(self, group: Group) -> None:
        """Begin or end the microbatches of a group, if the group's leader or epoch, or whether it serves, has
        changed."""
        leader = group.leader
        epoch = leader.epoch if leader is not None and leader.is_serving and not group.closed else None
        if self._epochs.get(group.key) != epoch:
            self.closed(group.key)
            if epoch is not None and self._specs:
                self._begin(group, epoch)

    def closed(self, key: GroupKey) -> None:
        """End all microbatches of a group."""
        for *_, then in self._forgetting.pop(key, {}).values():
            then(led_no_more(self._worker.worker, key))
        if self._epochs.pop(key, None) is None:
            return
        for where in [where for where in self._participants if where[0] == key]:
            for led in self._participants.pop(where).values():
                led.is_over = True
            self._worker.executors.forget(key, where[1])
        for name in [name for name, led in self._coordinators.items() if led.group.key == key]:
            self._coordinators.pop(name).is_over = True
        self._parked.pop(key, None)
        self._worker.waiters.ended(key)

    def restart(self) -> None:
        """Begin all microbatches anew, with other functions or other executors."""
        for group in list(self._worker.groups.values()):
            self.closed(group.key)
            self.looked(group)

    def _begin(self, group: Group, epoch: Epoch) -> None:
        self._epochs[group.key] = epoch
        restart = next(self._restarts) % RESTARTS_MAX
        for task in group.plan.tasks:
            file = str(group.state.folder(task).absolute())
            for spec in self._specs:
                lane = protocol.Lane(spec.name, task, epoch, restart)
                settings = self._settings(spec)
                participant = Participant(spec.name, task, Speaker(epoch * RESTARTS_MAX + restart), settings)
                led = _Led(group, task, spec, lane, file, participant)
                self._participants.setdefault((group.key, task), {})[spec.name] = led
                self._put(led, events.Started())
                self._put(led, self._grown(led))
                if task == COORDINATOR:
                    tasks = self._worker.description.tasks
                    coordinator = Coordinator(spec.name, spec.depots, tasks, settings)
                    led = self._coordinators[spec.name] = _Led(group, task, spec, lane, file, coordinator)
                    self._put(led, events.Started())

    def _settings(self, spec: TopologySpec) -> Settings:
        worker = self._worker
        level = Level.of(worker.config.module, topology=spec.name)

        def value(name: str) -> int:
            return int(worker.options.value(f"topology.microbatch.{name}", level))

        return Settings(
            max_records=value("max.records"),
            interval_ms=Millis(value("interval.millis")),
            retries=value("retries"),
            patience_ms=Millis(value("timeout.millis")),
            paused=worker.is_paused or worker.holding.is_held,
        )

    def settings_changed(self) -> None:
        """Let all machines follow the options."""
        for led in self._all():
            self._put(led, events.SettingsChanged(settings=self._settings(led.spec)))

    def _all(self) -> Iterator[_Led]:
        yield from self._coordinators.values()
        for by_name in self._participants.values():
            yield from by_name.values()

    # What happens.

    def grown(self, group: Group, depots: Mapping[tuple[TaskId, str], DepotOffset]) -> None:
        """Report the growth of depots to the participants of their tasks."""
        for task, depot in depots:
            for led in self._participants.get((group.key, task), {}).values():
                if depot in led.spec.depots:
                    self._put(led, self._grown(led))

    def _grown(self, led: _Led) -> events.Grown:
        ends = led.group.depot_ends
        return events.Grown(
            bounds={depot: (0, int(ends.get((led.task, depot), 0))) for depot in led.spec.depots}
        )

    def processed_of(self, where: Where, awaited: int) -> dict[str, int] | None:
        """Return how far each microbatch topology has processed a depot; None if some of them do not run
        here. They are notified that somebody waits for the records below ``awaited``."""
        group, task, depot = where
        names = [spec.name for spec in self._specs if depot in spec.depots]
        led = self._participants.get((group, task), {})
        if any(name not in led for name in names):
            return None
        for name in names:
            self._put(led[name], events.Awaited(depot=depot, end=awaited))
        return {name: _participant(led[name]).processed.get(depot, 0) for name in names}

    def received(self, sender: Connection, message: wire.Microbatch, bodies: list[memoryview]) -> None:
        """Deliver a message to the machine that it is for, and answer whether that is here."""
        try:
            told = _messages.decode(bodies[0])
        except (*MALFORMED, IndexError) as error:
            raise PeerError(f"a message of a microbatch is malformed: {error}") from error
        body = bytes(bodies[1]) if len(bodies) > 1 else b""
        reply: wire.ToClient = wire.Taken(message.request)
        # Calls are run by the code that made them; workers take up an update one after the other.
        is_ours = message.code == self._worker.artifact
        if not is_ours or not self._deliver(message.group, message.task, message.topology, told, body):
            group = self._worker.groups.get(message.group)
            record = None if group is None else group.replica.record
            reply = (
                wire.Refused(message.request, Refusal.NOT_LEADER, None, Epoch(0))
                if record is None
                else wire.Refused(message.request, Refusal.NOT_LEADER, record.leader, record.epoch)
            )
        self._worker.transport.reply(sender, reply)

    def _deliver(
        self, group: GroupKey, task: TaskId, topology: str, message: messages.AnyMessage, body: bytes
    ) -> bool:
        """Give a message to its coordinator or participant; False if that is not here."""
        if isinstance(message, messages.ToCoordinator):
            led = self._coordinators.get(topology)
            led = led if led is not None and led.group.key == group else None
        else:
            led = self._participants.get((group, task), {}).get(topology)
        if led is None:
            return False
        self._put(led, events.Received(message=message, body=body))
        return True

    def _step(self, led: _Led, event: events.Event) -> int | None:
        for effect in led.machine.step(event, self._worker.loop.now):
            self._carry_out(led, effect)
        return led.machine.next_deadline()

    # What is to be done.

    def _carry_out(self, led: _Led, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(task=task, message=message, body=body):
                self._send(led.spec.name, task, message, body)
            case effects.Load():
                self._load(led, effect)
            case effects.Append(token=token, entry=entry):
                self._append(led, token, entry)
            case effects.Execute():
                self._execute(led, effect)
            case effects.Collect():
                self._collect(led, effect)
            case effects.Miss():
                self._miss(led, effect)
            case effects.Processed():
                self._worker.waiters.processed(led.group.key, led.task, led.spec.name, effect)
            case effects.Discard():
                self._worker.executors.forget(led.group.key, led.task, led.spec.name)
            case effects.Note(event=event, fields=fields):
                log.warning(event, group=str(led.group.key), **fields)
            case _:
                assert_never(effect)

    def _send(
        self, topology: str, task: TaskId, message: messages.AnyMessage, body: bytes, *, again: bool = True
    ) -> None:
        network = self._network
        group = network.view.of_task.get((self._worker.config.module, task))
        if group is None:
            if again:
                network.refresh(lambda: self._send(topology, task, message, body, again=False))
            return
        if self._deliver(group, task, topology, message, body):
            return
        epoch = network.view.epoch(group)
        number = network.next_request()

        def heard(reply: wire.ToClient | None, _: list[memoryview]) -> None:
            if not isinstance(reply, wire.Taken):
                network.when_led_anew(group, lambda: None, above=epoch, within_ms=DELIVERY_MS)

        sent = network.to_leader(
            group,
            number,
            wire.Microbatch(number, group, task, topology, self._worker.artifact),
            (_encode(message), body) if body else (_encode(message),),
            heard,
            timeout_ms=DELIVERY_MS,
        )
        if not sent:
            network.when_led_anew(group, lambda: None, above=epoch, within_ms=DELIVERY_MS)

    @property
    def _network(self) -> Network:
        return self._worker.streams.hops.network

    def _load(self, led: _Led, load: effects.Load) -> None:
        def read() -> events.Loaded:
            # Before what was rolled is read: it must not be beyond that.
            progress = rows.progress(led.group.state, led.task, led.spec.name) if load.with_progress else None
            with led.group.state.reading_pstate(led.task, microbatch_entries.DATABASE) as found:
                return events.Loaded(
                    token=load.token,
                    batch=microbatch_entries.batch_of(led.spec.name, found.get),
                    rolled=microbatch_entries.rolled_of(led.spec.name, found.get),
                    returned=microbatch_entries.returned_of(led.spec.name, found.get),
                    progress=progress,
                )

        def then(loaded: events.Loaded | Exception) -> None:
            if isinstance(loaded, Exception):
                # What lacked may be there again, such as a reader's slot in the file.
                log.error("microbatch_not_read", group=str(led.group.key), why=str(loaded), retry_ms=RETRY_MS)
                self._worker.loop.call_after(RETRY_MS, self._load, led, load)
            else:
                self._put(led, loaded)

        if not (led.is_over or led.group.closed):
            self._worker.applier.read(read, then)

    def _append(self, led: _Led, token: int, entry: microbatch_entries.Entry) -> None:
        is_in = self._worker.streams.entries.append(
            led.group,
            led.task,
            microbatch_entries.encode(entry),
            lambda: self._put(led, events.Appended(token=token, applied=True)),
            kind=Kind.MICROBATCH,
        )
        if not is_in:
            self._put(led, events.Appended(token=token, applied=False, why="its group takes no entries now"))

    def _miss(self, led: _Led, miss: effects.Miss) -> None:
        """Replicate that what was staged here is lost, as a record that failed: the first of the task's own,
        or none if there are only calls."""
        first = miss.spans[0] if miss.spans else Span("", led.task, 0, 0)
        input_ = ", ".join(f"{span.depot} from {span.start} to {span.end}" for span in miss.spans)
        note = protocol.FailureNote(
            0,
            f"microbatch {miss.version} took effect on other tasks, but what it changes on task {led.task} "
            "was lost in an unclean election; put it right by hand, and forget this",
            beginning=f"all that it changes on this task ({input_ or 'calls of other tasks'})".encode(),
        )
        entry = Entry(
            progress={span.depot: span.end for span in miss.spans},
            parked=[Parked((first.depot, first.start), 1, note)],
        )
        packed = joined(rows.packed(led.spec.name, entry, time.time_ns() // 1_000_000))
        self._append(led, miss.token, microbatch_entries.Missed(led.spec.name, miss.version, packed))

    # The executor.

    def _execute(self, led: _Led, effect: effects.Execute) -> None:
        request = protocol.RunRound(
            number=0,
            lane=led.lane,
            file=led.file,
            version=effect.version,
            after=effect.after,
            spans=tuple((span.depot, span.start, span.end) for span in effect.spans),
            left_out=_keys(effect.left_out),
            careful=effect.careful,
        )
        self._worker.executors.run(
            led.group.key, request, partial(self._executed, led, effect), bodies=effect.calls
        )

    def _executed(self, led: _Led, effect: effects.Execute, reply: Reply, bodies: list[bytes]) -> None:
        if isinstance(reply, Lost) and reply.why is Why.TIME_OUT:
            hung = _step(effect, reply.done) or led.spec.name
            led.group.meter.called((Timed(hung, 0, 0, (reply.ran_ms * 1_000_000,)),))
        match reply:
            case protocol.RoundRan(calls=calls, failures=failures):
                led.group.meter.called(reply.times)
                event: events.Event = events.Executed(
                    version=effect.version,
                    round=effect.round,
                    calls={task: (count, body) for (task, count), body in zip(calls, bodies, strict=True)},
                    failures=tuple(
                        messages.Failure(
                            Source(each.depot, each.task, each.offset), each.error, each.traceback
                        )
                        for each in failures
                    ),
                    results=reply.results,
                )
            case Lost(why=Why.TIME_OUT | Why.CRASH) if effect.careful:
                failure = messages.Failure(_source(led.task, effect, reply.done), reply.sentence, "")
                event = events.Executed(
                    version=effect.version, round=effect.round, calls={}, failures=(failure,)
                )
            case _:
                event = _not_executed(effect, reply)
        self._put(led, event)

    def _collect(self, led: _Led, effect: effects.Collect) -> None:
        request = protocol.Collect(
            number=0,
            lane=led.lane,
            file=led.file,
            version=effect.version,
            after=effect.after,
            left_out=_keys(effect.left_out),
        )
        self._worker.executors.run(led.group.key, request, partial(self._collected, led, effect))

    def _collected(self, led: _Led, effect: effects.Collect, reply: Reply, bodies: list[bytes]) -> None:
        if not isinstance(reply, protocol.Collected):
            self._put(led, _not_executed(effect, reply))
            return
        entry = Entry(
            progress={span.depot: span.end for span in effect.spans},
            parked=_parked(effect.left_out, reply.beginnings),
        )
        changes = Packed(reply.pstates, bodies[0])
        led.group.meter.ran(led.spec.name, sum(_length(span) for span in effect.spans))

        def pack(too_many: Sequence[RecordKey] = ()) -> None:
            entry.unparked = list(too_many)
            own = rows.packed(led.spec.name, entry, time.time_ns() // 1_000_000)
            self._put(led, events.Collected(version=effect.version, changes=joined(changes, own)))

        if entry.parked:
            self._find_room(led, len(entry.parked), pack)
        else:
            pack()

    def _find_room(self, led: _Led, count: int, then: Callable[[Sequence[RecordKey]], None]) -> None:
        """Find the parked records that are too many when these are added."""
        level = Level.of(self._worker.config.module, topology=led.spec.name)
        parked_max = int(self._worker.options.value("topology.failures.max", level))
        state: AppliedState = led.group.state

        def read() -> tuple[RecordKey, ...]:
            parked = rows.parked(state, led.task, led.spec.name)
            return parked[: max(0, len(parked) + count - parked_max)]

        def found(too_many: Any) -> None:
            then(() if isinstance(too_many, Exception) else too_many)

        self._worker.applier.read(read, found)

    # For people.

    def look_at(self, group: Group) -> None:
        """Report how far a group's microbatches are, for telemetry."""
        if group.key not in self._epochs:
            return
        parked = self._parked.get(group.key, {})
        for spec in self._specs:
            led = self._coordinators.get(spec.name)
            lag: int | None = None
            if led is not None and led.group.key == group.key and isinstance(led.machine, Coordinator):
                lag = led.machine.progress.lag
            group.meter.look_at_topology(spec.name, lag=lag, retrying=None, parked=parked.get(spec.name))

    def count_parked(self, group: Group) -> None:
        """Count the parked records that :meth:`look_at` reports from now on."""
        if group.key not in self._epochs:
            return
        names = [spec.name for spec in self._specs]
        state, tasks = group.state, group.plan.tasks

        def read() -> dict[str, int]:
            return {name: sum(rows.count_parked(state, task, name) for task in tasks) for name in names}

        def then(found: dict[str, int] | Exception) -> None:
            if not isinstance(found, Exception) and group.key in self._epochs:
                self._parked[group.key] = found

        self._worker.applier.read(read, then)

    @property
    def under_way(self) -> str:
        """Describe a microbatch that has begun and has not taken effect everywhere; empty if there is
        none."""
        for name, led in sorted(self._coordinators.items()):
            assert isinstance(led.machine, Coordinator)  # noqa: S101 - for the type checker
            if led.machine.phase is not Phase.IDLE:
                why = led.machine.progress.why
                return f"microbatch topology {name} is {led.machine.phase}{f' ({why})' if why else ''}"
        return ""

    def is_mine(self, topology: str) -> bool:
        """Whether a topology is one of microbatches."""
        return any(spec.name == topology for spec in self._specs)

    def forget(self, group: Group, failures: Sequence[control.FailureKey], then: Settled) -> None:
        """Forget parked records of a group that is led here; ``then`` gets how many of them were parked, and
        are not any more."""
        by_place: dict[tuple[TaskId, str], list[RecordKey]] = {}
        for each in failures:
            if each.task in group.plan.tasks:
                by_place.setdefault((each.task, each.topology), []).append((each.depot, each.offset))
        tally = Tally(len(by_place), then)
        for (task, topology), records in by_place.items():
            self._forget(group, task, topology, records, tally.add)

    def _forget(
        self, group: Group, task: TaskId, topology: str, records: list[RecordKey], then: Settled
    ) -> None:
        forgetting = self._forgetting.setdefault(group.key, {})
        number = next(self._forgets)
        # What another call forgets at the same time counts there.
        others = {key for *place, keys, _ in forgetting.values() if place == [task, topology] for key in keys}
        mine = [key for key in records if key not in others]
        forgetting[number] = (task, topology, mine, then)

        def done(settled: int | RetriableError) -> None:
            waiting = self._forgetting.get(group.key, {}).pop(number, None)
            if waiting is not None:
                waiting[-1](settled)

        def found(parked: list[RecordKey] | Exception) -> None:
            if isinstance(parked, Exception):
                done(
                    RetriableError(f"what is parked in group {group.key} cannot be read: {parked}; ask again")
                )
            elif not parked:
                done(0)
            else:
                payload = joined(rows.packed(topology, Entry(unparked=parked), 0))
                entries_ = self._worker.streams.entries
                if not entries_.append(group, task, payload, lambda: done(len(parked))):
                    done(RetriableError(f"group {group.key} takes no entries now; ask again"))

        state: AppliedState = group.state
        self._worker.applier.read(lambda: rows.parked_among(state, task, topology, mine), found)

    def views(self) -> list[control.MicrobatchView]:
        """Describe the microbatches whose coordinator is here."""
        found = []
        for name, led in sorted(self._coordinators.items()):
            assert isinstance(led.machine, Coordinator)  # noqa: S101 - for the type checker
            progress = led.machine.progress
            version = progress.version
            found.append(
                control.MicrobatchView(
                    topology=name,
                    id=0 if version is None else version.id,
                    version=0 if version is None else version.version,
                    phase=progress.phase,
                    lag=progress.lag,
                    why=progress.why,
                    ends=led.machine.ends,
                )
            )
        return found

    def close(self) -> None:
        for key in list(self._epochs):
            self.closed(key)


def _participant(led: _Led) -> Participant:
    assert isinstance(led.machine, Participant)  # noqa: S101 - for the type checker
    return led.machine


def _keys(left_out: Sequence[LeftOut]) -> tuple[tuple[str, int], ...]:
    return tuple((each.source.depot, each.source.offset) for each in left_out)


def _parked(left_out: Sequence[LeftOut], beginnings: Sequence[bytes]) -> list[Parked]:
    return [
        Parked(
            (each.source.depot, each.source.offset),
            each.attempts,
            protocol.FailureNote(0, each.error, each.traceback, beginning),
        )
        for each, beginning in zip(left_out, beginnings, strict=True)
    ]


def _not_executed(effect: effects.Execute | effects.Collect, reply: Reply) -> events.ExecutionFailed:
    match reply:
        case Lost(why=why, sentence=sentence):
            hung = why in (Why.TIME_OUT, Why.CRASH)
            return events.ExecutionFailed(version=effect.version, why=sentence, hung=hung)
        case protocol.Failed(why=sentence, is_too_much=too_large):
            return events.ExecutionFailed(version=effect.version, why=sentence, too_large=too_large)
        case _:
            sentence = f"an executor answered {type(reply).__name__}"
            return events.ExecutionFailed(version=effect.version, why=sentence)


def _source(task: TaskId, effect: effects.Execute, index: int) -> Source:
    """Return the source of the record or call that was run after so many others."""
    for span in effect.spans:
        if index < _length(span):
            return Source(span.depot, task, span.start + index)
        index -= _length(span)
    calls = [call for body in effect.calls for call in _decode_calls(body)]
    call = calls[index]
    return Source(call.depot, call.task, call.offset)


def _step(effect: effects.Execute, index: int) -> str | None:
    """Return the step that was run after so many others, if it is known: calls are run one by one only with
    care."""
    calls = [call.step for body in effect.calls for call in _decode_calls(body)]
    steps = set(calls[index : index + 1] if effect.careful else calls)
    return steps.pop() if len(steps) == 1 else None


def _length(span: Span) -> int:
    return span.end - span.start
