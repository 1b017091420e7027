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
    """The request ran for too long."""
    CRASH = "crash"
    """The process ended while the request ran."""
    BYSTANDER = "bystander"
    """Another request that ran before it timed out or crashed."""
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
    """How long it ran, if it was killed for that."""


Reply: TypeAlias = protocol.Answer | Lost
Then: TypeAlias = Callable[[Reply, list[bytes]], None]
"""Callback of a request: gets how it ended, and the bodies of the answer."""
