"""Calls that wait for a thread, in a queue for each connection: these take turns, and each is bounded.

A client that makes thousands of calls waits behind its own, not everybody else behind them; what exceeds a
bound is refused at once. One connection never has all threads, however slow its calls are. The calls of a
connection that is gone are forgotten: nobody would hear what came of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from stretto import control
from stretto.network.endpoint import Connection

WAITING_MAX = 64
"""Calls of one connection that may wait at a time."""
WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Bytes that the bodies of one connection's waiting calls may have together."""
ALL_WAITING_MAX = 2_000
"""Calls of all connections that may wait at a time."""
ALL_WAITING_BYTES_MAX = 128 * 1024 * 1024
"""Bytes that the bodies of all waiting calls may have together."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that waits for a thread, and the connection that its answer goes to."""

    sender: Connection
    request: int
    call: control.AnyCall
    bodies: list[memoryview]

    @property
    def size(self) -> int:
        """Bytes of the call's bodies."""
        return sum(map(len, self.bodies))


class CallQueue:
    """A queue of calls for each connection, all owned by one thread.

    A call that was taken is reported with :meth:`done` when it is carried out.
    """

    def __init__(self, threads: int) -> None:
        """``threads`` is how many calls may be under way at a time."""
        self._threads = threads
        #: Waiting calls by connection; the connection whose turn it is comes first. No queue is empty.
        self._waiting: dict[Connection, deque[WaitingCall]] = {}
        self._bytes: dict[Connection, int] = {}
        self._count = 0
        self._all_bytes = 0
        #: Calls under way, by connection.
        self._running: dict[Connection, int] = {}

    def __len__(self) -> int:
        """Number of calls that wait."""
        return self._count

    def put(self, call: WaitingCall) -> str | None:
        """Let a call wait for a thread; returns why it is refused, or None if it is not."""
        waiting = self._waiting.get(call.sender, ())
        size = call.size
        mine = self._bytes.get(call.sender, 0)
        if len(waiting) >= WAITING_MAX or (waiting and mine + size > WAITING_BYTES_MAX):
            return f"{len(waiting)} calls of this client wait already"
        if self._count >= ALL_WAITING_MAX or (self._count and self._all_bytes + size > ALL_WAITING_BYTES_MAX):
            return f"{self._count} calls wait already"
        self._waiting.setdefault(call.sender, deque()).append(call)
        self._bytes[call.sender] = mine + size
        self._all_bytes += size
        self._count += 1
        return None

    def take(self) -> WaitingCall | None:
        """Take the next call, if a thread is free for it."""
        running = sum(self._running.values())
        if running >= self._threads:
            return None
        share = max(1, self._threads - 1)
        for sender, waiting in self._waiting.items():
            if self._running.get(sender, 0) < share:
                call = waiting.popleft()
                del self._waiting[sender]
                if waiting:
                    # Behind all others.
                    self._waiting[sender] = waiting
                self._left(call)
                self._running[sender] = self._running.get(sender, 0) + 1
                return call
        return None

    def done(self, sender: Connection) -> None:
        """Note that a call that was taken has been carried out."""
        self._running[sender] -= 1
        if not self._running[sender]:
            del self._running[sender]

    def forget(self, sender: Connection) -> None:
        """Drop the waiting calls of a connection that is gone; calls under way go on."""
        waiting = self._waiting.pop(sender, ())
        self._count -= len(waiting)
        self._all_bytes -= self._bytes.pop(sender, 0)

    def _left(self, call: WaitingCall) -> None:
        self._count -= 1
        self._all_bytes -= call.size
        self._bytes[call.sender] -= call.size
        if call.sender not in self._waiting:
            del self._bytes[call.sender]
