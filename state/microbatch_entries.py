"""What is replicated for a microbatch, and what an entry does to the rows of its task when it is applied.

The rows are in a database of the task's file, ``$microbatch``, so they are covered by digests, copied with
the state of the task, and change in one transaction with the PStates::

    ("batch", topology)     on task 0: the latest batch                            Batch
    ("staged", topology)    which (id, version) has staged changes here            Version
    ("changes", topology)   those changes, as the payload of a STATE entry         bytes
    ("rolled", topology)    the latest id whose changes took effect here           int
    ("returned", topology)  what the run returned that was staged last, if an      Returned
                            appender waited for it

An entry becomes changes of rows by what is stored, the same on every replica (:func:`resolve`). One that
comes too late, because of what has been applied before it, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec

from stretto.errors import PeerError
from stretto.pstate import changes as state_changes
from stretto.pstate import ordered
from stretto.pstate.changes import Changes
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import Buffer, TaskId

DATABASE = "$microbatch"

Get: TypeAlias = Callable[[bytes], bytes | None]
"""Reads a row of :data:`DATABASE`; None if there is no such row."""


class Version(NamedTuple):
    """Number of a microbatch and of the attempt at it; versions compare in the order they came about."""

    id: int
    version: int

    def __str__(self) -> str:
        return f"{self.id}.{self.version}"


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Records of one depot on one task, ``[start, end)``."""

    depot: str
    task: TaskId
    start: int
    end: int


class Source(NamedTuple):
    """The place of one record of a depot."""

    depot: str
    task: TaskId
    offset: int


class Result(NamedTuple):
    """What the function of a topology returned for a record of this task."""

    depot: str
    offset: int
    json: bytes


class Returned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a staged run returned, kept for the next leader: appenders will ask it."""

    version: Version
    spans: tuple[Span, ...]
    """Records of this task that the run took."""
    results: tuple[Result, ...]
    failures: tuple[tuple[Source, str], ...]
    """Records that were left out, and their errors."""


class LeftOut(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record that failed too often: the batch goes on without it."""

    source: Source
    attempts: int
    error: str
    traceback: str


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The record of a topology: its latest microbatch."""

    version: Version
    progress: dict[str, dict[TaskId, int]]
    """Where the microbatch's input begins, by depot and task: 0 where there is nothing."""
    spans: tuple[Span, ...]
    """The microbatch's input, where it is not empty."""
    failed: tuple[tuple[Source, int], ...] = ()
    """How often records failed in earlier versions."""
    left_out: tuple[LeftOut, ...] = ()
    careful: bool = False
    """Whether records and calls are run one by one, to find out which of them fails."""
    tasks: tuple[TaskId, ...] | None = None
    """Tasks that have staged something; None until the microbatch is committed."""

    @property
    def committed(self) -> bool:
        return self.tasks is not None

    def progress_after(self) -> dict[str, dict[TaskId, int]]:
        """Where the input of the next microbatch begins."""
        after = {depot: dict(ends) for depot, ends in self.progress.items()}
        for span in self.spans:
            after.setdefault(span.depot, {})[span.task] = span.end
        return after


class Prime(msgspec.Struct, frozen=True, array_like=True, tag="prime", gc=False):
    """Entry that begins a version of a topology's microbatch."""

    topology: str
    batch: Batch


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit", gc=False):
    """Entry that commits a version, which has staged something on these tasks."""

    topology: str
    version: Version
    tasks: tuple[TaskId, ...]


class Stage(msgspec.Struct, frozen=True, array_like=True, tag="stage", gc=False):
    """Entry that stages what a version changes on this task, without effect yet."""

    topology: str
    version: Version
    changes: bytes
    returned: bytes = b""
    """A Returned, encoded; empty if no appender waits for it."""


class Roll(msgspec.Struct, frozen=True, array_like=True, tag="roll", gc=False):
    """Entry that lets the staged changes of a committed version take effect on this task."""

    topology: str
    version: Version


class Missed(msgspec.Struct, frozen=True, array_like=True, tag="missed", gc=False):
    """Entry for a committed version that has nothing staged here, and never will.

    An unclean election lost it. It counts as rolled, and ``changes``, packed, tell people.
    """

    topology: str
    version: Version
    changes: bytes


def may_prime(stored: Batch | None, batch: Batch) -> bool:
    """Whether ``batch`` may follow the stored one.

    A committed batch is followed by a higher id, any other by a higher version of the same id.
    """
    if stored is None:
        return True
    if stored.committed:
        return batch.version.id > stored.version.id
    return batch.version.id == stored.version.id and batch.version > stored.version


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryGuards:
    """The safety rules of entries as they are applied; the machines that make entries have more of them."""

    may_prime: Callable[[Batch | None, Batch], bool] = may_prime


