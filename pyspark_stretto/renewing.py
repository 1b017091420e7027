"""The pins of a plan last as long as any part of it is read.

Spark reads the parts of a plan as it has cores for them, and takes its time with what it was given: a pin may
have to wait for its turn, or for the next page to be asked for, for longer than it lasts. So whoever reads a
part renews the pins of all, on a thread of its own, a few times within the time that they last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stretto.client.reading.scan import PinnedGroup, Scanner
from stretto.errors import StrettoError
from stretto.network.keys import ClusterKey

TIMES = 4
"""How often a pin is renewed within the time that it would last."""
ANSWER_SECONDS = 5.0

#: The plan that this process renewed last, and when: most of its tasks are of one plan, and short.
_latest: tuple[Pins, float] | None = None


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins of one plan, grouped by process. It is sent with each part, so it is small."""

    through: tuple[tuple[PinnedGroup, tuple[str, ...]], ...] = ()
    """One pin of each process that keeps some, and the names of all it keeps."""

    @classmethod
    def of(cls, pinned: Iterable[PinnedGroup]) -> Pins:
        """Group pins by the process that keeps them."""
        by_address: dict[str, list[PinnedGroup]] = {}
        for each in pinned:
            by_address.setdefault(each.address, []).append(each)
        return cls(tuple((kept[0], tuple(each.pin for each in kept)) for kept in by_address.values()))

    @property
    def every_seconds(self) -> float | None:
        """Seconds between two renewals; None if the pins need not be renewed."""
        idle_ms = min((first.idle_ms for first, _ in self.through), default=0)
        return idle_ms / 1_000 / TIMES if idle_ms else None

    def renew(self, key: ClusterKey | None) -> bool:
        """Renew all pins, and return whether all still exist; a missing one fails only when it is read."""
        are_there = True
        for first, names in self.through:
            try:
                with Scanner(first, key, timeout=ANSWER_SECONDS) as scanner:
                    are_there = not scanner.renew(names) and are_there
            except StrettoError:
                are_there = False
        return are_there


@contextmanager
def renewed(pins: Pins, key: ClusterKey | None) -> Iterator[None]:
    """Renew the pins from a thread as long as the block lasts."""
    every = pins.every_seconds
    if every is None:
        yield
        return
    is_over = threading.Event()
    # It must not keep the process from ending.
    thread = threading.Thread(target=_renew, args=(pins, key, every, is_over), name="renewing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


def _renew(pins: Pins, key: ClusterKey | None, every: float, is_over: threading.Event) -> None:
    global _latest  # noqa: PLW0603 - one for the process
    wait = 0.0
    if _latest is not None and _latest[0] == pins:
        wait = _latest[1] + every - time.monotonic()
    while not is_over.wait(max(0.0, wait)):
        _latest = (pins, time.monotonic())
        pins.renew(key)
        wait = every
