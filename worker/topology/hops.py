"""Steps that run on other tasks: sent to the leader of each, until it answers; and those that others send.

A hop is answered when all that it led to is applied, or has failed. Until then it is sent again whenever
somebody else leads, or too long a time has passed; whoever leads there knows what has run
(:mod:`stretto.worker.topology.machine.inbox`). Hops from one task to another are sent in their order: if one
of them has to be sent again, so are all behind it.

Workers take up the code of an update one after the other. Calls are run by the code that made them, or steps
could be missing there: a leader that goes by other code refuses them, until both go by the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import msgspec

from stretto.errors import PeerError
from stretto.module.work import StepCall
from stretto.network.routing import Network, patience_ms
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Buffer, Epoch, TaskId
from stretto.wire import messages as wire
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.topology.machine import effects
from stretto.worker.topology.machine.inbox import ASKED_MAX
from stretto.worker.topology.machine.stored import HopKey

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.network.transport import Connection, Transport
    from stretto.vocabulary.types import WorkerId
    from stretto.worker.topology.host import Config

TIMEOUT_MS = 60_000
TASKS_END = 1 << 32
"""The first number that is no task's."""
NUMBERS_END = (1 << 63) - 1
"""The first number that is no hop's."""


class Host(Protocol):
    """The worker, as hops to and from it see it."""

    @property
    def worker(self) -> WorkerId: ...

    @property
    def config(self) -> Config: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def transport(self) -> Transport: ...

    @property
    def address(self) -> str:
        """The address where the worker listens."""
        ...

    @property
    def artifact(self) -> str:
        """Digest of the module's code that the worker runs."""
        ...


class Called(NamedTuple):
    """A hop that has come, as its sender made it."""

    key: HopKey
    epoch: Epoch
    after: int
    settled: int
    calls: Buffer


Failures: TypeAlias = tuple[wire.StepFailure, ...]
Told: TypeAlias = Callable[[Failures | Refusal], None]
"""Callback of a hop: gets what became of it, or why it was not taken."""
Take: TypeAlias = Callable[[GroupKey, TaskId, str, Called, Told], bool]
"""A function that runs a hop of a topology on a task that is led here; False if it is not."""

_decode_calls = msgspec.msgpack.Decoder(list[StepCall]).decode


def _checked(message: wire.RunSteps, bodies: Sequence[memoryview]) -> Called:
    """Check a hop that has come: anything else would end the executor that is given it, or the worker that
    makes rows of it."""
    numbers = (message.number - 1, message.after, message.settled, message.epoch)
    if not 0 <= message.source < TASKS_END or not all(0 <= each < NUMBERS_END for each in numbers):
        raise PeerError("the number of a hop is malformed")
    try:
        calls = bytes(bodies[0])
        _decode_calls(calls)
    except (*MALFORMED, IndexError) as error:
        raise PeerError(f"calls of steps are malformed: {error}") from error
    key = (message.source, message.number)
    return Called(key, message.epoch, message.after, message.settled, calls)


def only_step(calls: Buffer) -> str | None:
    """Return the step that all of these calls are of; None if they are of several."""
    steps = {call.step for call in _decode_calls(calls)}
    return steps.pop() if len(steps) == 1 else None


def with_origins(calls: Buffer, notes: tuple[FailureNote, ...]) -> Failures:
    """Return failures with the origins by which the caller knows its calls."""
    if not notes:
        return ()
    origins = [call.origin for call in _decode_calls(calls)]
    known = [note for note in notes if note.index < len(origins)]
    return tuple(wire.StepFailure(origins[note.index], note.error, note.traceback) for note in known)


class Asked:
    """Hops of others that one stream was asked to run, and the callbacks for their outcome.

    A hop may be asked for again and again while it waits: its calls are kept once, and the latest callbacks.
    """

    def __init__(self) -> None:
        self._calls: dict[HopKey, tuple[Buffer, list[int]]] = {}
        self._tickets: dict[int, tuple[HopKey, Told]] = {}

    def add(self, ticket: int, called: Called, told: Told) -> int:
        """Add a hop, or another callback for one that waits; return the ticket."""
        _, tickets = self._calls.setdefault(called.key, (called.calls, []))
        if len(tickets) == ASKED_MAX:
            del self._tickets[tickets.pop(0)]
        tickets.append(ticket)
        self._tickets[ticket] = (called.key, told)
        return ticket

    def answer(self, ticket: int, notes: tuple[FailureNote, ...]) -> None:
        """Report the outcome of a hop."""
        found = self._pop(ticket)
        if found is not None:
            calls, told = found
            told(with_origins(calls, notes))

    def refuse(self, ticket: int, why: Refusal) -> None:
        """Report that a hop was not taken."""
        found = self._pop(ticket)
        if found is not None:
            found[1](why)

    def refuse_all(self, why: Refusal) -> None:
        """Report that none of the hops was taken."""
        for ticket in list(self._tickets):
            self.refuse(ticket, why)

    def _pop(self, ticket: int) -> tuple[Buffer, Told] | None:
        """Take off a ticket; None if it was given up, because others have asked since."""
        found = self._tickets.pop(ticket, None)
        if found is None:
            return None
        key, told = found
        calls, tickets = self._calls[key]
        tickets.remove(ticket)
        if not tickets:
            del self._calls[key]
        return calls, told


