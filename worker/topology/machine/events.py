"""What happens to a stream on a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stretto.pstate.changes import NO_CHANGES, Packed
from stretto.vocabulary.types import Buffer, Epoch, TaskId
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.executors.replies import Why
from stretto.worker.topology.machine.settings import Settings
from stretto.worker.topology.machine.stored import HopKey, RecordKey


@dataclass(frozen=True, slots=True)
class Grown:
    """More of a depot is applied."""

    depot: str
    end: int


@dataclass(frozen=True, slots=True)
class Called:
    """A hop of another task has come; ``ticket`` is how to name it in the answer."""

    ticket: int
    key: HopKey
    epoch: Epoch
    """The epoch in which the sender leads."""
    after: int
    """The number of the hop before it from that task; 0 if that is known to have run."""
    settled: int
    """The number below which the sender asks for no hop any more."""
    calls: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The executor has run a batch."""

    batch: int
    start: int
    end: int
    left: int = 0
    """How many calls were not run, because what those before them do fills an entry."""
    changes: Packed = NO_CHANGES
    hops: tuple[tuple[TaskId, bytes], ...] = ()
    results: tuple[tuple[int, bytes], ...] = ()
    failures: tuple[FailureNote, ...] = ()
    elapsed_us: int = 0
    delayed_us: int = 0
    """How much of that time the executor waited for a processor."""


@dataclass(frozen=True, slots=True)
class NotRun:
    """The executor has not run a batch. ``why`` is None if it answered that it cannot."""

    batch: int
    why: Why | None
    sentence: str
    is_too_much: bool = False
    """Whether the batch ran, and did more than fits an entry."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The entry of a batch is in the log."""

    batch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The entry of a batch is refused, and has no effect."""

    batch: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The entry of a batch is applied."""

    batch: int


@dataclass(frozen=True, slots=True)
class HopAnswered:
    """All that a hop led to is done, or has failed."""

    number: int
    failures: tuple[FailureNote, ...] = ()
    """Failures, by the index in its batch of the record or call that hopped."""


@dataclass(frozen=True, slots=True)
class Settle:
    """A person wants parked records tried again, or forgotten; answered with Settled."""

    keys: tuple[RecordKey, ...]
    again: bool
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """The options of the stream have changed."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline that was asked for has come."""


Event: TypeAlias = (
    Grown
    | Called
    | Ran
    | NotRun
    | Accepted
    | Refused
    | Applied
    | HopAnswered
    | Settle
    | SettingsChanged
    | Tick
)
