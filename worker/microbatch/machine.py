"""What happens to a coordinator or a participant, and what they ask of their driver.

Both live at most as long as the epoch in which their worker leads the task: a driver makes them when the
leader has applied what it inherited, and forgets them when it no longer leads, or when the code changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from stretto.state.microbatch_entries import Batch, Entry, LeftOut, Result, Returned, Span, Version
from stretto.vocabulary.types import Millis, TaskId
from stretto.worker.microbatch.messages import AnyMessage, Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    max_records: int = 10_000
    """Of each depot partition in one microbatch."""
    interval_ms: Millis = Millis(50)
    """Between the beginnings of two microbatches, at least; not while an appender waits."""
    retries: int = 3
    """How often a record may fail and be tried again before it is left out."""
    retry_ms: Millis = Millis(500)
    """After which an unanswered message is sent again."""
    patience_ms: Millis = Millis(10_000)
    """How long a task may be silent before the version is given up."""
    poll_ms: Millis = Millis(1_000)
    """How long a participant waits for input before it answers."""
    gather_ms: Millis = Millis(5)
    """How long the first input waits for that of other tasks."""
    backoff_max_ms: Millis = Millis(5_000)
    paused: bool = False
    """No other microbatch begins; one that has begun goes on."""


# Events.


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """First of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The deadline has come that was asked for. Harmless at any moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    message: AnyMessage
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What is applied. It answers the Load with this token."""

    token: int
    batch: Batch | None = None
    rolled: int = 0
    returned: Returned | None = None
    progress: Mapping[str, int] | None = None
    """By depot: the offset below which all records took effect here, with ids up to ``rolled``. None if it
    was not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """How an Append ended: applied, refused (nothing happened), or not known."""

    token: int
    applied: bool
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """First and end offset of each depot of the topology on this task."""

    bounds: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """An appender waits until the records of a depot below ``end`` are processed."""

    depot: str
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged:
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What a round made: calls for other tasks, each task's as their number and their bytes."""

    version: Version
    round: int
    calls: Mapping[TaskId, tuple[int, bytes]]
    failures: tuple[Failure, ...] = ()
    results: tuple[Result, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFailed:
    """Of a round or of a Collect, for a reason that is not the module's code."""

    version: Version
    why: str
    too_large: bool = False
    hung: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """All that the version changes on this task, with what keeps account of it, packed."""

    version: Version
    changes: bytes


Event: TypeAlias = (
    Started
    | Tick
    | Received
    | Loaded
    | Appended
    | Grown
    | Awaited
    | SettingsChanged
    | Executed
    | ExecutionFailed
    | Collected
)


# Effects.


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Read what is applied; step Loaded."""

    token: int
    with_progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Replicate in this epoch, or not at all; step Appended."""

    token: int
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """To the leader of a task."""

    task: TaskId
    message: AnyMessage
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execute:
    """Run records or calls on top of what ``after`` rounds of this version changed, and keep what changes.
    Step Executed or ExecutionFailed; the latter if those rounds are not at hand."""

    version: Version
    round: int
    after: int
    """How many rounds were run here before."""
    careful: bool
    spans: tuple[Span, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    calls: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Pack what ``after`` rounds changed, and progress and failures with it; step Collected or
    ExecutionFailed."""

    version: Version
    after: int
    spans: tuple[Span, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """What this task had staged for a committed version is not there: replicate that it is lost, with a
    failure for people that tells it; step Appended."""

    token: int
    version: Version
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """Records ``[start, end)`` of a depot on this task have taken effect, on all tasks that they lead to."""

    depot: str
    start: int
    end: int
    results: tuple[tuple[int, bytes], ...] | None
    """By offset, what the run that took effect returned, as JSON; those that returned nothing are left out.
    None if that is not known: another leader ran them, and kept it to itself."""
    failures: tuple[tuple[int, str], ...] = ()
    """By offset, the errors of records that were left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Nobody will ask for what was run up to this version."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One line per transition, for logs."""

    event: str
    fields: dict[str, Any]


Effect: TypeAlias = Load | Append | Send | Execute | Collect | Miss | Processed | Discard | Note
