"""What happens to a stream on a task, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from stretto.pstate.changes import NO_CHANGES, Packed
from stretto.vocabulary.types import Buffer, Epoch, TaskId
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.executors.replies import Why

RecordKey: TypeAlias = tuple[str, int]
"""A depot and an offset."""
HopKey: TypeAlias = tuple[TaskId, int]
"""A hop from another task: that task, and the number that it gave the hop."""


class OfRecords(msgspec.Struct, frozen=True, array_like=True, tag="records", gc=False):
    """A hop was made by records ``[start, end)`` of a depot."""

    depot: str
    start: int
    end: int


class OfRetry(msgspec.Struct, frozen=True, array_like=True, tag="retry", gc=False):
    """A hop was made by a record that was tried again after so many failures."""

    depot: str
    offset: int
    failures: int


class OfCalls(msgspec.Struct, frozen=True, array_like=True, tag="calls", gc=False):
    """A hop was made by calls of a hop of another task, from the ``first`` of them on."""

    source: TaskId
    number: int
    first: int


Origin: TypeAlias = OfRecords | OfRetry | OfCalls


class Outgoing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A hop in the outbox."""

    task: TaskId
    origin: Origin
    calls: bytes


class Incoming(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far the hops of one sender have run."""

    number: int
    calls: int | None = None
    """Of that one, so many calls have run; None: all of it."""
    settled: int = 0
    """Hops below this are not asked for by whoever leads there now."""
    settled_in: Epoch = Epoch(0)
    """The epoch of the sender that said so."""


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
    outbox: dict[int, Outgoing] = field(default_factory=dict)
    latest_hop: int = 0
    """The number of the hop that was made last."""
    inbox: dict[TaskId, Incoming] = field(default_factory=dict)
    failed: dict[HopKey, tuple[FailureNote, ...]] = field(default_factory=dict)
    """How calls of hops failed whose senders may ask again."""


# Events.


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
    """In which the sender leads."""
    after: int
    """The number of the hop before it from that task; 0 if that is known to have run."""
    settled: int
    """The sender asks for no hop below this number any more."""
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
    """All that a hop led to is done, or has failed."""

    number: int
    failures: tuple[FailureNote, ...] = ()
    """By the index, in its batch, of what hopped."""


@dataclass(frozen=True, slots=True)
class Settle:
    """A person wants parked records tried again, or forgotten; answered with Settled."""

    keys: tuple[RecordKey, ...]
    again: bool
    ticket: int = 0


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
    made: dict[int, Outgoing] = field(default_factory=dict)
    """Hops that join the outbox."""
    cleared: list[int] = field(default_factory=list)
    """Hops that leave it."""
    run: dict[TaskId, Incoming] = field(default_factory=dict)
    """How far the hops of other tasks have run."""
    failed: dict[HopKey, tuple[FailureNote, ...]] = field(default_factory=dict)
    forgotten: list[HopKey] = field(default_factory=list)
    """Hops whose failures nobody asks for any more."""
    settled: list[Settled] = field(default_factory=list)
    """What is told once it is applied."""

    def __bool__(self) -> bool:
        records = self.progress or self.retries or self.parked or self.unparked
        return bool(records or self.made or self.cleared or self.run or self.failed or self.forgotten)


@dataclass(frozen=True, slots=True)
class Append:
    """Answered with Accepted or Refused before anything else is stepped, and later with Applied."""

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
    """All that ``Called`` asked for is done, or has failed."""

    ticket: int
    failures: tuple[FailureNote, ...]


@dataclass(frozen=True, slots=True)
class Decline:
    """What ``Called`` asked for is not taken now: something that was sent before it has not come yet."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Settled:
    """So many of the records that ``Settle`` named were parked, and are not any more."""

    ticket: int
    count: int


@dataclass(frozen=True, slots=True)
class Processed:
    """Records ``[start, end)`` of a depot are, with all that they led to."""

    depot: str
    start: int
    end: int
    results: tuple[tuple[int, bytes], ...] | None
    """By offset, what was returned; None if an earlier leader ran them, and kept it to itself."""
    failures: tuple[tuple[int, str], ...]
    """By offset, how records failed."""


@dataclass(frozen=True, slots=True)
class Note:
    """Worth a line in the log."""

    event: str
    fields: dict[str, object]


Effect: TypeAlias = RunRecords | RunCalls | Append | Hop | Answer | Decline | Settled | Processed | Note
