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
