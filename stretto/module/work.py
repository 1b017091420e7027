"""What goes into a run of a topology on one task, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec

from stretto.pstate.changes import Changes
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Buffer, TaskId


class RowsFailed(BaseException):
    """Rows could not be read, and the run is void.

    Raised by the Rows that a run was given. It passes through the person's function, also through one that
    catches every Exception, and out of :meth:`~stretto.module.runner.TaskRunner.run`.
    """


class StepCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that is to run on some task."""

    step: str
    args: bytes
    """MessagePack of the arguments, as a tuple."""
    origin: int
    """Index of what caused it, in the work that was run: of a record, or of a call. A function that takes
    many at once is not asked which; it is the first of those it was given."""


@dataclass(frozen=True, slots=True)
class Records:
    """Of one depot, one after the other."""

    topology: str
    depot: str
    first: DepotOffset
    records: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class Calls:
    """Of steps, in the order in which they were made."""

    topology: str
    calls: Sequence[StepCall]


Work: TypeAlias = Records | Calls


def first(work: Work, count: int) -> Work:
    """The beginning of it."""
    if isinstance(work, Records):
        return replace(work, records=work.records[:count])
    return replace(work, calls=work.calls[:count])


def rest(work: Work, done: int) -> Work:
    """What is left of it."""
    if isinstance(work, Records):
        return replace(work, first=DepotOffset(work.first + done), records=work.records[done:])
    return replace(work, calls=work.calls[done:])


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a person's function did not manage."""

    index: int
    """Of the record or call, in the work that was run."""
    error: str
    """One line."""
    traceback: str = ""
    """Its author's frames only."""


class Timed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long a person's function took, with all steps that it led to on its task, over a run.

    Calls that took long are told one by one, the others together: a run may have a thousand of them.
    """

    function: str
    quick: int
    """Calls that did not take long."""
    quick_ns: int
    """All of these together."""
    slow_ns: tuple[int, ...] = ()

    def merged(self, other: Timed) -> Timed:
        quick, quick_ns = self.quick + other.quick, self.quick_ns + other.quick_ns
        return Timed(self.function, quick, quick_ns, (*self.slow_ns, *other.slow_ns))


@dataclass(slots=True)
class Outcome:
    """What a run did: that of all that did not fail, and nothing of what did."""

    changes: dict[str, Changes] = field(default_factory=dict)
    """Of PStates that changed, by name."""
    hops: dict[TaskId, list[StepCall]] = field(default_factory=dict)
    """For other tasks, in order."""
    results: list[tuple[int, bytes]] = field(default_factory=list)
    """What functions returned, by index, as JSON. None is no result."""
    failures: list[Failure] = field(default_factory=list)
    """Ascending by index."""
    done: int = 0
    """All below this index were run, and either succeeded or failed."""
    times: tuple[Timed, ...] = field(default=(), compare=False)
    """Of each function once."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave: MessagePack, or why there is none."""

    result: bytes = b""
    failure: Failure | None = None
