"""Waiting for a condition, with a deadline, instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 30.0


def wait_until(what: str, condition: Callable[[], T], deadline_seconds: float = DEADLINE_SECONDS) -> T:
    """Wait for the first true value of ``condition``, which gives no notice of its own, and return it."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {deadline_seconds} s"
        time.sleep(0.01)
