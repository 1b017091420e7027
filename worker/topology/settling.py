"""How many parked records were settled, as those tell that keep them: tried again, or forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from stretto.errors import RetriableError
from stretto.vocabulary.groups import GroupKey

Settled: TypeAlias = Callable[[int | RetriableError], None]
"""How many there were, once that is replicated and applied; or why it is not known."""


class Tally:
    """One answer for many parts: the sum of all, or the first error."""

    def __init__(self, parts: int, then: Settled) -> None:
        self._left = parts
        self._then = then
        self._count = 0
        self._error: RetriableError | None = None
        if not parts:
            then(0)

    def add(self, settled: int | RetriableError) -> None:
        self._left -= 1
        if isinstance(settled, RetriableError):
            self._error = self._error or settled
        else:
            self._count += settled
        if self._left == 0:
            self._then(self._error or self._count)


def not_led(worker: str, group: GroupKey) -> RetriableError:
    return RetriableError(f"worker {worker} does not lead group {group}; ask again")


def led_no_more(worker: str, group: GroupKey) -> RetriableError:
    """It was asked in time; what came of it, the next leader can tell."""
    return RetriableError(
        f"worker {worker} has ceased to lead group {group} meanwhile, and some records may be settled; "
        "look at what is parked, and ask again"
    )
