"""Steps that run on other tasks: sent to the leader of each, until it answers; and those that others send.

A hop is answered when all that it led to is applied, or has failed. Until then it is sent again whenever
somebody else leads, or too long a time has passed; a leader recognizes a hop that it has taken already, by
its source and number. A leader that has lost its epoch forgets what it took: then steps may run twice.

Workers take up the code of an update one after the other. Calls are run by the code that made them, or steps
could be missing there: a leader that goes by other code refuses them, until both go by the same.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from stretto import wire
from stretto.client.network import Network, patience_ms
from stretto.decoding import MALFORMED
from stretto.errors import PeerError
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Buffer
from stretto.topology.work import StepCall
from stretto.types import Epoch, TaskId
from stretto.worker.executors.protocol import FailureNote
from stretto.zk.paths import GroupKey

if TYPE_CHECKING:
    from stretto.worker.process import Worker
    from stretto.worker.transport import Connection

TIMEOUT_MS = 60_000
TAKEN_MAX = 10_000
"""Hops of others that are remembered after they were answered."""

Failures: TypeAlias = tuple[wire.StepFailure, ...]
Take: TypeAlias = Callable[[GroupKey, TaskId, str, Buffer, Callable[[Failures | None], None]], bool]
"""Run calls of a topology on a task that is led here; False if it is not. The last argument hears what became
of it: None if the epoch ended before."""

_decode_calls = msgspec.msgpack.Decoder(list[StepCall]).decode


def _checked(bodies: Sequence[memoryview]) -> bytes:
    """Whatever is no calls would end the executor that is given them, and then who takes them apart."""
    try:
        calls = bytes(bodies[0])
        _decode_calls(calls)
    except (*MALFORMED, IndexError) as error:
        raise PeerError(f"calls of steps are malformed: {error}") from error
    return calls


def only_step(calls: Buffer) -> str | None:
    """Which they are calls of, if they are all of one."""
    steps = {call.step for call in _decode_calls(calls)}
    return steps.pop() if len(steps) == 1 else None


def with_origins(calls: Buffer, notes: tuple[FailureNote, ...]) -> Failures:
    """As the caller knows them."""
    if not notes:
        return ()
    origins = [call.origin for call in _decode_calls(calls)]
    return tuple(wire.StepFailure(origins[note.index], note.error, note.traceback) for note in notes)


@dataclass(slots=True, eq=False)
class Hop:
    """On its way."""

    number: int
    topology: str
    task: TaskId
    calls: Buffer
    then: Callable[[Failures], None]
    attempts: int = 0
    is_over: bool = False
    """Nobody waits for it any more."""


@dataclass(slots=True, eq=False)
class _Taken:
    waiting: list[tuple[Connection, int]] = field(default_factory=list)
    answer: Failures | None = None


class Hops:
    """Owned by the loop."""

    def __init__(self, worker: Worker, take: Take) -> None:
        self._worker = worker
        self._take = take
        self._source = f"{worker.worker}/{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)
        self._network: Network | None = None
        #: Those that wait until it is known who leads their tasks, as when a worker has just begun.
        self._unplaced: deque[Hop] = deque()
        #: Of others, by source and number.
        self._taken: dict[tuple[str, int], _Taken] = {}
        #: Those that were answered, oldest first.
        self._answered: deque[tuple[str, int]] = deque()

    # To others.

    def send(self, topology: str, task: TaskId, calls: Buffer, then: Callable[[Failures], None]) -> Hop:
        hop = Hop(next(self._numbers), topology, task, calls, then)
        self._queue(hop)
        return hop

    def _queue(self, hop: Hop) -> None:
        self._unplaced.append(hop)
        if len(self._unplaced) == 1:
            self._try_unplaced()

    def _try_unplaced(self) -> None:
        """In the order in which they were sent: what one task sends to another arrives in that order."""
        while self._unplaced:
            hop = self._unplaced[0]
            if self._group_of(hop) is None and not hop.is_over:
                hop.attempts += 1
                wait_ms = patience_ms(hop.attempts - 1)
                self._worker.loop.call_after(wait_ms, self.network.refresh, self._try_unplaced)
                return
            self._try(hop)
            self._unplaced.popleft()

    def _try(self, hop: Hop) -> None:
        if hop.is_over:
            return
        network = self.network
        group = self._group_of(hop)
        if group is None:
            self._queue(hop)
            return
        epoch = network.view.epoch(group)

        def heard_here(failures: Failures | None) -> None:
            if failures is None:
                self._again(hop, group, epoch)
            else:
                self._end(hop, failures)

        def heard(reply: wire.ToClient | None, _: list[memoryview]) -> None:
            if isinstance(reply, wire.StepsRun):
                self._end(hop, reply.failures)
            else:
                self._again(hop, group, epoch)

        if self._take(group, hop.task, hop.topology, hop.calls, heard_here):
            return
        request = network.next_request()
        message = wire.RunSteps(
            request, group, hop.task, hop.topology, self._source, hop.number, self._worker.artifact
        )
        if not network.to_leader(
            group, request, message, (hop.calls,), heard, timeout_ms=TIMEOUT_MS, wait_ms=TIMEOUT_MS
        ):
            self._again(hop, group, epoch)

    def _group_of(self, hop: Hop) -> GroupKey | None:
        return self.network.view.of_task.get((self._worker.config.module, hop.task))

    def _again(self, hop: Hop, group: GroupKey, epoch: Epoch) -> None:
        hop.attempts += 1
        self.network.when_led_anew(
            group, lambda: self._try(hop), above=epoch, within_ms=patience_ms(hop.attempts)
        )

    def _end(self, hop: Hop, failures: Failures) -> None:
        if not hop.is_over:
            hop.is_over = True
            hop.then(failures)

    @property
    def network(self) -> Network:
        """To all workers of the module, this one included."""
        if self._network is None:
            worker = self._worker
            self._network = Network(
                [worker.address], worker.config.key, loop=worker.loop, worker=worker.worker
            )
        return self._network

    # Of others.

    def received(self, sender: Connection, message: wire.RunSteps, bodies: list[memoryview]) -> None:
        key = (message.source, message.number)
        taken = self._taken.get(key)
        if taken is not None and taken.answer is not None:
            self._worker.transport.reply(sender, wire.StepsRun(message.request, taken.answer))
            return
        if taken is None:
            calls = _checked(bodies)
            if message.code != self._worker.artifact:
                self._refuse(sender, message.request, Refusal.NOT_READY)
                return
            taken = self._taken[key] = _Taken()
            if not self._take(
                message.group, message.task, message.topology, calls, lambda told: self._told(key, told)
            ):
                del self._taken[key]
                self._refuse(sender, message.request)
                return
        taken.waiting.append((sender, message.request))

    def _told(self, key: tuple[str, int], failures: Failures | None) -> None:
        taken = self._taken[key]
        waiting, taken.waiting = taken.waiting, []
        if failures is None:
            del self._taken[key]
            for sender, request in waiting:
                self._refuse(sender, request)
            return
        taken.answer = failures
        for sender, request in waiting:
            self._worker.transport.reply(sender, wire.StepsRun(request, failures))
        self._answered.append(key)
        if len(self._answered) > TAKEN_MAX:
            del self._taken[self._answered.popleft()]

    def _refuse(self, sender: Connection, request: int, why: Refusal = Refusal.NOT_LEADER) -> None:
        refused = wire.Refused(request, why, None, Epoch(0))
        self._worker.transport.reply(sender, refused)

    def close(self) -> None:
        if self._network is not None:
            self._network.close()
