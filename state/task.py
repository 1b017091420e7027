"""The applied state of one task: depots, PStates, its share of the producer table, its own applied offset.

Everything that a batch of entries changes goes into one transaction together with the offset that it
brings the task to, so what is on disk is always the state as of exactly that offset, and entries below
it are skipped when they come again.

Databases: ``meta`` (:mod:`stretto.state.task_meta`), ``depot/<name>`` for each depot and ``pstate/<name>``
for each PState.

A producer is open or not for the whole group, but has sequences on each task. Its row is in every task's
file, so that a task can be moved to another group together with all that guards its depots. What an
entry does to the rows is decided by the core's own :class:`~stretto.replog.core.producers.ProducerTable`,
which here runs on tables that hold one task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.errors import PeerError, StorageError, StrettoError
from stretto.pstate import changes as state_changes
from stretto.pstate.changes import Changes
from stretto.pstate.ordered import decode, decode_at
from stretto.pstate.overlay import NoRows
from stretto.replog.core.producers import NO_PRODUCER, SEALS, ProducerTable, Sequences
from stretto.replog.frame import Frame, Header, Kind, payload
from stretto.state import depot as depots
from stretto.state import microbatch_entries as microbatches
from stretto.state import pstate as pstates
from stretto.state.depot import Depot, DepotSlice
from stretto.state.environment import Environment, Reading
from stretto.state.pstate import StoredRows
from stretto.state.removal import Drop, Trim
from stretto.state.removal import parse as parse_removal
from stretto.state.task_digest import HeldTask
from stretto.state.task_meta import (
    APPLIED,
    DROPPED,
    FORMAT,
    FORMAT_VERSION,
    PRODUCER,
    SEALED,
    TASK,
    U64,
    Seal,
    encode_producer,
    producers_in,
)
from stretto.state.task_seed import HOPS, _begin_at
from stretto.vocabulary import records
from stretto.vocabulary.invariants import check
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Offset, ProducerId, TaskId

if TYPE_CHECKING:
    from stretto.state.environment import Database, ReadTransaction, WriteTransaction

PAGE_BYTES = 4096
CHANGES_NOTHING = (Kind.EPOCH, Kind.MARKER, Kind.CLAIM)
OF_TOPOLOGIES = ("$progress", "$retries", "$failures")
"""Databases whose keys begin with a topology and a depot."""


@dataclass(slots=True)
class _Batch:
    """What the transaction of a batch changes in memory once it has committed."""

    dropped: int
    seal: Seal | None
    depots: dict[str, Depot] = field(default_factory=dict)
    pstates: dict[str, Database] = field(default_factory=dict)
    """Databases of PStates that the batch has created."""
    producers: dict[ProducerId, dict[TaskId, Sequences] | None] = field(default_factory=dict)


class TaskState:
    """The applied state of one task, in a file of its own.

    Not thread-safe, except for the reads, which run on any thread while another one writes.
    """

    def __init__(self, folder: Path, task: TaskId, *, map_bytes: int) -> None:
        self.task = task
        self.environment = Environment(folder, map_bytes=map_bytes)
        #: Rows of this task as of ``applied``; those of other tasks are absent.
        self.producers = ProducerTable({})
        #: Depots by name. One is listed once the transaction that created it has committed, so that a reader
        #: that finds it here and *then* begins its transaction may use its handle.
        self._depots: dict[str, Depot] = {}
        #: PStates by name, listed like ``_depots``.
        self._pstates: dict[str, Database] = {}
        #: Applied offset in the file; the group's may be further if nothing since concerned this task.
        self.applied = Offset(0)
        #: The latest version of the module whose deletions were carried out.
        self.dropped = 0
        #: The seal of the log as of ``applied``, if it is sealed.
        self.seal: Seal | None = None
        #: Whether anything was committed since the last sync.
        self.unsynced = True
        try:
            self._meta = self.environment.write(self._load)
        except BaseException:
            self.environment.close()
            raise

    def _load(self, txn: WriteTransaction) -> Database:
        environment = self.environment
        names = environment.names(txn)
        meta = environment.open_db("meta", txn)
        version = txn.get(FORMAT, db=meta)
        if version is None:
            txn.put(FORMAT, bytes([FORMAT_VERSION]), db=meta)
            txn.put(TASK, U64.pack(self.task), db=meta)
            txn.put(APPLIED, U64.pack(0), db=meta)
        elif version != bytes([FORMAT_VERSION]):
            raise StrettoError(
                f"the state in {environment.folder} has format {version.hex()}, and this release reads "
                f"{FORMAT_VERSION:02x}; run the release that wrote it"
            )
        task = U64.unpack(txn.get(TASK, b"", db=meta))[0]
        if task != self.task:
            raise StrettoError(
                f"the state in {environment.folder} is that of task {task}, not of {self.task}"
            )
        self.applied = Offset(U64.unpack(txn.get(APPLIED, b"", db=meta))[0])
        self.dropped = U64.unpack(txn.get(DROPPED, U64.pack(0), db=meta))[0]
        self.producers = ProducerTable(dict(producers_in(txn, meta, self.task)))
        sealed = txn.get(SEALED, db=meta)
        self.seal = None if sealed is None else Seal.decode(sealed)
        self._depots = {}
        self._pstates = {}
        for name in names:
            database = environment.open_db(name, txn)
            if name != "meta" and txn.stat(database)["entries"] == 0:
                txn.drop(database, delete=True)
            elif name.startswith(depots.PREFIX):
                self._depots[name[len(depots.PREFIX) :]] = Depot.load(database, txn)
            elif name.startswith(pstates.PREFIX):
                self._pstates[name[len(pstates.PREFIX) :]] = database
        return meta

    # Writing.

    def apply(self, frames: Sequence[Frame], end: Offset) -> None:
        """Apply the frames that are new here; with them, nothing below ``end`` is left to apply."""
        new = self._new(frames)
        if not new:
            return
        size_bytes = sum([frame.size_bytes for frame in new])
        batch = self.environment.write(lambda txn: self._apply(txn, new, end), size_bytes=size_bytes)
        self._depots.update(batch.depots)
        self._pstates.update(batch.pstates)
        self.dropped = batch.dropped
        self.seal = batch.seal
        for producer, rows in batch.producers.items():
            if rows is None:
                self.producers.producers.pop(producer, None)
            else:
                self.producers.producers[producer] = rows
        self.applied = end
        self.unsynced = True

    def _new(self, frames: Sequence[Frame]) -> Sequence[Frame]:
        if frames[0].header.offset >= self.applied:
            return frames
        new = [frame for frame in frames if frame.header.offset >= self.applied]
        if not new:
            return new
        straddling = frames[-len(new) - 1]
        check(
            straddling.end_offset <= self.applied,
            "an applied offset lies inside a frame",
            applied=self.applied,
            frame=straddling.header,
        )
        return new

    def _apply(self, txn: WriteTransaction, frames: Sequence[Frame], end: Offset) -> _Batch:
        batch = _Batch(self.dropped, self.seal)
        for frame in frames:
            if frame.header.kind is Kind.DEPOT:
                self._append(txn, batch.depots, frame)
            elif frame.header.kind is Kind.STATE:
                self._change(txn, batch.pstates, frame.header, partial(state_changes.parse, payload(frame)))
            elif frame.header.kind is Kind.MICROBATCH:
                changes = partial(self._microbatch, txn, batch.pstates, frame)
                self._change(txn, batch.pstates, frame.header, changes)
            elif frame.header.kind is Kind.TRIM:
                self._remove(txn, batch, frame)
            elif frame.header.kind in SEALS:
                batch.seal = Seal.of(frame.header)
        batch.producers = self._changed_producers([frame.header for frame in frames])
        for producer, rows in batch.producers.items():
            key = PRODUCER + U64.pack(producer)
            if rows is None:
                txn.delete(key, db=self._meta)
            else:
                txn.put(key, encode_producer(rows.get(self.task)), db=self._meta)
        if batch.dropped != self.dropped:
            txn.put(DROPPED, U64.pack(batch.dropped), db=self._meta)
        if batch.seal != self.seal:
            self._put_seal(txn, batch.seal)
        txn.put(APPLIED, U64.pack(end), db=self._meta)
        return batch

    def _put_seal(self, txn: WriteTransaction, seal: Seal | None) -> None:
        if seal is None:
            txn.delete(SEALED, db=self._meta)
        else:
            txn.put(SEALED, seal.encode(), db=self._meta)

    def _append(self, txn: WriteTransaction, changed: dict[str, Depot], frame: Frame) -> None:
        header = frame.header
        batch = payload(frame)
        try:
            name, count = records.head(batch)
        except PeerError as error:
            raise StorageError(f"entry {header.offset} cannot be applied here: {error}") from error
        if count != header.count:
            raise StorageError(
                f"entry {header.offset} cannot be applied: {header.count} entries for {count} records"
            )
        depot = changed.get(name)
        if depot is None:
            if name in self._depots:
                depot = self._depots[name].copy()
            else:
                depot = Depot(self.environment.open_db(depots.PREFIX + name, txn), DepotOffset(0), 0)
            changed[name] = depot
        depot.append(txn, batch, count, header.timestamp_ms)

    def _change(
        self,
        txn: WriteTransaction,
        created: dict[str, Database],
        header: Header,
        changes: Callable[[], dict[str, Changes]],
    ) -> None:
        try:
            changed_by_name = changes()
        except PeerError as error:
            raise StorageError(f"entry {header.offset} cannot be applied here: {error}") from error
        for name, changed in changed_by_name.items():
            pstates.apply(txn, self._database(txn, created, name), changed)

    def _microbatch(
        self, txn: WriteTransaction, created: dict[str, Database], frame: Frame
    ) -> dict[str, Changes]:
        database = self._database(txn, created, microbatches.DATABASE)

        def get(key: bytes) -> bytes | None:
            found = txn.get(key, db=database)
            return None if found is None else bytes(found)

        return microbatches.resolve(microbatches.parse(payload(frame)), get)

    def _database(self, txn: WriteTransaction, created: dict[str, Database], name: str) -> Database:
        database = self._pstates.get(name) or created.get(name)
        if database is None:
            database = created[name] = self.environment.open_db(pstates.PREFIX + name, txn)
        return database

    def _remove(self, txn: WriteTransaction, batch: _Batch, frame: Frame) -> None:
        try:
            removal = parse_removal(payload(frame))
        except PeerError as error:
            raise StorageError(f"entry {frame.header.offset} cannot be applied here: {error}") from error
        match removal:
            case Trim(depot=name, below=below):
                depot = batch.depots.get(name) or self._depots.get(name)
                if depot is not None:
                    depots.trim(txn, depot.database, DepotOffset(below))
            case Drop(version=version, names=names) if version > batch.dropped:
                batch.dropped = version
                for name in names:
                    self._drop(txn, batch, name)

    def _drop(self, txn: WriteTransaction, batch: _Batch, name: str) -> None:
        """Empty what has this name and delete what topologies keep of it.

        A database is emptied, not deleted: others may be reading it. An empty one counts as none, and goes
        when the file is opened anew. What topologies keep of a depot goes with it, with a topology all that
        it keeps.
        """
        depot = batch.depots.get(name) or self._depots.get(name)
        if depot is not None:
            txn.drop(depot.database, delete=False)
            batch.depots[name] = Depot(depot.database, DepotOffset(0), 0)
        pstate = batch.pstates.get(name) or self._pstates.get(name)
        if pstate is not None:
            txn.drop(pstate, delete=False)
        for rows in OF_TOPOLOGIES:
            database = batch.pstates.get(rows) or self._pstates.get(rows)
            if database is not None:
                for key in [key for key, _ in txn.cursor(database) if name in _topology_and_depot(key)]:
                    txn.delete(key, db=database)
        database = batch.pstates.get(HOPS) or self._pstates.get(HOPS)
        if database is not None:
            for key in [key for key, _ in txn.cursor(database) if decode_at(key, 0)[0] == name]:
                txn.delete(key, db=database)
        database = batch.pstates.get(microbatches.DATABASE) or self._pstates.get(microbatches.DATABASE)
        if database is not None:
            for key, row in list(txn.cursor(database)):
                changed = microbatches.without_depot(key, row, name)
                if decode(key)[1] == name:
                    txn.delete(key, db=database)
                elif changed is not None:
                    txn.put(key, changed, db=database)

    def _changed_producers(
        self, headers: Sequence[Header]
    ) -> dict[ProducerId, dict[TaskId, Sequences] | None]:
        """Rows of the producers that these headers change; None for a producer that is not open."""
        rows = self.producers.producers
        table = ProducerTable({})
        touched: set[ProducerId] = set()
        for header in headers:
            producer = header.producer
            if producer == NO_PRODUCER:
                continue
            if producer not in touched:
                touched.add(producer)
                if producer in rows:
                    table.producers[producer] = dict(rows[producer])
            table.apply(header)
        return {producer: table.producers.get(producer) for producer in touched}

    def advance(self, end: Offset) -> None:
        """Note that no entry below ``end`` concerns this task, other than those it has applied."""
        if end > self.applied:
            self.environment.write(
                lambda txn: txn.put(APPLIED, U64.pack(end), db=self._meta), size_bytes=PAGE_BYTES
            )
            self.applied = end
            self.unsynced = True

    def move(self, end: Offset, producers: Collection[ProducerId]) -> None:
        """Go on, sealed as it is, in a log that begins at ``end`` and that knows these producers."""
        self.environment.write(partial(_begin_at, self.environment, producers, end), size_bytes=PAGE_BYTES)
        for producer in producers:
            self.producers.producers.setdefault(producer, {})
        self.seal = None
        self.applied = end
        self.unsynced = True

    # Reading.

    @property
    def depot_names(self) -> Collection[str]:
        """Names of the depots that are applied."""
        return self._depots.keys()

    @property
    def depot_ends(self) -> dict[str, DepotOffset]:
        """One beyond the last record of each depot, as of ``applied``."""
        return {name: depot.end for name, depot in self._depots.items()}

    @contextmanager
    def _reading(self, depot: str) -> Iterator[tuple[ReadTransaction, Database] | None]:
        """Open a transaction with the depot's database; None if there is no such depot."""
        found = self._depots.get(depot)
        if found is None:
            yield None
            return
        with self.environment.reading() as txn:
            yield txn, found.database

    def read_depot(self, depot: str, offset: DepotOffset, *, max_bytes: int, max_records: int) -> DepotSlice:
        with self._reading(depot) as found:
            if found is None:
                return DepotSlice(offset, offset)
            return depots.read(*found, offset, max_bytes=max_bytes, max_records=max_records)

    def depot_bounds(self, depot: str) -> tuple[DepotOffset, DepotOffset]:
        with self._reading(depot) as found:
            return depots.bounds(*found) if found else (DepotOffset(0), DepotOffset(0))

    def trim_point(self, depot: str, below: DepotOffset, max_batches: int) -> DepotOffset | None:
        with self._reading(depot) as found:
            return depots.trim_point(*found, below, max_batches) if found else None

    def offset_at(self, depot: str, timestamp_ms: int) -> DepotOffset:
        with self._reading(depot) as found:
            return depots.offset_at(*found, timestamp_ms) if found else DepotOffset(0)

    def reading_pstate(self, pstate: str) -> AbstractContextManager[StoredRows | NoRows]:
        """Open the rows of a PState for the length of a block."""
        database = self._pstates.get(pstate)
        if database is None:
            return nullcontext(NoRows())
        return _ReadingRows(self.environment.reading(), database, self._meta)

    @contextmanager
    def reading_pstates(self, *names: str) -> Iterator[list[StoredRows | NoRows]]:
        """Open the rows of these PStates, as of the same moment, for the length of a block."""
        databases = [self._pstates.get(name) for name in names]
        with self.environment.reading() as txn:
            yield [NoRows() if each is None else StoredRows(txn, each) for each in databases]

    def look_up(
        self, pstate: str, keys: Iterable[bytes], *, max_bytes: int, wait: bool = True
    ) -> tuple[list[bytes | None], Offset]:
        """Read the values of these rows, as of one moment, and the applied offset of the file then.

        Of the first so many keys: one that fills ``max_bytes`` is the last. Without ``wait``, raises
        WouldWait if they are not to be had at once.
        """
        database = self._pstates.get(pstate)
        if database is None:
            return [None for _ in keys], Offset(0)
        applied, values = self.environment.look_up(
            keys, database, (APPLIED, self._meta), max_bytes=max_bytes, wait=wait
        )
        return values, Offset(U64.unpack(applied or b"")[0])

    def digest(self) -> str:
        """Digest that is equal for replicas that have applied the same entries, however they got there."""
        with ExitStack() as snapshot:
            return self.begin_digest(snapshot)()

    def begin_digest(self, snapshot: ExitStack) -> Callable[[], str]:
        """Begin a digest of the state as it is now.

        The function that is returned computes it, on any thread, before ``snapshot`` ends.
        """
        return self.hold(snapshot).digest

    def hold(self, snapshot: ExitStack) -> HeldTask:
        """Keep the state as it is now, to be read on any thread before ``snapshot`` ends."""
        txn = snapshot.enter_context(self.environment.reading(long=True))
        handles = sorted((name, depot.database) for name, depot in list(self._depots.items()))
        return HeldTask(
            self.environment, txn, self.task, self._meta, handles, sorted(self._pstates.copy().items())
        )

    # Life.

    def sync(self) -> None:
        """Make what is applied now survive a power loss."""
        # Cleared first: a transaction that commits meanwhile sets it again.
        self.unsynced = False
        self.environment.sync()

    def close(self) -> None:
        self.environment.close()


class _ReadingRows:
    __slots__ = ("_database", "_meta", "_reading")

    def __init__(self, reading: Reading, database: Database, meta: Database) -> None:
        self._reading = reading
        self._database = database
        self._meta = meta

    def __enter__(self) -> StoredRows:
        txn = self._reading.__enter__()
        try:
            applied = Offset(U64.unpack(txn.get(APPLIED, b"", db=self._meta))[0])
        except BaseException as error:
            self._reading.__exit__(None, error, None)
            raise
        return StoredRows(txn, self._database, applied)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._reading.__exit__(kind, error, trace)


def _topology_and_depot(key: bytes) -> tuple[object, object]:
    topology, at = decode_at(key, 0)
    return topology, decode_at(key, at)[0]
