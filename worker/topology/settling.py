"""How many parked records were settled, as those tell that keep them: tried again, or forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from stretto.errors import RetriableError
from stretto.vocabulary.groups import GroupKey

Settled: TypeAlias = Callable[[int | RetriableError], None]
"""Callback that gets how many records were settled, once that is replicated and applied; or why it is not
known."""


class Tally:
    """Joins the answers of many parts into one: the sum of all, or the first error."""

    def __init__(self, parts: int, then: Settled) -> None:
        self._left = parts
        self._then = then
        self._count = 0
        self._error: RetriableError | None = None
        if not parts:
            then(0)

    def add(self, settled: int | RetriableError) -> None:
        """Take the answer of one part."""
        self._left -= 1
        if isinstance(settled, RetriableError):
            self._error = self._error or settled
        else:
            self._count += settled
        if self._left == 0:
            self._then(self._error or self._count)


def not_led(worker: str, group: GroupKey) -> RetriableError:
    """Return the error for a group that this worker does not lead."""
    return RetriableError(f"worker {worker} does not lead group {group}; ask again")


def led_no_more(worker: str, group: GroupKey) -> RetriableError:
    """Return the error for a group that was led when it was asked; what came of it, the next leader can
    tell."""
    return RetriableError(
        f"worker {worker} has ceased to lead group {group} meanwhile, and some records may be settled; "
        "look at what is parked, and ask again"
    )
