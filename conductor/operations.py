"""The log of operations: what was done to the cluster, by whom it concerns, and how it came out.

A few hundred small znodes, oldest deleted first, so that it outlives any conductor.
"""

from __future__ import annotations

import contextlib
import time

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from stretto.specs.operations import Operation
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import ZnodeDamaged, decode, encode

log = structlog.get_logger()

KEPT = 500
TRIMMED = 50
"""How many operations too many there may be before the oldest go."""


class Operations:
    """The log of operations in the metastore, written by the active conductor."""

    def __init__(self, client: KazooClient, paths: Paths) -> None:
        self._client = client
        self._folder = paths.operations
        self._written = 0

    def note(self, what: str, module: str | None = None, outcome: str = "done") -> None:
        """Write an operation to the log."""
        log.info("operation", what=what, module=module, outcome=outcome)
        operation = Operation(at_ms=time.time_ns() // 1_000_000, what=what, module=module, outcome=outcome)
        self._client.create(f"{self._folder}/op-", encode(operation), sequence=True, makepath=True)
        self._written += 1
        if self._written % TRIMMED == 1:
            self._trim()

    def _trim(self) -> None:
        for name in sorted(self._client.get_children(self._folder))[:-KEPT]:
            with contextlib.suppress(NoNodeError):
                self._client.delete(f"{self._folder}/{name}")

    def newest(self, limit: int, module: str | None, before_ms: int | None = None) -> tuple[Operation, ...]:
        """The newest operations of a module, or of all for None, in the order they were done."""
        try:
            names = sorted(self._client.get_children(self._folder), reverse=True)
        except NoNodeError:
            return ()
        found: list[Operation] = []
        for name in names:
            if len(found) == limit:
                break
            path = f"{self._folder}/{name}"
            with contextlib.suppress(NoNodeError, ZnodeDamaged):
                operation = decode(self._client.get(path)[0], Operation, path)
                is_old = before_ms is None or operation.at_ms < before_ms
                if is_old and module in (None, operation.module):
                    found.append(operation)
        return tuple(reversed(found))
