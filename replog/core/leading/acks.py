"""Appends that wait for their acknowledgement.

An append is acknowledged when it is *decided*: all of the maximal ISR holds it, and nothing takes it back. To
be applied takes another sync of the disk, which its producer need not wait for: whoever reads from then on
does (:mod:`stretto.replog.core.leading.serving`), so what is acknowledged is never missed. What a worker
appends for itself goes on from what is applied, and waits for that.

Producers must not run ahead of the state, or readers would wait behind all that they append, and memory would
be filled with it. So when more than a little is not applied (:class:`Backlog`), they wait for that, too.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from stretto.replog.core.events import Append
from stretto.vocabulary.types import Millis, Offset


class Acks:
    """Appends of one leader that wait to be acknowledged."""

    def __init__(self) -> None:
        self._decided = _Line()
        self._applied = _Line()
        #: A heap, since the time-out may be changed while appends wait.
        self._timeouts: list[tuple[Millis, Offset, int]] = []

    @property
    def await_applied(self) -> bool:
        """Whether any append waits to be applied, not just to be committed."""
        return bool(self._applied)

    def wait(self, event: Append, end: Offset, offset: Offset | None, deadline: Millis) -> None:
        """Let an append wait for the entries below ``end``; its acknowledgement will carry ``offset``."""
        line = self._applied if event.until_applied else self._decided
        line.add(end, event.request, offset)
        heapq.heappush(self._timeouts, (deadline, end, event.request))

    def decided(self, end: Offset) -> Iterator[tuple[int, Offset | None]]:
        """Yield the requests to acknowledge, with their offsets, once entries below ``end`` are committed."""
        return self._decided.reached(end)

    def applied(self, end: Offset) -> Iterator[tuple[int, Offset | None]]:
        """Yield the requests to acknowledge, with their offsets, once entries below ``end`` are applied."""
        while self._timeouts and self._timeouts[0][1] <= end:
            heapq.heappop(self._timeouts)
        return self._applied.reached(end)

    def timed_out(self, now: Millis) -> Iterator[int]:
        """Yield the requests that have waited too long; their outcome is unknown."""
        while self._timeouts and self._timeouts[0][0] <= now:
            _, end, request = heapq.heappop(self._timeouts)
            if self._decided.leave(end, request) or self._applied.leave(end, request):
                yield request

    def next_timeout(self) -> Millis | None:
        return self._timeouts[0][0] if self._timeouts else None

    def end(self) -> Iterator[int]:
        """Yield all requests that still wait."""
        for line in (self._decided, self._applied):
            for request, _ in line.reached(None):
                yield request


class Backlog:
    """Entries that a leader has appended and not applied, and their size."""

    def __init__(self) -> None:
        self._entries: deque[tuple[Offset, int]] = deque()
        self.bytes = 0

    def appended(self, end: Offset, size: int) -> None:
        self._entries.append((end, size))
        self.bytes += size

    def applied(self, end: Offset) -> None:
        while self._entries and self._entries[0][0] <= end:
            self.bytes -= self._entries.popleft()[1]


class _Line:
    """Requests that wait for an offset to reach the end of their entries."""

    def __init__(self) -> None:
        self._requests: dict[Offset, dict[int, Offset | None]] = {}
        #: A heap, since a duplicate may wait for an earlier entry than requests that came before it.
        self._ends: list[Offset] = []

    def __bool__(self) -> bool:
        return bool(self._ends)

    def add(self, end: Offset, request: int, offset: Offset | None) -> None:
        waiting = self._requests.get(end)
        if waiting is None:
            self._requests[end] = {request: offset}
            heapq.heappush(self._ends, end)
        else:
            waiting[request] = offset

    def leave(self, end: Offset, request: int) -> bool:
        waiting = self._requests.get(end)
        if waiting is None or request not in waiting:
            return False
        del waiting[request]
        return True

    def reached(self, end: Offset | None) -> Iterator[tuple[int, Offset | None]]:
        """Yield the requests that wait for an offset up to ``end``; None means all."""
        ends = self._ends
        while ends and (end is None or ends[0] <= end):
            yield from self._requests.pop(heapq.heappop(ends)).items()
