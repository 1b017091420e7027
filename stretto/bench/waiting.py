"""Waiting for what a cluster says of itself: nobody notifies a bench, so it looks again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

from stretto.errors import RetriableError, StrettoError

LOOK_SECONDS = 0.01


def until(what: str, condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds, also through moments in which nothing answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except RetriableError:
            pass
        if time.monotonic() > deadline:
            raise StrettoError(f"the cluster of the bench did not get there: {what}")
        time.sleep(LOOK_SECONDS)
