"""One record that a worker goes by, such as the spec of its module: known before it registers, then followed.

A session begins with a reading behind a write through the ensemble, so that nobody leads by what was replaced
while its worker was away. Then each change is one more reading, however many come at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from stretto.zk.options import OptionsAsker
from stretto.zk.outcomes import LOST_ANSWER
from stretto.zk.records import Record, ZnodeDamaged, decode

log = structlog.get_logger()


class FollowedRecord(Generic[Record]):
    """Under the asker's lock. What cannot be read leaves what was known, and begins no session."""

    def __init__(
        self, asker: OptionsAsker, path: str, kind: type[Record], told: Callable[[Record | None], None]
    ) -> None:
        """``told`` is called with None if there is no such znode."""
        self._asker = asker
        self._path = path
        self._kind = kind
        self._tell = told
        #: In this session.
        self.is_told = False
        self._known: Record | None = None
        #: Answers to reads with another number are void.
        self._number = 0
        self._is_reading = False
        self._changed_meanwhile = False
        self._problem = ""
        self._watch = asker.watch(lambda _: self._read())

    def restart(self, *, new_session: bool) -> None:
        """There is a connection (again): what was asked and watched before is void."""
        if new_session:
            self.is_told = False
        self._is_reading = False
        self._read()

    def _read(self) -> None:
        if self._is_reading:
            self._changed_meanwhile = True
            return
        ask = self._asker.ask_early if self.is_told else self._asker.ask_early_synced
        self._ask(ask, lambda client: client.get_async(self._path, watch=self._watch), self._was_read)

    def _ask(self, ask: Any, send: Callable[[KazooClient], Any], then: Callable[[Any], None]) -> None:
        self._is_reading = True
        self._changed_meanwhile = False
        self._number += 1
        number = self._number

        def answered(value: Any, error: Exception | None) -> None:
            if number != self._number:
                return
            self._is_reading = False
            if error is None:
                then(value)
            elif isinstance(error, NoNodeError):
                # A read of what is not there leaves no watch; a test does.
                self._ask(
                    self._asker.ask_early,
                    lambda client: client.exists_async(self._path, watch=self._watch),
                    self._was_tested,
                )
            elif not isinstance(error, LOST_ANSWER):
                self._complain(repr(error))

        ask(send, answered)

    def _was_read(self, value: Any) -> None:
        try:
            found = decode(value[0], self._kind, self._path)
        except ZnodeDamaged as damage:
            self._complain(str(damage))
        else:
            self._found(found)

    def _was_tested(self, stat: Any) -> None:
        if stat is None:
            self._found(None)
        else:
            self._read()

    def _found(self, found: Record | None) -> None:
        self._problem = ""
        if not self.is_told or found != self._known:
            self.is_told = True
            self._known = found
            self._tell(found)
        if self._changed_meanwhile:
            self._read()

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.error("record_not_read", path=self._path, problem=problem)
        self._asker.again_later(self._read)
