"""What happens to a stream on a task, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from stretto.pstate.changes import NO_CHANGES, Packed
from stretto.replog.frame import Buffer
from stretto.types import TaskId
from stretto.worker.executors.pool import Why
from stretto.worker.executors.protocol import FailureNote

RecordKey: TypeAlias = tuple[str, int]
"""A depot and an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    retry: str
    """``individual``, ``all-after`` or ``none``."""
    retries: int
    records_max: int
    bytes_max: int
    parked_max: int
    is_paused: bool = False
    """No record is begun."""
    timeout_ms: int = 10_000
    """When a run is killed."""
    takes_many: bool = False
    """Its function takes all records of a batch at once: a hop that fails is the failure of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the applied state says when an epoch begins."""

    ends: dict[str, int] = field(default_factory=dict)
    """Of the depots."""
    progress: dict[str, int] = field(default_factory=dict)
    retries: dict[RecordKey, int] = field(default_factory=dict)
    """How often each failed."""
    parked: tuple[RecordKey, ...] = ()


# Events.


@dataclass(frozen=True, slots=True)
class Grown:
    """More of a depot is applied."""

    depot: str
    end: int


@dataclass(frozen=True, slots=True)
class Called:
    """Steps are to run here; ``ticket`` is how to name them in the answer."""

    ticket: int
    calls: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The executor answered."""

    batch: int
    start: int
    end: int
    left: int = 0
    """Calls that were not run: what those before them do fills an entry."""
    changes: Packed = NO_CHANGES
    hops: tuple[tuple[TaskId, bytes], ...] = ()
    results: tuple[tuple[int, bytes], ...] = ()
    failures: tuple[FailureNote, ...] = ()
    elapsed_us: int = 0
    delayed_us: int = 0
    """Of these, how long it waited for a processor."""


@dataclass(frozen=True, slots=True)
class NotRun:
    """It did not. ``why`` is None if it said that it cannot."""

    batch: int
    why: Why | None
    sentence: str
    is_too_much: bool = False
    """It ran, and did more than fits an entry."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The entry of a batch is in the log."""

    batch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not, and has no effect."""

    batch: int


@dataclass(frozen=True, slots=True)
class Applied:
    batch: int


@dataclass(frozen=True, slots=True)
class HopAnswered:
    """All that a hop of a batch led to is done, or has failed."""

    batch: int
    failures: tuple[FailureNote, ...] = ()
    """By the index, in the batch, of what hopped."""


@dataclass(frozen=True, slots=True)
class Settle:
    """A person wants parked records tried again, or forgotten."""

    keys: tuple[RecordKey, ...]
    again: bool


@dataclass(frozen=True, slots=True)
class Retimed:
    """Settings have changed."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline has come."""


Event: TypeAlias = (
    Grown | Called | Ran | NotRun | Accepted | Refused | Applied | HopAnswered | Settle | Retimed | Tick
)


# Effects.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
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
    """What changes together with a batch, beside PStates. Rows of this topology on this task."""

    progress: dict[str, int] = field(default_factory=dict)
    retries: dict[RecordKey, int | None] = field(default_factory=dict)
    """How often each failed; None: it is not tried again."""
    parked: list[Parked] = field(default_factory=list)
    unparked: list[RecordKey] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.progress or self.retries or self.parked or self.unparked)


@dataclass(frozen=True, slots=True)
class Append:
    """Answered with Accepted or Refused before anything else is stepped, and later with Applied."""

    batch: int
    changes: Packed
    entry: Entry


@dataclass(frozen=True, slots=True)
class Hop:
    """Run steps on another task; answered with HopAnswered."""

    batch: int
    task: TaskId
    calls: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """All that ``Called`` asked for is done, or has failed."""

    ticket: int
    failures: tuple[FailureNote, ...]


@dataclass(frozen=True, slots=True)
class Processed:
    """Records ``[start, end)`` of a depot are, with all that they led to."""

    depot: str
    start: int
    end: int
    results: tuple[tuple[int, bytes], ...]
    failures: tuple[FailureNote, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Worth a line in the log."""

    event: str
    fields: dict[str, object]


Effect: TypeAlias = RunRecords | RunCalls | Append | Hop | Answer | Processed | Note