class Route:
    """The route of a topology's hops from one task to another: keeps those that are not answered."""

    def __init__(self, hops: Hops, topology: str, source: TaskId, epoch: Epoch, target: TaskId) -> None:
        self._hops = hops
        self._topology = topology
        self._source = source
        self._epoch = epoch
        self._target = target
        #: Hops that are not answered, in the order of their numbers, each with its callback.
        self._unanswered: dict[int, tuple[effects.Hop, Callable[[Failures], None]]] = {}
        #: Whether everything is sent again soon, and nothing before that.
        self._waits = False
        self._attempts = 0
        #: How often all was sent again: an answer to an earlier time says nothing of this one.
        self._round = 0
        self._is_over = False

    def send(self, hop: effects.Hop, then: Callable[[Failures], None]) -> None:
        """Send a hop, and again until it is answered; ``then`` gets its failures."""
        self._unanswered[hop.number] = (hop, then)
        if not self._waits:
            self._try(hop)

    def close(self) -> None:
        """Give all hops up: nobody waits for them any more."""
        self._is_over = True
        self._unanswered.clear()

    def _try(self, hop: effects.Hop) -> None:
        hops, round_ = self._hops, self._round
        network = hops.network
        group = hops.group_of(self._target)
        if group is None:
            # As when a worker has just begun.
            self._again(round_, lambda then, ms: hops.loop.call_after(ms, network.refresh, then))
            return
        epoch = network.view.epoch(group)

        def wait(then: Callable[[], None], within_ms: int) -> None:
            network.when_led_anew(group, then, above=epoch, within_ms=within_ms)

        def heard_here(told: Failures | Refusal) -> None:
            if isinstance(told, Refusal):
                self._again(round_, wait)
            else:
                self._answered(hop.number, told)

        def heard(reply: wire.ToClient | None, _: list[memoryview]) -> None:
            if isinstance(reply, wire.StepsRun):
                self._answered(hop.number, reply.failures)
            else:
                self._again(round_, wait)

        # One that was answered has run, whatever became of the log there since.
        after = max((number for number in self._unanswered if number < hop.number), default=0)
        called = Called((self._source, hop.number), self._epoch, after, hop.settled, hop.calls)
        if hops.take(group, self._target, self._topology, called, heard_here):
            return
        request = network.next_request()
        message = wire.RunSteps(
            request,
            group,
            self._target,
            self._topology,
            self._source,
            self._epoch,
            hop.number,
            after,
            hop.settled,
            hops.code,
        )
        if not network.to_leader(
            group, request, message, (hop.calls,), heard, timeout_ms=TIMEOUT_MS, wait_ms=TIMEOUT_MS
        ):
            self._again(round_, wait)

    def _answered(self, number: int, failures: Failures) -> None:
        found = self._unanswered.pop(number, None)
        if found is not None:
            self._attempts = 0
            found[1](failures)

    def _again(self, round_: int, wait: Callable[[Callable[[], None], int], object]) -> None:
        if self._waits or self._is_over or round_ != self._round:
            return
        self._waits = True
        self._round += 1
        wait(self._resume, patience_ms(self._attempts))
        self._attempts += 1

    def _resume(self) -> None:
        self._waits = False
        for hop, _ in list(self._unanswered.values()):
            if not self._waits and hop.number in self._unanswered:
                self._try(hop)


class Hops:
    """The hops from and to this worker. The loop owns them."""

    def __init__(self, worker: Host, take: Take) -> None:
        self._worker = worker
        self.take = take
        self._network: Network | None = None

    # To others.

    def route(self, topology: str, source: TaskId, epoch: Epoch, target: TaskId) -> Route:
        return Route(self, topology, source, epoch, target)

    @property
    def loop(self) -> Loop:
        return self._worker.loop

    @property
    def code(self) -> str:
        """Digest of the module's code that makes the calls."""
        return self._worker.artifact

    def group_of(self, task: TaskId) -> GroupKey | None:
        """Return the group of a task, or None if it is not known yet."""
        return self.network.view.of_task.get((self._worker.config.module, task))

    @property
    def network(self) -> Network:
        """The connections to all workers of the module, this one included."""
        if self._network is None:
            worker = self._worker
            self._network = Network(
                [worker.address], worker.config.key, loop=worker.loop, worker=worker.worker
            )
        return self._network

    # Of others.

    def received(self, sender: Connection, message: wire.RunSteps, bodies: list[memoryview]) -> None:
        """Run a hop that another worker sent, and answer once it is done."""
        called = _checked(message, bodies)

        def told(told: Failures | Refusal) -> None:
            reply: wire.ToClient
            if isinstance(told, Refusal):
                reply = wire.Refused(message.request, told, None, Epoch(0))
            else:
                reply = wire.StepsRun(message.request, told)
            self._worker.transport.reply(sender, reply)

        if message.code != self._worker.artifact:
            told(Refusal.NOT_READY)
            return
        if not self.take(message.group, message.task, message.topology, called, told):
            told(Refusal.NOT_LEADER)

    def close(self) -> None:
        if self._network is not None:
            self._network.close()
