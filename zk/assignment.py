"""A module's assignment as its workers follow it: read once and again after every change.

Like a group's record (:mod:`stretto.zk.following`): a watch is answered by one read, which sets the next, and
what fires while a read is under way costs one more. What cannot be read changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from stretto.zk.following import Asker
from stretto.zk.outcomes import LOST_ANSWER
from stretto.zk.records import Assignment, ZnodeDamaged, decode

log = structlog.get_logger()


class FollowedAssignment:
    """Under the asker's lock, as all that follows."""

    def __init__(self, asker: Asker, module: str, told: Callable[[Assignment], None]) -> None:
        self._asker = asker
        self._path = asker.paths.assignment(module)
        self._tell = told
        self._watch = asker.watch(lambda _: self._read())
        self._number = 0
        self._is_reading = False
        self._changed_meanwhile = False

    def restart(self) -> None:
        """There is a connection (again): what was asked and watched before is void."""
        self._is_reading = False
        self._read()

    def _read(self) -> None:
        if self._is_reading:
            self._changed_meanwhile = True
            return
        self._is_reading = True
        self._changed_meanwhile = False
        self._number += 1
        number = self._number

        def send(client: KazooClient) -> Any:
            return client.get_async(self._path, watch=self._watch)

        self._asker.ask(send, lambda value, error: self._was_read(number, value, error))

    def _was_read(self, number: int, value: Any, error: Exception | None) -> None:
        if number != self._number:
            return
        self._is_reading = False
        if error is None:
            try:
                self._tell(decode(value[0], Assignment, self._path))
            except ZnodeDamaged as damage:
                log.error("znode_damaged", path=damage.path, problem=damage.problem)
            if self._changed_meanwhile:
                self._read()
        elif not isinstance(error, (*LOST_ANSWER, NoNodeError)):
            log.error("assignment_not_read", path=self._path, error=repr(error))
            self._asker.again_later(self._read)