ENTRY_GUARDS = EntryGuards()

Entry: TypeAlias = Prime | Commit | Stage | Roll | Missed

encode = msgspec.msgpack.Encoder().encode
_entries: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)
_decode_batch = msgspec.msgpack.Decoder(Batch).decode
_decode_version = msgspec.msgpack.Decoder(Version).decode
_decode_returned = msgspec.msgpack.Decoder(Returned).decode
_decode_id = msgspec.msgpack.Decoder(int).decode


def parse(payload: Buffer) -> Entry:
    """Decode an entry of a microbatch. Raises PeerError."""
    try:
        return _entries.decode(payload)
    except MALFORMED as error:
        raise PeerError(f"an entry of a microbatch is malformed: {error}") from None


def resolve(entry: Entry, get: Get, guards: EntryGuards = ENTRY_GUARDS) -> dict[str, Changes]:
    """What an entry changes, by database: ``$microbatch`` and, when changes take effect, PStates."""
    match entry:
        case Prime(topology=topology, batch=batch):
            if guards.may_prime(batch_of(topology, get), batch):
                return {DATABASE: Changes(puts=((_key("batch", topology), encode(batch)),))}
        case Commit(topology=topology, version=version, tasks=tasks):
            stored = batch_of(topology, get)
            if stored is not None and stored.version == version and not stored.committed:
                committed = msgspec.structs.replace(stored, tasks=tasks)
                return {DATABASE: Changes(puts=((_key("batch", topology), encode(committed)),))}
        case Stage(topology=topology, version=version, changes=changes, returned=returned):
            puts = ((_key("staged", topology), encode(version)), (_key("changes", topology), changes))
            kept = _key("returned", topology)
            if returned:
                return {DATABASE: Changes(puts=(*puts, (kept, returned)))}
            # What an earlier version returned must not be taken for what this one did.
            return {DATABASE: Changes(deletes=(kept,), puts=puts)}
        case Roll(topology=topology, version=version):
            if staged_of(topology, get) == version:
                effect = get(_key("changes", topology)) or state_changes.pack({})
                return _rolled(topology, version, effect)
        case Missed(topology=topology, version=version, changes=changes):
            if rolled_of(topology, get) < version.id and staged_of(topology, get) != version:
                return _rolled(topology, version, changes, _key("returned", topology))
    return {}


def _rolled(topology: str, version: Version, packed: bytes, *others: bytes) -> dict[str, Changes]:
    """Changes that roll a version; ``others`` are rows that are deleted as well."""
    staged, changes = _key("staged", topology), _key("changes", topology)
    effect = state_changes.parse(packed)
    effect[DATABASE] = Changes(
        deletes=(changes, *others, staged), puts=((_key("rolled", topology), encode(version.id)),)
    )
    return effect


def without_depot(key: bytes, row: bytes, depot: str) -> bytes | None:
    """A row without what it says of a depot that is gone; None if it says nothing of it.

    The depot's name may be used again.
    """
    match ordered.decode(key)[0]:
        case "batch":
            return _batch_without(row, depot)
        case "returned":
            return _returned_without(row, depot)
        case _:
            return None


def _returned_without(row: bytes, depot: str) -> bytes | None:
    returned = _decode_returned(row)
    spans = tuple(span for span in returned.spans if span.depot != depot)
    return None if spans == returned.spans else encode(msgspec.structs.replace(returned, spans=spans))


def _batch_without(row: bytes, depot: str) -> bytes | None:
    batch = _decode_batch(row)
    progress = {name: ends for name, ends in batch.progress.items() if name != depot}
    spans = tuple(span for span in batch.spans if span.depot != depot)
    if (progress, spans) == (batch.progress, batch.spans):
        return None
    return encode(msgspec.structs.replace(batch, progress=progress, spans=spans))


def batch_of(topology: str, get: Get) -> Batch | None:
    """The latest microbatch of a topology, if it has one."""
    row = get(_key("batch", topology))
    return None if row is None else _decode_batch(row)


def staged_of(topology: str, get: Get) -> Version | None:
    """The version that is staged on this task, if any."""
    row = get(_key("staged", topology))
    return None if row is None else _decode_version(row)


def rolled_of(topology: str, get: Get) -> int:
    """Id of the latest microbatch that was rolled on this task; 0 before the first."""
    row = get(_key("rolled", topology))
    return 0 if row is None else _decode_id(row)


def returned_of(topology: str, get: Get) -> Returned | None:
    """What the staged run returned, if that was kept."""
    row = get(_key("returned", topology))
    return None if row is None else _decode_returned(row)


def _key(what: str, topology: str) -> bytes:
    return ordered.encode((what, topology))
