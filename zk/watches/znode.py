"""A znode that is read again after every change of it.

A watch only says *something changed*: it is answered by one read, which sets the next watch, and what fires
while a read is under way costs one more, however much it is. Nothing is asked again on a lost connection:
:meth:`WatchedZnode.restart` is called when there is one again, and answers to what was asked before it are
void. What cannot be read is told once and tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import structlog
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import WatchedEvent

from stretto.zk.sessions.outcomes import LOST_ANSWER, told
from stretto.zk.sessions.session import Done, Send
from stretto.zk.znodes.records import ZnodeDamaged

log = structlog.get_logger()


class Watcher(Protocol):
    """What a watched znode needs of the owner of its session."""

    def watch(self, fired: Callable[[WatchedEvent], None]) -> Callable[[WatchedEvent], None]:
        """Make a watch function that runs ``fired`` under the lock, unless the connection is the reason."""

    def again_later(self, again: Callable[[], None]) -> None: ...


class WatchedZnode:
    """A znode that is read again after every change, under the watcher's lock."""

    def __init__(
        self,
        watcher: Watcher,
        path: str,
        *,
        ask: Callable[[Send, Done], None],
        found: Callable[[Any], None],
        missing: Callable[[], None] = lambda: None,
        lists: bool = False,
        awaits_creation: bool = False,
    ) -> None:
        """``found`` gets what kazoo returns; it may raise ZnodeDamaged.

        With ``lists`` these are the names of the children.
        """
        self._watcher = watcher
        self._path = path
        self._ask_by = ask
        self._found = found
        self._missing = missing
        self._lists = lists
        self._awaits_creation = awaits_creation
        self._is_stopped = False
        #: Number of the latest question; answers to others are void.
        self._number = 0
        self._is_asking = False
        self._changed_meanwhile = False
        #: Why the znode cannot be read; empty if it can.
        self.problem = ""
        #: One object: a second watch of the same object on the same path is no second watch.
        self._watch = watcher.watch(lambda _: self.read())

    def restart(self) -> None:
        """Read and watch again on a new connection: what was asked and watched before is void."""
        self._is_asking = False
        self.read()

    def stop(self) -> None:
        self._is_stopped = True
        self._number += 1

    def read(self) -> None:
        """Read and watch the znode; if a read is under way, once more after it."""
        if self._is_stopped:
            return
        if self._is_asking:
            self._changed_meanwhile = True
        elif self._lists:
            self._ask(lambda client: client.get_children_async(self._path, watch=self._watch), self._was_read)
        else:
            self._ask(lambda client: client.get_async(self._path, watch=self._watch), self._was_read)

    def _ask(self, send: Send, answered: Done) -> None:
        self._is_asking = True
        self._changed_meanwhile = False
        self._number += 1
        number = self._number

        def done(value: Any, error: Exception | None) -> None:
            if number == self._number:
                self._is_asking = False
                answered(value, error)

        self._ask_by(send, done)

    def _was_read(self, value: Any, error: Exception | None) -> None:
        if isinstance(error, NoNodeError) and self._awaits_creation:
            # A read of what is not there leaves no watch; a test does.
            self._ask(lambda client: client.exists_async(self._path, watch=self._watch), self._was_tested)
        elif isinstance(error, NoNodeError):
            self._missing()
        elif error is not None:
            self._failed(error)
        else:
            self._pass_on(value)

    def _was_tested(self, stat: Any, error: Exception | None) -> None:
        if error is not None and not isinstance(error, NoNodeError):
            self._failed(error)
        elif stat is not None or self._changed_meanwhile:
            self.read()
        else:
            self.problem = ""
            self._missing()

    def _pass_on(self, value: Any) -> None:
        try:
            self._found(value)
        except ZnodeDamaged as damage:
            self._complain(damage.problem)
            return
        self.problem = ""
        if self._changed_meanwhile:
            self.read()

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, LOST_ANSWER):
            self._complain(told(error, self._path))

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            log.error("znode_not_read", path=self._path, problem=problem)
        self._watcher.again_later(self.read)
