"""A task's state as of one transaction: digested, copied and looked at while others write."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.state import depot as depots
from stretto.state import pstate as pstates
from stretto.state.environment import Environment
from stretto.state.task_meta import U64, encode_producer, producers_in
from stretto.vocabulary.types import TaskId

if TYPE_CHECKING:
    from stretto.state.environment import Database, ReadTransaction

_2U64 = struct.Struct(">2Q")
_3U64 = struct.Struct(">3Q")
_HASHED_PARTS = 2_048
_HASHED_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task's file as of one transaction. For one thread at a time."""

    environment: Environment
    txn: ReadTransaction
    task: TaskId
    meta: Database
    depots: Sequence[tuple[str, Database]]
    pstates: Sequence[tuple[str, Database]]

    def digest(self) -> str:
        return digest_of(self.txn, self.task, self.meta, self.depots, self.pstates)

    def copy(self, fd: int) -> None:
        """Write a compact copy, without what lies unused; waits for the reader of ``fd``."""
        self.environment.copy_held(self.txn, fd)

    def row(self, pstate: str, key: bytes) -> bytes | None:
        """The value of a row of a PState, or None."""
        database = next((found for name, found in self.pstates if name == pstate), None)
        found = None if database is None else self.txn.get(key, db=database)
        return None if found is None else bytes(found)


def digest_of(
    txn: ReadTransaction,
    task: TaskId,
    meta: Database,
    handles: Sequence[tuple[str, Database]],
    databases: Sequence[tuple[str, Database]],
) -> str:
    """Digest of depots and PStates by name, ascending, and of the producers."""
    digest = hashlib.blake2b(digest_size=16)
    #: Parts that are hashed many at a time, which lets other threads run meanwhile.
    parts: list[bytes | memoryview] = []

    def add(*more: bytes | memoryview) -> None:
        parts.extend(more)
        if len(parts) >= _HASHED_PARTS or len(more[-1]) >= _HASHED_BYTES:
            digest.update(b"".join(parts))
            parts.clear()

    # Those that are empty count as none: a file that was opened anew has them no more.
    for name, database in handles:
        if txn.stat(database)["entries"] == 0:
            continue
        add(U64.pack(len(name.encode())), name.encode())
        for base, timestamp_ms, batch in depots.batches(txn, database):
            add(_3U64.pack(base, timestamp_ms, len(batch)), batch)
    for name, database in databases:
        if txn.stat(database)["entries"] == 0:
            continue
        title = (pstates.PREFIX + name).encode()
        add(U64.pack(len(title)), title)
        for key, value in pstates.rows(txn, database):
            add(U64.pack(len(key)), key, U64.pack(len(value)), value)
    for producer, rows in producers_in(txn, meta, task):
        row = encode_producer(rows.get(task))
        add(_2U64.pack(producer, len(row)), row)
    digest.update(b"".join(parts))
    return digest.hexdigest()
