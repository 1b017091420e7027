"""Who appends in a simulation, and what it sends until it knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.replog.core.effects import Result
from stretto.replog.frame import Kind
from stretto.vocabulary.types import ProducerId, TaskId, WorkerId


@dataclass
class Batch:
    kind: Kind
    task: TaskId
    sequence: int
    count: int
    payload: bytes
    acked: bool = False
    attempt: int = 0
    answer: Result | None = None
    """To its latest attempt that was answered."""
    producer: ProducerId | None = None
    """If it is not the id of who sends it."""


@dataclass
class Producer:
    """One client. ``leader`` is whom it believes to lead."""

    name: str
    leader: WorkerId
    id: ProducerId
    is_open: bool = False
    next_sequence: dict[TaskId, int] = field(default_factory=dict)
    pending: list[Batch] = field(default_factory=list)
    asleep_until: int = 0
    """Neither sends nor hears until then, like a laptop that was closed."""
