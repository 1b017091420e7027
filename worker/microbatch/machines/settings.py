"""What options make of microbatches."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.vocabulary.types import Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    max_records: int = 10_000
    """Of each depot partition in one microbatch."""
    interval_ms: Millis = Millis(50)
    """Between the beginnings of two microbatches, at least; not while an appender waits."""
    retries: int = 3
    """How often a record may fail and be tried again before it is left out."""
    retry_ms: Millis = Millis(500)
    """After which an unanswered message is sent again."""
    patience_ms: Millis = Millis(10_000)
    """How long a task may be silent before the version is given up."""
    poll_ms: Millis = Millis(1_000)
    """How long a participant waits for input before it answers."""
    gather_ms: Millis = Millis(5)
    """How long the first input waits for that of other tasks."""
    backoff_max_ms: Millis = Millis(5_000)
    paused: bool = False
    """No other microbatch begins; one that has begun goes on."""
