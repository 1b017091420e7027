"""What a topology keeps on a task beside PStates: rows that change in the same entries as these do.

    $progress   topology, depot          ->  the offset below which all records are processed
    $retries    topology, depot, offset  ->  how often the record failed; it is tried again
    $failures   topology, depot, offset  ->  a record that is not: when, how often, and why

Keys are paths of :mod:`stretto.ordered` keys, values MessagePack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from stretto import admin
from stretto.ordered import EVERYTHING, decode_at, encode, subtree
from stretto.pstate.changes import Changes, Packed, pack_part
from stretto.records import DepotOffset, RecordBatch
from stretto.types import TaskId
from stretto.worker.topology.work import Entry, RecordKey, Stored

if TYPE_CHECKING:
    from stretto.worker.state import AppliedState

PROGRESS = "$progress"
RETRIES = "$retries"
FAILURES = "$failures"

BEGINNING_BYTES = 1_000
ERROR_CHARACTERS_MAX = 1_000
TRACEBACK_CHARACTERS_MAX = 8_000

_encode = msgspec.msgpack.Encoder().encode
_number = msgspec.msgpack.Decoder(int).decode


class FailureRow(msgspec.Struct, frozen=True, array_like=True):
    at_ms: int
    attempts: int
    error: str
    traceback: str
    beginning: bytes
    """Of the record."""


_failure = msgspec.msgpack.Decoder(FailureRow).decode


def key_of(topology: str, *path: str | int) -> bytes:
    return b"".join((encode(topology), *map(encode, path)))


def packed(topology: str, entry: Entry, now_ms: int) -> Packed:
    """The rows of an entry, to be joined with the changes of PStates."""
    changes: dict[str, Changes] = {}
    if entry.progress:
        puts = [(key_of(topology, depot), _encode(offset)) for depot, offset in entry.progress.items()]
        changes[PROGRESS] = _changes((), puts)
    if entry.retries:
        gone = [key_of(topology, *key) for key, failures in entry.retries.items() if failures is None]
        puts = [
            (key_of(topology, *key), _encode(failures))
            for key, failures in entry.retries.items()
            if failures is not None
        ]
        changes[RETRIES] = _changes(gone, puts)
    if entry.parked or entry.unparked:
        puts = []
        for parked in entry.parked:
            note = parked.note
            row = FailureRow(
                now_ms,
                parked.attempts,
                note.error[:ERROR_CHARACTERS_MAX],
                note.traceback[-TRACEBACK_CHARACTERS_MAX:],
                note.beginning,
            )
            puts.append((key_of(topology, *parked.key), _encode(row)))
        changes[FAILURES] = _changes([key_of(topology, *key) for key in entry.unparked], puts)
    return pack_part(changes)


def _changes(deletes: Iterable[bytes], puts: Sequence[tuple[bytes, bytes]]) -> Changes:
    return Changes(deletes=tuple(sorted(deletes)), puts=tuple(sorted(puts)))


def read(state: AppliedState, task: TaskId, topology: str) -> Stored:
    """What is applied; off the loop."""
    progress: dict[str, int] = {}
    for path, value in _rows(state, task, PROGRESS, topology):
        progress[str(path[0])] = _number(value)
    retries = {_record(path): _number(value) for path, value in _rows(state, task, RETRIES, topology)}
    parked = tuple(_record(path) for path, _ in _rows(state, task, FAILURES, topology))
    return Stored(progress=progress, retries=retries, parked=parked)


def count_parked(state: AppliedState, task: TaskId, topology: str) -> int:
    """Off the loop."""
    with state.reading_pstate(task, FAILURES) as rows:
        return sum(1 for _ in rows.keys(*subtree(key_of(topology))))


def failures(
    state: AppliedState, task: TaskId, limit: int, after: admin.FailureKey | None = None
) -> list[admin.FailureView]:
    """Of all topologies, by topology, those behind ``after``; off the loop."""
    found: list[admin.FailureView] = []
    start, end = EVERYTHING
    if after is not None:
        # The least key that is greater.
        start = key_of(after.topology, after.depot, after.offset) + b"\0"
    with state.reading_pstate(task, FAILURES) as rows:
        for key, value in islice(rows.scan(start, end), limit):
            topology, *path = _decoded(key)
            depot, offset = _record(path)
            row = _failure(value)
            found.append(
                admin.FailureView(
                    topology=str(topology),
                    depot=depot,
                    task=task,
                    offset=offset,
                    at_ms=row.at_ms,
                    attempts=row.attempts,
                    error=row.error,
                    traceback=row.traceback,
                    record=(row.beginning or _beginning(state, task, depot, offset)).decode(errors="replace"),
                )
            )
    return found


def failures_page(
    state: AppliedState, tasks: Iterable[TaskId], limit: int, after: admin.FailureKey | None
) -> tuple[tuple[admin.FailureView, ...], bool]:
    """Of these tasks, by task, so many behind ``after``, and whether there are more; off the loop."""
    found: list[admin.FailureView] = []
    for task in sorted(tasks):
        if after is None or task >= after.task:
            behind = after if after is not None and task == after.task else None
            found += failures(state, task, limit + 1 - len(found), behind)
        if len(found) > limit:
            return tuple(found[:limit]), True
    return tuple(found), False


def _beginning(state: AppliedState, task: TaskId, depot: str, offset: int) -> bytes:
    """Of a record that no executor could tell of: it hung there, or failed elsewhere."""
    at = DepotOffset(offset)
    for stored in state.read_depot(task, depot, at, max_bytes=1, max_records=1).batches:
        batch = RecordBatch.parse(stored.payload)
        if stored.base <= offset < stored.base + batch.count:
            index = offset - stored.base
            return bytes(batch.slice(index, index + 1).data[:BEGINNING_BYTES])
    return b""


def _rows(
    state: AppliedState, task: TaskId, pstate: str, topology: str
) -> list[tuple[list[str | int], bytes]]:
    with state.reading_pstate(task, pstate) as rows:
        return [(_decoded(key)[1:], value) for key, value in rows.scan(*subtree(key_of(topology)))]


def _decoded(key: bytes) -> list[str | int]:
    path: list[str | int] = []
    at = 0
    while at < len(key):
        each, at = decode_at(key, at)
        path.append(each)
    return path


def _record(path: Sequence[str | int]) -> RecordKey:
    return str(path[0]), int(path[1])
