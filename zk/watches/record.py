"""Records that a worker has to follow, such as the spec of its module and its assignment.

What decides whether a worker may lead is known before it registers: a session begins with a reading behind a
write through the ensemble, so that nobody leads by what was replaced while its worker was away. Then each
change is one more reading (:mod:`stretto.zk.watches.znode`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from stretto.specs.assignments import Assignment
from stretto.zk.sessions.session import Done, Send
from stretto.zk.watches.group import Asker
from stretto.zk.watches.options import OptionsAsker
from stretto.zk.watches.znode import WatchedZnode
from stretto.zk.znodes.records import Record, decode


class WatchedRecord(Generic[Record]):
    """A record that a worker follows, under the asker's lock.

    What cannot be read leaves what was known, and begins no session.
    """

    def __init__(
        self, asker: OptionsAsker, path: str, kind: type[Record], told: Callable[[Record | None], None]
    ) -> None:
        """``told`` is called with None if there is no such znode."""
        self._asker = asker
        self._tell = told
        #: Whether the record was reported in this session.
        self.is_told = False
        self._known: Record | None = None
        self._znode = WatchedZnode(
            asker,
            path,
            ask=self._ask,
            found=lambda value: self._found(decode(value[0], kind, path)),
            missing=lambda: self._found(None),
            awaits_creation=True,
        )

    def restart(self, *, new_session: bool) -> None:
        """Read and watch again on a new connection: what was asked and watched before is void."""
        if new_session:
            self.is_told = False
        self._znode.restart()

    def _ask(self, send: Send, done: Done) -> None:
        ask = self._asker.ask_early if self.is_told else self._asker.ask_early_synced
        ask(send, done)

    def _found(self, found: Record | None) -> None:
        if not self.is_told or found != self._known:
            self.is_told = True
            self._known = found
            self._tell(found)


def follow_assignment(asker: Asker, module: str, told: Callable[[Assignment], None]) -> WatchedZnode:
    """Follow a module's assignment; what cannot be read changes nothing.

    It begins with :meth:`~stretto.zk.watches.znode.WatchedZnode.restart`.
    """
    path = asker.paths.assignment(module)
    newest = -1

    def found(value: Any) -> None:
        nonlocal newest
        # Another server may know less than the one that was asked before.
        if value[1].version >= newest:
            newest = value[1].version
            told(decode(value[0], Assignment, path))

    return WatchedZnode(asker, path, ask=asker.ask, found=found)
