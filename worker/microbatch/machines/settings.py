"""The settings of microbatches, as options have them."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.vocabulary.types import Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one microbatch topology."""

    max_records: int = 10_000
    """How many records of each depot partition one microbatch takes at most."""
    interval_ms: Millis = Millis(50)
    """The least time between the beginnings of two microbatches; not while an appender waits."""
    retries: int = 3
    """How often a record may fail and be tried again before it is left out."""
    retry_ms: Millis = Millis(500)
    """The time after which an unanswered message is sent again."""
    patience_ms: Millis = Millis(10_000)
    """How long a task may be silent before the version is given up."""
    poll_ms: Millis = Millis(1_000)
    """How long a participant waits for input before it answers."""
    gather_ms: Millis = Millis(5)
    """How long the first input waits for that of other tasks."""
    backoff_max_ms: Millis = Millis(5_000)
    paused: bool = False
    """Whether no other microbatch begins; one that has begun goes on."""
