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
    """An id that the tasks of one group share: each group admits ids for itself.

    It ends when the group has forgotten it. Then nothing more is sent under it, and when all that was is
    settled, another takes its place.
    """

    __slots__ = ("attempts", "has_ended", "number", "opened", "opening", "queues", "refusal")

    def __init__(self) -> None:
        self.queues: list[TaskQueue] = []
        self.opened: set[GroupKey] = set()
        self.opening: set[GroupKey] = set()
        self.attempts = 0
        #: Why a group did not admit it the last time.
        self.refusal: Refusal | None = None
        self.begin()

    def begin(self) -> None:
        self.number = new_producer_id(time.time_ns() // 1_000_000, secrets.randbits(32))
        self.opened.clear()
        self.has_ended = False


class TaskQueue:
    """One task: what gathers, what waits to be sent, what is under way, in order of sequence."""

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
        #: Its identity was unknown when they came, so they had no effect: they go out under the next one.
        self.refused: list[Batch] = []
        self.identity: Identity | None = None
        self.next_sequence = 0
        self.retrying = False
        #: In vain, one after the other, to the leader of this epoch.
        self.attempts = 0
        self.epoch = Epoch(0)
        #: A batch was given up, and it is not known whether its sequence was used.
        self.has_gap = False

    @property
    def has_ended(self) -> bool:
        """Its identity has."""
        return self.identity is not None and self.identity.has_ended


class DirectAppend(NamedTuple):
    """A queue whose one batch a caller sends, and receives the answer, by its own hands."""

    queue: TaskQueue
    batch: Batch
    message: wire.AppendBatch
