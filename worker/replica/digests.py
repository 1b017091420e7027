"""What replicas hold at markers of their logs, to be compared with one another.

A marker is an entry that changes nothing. When it is applied, the applying thread opens a snapshot of every
task and goes on; the digests are computed on a thread of their own, and kept until newer ones push them out.
Replicas stop at the same entry, so their digests must be equal.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import structlog

from stretto import control
from stretto.errors import StorageError
from stretto.replog.frame import payload

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.replog.frame import Frame
    from stretto.vocabulary.groups import GroupKey
    from stretto.worker.replica.group import Group

log = structlog.get_logger()

KEPT = 1_000
FRESH_MS = 10 * 60_000
"""How old a marker may be and still be digested. A replica that meets an older one is catching up, and nobody
waits for its digests any more."""


class Digests:
    """Digests of the states of this worker's replicas at markers. Safe from any thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[GroupKey, str], control.DigestView] = OrderedDict()
        self._pool = ThreadPoolExecutor(1, "digest")
        self._is_closing = False

    def marked(self, group: Group, frame: Frame) -> None:
        """Open the state at a marker and digest it later. Called by the applying thread when the marker was
        the last entry that was applied."""
        if time.time_ns() // 1_000_000 - frame.header.timestamp_ms > FRESH_MS:
            return
        marker = bytes(payload(frame)).decode("ascii", "replace")
        snapshot = ExitStack()
        try:
            digests = group.state.begin_digests(snapshot)
        except StorageError:
            snapshot.close()
            raise

        def compute() -> None:
            with snapshot:
                if self._is_closing:
                    return
                found = {task: digest() for task, digest in digests.items()}
            self._keep(group.key, marker, control.DigestView(offset=frame.end_offset, digests=found))

        def then(error: Exception | None) -> None:
            if error is not None:
                log.error("digests_not_computed", group=str(group.key), why=str(error))

        self._pool.submit(self._loop.hand_back, compute, then)

    def _keep(self, group: GroupKey, marker: str, view: control.DigestView) -> None:
        log.info("digests_computed", group=str(group), marker=marker, offset=view.offset)
        with self._lock:
            self._found[group, marker] = view
            while len(self._found) > KEPT:
                self._found.popitem(last=False)

    def found(self, group: GroupKey, marker: str) -> control.DigestView | None:
        """Return the digests of a group at a marker, or None if there are none."""
        with self._lock:
            return self._found.get((group, marker))

    def close(self) -> None:
        """Stop, after what is being computed; what waits is given up."""
        self._is_closing = True
        self._pool.shutdown()
