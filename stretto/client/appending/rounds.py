"""Writing under a name: rounds of records that are stored once, no matter how often they are written.

A producer that dies takes its id along, and nobody can repeat what it had under way. A *named* producer's id
follows from its name, so that a second attempt at the same round, at once or after days, on another machine,
is recognized: what is stored already is passed over, and the rest is added. Two attempts must have the same
records for that. A digest of them, claimed before anything is written, makes sure: an attempt that comes with
others is refused, and writes nothing.

What one task gets in a round is one batch if it fits :data:`WHOLE_BYTES`. That is stored whole or not at all,
so the records may come in another order the next time. What is larger is cut, and has to come in the same.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence

from stretto.client.asking.question import Question
from stretto.errors import ModulePaused, RetriableError, StrettoError, UsageError
from stretto.network.routing import Network
from stretto.replog.core.effects import Refusal
from stretto.replog.core.producers import DIGEST_BITS, ROUNDS_MAX, named_producer_id, sequence_in
from stretto.replog.frame import Kind
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import ProducerId, TaskId
from stretto.wire import messages as wire

WHOLE_BYTES = 8 * 1024 * 1024
"""A task's records of a round are one batch, stored whole or not at all, up to this size."""
TIMEOUT = 120.0
"""Seconds that each request of a round may take."""
_FINAL = (Refusal.CLAIMED, Refusal.PAUSED)
_LENGTH = struct.Struct("<I")


class RoundClaimed(StrettoError):
    """Raised for a round that was begun with other records already, or when a later round was begun."""


class NamedWriter:
    """Appends rounds to a depot under a name, which may have several parts, each with rounds of its own.

    ``lasting``: a round may be repeated at any time; otherwise the cluster forgets the name when nothing was
    heard of it for seven days.
    """

    def __init__(
        self,
        network: Network,
        module: str,
        depot: str,
        name: str,
        part: int = 0,
        *,
        lasting: bool,
        timeout: float = TIMEOUT,
    ) -> None:
        self._network = network
        self._module = module
        self._depot = depot
        self._name = name
        self._part = part
        self._lasting = lasting
        self._timeout = timeout
        self._tasks = sorted(network.view.tasks.get(module, []))
        if not self._tasks:
            raise UsageError(f"there is no module {module!r} on this cluster")
        self._task_count = network.view.task_counts[module]

    @property
    def home(self) -> TaskId:
        """The task where rounds are claimed, and that takes records for which no task is chosen."""
        return self._tasks[(self._hash("home") + self._part) % len(self._tasks)]

    def write(self, round_: int, records: Mapping[int, Sequence[bytes]]) -> None:
        """Append the records of a round, by task, once; return when all of them are visible.

        Raises RoundClaimed, and writes nothing, if the round was begun with other records; RetriableError if
        it is to be tried again.
        """
        if not 0 <= round_ < ROUNDS_MAX:
            raise UsageError(f"rounds are numbered from 0 to {ROUNDS_MAX - 1}, and {round_} is none")
        for task in records:
            if task not in self._tasks:
                raise UsageError(f"module {self._module} has tasks 0 to {len(self._tasks) - 1}, not {task}")
        self._network.view.check_tasks(self._module, self._task_count)
        batches = {TaskId(task): cut(each) for task, each in sorted(records.items()) if each}
        sequence = sequence_in(round_, digest(batches))
        self._await(self._begin(self._id("claims"), self.home, sequence))
        producer = self._id("records")
        writings = [self._write_task(producer, task, round_, each) for task, each in batches.items()]
        under_way = [(next(each), each) for each in writings]
        while under_way:
            question, writing = under_way.pop(0)
            self._await(question)
            following = next(writing, None)
            if following is not None:
                under_way.append((following, writing))

    def _write_task(
        self, producer: ProducerId, task: TaskId, round_: int, batches: Sequence[Sequence[bytes]]
    ) -> Iterator[Question]:
        """Send the batches of a task, each after the one before was awaited."""
        index = 0
        for batch in batches:
            yield self._begin(producer, task, sequence_in(round_, index), batch)
            index += len(batch)

    def _begin(
        self, producer: ProducerId, task: TaskId, sequence: int, records: Sequence[bytes] = ()
    ) -> Question:
        kind, body, count = Kind.CLAIM, b"", 1
        if records:
            kind, body, count = Kind.DEPOT, pack(self._depot, records), len(records)

        def message(number: int, group: GroupKey) -> wire.ToWorker:
            return wire.AppendBatch(number, group, kind, task, producer, sequence, count)

        question = Question(
            self._network, self._module, task, message, self._timeout, bodies=(body,), final=_FINAL
        )
        return question.begin()

    def _await(self, question: Question) -> None:
        try:
            reply, _ = question.wait()
        except RetriableError as error:
            raise RetriableError(f"{error}; repeating the round is safe") from None
        match reply:
            case wire.Appended():
                return
            case wire.Refused(reason=Refusal.CLAIMED):
                raise RoundClaimed(
                    f"part {self._part} of {self._name} was begun with other records than these, or a later "
                    "round was; this attempt wrote nothing"
                )
            case wire.Refused(reason=Refusal.PAUSED):
                raise ModulePaused(self._module)
            case _:
                raise RetriableError(f"an unexpected answer came: {type(reply).__name__}")

    def _id(self, use: str) -> ProducerId:
        return named_producer_id(self._hash(f"{use} {self._part}"), lasting=self._lasting)

    def _hash(self, use: str) -> int:
        name = f"{use}\0{self._module}\0{self._depot}\0{self._name}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def cut(records: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Cut records into batches, one if they fit; the same records in the same order are cut the same way."""
    batches: list[Sequence[bytes]] = []
    start = size = 0
    for at, record in enumerate(records):
        if size + len(record) + _LENGTH.size > WHOLE_BYTES and at > start:
            batches.append(records[start:at])
            start, size = at, 0
        size += len(record) + _LENGTH.size
    batches.append(records[start:])
    return batches


def digest(batches: Mapping[TaskId, Sequence[Sequence[bytes]]]) -> int:
    """Return a digest of a round's records, whose order within a task counts if it has several batches."""
    found = hashlib.blake2b(digest_size=8)
    for task, parts in sorted(batches.items()):
        found.update(_LENGTH.pack(task))
        found.update(_LENGTH.pack(len(parts)))
        for part in parts:
            ordered = sorted(part) if len(parts) == 1 else part
            found.update(_LENGTH.pack(len(ordered)))
            found.update(b"".join(map(_LENGTH.pack, map(len, ordered))))
            found.update(b"".join(ordered))
    return int.from_bytes(found.digest(), "little") >> (64 - DIGEST_BITS)
