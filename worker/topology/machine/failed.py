"""Records of a stream that failed: which of them are tried again, and when, and which are parked.

Only what an entry in the log says of them counts.
"""

from __future__ import annotations

import heapq
from collections import deque

from stretto.vocabulary.backoff import Backoff
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.topology.machine.effects import Entry, Parked
from stretto.worker.topology.machine.stored import RecordKey, Stored

BACKOFF = Backoff(first_ms=200, most_ms=30_000)
TRIMMED = "the record was trimmed before it could be tried again; append it anew, and forget this"


class Failed:
    """The records of a stream that failed."""

    def __init__(self, stored: Stored) -> None:
        #: How often each record failed that is tried again.
        self.retries = dict(stored.retries)
        #: When they are tried again, soonest first: a heap. One that runs is not in it.
        self._due: list[tuple[int, RecordKey]] = [(0, key) for key in sorted(self.retries)]
        self.parked = deque(stored.parked)

    @property
    def next_due(self) -> int | None:
        """When the next record is tried again, or None."""
        return self._due[0][0] if self._due else None

    def take_due(self, now: int) -> RecordKey | None:
        """Take a record that is to be tried again by now, or None."""
        while self._due and self._due[0][0] <= now:
            _, key = heapq.heappop(self._due)
            if key in self.retries:
                return key
        return None

    def put_back(self, key: RecordKey, now: int) -> None:
        """Put back a record that was taken and has not been run."""
        heapq.heappush(self._due, (now, key))

    def park(self, entry: Entry, parked: Parked, parked_max: int) -> None:
        """Park a record with the next entry, which leaves out the oldest ones if there are too many."""
        entry.parked.append(parked)
        anew = {each.key for each in entry.parked}
        others = [key for key in self.parked if key not in anew]
        oldest = others[: max(0, len(others) + len(anew) - parked_max)]
        entry.unparked += [each for each in oldest if each not in entry.unparked]
        if parked.key in self.retries:
            entry.retries[parked.key] = None

    def retry(self, entry: Entry, key: RecordKey, failures: int) -> None:
        """Let a record be tried again. It may be parked: the leader before went further than the progress
        that it left."""
        entry.retries[key] = failures
        if key in self.parked and key not in entry.unparked:
            entry.unparked.append(key)

    def park_trimmed(self, entry: Entry, key: RecordKey, failures: int, parked_max: int) -> None:
        """Park a record that its depot does not have any more."""
        self.park(entry, Parked(key, failures, FailureNote(0, TRIMMED)), parked_max)

    def accepted(self, entry: Entry, now: int) -> None:
        """Take over what an entry says of failed records: it is in the log."""
        for key, failures in entry.retries.items():
            self.retries.pop(key, None)
            if failures is not None:
                self.retries[key] = failures
                heapq.heappush(self._due, (now + backoff_ms(failures) if failures else now, key))
        for key in [*entry.unparked, *(each.key for each in entry.parked)]:
            if key in self.parked:
                self.parked.remove(key)
        self.parked.extend(each.key for each in entry.parked)


def backoff_ms(attempts: int) -> int:
    """Return the back-off before a record that failed so often is tried again."""
    return BACKOFF.after(max(0, attempts - 1))
