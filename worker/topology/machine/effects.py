"""What a stream on a task wants done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from stretto.pstate.changes import Packed
from stretto.vocabulary.types import Buffer, TaskId
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.topology.machine.stored import HopKey, Incoming, Outgoing, RecordKey


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """Run records of a depot; answered with Ran or NotRun."""

    batch: int
    attempt: int
    applied: int
    depot: str
    offset: int | None
    records_max: int
    bytes_max: int
    stop_at_failure: bool = False
    is_aside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCalls:
    """Run calls of a hop; answered with Ran or NotRun."""

    batch: int
    attempt: int
    applied: int
    calls: Buffer


@dataclass(frozen=True, slots=True)
class Parked:
    """A record that is not tried again, for people."""

    key: RecordKey
    attempts: int
    note: FailureNote


@dataclass(slots=True)
class Entry:
    """The rows of this topology on this task that change together with a batch, beside PStates."""

    progress: dict[str, int] = field(default_factory=dict)
    retries: dict[RecordKey, int | None] = field(default_factory=dict)
    """How often each record failed; None for one that is not tried again."""
    parked: list[Parked] = field(default_factory=list)
    unparked: list[RecordKey] = field(default_factory=list)
    made: dict[int, Outgoing] = field(default_factory=dict)
    """Hops that join the outbox."""
    cleared: list[int] = field(default_factory=list)
    """Hops that leave the outbox."""
    run: dict[TaskId, Incoming] = field(default_factory=dict)
    """How far the hops of other tasks have run."""
    failed: dict[HopKey, tuple[FailureNote, ...]] = field(default_factory=dict)
    forgotten: list[HopKey] = field(default_factory=list)
    """Hops whose failures nobody asks for any more."""
    settled: list[Settled] = field(default_factory=list)
    """Answers to Settle that are due once the entry is applied."""

    def __bool__(self) -> bool:
        records = self.progress or self.retries or self.parked or self.unparked
        return bool(records or self.made or self.cleared or self.run or self.failed or self.forgotten)


@dataclass(frozen=True, slots=True)
class Append:
    """Append the changes of a batch. Answered with Accepted or Refused before anything else is stepped, and
    later with Applied."""

    batch: int
    changes: Packed
    entry: Entry


@dataclass(frozen=True, slots=True)
class Hop:
    """Run steps on another task; answered with HopAnswered. Those to one task are sent in their order, and
    each says which of the unanswered ones comes before it."""

    number: int
    task: TaskId
    settled: int
    calls: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a ``Called``: all that it asked for is done, or has failed."""

    ticket: int
    failures: tuple[FailureNote, ...]


@dataclass(frozen=True, slots=True)
class Decline:
    """Decline a ``Called`` for now: something that was sent before it has not come yet."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Answer a ``Settle``: so many of its records were parked, and are not any more."""

    ticket: int
    count: int


@dataclass(frozen=True, slots=True)
class Processed:
    """Records ``[start, end)`` of a depot are processed, with all that they led to."""

    depot: str
    start: int
    end: int
    results: tuple[tuple[int, bytes], ...] | None
    """What functions returned, by offset; None if an earlier leader ran them, and kept it to itself."""
    failures: tuple[tuple[int, str], ...]
    """How records failed, by offset."""


@dataclass(frozen=True, slots=True)
class Note:
    """Write a line to the log."""

    event: str
    fields: dict[str, object]


Effect: TypeAlias = RunRecords | RunCalls | Append | Hop | Answer | Decline | Settled | Processed | Note
