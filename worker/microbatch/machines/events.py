"""What happens to a coordinator or a participant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from stretto.state.microbatch_entries import Batch, Result, Returned, Version
from stretto.vocabulary.types import TaskId
from stretto.worker.microbatch.machines.messages import AnyMessage, Failure
from stretto.worker.microbatch.machines.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The machine begins; the first event of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The deadline that was asked for has come. Harmless at any moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message has come."""

    message: AnyMessage
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The answer to the Load with this token: what is applied."""

    token: int
    batch: Batch | None = None
    rolled: int = 0
    returned: Returned | None = None
    progress: Mapping[str, int] | None = None
    """The offset below which all records of a depot took effect here, with ids up to ``rolled``, by depot.
    None if it was not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The outcome of an Append: applied, refused (nothing happened), or not known."""

    token: int
    applied: bool
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """Depots have grown: first and end offset of each depot of the topology on this task."""

    bounds: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """An appender waits until the records of a depot below ``end`` are processed."""

    depot: str
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged:
    """The options of the topology have changed."""

    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """A round was run. It made calls for other tasks, each task's as their number and their bytes."""

    version: Version
    round: int
    calls: Mapping[TaskId, tuple[int, bytes]]
    failures: tuple[Failure, ...] = ()
    results: tuple[Result, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFailed:
    """A round or a Collect failed, for a reason that is not the module's code."""

    version: Version
    why: str
    too_large: bool = False
    hung: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The answer to a Collect: all that the version changes on this task, with what keeps account of it,
    packed."""

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
