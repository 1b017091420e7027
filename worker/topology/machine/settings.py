"""The settings of a stream, as options have them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one stream topology."""

    retry: str
    """The retry policy: ``individual``, ``all-after`` or ``none``."""
    retries: int
    records_max: int
    bytes_max: int
    parked_max: int
    is_paused: bool = False
    """Whether no record is begun."""
    timeout_ms: int = 10_000
    """The time after which a run is killed."""
    takes_many: bool = False
    """Whether its function takes all records of a batch at once: a hop that fails is the failure of all of
    them."""
