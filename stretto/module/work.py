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
    """Raised when rows could not be read, which makes the run void.

    Raised by the Rows that a run was given. It passes through the person's function, also through one that
    catches every Exception, and out of :meth:`~stretto.module.runner.TaskRunner.run`.
    """


class StepCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call of a step that is to run on some task."""

    step: str
    args: bytes
    """MessagePack of the arguments, as a tuple."""
    origin: int
    """Index of the record or call that caused this, in the work that was run. A function that takes many at
    once does not say which; it is the first of those it was given."""


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records of one depot for a topology to run."""

    topology: str
    depot: str
    first: DepotOffset
    records: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of a topology's steps to run, in the order in which they were made."""

    topology: str
    calls: Sequence[StepCall]


Work: TypeAlias = Records | Calls


def first(work: Work, count: int) -> Work:
    """Return the first ``count`` records or calls of the work."""
    if isinstance(work, Records):
        return replace(work, records=work.records[:count])
    return replace(work, calls=work.calls[:count])


def rest(work: Work, done: int) -> Work:
    """Return the work without its first ``done`` records or calls."""
    if isinstance(work, Records):
        return replace(work, first=DepotOffset(work.first + done), records=work.records[done:])
    return replace(work, calls=work.calls[done:])


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The failure of a person's function on one record or call."""

    index: int
    """Index of the record or call in the work that was run."""
    error: str
    """The error in one line."""
    traceback: str = ""
    """The traceback with the author's own frames only."""


class Timed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long a person's function took, with all steps that it led to on its task, over a run.

    Calls that took long are listed one by one, the others summed up: a run may have a thousand of them.
    """

    function: str
    quick: int
    """Number of calls that did not take long."""
    quick_ns: int
    """Time of all quick calls together."""
    slow_ns: tuple[int, ...] = ()

    def merged(self, other: Timed) -> Timed:
        quick, quick_ns = self.quick + other.quick, self.quick_ns + other.quick_ns
        return Timed(self.function, quick, quick_ns, (*self.slow_ns, *other.slow_ns))


@dataclass(slots=True)
class Outcome:
    """What a run did: the effects of all records or calls that did not fail, and none of those that did."""

    changes: dict[str, Changes] = field(default_factory=dict)
    """Changes of the PStates that changed, by name."""
    hops: dict[TaskId, list[StepCall]] = field(default_factory=dict)
    """Calls of steps on other tasks, in order."""
    results: list[tuple[int, bytes]] = field(default_factory=list)
    """What functions returned, as JSON, each with its index. None is no result."""
    failures: list[Failure] = field(default_factory=list)
    """Records or calls that failed, ascending by index."""
    done: int = 0
    """Index below which all records or calls were run, and either succeeded or failed."""
    times: tuple[Timed, ...] = field(default=(), compare=False)
    """How long functions took, once for each."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a query as MessagePack, or the failure why there is none."""

    result: bytes = b""
    failure: Failure | None = None
