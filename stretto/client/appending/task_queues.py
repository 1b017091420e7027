"""A producer's tasks, and the ids under which it appends to them."""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import NamedTuple

from stretto.client.appending.acks import Batch
from stretto.replog.core.effects import Refusal
from stretto.replog.core.producers import new_producer_id
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId
from stretto.wire import messages as wire


class Identity:
    """A producer id that the tasks of one group share: each group admits ids for itself.

    It ends when the group has forgotten it. Then nothing more is sent under it, and when all that was is
    settled, another takes its place.
    """

    __slots__ = ("attempts", "has_ended", "number", "opened", "opening", "queues", "refusal")

    def __init__(self) -> None:
        self.queues: list[TaskQueue] = []
        self.opened: set[GroupKey] = set()
        self.opening: set[GroupKey] = set()
        self.attempts = 0
        #: Reason why a group did not admit the id the last time.
        self.refusal: Refusal | None = None
        self.begin()

    def begin(self) -> None:
        """Take a new id, which no group has admitted yet."""
        self.number = new_producer_id(time.time_ns() // 1_000_000, secrets.randbits(32))
        self.opened.clear()
        self.has_ended = False


class TaskQueue:
    """A producer's batches of one task: being filled, waiting, and under way, in order of sequence."""

    __slots__ = (
        "attempts",
        "epoch",
        "gathering",
        "has_gap",
        "identity",
        "in_flight",
        "next_sequence",
        "records",
        "records_bytes",
        "refused",
        "retrying",
        "task",
        "waiting",
    )

    def __init__(self, task: TaskId) -> None:
        self.task = task
        self.records: list[bytes] = []
        self.records_bytes = 0
        self.gathering = Batch()
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        #: Batches without effect, since the group did not know the identity: they go out under the next one.
        self.refused: list[Batch] = []
        self.identity: Identity | None = None
        self.next_sequence = 0
        self.retrying = False
        #: Failed attempts in a row with the leader of :attr:`epoch`.
        self.attempts = 0
        self.epoch = Epoch(0)
        #: Whether a batch was given up of which it is not known whether its sequence was used.
        self.has_gap = False

    @property
    def has_ended(self) -> bool:
        """Whether the identity of this queue has ended."""
        return self.identity is not None and self.identity.has_ended


class DirectAppend(NamedTuple):
    """An append of one batch that the caller's own thread sends, and whose answer it receives itself."""

    queue: TaskQueue
    batch: Batch
    message: wire.AppendBatch
