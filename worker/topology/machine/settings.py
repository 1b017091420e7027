"""What options make of a stream."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    retry: str
    """``individual``, ``all-after`` or ``none``."""
    retries: int
    records_max: int
    bytes_max: int
    parked_max: int
    is_paused: bool = False
    """No record is begun."""
    timeout_ms: int = 10_000
    """When a run is killed."""
    takes_many: bool = False
    """Its function takes all records of a batch at once: a hop that fails is the failure of all of them."""
