"""What a topology keeps on a task beside PStates: rows that change in the same entries as these do.

    $progress   topology, depot          ->  the offset below which all records are processed
    $retries    topology, depot, offset  ->  how often the record failed; it is tried again
    $failures   topology, depot, offset  ->  a record that is not: when, how often, and why
    $hops       topology, "latest"       ->  the number of the hop that was made last
                topology, "out", number  ->  a hop that is not known to be done: Outgoing
                topology, "in", task     ->  how far the hops of that task have run here: Incoming
                topology, "failed", task, number  ->  how calls of such a hop failed

Keys are paths of :mod:`stretto.pstate.ordered` keys, values MessagePack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from stretto import control
from stretto.pstate.changes import CHANGES_BYTES_MAX, Changes, Packed, pack_part
from stretto.pstate.ordered import EVERYTHING, decode_at, encode, subtree
from stretto.state.task_seed import HOPS
from stretto.vocabulary.records import DepotOffset, RecordBatch
from stretto.vocabulary.types import TaskId
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.topology.machine.effects import Entry
from stretto.worker.topology.machine.stored import (
    HopKey,
    Incoming,
    OfRecords,
    OfRetry,
    Outgoing,
    RecordKey,
    Stored,
)

if TYPE_CHECKING:
    from stretto.state.applied import AppliedState

PROGRESS = "$progress"
RETRIES = "$retries"
FAILURES = "$failures"
_LATEST, _OUT, _IN, _FAILED = "latest", "out", "in", "failed"

BEGINNING_BYTES = 1_000
ERROR_CHARACTERS_MAX = 1_000
TRACEBACK_CHARACTERS_MAX = 8_000
NOTES_CHARACTERS_MAX = 1_000_000
"""The size limit, in characters, of the errors of all records that one entry parks, and as much of
tracebacks: an entry holds them."""

_encode = msgspec.msgpack.Encoder().encode
_number = msgspec.msgpack.Decoder(int).decode
_outgoing = msgspec.msgpack.Decoder(Outgoing).decode
_incoming = msgspec.msgpack.Decoder(Incoming).decode
_notes = msgspec.msgpack.Decoder(tuple[FailureNote, ...]).decode


class FailureRow(msgspec.Struct, frozen=True, array_like=True):
    """A parked record, as it is stored."""

    at_ms: int
    attempts: int
    error: str
    traceback: str
    beginning: bytes
    """The first bytes of the record."""


_failure = msgspec.msgpack.Decoder(FailureRow).decode


def key_of(topology: str, *path: str | int) -> bytes:
    """Return the key of a row."""
    return b"".join((encode(topology), *map(encode, path)))


def packed(topology: str, entry: Entry, now_ms: int) -> Packed:
    """Return the rows of an entry, to be joined with the changes of PStates."""
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
        count = max(1, len(entry.parked))
        error_max = min(ERROR_CHARACTERS_MAX, NOTES_CHARACTERS_MAX // count)
        traceback_max = min(TRACEBACK_CHARACTERS_MAX, NOTES_CHARACTERS_MAX // count)
        for parked in entry.parked:
            note = parked.note
            row = FailureRow(
                now_ms,
                parked.attempts,
                note.error[:error_max],
                note.traceback[-traceback_max:],
                note.beginning[:error_max],
            )
            puts.append((key_of(topology, *parked.key), _encode(row)))
        changes[FAILURES] = _changes([key_of(topology, *key) for key in entry.unparked], puts)
    if hops := _hops(topology, entry):
        changes[HOPS] = hops
    return pack_part(changes, CHANGES_BYTES_MAX)


def _hops(topology: str, entry: Entry) -> Changes | None:
    puts = [(key_of(topology, _OUT, number), _encode(row)) for number, row in entry.made.items()]
    if entry.made:
        puts.append((key_of(topology, _LATEST), _encode(max(entry.made))))
    puts += [(key_of(topology, _IN, source), _encode(row)) for source, row in entry.run.items()]
    puts += [(key_of(topology, _FAILED, *key), _encode(notes)) for key, notes in entry.failed.items()]
    gone = [key_of(topology, _OUT, number) for number in entry.cleared]
    gone += [key_of(topology, _FAILED, *key) for key in entry.forgotten]
    return _changes(gone, puts) if gone or puts else None


def _changes(deletes: Iterable[bytes], puts: Sequence[tuple[bytes, bytes]]) -> Changes:
    return Changes(deletes=tuple(sorted(deletes)), puts=tuple(sorted(puts)))


def read(state: AppliedState, task: TaskId, topology: str, now: int) -> Stored:
    """Read what is applied of a topology on a task; off the loop. Hops are numbered from ``now`` on, a time,
    or from those that are known: beyond any that are not, which other tasks may remember. A topology of the
    same name that was deleted made such, or a leader whose log was given up."""
    retries = {_record(path): _number(value) for path, value in _rows(state, task, RETRIES, topology)}
    outbox: dict[int, Outgoing] = {}
    inbox: dict[TaskId, Incoming] = {}
    failed: dict[HopKey, tuple[FailureNote, ...]] = {}
    latest = now
    for (kind, *path), value in _rows(state, task, HOPS, topology):
        match kind:
            case "out":
                outbox[int(path[0])] = _outgoing(value)
            case "in":
                inbox[TaskId(int(path[0]))] = _incoming(value)
            case "failed":
                failed[TaskId(int(path[0])), int(path[1])] = _notes(value)
            case _:
                latest = max(now, _number(value))
    return Stored(
        progress=progress(state, task, topology),
        retries=retries,
        parked=parked(state, task, topology),
        outbox=outbox,
        latest_hop=latest,
        inbox=inbox,
        failed=failed,
    )


def first_needed(state: AppliedState, task: TaskId, topology: str, depot: str) -> int:
    """Return the offset below which a topology runs no record of a depot again; off the loop."""
    # An entry moves a record from one of these to another: they are read as of one moment.
    with state.reading_pstates(task, PROGRESS, RETRIES, HOPS) as (progress, retries, hops):
        value = progress.get(key_of(topology, depot))
        first = 0 if value is None else _number(value)
        key = next(iter(retries.keys(*subtree(key_of(topology, depot)))), None)
        if key is not None:
            first = min(first, int(_decoded(key)[2]))
        for _, value in hops.scan(*subtree(key_of(topology, _OUT))):
            match _outgoing(value).origin:
                case OfRecords(depot=of, start=offset) | OfRetry(depot=of, offset=offset) if of == depot:
                    first = min(first, offset)
                case _:
                    pass
    return first


def parked(state: AppliedState, task: TaskId, topology: str) -> tuple[RecordKey, ...]:
    """Return the records that are not tried again; off the loop."""
    return tuple(_record(path) for path, _ in _rows(state, task, FAILURES, topology))


def progress(state: AppliedState, task: TaskId, topology: str) -> dict[str, int]:
    """Return the offset below which a topology has processed all records of each depot; off the loop."""
    return {str(path[0]): _number(value) for path, value in _rows(state, task, PROGRESS, topology)}


def parked_among(
    state: AppliedState, task: TaskId, topology: str, keys: Iterable[RecordKey]
) -> list[RecordKey]:
    """Return those of these records that a topology has parked; off the loop."""
    with state.reading_pstate(task, FAILURES) as rows:
        return [key for key in dict.fromkeys(keys) if rows.get(key_of(topology, *key)) is not None]


def count_parked(state: AppliedState, task: TaskId, topology: str) -> int:
    """Count the records that a topology has parked on a task; off the loop."""
    with state.reading_pstate(task, FAILURES) as rows:
        return sum(1 for _ in rows.keys(*subtree(key_of(topology))))


def failures(
    state: AppliedState, task: TaskId, limit: int, after: control.FailureKey | None = None
) -> list[control.FailureView]:
    """Describe the parked records of a task behind ``after``, ordered by topology; off the loop."""
    found: list[control.FailureView] = []
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
                control.FailureView(
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
    state: AppliedState, tasks: Iterable[TaskId], limit: int, after: control.FailureKey | None
) -> tuple[tuple[control.FailureView, ...], bool]:
    """Describe so many parked records of these tasks behind ``after``, ordered by task, and whether there are
    more; off the loop."""
    found: list[control.FailureView] = []
    for task in sorted(tasks):
        if after is None or task >= after.task:
            behind = after if after is not None and task == after.task else None
            found += failures(state, task, limit + 1 - len(found), behind)
        if len(found) > limit:
            return tuple(found[:limit]), True
    return tuple(found), False


def _beginning(state: AppliedState, task: TaskId, depot: str, offset: int) -> bytes:
    """Return the first bytes of a record that no executor could report: it hung there, or failed
    elsewhere."""
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
