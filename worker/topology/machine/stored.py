"""What a stream keeps in rows of its task, as it finds them when an epoch begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from stretto.vocabulary.types import Epoch, TaskId
from stretto.worker.executors.protocol import FailureNote

RecordKey: TypeAlias = tuple[str, int]
"""A depot and an offset."""
HopKey: TypeAlias = tuple[TaskId, int]
"""A hop from another task: that task, and the number that it gave the hop."""


class OfRecords(msgspec.Struct, frozen=True, array_like=True, tag="records", gc=False):
    """The origin of a hop that was made by records ``[start, end)`` of a depot."""

    depot: str
    start: int
    end: int


class OfRetry(msgspec.Struct, frozen=True, array_like=True, tag="retry", gc=False):
    """The origin of a hop that was made by a record that was tried again after so many failures."""

    depot: str
    offset: int
    failures: int


class OfCalls(msgspec.Struct, frozen=True, array_like=True, tag="calls", gc=False):
    """The origin of a hop that was made by calls of a hop of another task, from the ``first`` of them on."""

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
    """How many calls of the latest hop have run; None for all of them."""
    settled: int = 0
    """The number below which the sender's present leader asks for no hop."""
    settled_in: Epoch = Epoch(0)
    """The epoch of the sender in which its leader said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the applied state says when an epoch begins."""

    ends: dict[str, int] = field(default_factory=dict)
    """The ends of the depots."""
    progress: dict[str, int] = field(default_factory=dict)
    retries: dict[RecordKey, int] = field(default_factory=dict)
    """How often each record failed that is tried again."""
    parked: tuple[RecordKey, ...] = ()
    outbox: dict[int, Outgoing] = field(default_factory=dict)
    latest_hop: int = 0
    """The number of the hop that was made last."""
    inbox: dict[TaskId, Incoming] = field(default_factory=dict)
    failed: dict[HopKey, tuple[FailureNote, ...]] = field(default_factory=dict)
    """How calls of hops failed whose senders may ask again."""
