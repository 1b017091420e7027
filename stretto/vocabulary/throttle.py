"""How fast state is sent: one allowance for all transfers of a worker, which is its part of its node's."""

from __future__ import annotations

BURST_SECONDS = 0.25


class Throttle:
    """An allowance of bytes, which grows with time; what is sent is taken off, and may exceed it once."""

    def __init__(self, bytes_per_second: int, now_ms: int) -> None:
        self._rate = bytes_per_second
        self._allowance = 0.0
        self._at_ms = now_ms

    def change(self, bytes_per_second: int, now_ms: int) -> None:
        """Let the allowance grow by another rate from now on; 0 is without a limit."""
        self._refill(now_ms)
        self._rate = bytes_per_second

    def ready_at(self, now_ms: int) -> int:
        """When the next message may be sent: now, or later."""
        if self._rate == 0:
            return now_ms
        self._refill(now_ms)
        if self._allowance >= 0:
            return now_ms
        return now_ms + max(1, int(-self._allowance * 1000 / self._rate) + 1)

    def take(self, size_bytes: int) -> None:
        """Take what is sent off the allowance."""
        if self._rate:
            self._allowance -= size_bytes

    def _refill(self, now_ms: int) -> None:
        gathered = self._allowance + self._rate * (now_ms - self._at_ms) / 1000
        self._allowance = min(gathered, self._rate * BURST_SECONDS)
        self._at_ms = now_ms
