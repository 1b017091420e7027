"""How a replica's log gets shorter, at either end, while the loop goes on.

The files are changed on a thread for the disk. A truncation waits until the committer is quiet, and the
committer for the truncation. A cut stays away from what is written; it only keeps away from truncations,
installs and the closing of the log, which all wait for a log that is quiet.

What was not changed is told by ``failed``: the replica must stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from stretto.errors import StorageCorrupt, StorageError

if TYPE_CHECKING:
    from stretto.replog.commit import GroupCommit
    from stretto.replog.log import Replog
    from stretto.vocabulary.types import Offset
    from stretto.worker.replica.disk import DiskThreads


OnFailure: TypeAlias = Callable[[StorageError | StorageCorrupt], None]


class Shortening:
    """Truncates and cuts the log of one replica, off the loop. The loop owns it, like the log."""

    def __init__(self, commit: GroupCommit, disk: DiskThreads) -> None:
        self._commit = commit
        self._disk = disk
        self._is_cutting = False

    def cut(
        self, replog: Replog, start: Offset, then: Callable[[Offset], None], on_failure: OnFailure
    ) -> None:
        """Remove the log's oldest entries, up to about ``start``; ``then`` gets the log's new start. A cut
        that is asked for during another one does nothing: it will be asked for again."""
        first = None if self._is_cutting else replog.cut_point(start)
        if first is None:
            return
        self._is_cutting = True
        release = self._commit.hold(replog, writes=True)

        def removed(error: Exception | None) -> None:
            self._is_cutting = False
            if error is None:
                replog.removed_below(first)
            release()
            _end(error, lambda: then(first), on_failure)

        self._disk.run(lambda: replog.remove_below(first), removed)

    def truncate(self, replog: Replog, end: Offset, then: Callable[[], None], on_failure: OnFailure) -> None:
        """Remove the log's entries from ``end`` on. To be called when the log is quiet; it stays so until
        this is done."""
        release = self._commit.hold(replog, writes=False)

        def shortened(error: Exception | None) -> None:
            if error is None:
                replog.shortened(end)
            release()
            _end(error, then, on_failure)

        self._disk.run(lambda: replog.shorten(end), shortened)


def _end(error: Exception | None, then: Callable[[], None], on_failure: OnFailure) -> None:
    if error is None:
        then()
    elif isinstance(error, StorageError | StorageCorrupt):
        on_failure(error)
    else:
        raise error
