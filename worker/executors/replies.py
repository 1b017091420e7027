"""How a request to an executor ends: with the answer of the executor, or lost with its process."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from stretto.worker.executors import protocol


class Why(enum.Enum):
    """Why a request was lost."""

    TIME_OUT = "time-out"
    """It ran for too long."""
    CRASH = "crash"
    """The process ended while it ran."""
    BYSTANDER = "bystander"
    """Another one that ran before it did one of these."""
    NOT_LOADED = "not loaded"
    """The module cannot be imported here."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A request that no executor has answered."""

    why: Why
    sentence: str
    done: int = 0
    """How many records or calls of it were done before."""
    ran_ms: int = 0
    """How long it did, if it was killed for that."""


Reply: TypeAlias = protocol.Answer | Lost
Then: TypeAlias = Callable[[Reply, list[bytes]], None]
"""Hears how a request ended, and the bodies of the answer."""
