"""The one clock of leases, deadlines and time-outs."""

from __future__ import annotations

import time

from stretto.vocabulary.types import Millis


def boot_time_ms() -> Millis:
    """Milliseconds since the machine was started, rounded down.

    They count while the machine sleeps, unlike the monotonic clock: a lease must not outlive a suspension.
    """
    return Millis(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)
