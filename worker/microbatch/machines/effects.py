"""What a coordinator or a participant wants done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from stretto.state.microbatch_entries import Entry, LeftOut, Span, Version
from stretto.vocabulary.types import TaskId
from stretto.worker.microbatch.machines.messages import AnyMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Read what is applied; step Loaded."""

    token: int
    with_progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Replicate an entry in this epoch, or not at all; step Appended."""

    token: int
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message to the leader of a task."""

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
    """Replicate that what this task had staged for a committed version is lost, with a failure for people
    that says so; step Appended."""

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
    """What the run that took effect returned, by offset, as JSON; records that returned nothing are left out.
    None if it is not known: another leader ran them, and kept it to itself."""
    failures: tuple[tuple[int, str], ...] = ()
    """Errors of the records that were left out, by offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Discard what was run up to this version: nobody will ask for it."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Write a line to the log, one for each transition."""

    event: str
    fields: dict[str, Any]


Effect: TypeAlias = Load | Append | Send | Execute | Collect | Miss | Processed | Discard | Note
