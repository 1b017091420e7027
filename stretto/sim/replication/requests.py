"""Producers of a simulation, and the batches that they send until they know the outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.replog.core.effects import Result
from stretto.replog.frame import Kind
from stretto.vocabulary.types import ProducerId, TaskId, WorkerId


@dataclass
class Batch:
    """A batch that a producer sends until it is answered."""

    kind: Kind
    task: TaskId
    sequence: int
    count: int
    payload: bytes
    acked: bool = False
    attempt: int = 0
    answer: Result | None = None
    """The answer to its latest attempt that was answered."""
    producer: ProducerId | None = None
    """The producer id of the batch, if it is not that of its sender."""


@dataclass
class Producer:
    """One client; ``leader`` is the worker that it believes to lead."""

    name: str
    leader: WorkerId
    id: ProducerId
    is_open: bool = False
    next_sequence: dict[TaskId, int] = field(default_factory=dict)
    pending: list[Batch] = field(default_factory=list)
    asleep_until: int = 0
    """Time until which it neither sends nor hears, like a laptop that was closed."""
