"""The applied state of one replica of a task group: what is visible, one LMDB file for each task.

Entries are applied in the order of the log, in batches; a batch is one transaction in each task that it
concerns. The transactions of a batch are committed at the same time, on threads of a pool: each waits for
its own ``fdatasync``, and files that wait together are done several times sooner than one after the
other. So the tasks of a group move independently, and a task that nothing concerns does not move at
all: each file has an *own* offset, and the group's is what all of them are known to have reached.
:meth:`AppliedState.checkpoint` writes the group's offset into the files that lag only because they are idle,
makes all of them durable, and tells up to where the log is no longer needed.

**Recovery.** A crash may come between the transactions of a batch, and a power loss takes back the last
transaction of any file. So the files may be found at different offsets, and no single producer table
describes them. :meth:`AppliedState.recover` brings them together at the *highest* of their offsets, by
applying the log from the lowest to the highest; the core starts after that. This is right because

1. every entry below the highest offset was decided before the crash: some file has applied it, or an
   entry after it, and entries are applied in order and only once decided. Applying it again needs
   nobody's consent, and a later leader cannot have another entry there (rule 6: no truncation below what is
   applied);
2. those entries are in the log: its end is not below the highest offset, as an entry is applied here only
   after it is durable here; its start is not above the lowest, as the log is cut only below what
   ``checkpoint`` returned, which is a lower bound of every file's offset after any crash;
3. each file takes each entry once: it skips those below its own offset, which was stored in the same
   transaction as what they did, and its offset is at the boundary of a frame, as that of a batch is.

After it, every file is the state as of the highest offset, idle or not; so the union of the producers'
rows is the table as of that offset, which is what the core calls ``Recovered.producers``. The entries above
it are the core's ``unapplied``.

Where the log does not reach (2. fails), the replica has lost part of its log, as after a machine crash
with ``replication.fsync=interval``: that is :class:`LogTooShort`, and the driver renews the storage id.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from stretto.errors import RetriableError, StorageError, UsageError
from stretto.pstate.overlay import NoRows
from stretto.replog.core.producers import NO_PRODUCER, SEALS, ProducerTable
from stretto.replog.frame import Frame, Kind, decode
from stretto.replog.storage import Storage
from stretto.state.depot import DepotBatch, DepotSlice
from stretto.state.environment import MAP_BYTES, Environment, NoSpace, StandingFile, StateCorrupt
from stretto.state.held import HeldState
from stretto.state.pstate import StoredRows
from stretto.state.task import CHANGES_NOTHING, TaskState
from stretto.state.task_meta import Seal
from stretto.vocabulary.invariants import check
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Offset, TaskId

__all__ = ["AppliedState", "DepotBatch", "DepotSlice", "LogTooShort", "NoSpace", "Seal", "StateCorrupt"]

RECOVERY_BYTES = 8 * 1024 * 1024
COMMIT_THREADS = 8

_EVERY_TASK = (Kind.PRODUCER_OPEN, Kind.PRODUCER_EXPIRE, *SEALS)


class LogTooShort(StorageError):
    """The applied state is not within the log: the replica lost entries that it had confirmed."""


class AppliedState:
    """The applied state of one replica: the files of all tasks of its group.

    Reads may run on any thread. ``apply`` and ``checkpoint`` may too, and wait for one another.
    """

    def __init__(self, tasks: dict[TaskId, TaskState], pool: Executor | None) -> None:
        self._tasks = tasks
        #: Threads to commit on. They start when they are needed: a group of one task has none.
        self._pool = pool or ThreadPoolExecutor(min(len(tasks), COMMIT_THREADS), "commit")
        self._owns_pool = pool is None
        self._closed = False
        self._held: set[HeldState] = set()
        self._writing = threading.Lock()
        #: Taken for a moment before ``_writing``, to apply and to keep others from applying, so that a thread
        #: that applies without a pause does not keep the other waiting.
        self._turn = threading.Lock()
        #: Taken before ``_writing``: entries may be applied while the disk works on a checkpoint.
        self._checkpointing = threading.Lock()
        #: Every task is the state as of this offset, or further. Only after recovery are all exactly there.
        self._applied = min(task.applied for task in tasks.values())

    @classmethod
    def open(
        cls,
        folder: Path,
        tasks: Sequence[TaskId],
        *,
        map_bytes: int = MAP_BYTES,
        pool: Executor | None = None,
    ) -> AppliedState:
        """Open the state in ``folder``; tasks without a file begin empty, at offset 0.

        Several states may share a ``pool`` of threads to commit on; without one, the state has its own.

        Raises StorageError, or StrettoError for a format this release does not read.
        """
        if not tasks or len(set(tasks)) < len(tasks):
            raise UsageError(f"a task group has one or more different tasks, not {list(tasks)}")
        opened: dict[TaskId, TaskState] = {}
        try:
            for task in tasks:
                opened[task] = TaskState(folder / f"task-{task}", task, map_bytes=map_bytes)
        except BaseException:
            for state in opened.values():
                state.close()
            raise
        return cls(opened, pool)

    def close(self) -> None:
        """Close the files after the reads that are running.

        What was applied stays; to make it durable, checkpoint before.

        Calls to apply or read meanwhile are refused at once: images are copied for minutes.
        """
        with self._checkpointing, self._writing:
            self._closed = True
        for held in list(self._held):
            held.release()
        for task in self._tasks.values():
            task.close()
        if self._owns_pool:
            self._pool.shutdown()

    # What is applied.

    @property
    def applied(self) -> Offset:
        """Offset below which all entries are visible."""
        return self._applied

    @property
    def furthest(self) -> Offset:
        """The highest offset that any task has reached; :meth:`recover` brings all of them there."""
        return max(self._applied, *(task.applied for task in self._tasks.values()))

    def producers(self) -> ProducerTable:
        """A copy of the producer table as of :attr:`applied`. After a crash, call :meth:`recover` before."""
        with self._writing:
            check(self.furthest == self._applied, "the tasks are at different offsets; recover first")
            table = ProducerTable({})
            for task in self._tasks.values():
                table.sealed = task.seal.grouping if task.seal is not None else 0
                for producer, rows in task.producers.producers.items():
                    table.producers.setdefault(producer, {}).update(rows)
            return table.copy()

    def seal(self) -> Seal | None:
        """The seal of the log, if it is sealed as far as it is applied and all tasks say so."""
        with self._writing:
            seals = {task.seal for task in self._tasks.values()}
        return seals.pop() if len(seals) == 1 else None

    # Writing.

    def move(self, grouping: int, end: Offset) -> None:
        """Let the tasks go on in the log of another grouping, which begins at ``end``.

        Each is sealed for that grouping in the log that it comes from. May be done again after a
        crash: a task that has moved is there already.

        Raises StateCorrupt if a task is neither sealed for it nor there.
        """
        with self._writing:
            producers = {each for task in self._tasks.values() for each in task.producers.producers}
            for number, task in self._tasks.items():
                if task.seal is not None and task.seal.grouping == grouping:
                    task.move(end, producers)
                elif task.seal is not None or task.applied != end:
                    raise StateCorrupt(f"task {number} is not the state that grouping {grouping} begins with")
                task.sync()
            self._applied = end

    def apply(self, frames: Sequence[Frame]) -> None:
        """Apply frames that continue :attr:`applied` or begin below it; what was applied before is skipped.

        Raises StorageError, and then :attr:`applied` has not moved: tasks may have, and skip those frames if
        they come again.
        """
        if not frames:
            return
        with self._turn:
            self._writing.acquire()
        try:
            end = self._check_order(frames)
            self._all_at_once(
                [
                    partial(self._tasks[task].apply, concerned, end)
                    for task, concerned in self._by_task(frames).items()
                ]
            )
            self._applied = max(self._applied, end)
        finally:
            self._writing.release()

    def recover(self, log: Storage) -> Offset:
        """Bring all tasks to the same offset with the log's help, and return it. See the module."""
        furthest = self.furthest
        if not log.start_offset <= self._applied <= furthest <= log.end_offset:
            raise LogTooShort(
                f"the applied state is at [{self._applied}, {furthest}], but the replog holds "
                f"[{log.start_offset}, {log.end_offset}); this replica has to be copied from another one"
            )
        while self._applied < furthest:
            chunk = log.read(self._applied, furthest, RECOVERY_BYTES)
            self.apply(decode(b"".join(chunk.buffers)))
        return self._applied

    def checkpoint(self) -> Offset:
        """Make everything applied durable; return the offset that survives a power loss from now on."""
        with self._checkpointing:
            with self._writing:
                end = self._applied
                lagging = [task for task in self._tasks.values() if task.applied < end]
                self._all_at_once([partial(task.advance, end) for task in lagging])
                unsynced = [task for task in self._tasks.values() if task.unsynced]
            self._all_at_once([task.sync for task in unsynced])
        return end

    def _all_at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        """Run all calls on the pool; return or raise when all of them are done."""
        if self._closed:
            raise StorageError("the applied state is closed")
        if len(calls) == 1:
            calls[0]()
        else:
            futures = [self._pool.submit(call) for call in calls]
            failures = [failure for future in futures if (failure := future.exception())]
            if failures:
                # Of several, one that cannot be tried again.
                raise min(failures, key=lambda failure: isinstance(failure, NoSpace))

    def _check_order(self, frames: Sequence[Frame]) -> Offset:
        at = frames[0].header.offset
        check(at <= self._applied, "frames are missing before these", applied=self._applied, offset=at)
        for frame in frames:
            header = frame.header
            if header.offset != at:
                check(False, "frames are not contiguous", expected=at, frame=header)
            at = header.end_offset
        return at

    def _by_task(self, frames: Sequence[Frame]) -> dict[TaskId, list[Frame]]:
        """Group the frames by the tasks that they change."""
        concerned: dict[TaskId, list[Frame]] = {}
        for frame in frames:
            header = frame.header
            if header.end_offset <= self._applied:
                continue
            if header.kind in _EVERY_TASK:
                for task in self._tasks:
                    concerned.setdefault(task, []).append(frame)
            elif header.kind not in CHANGES_NOTHING or header.producer != NO_PRODUCER:
                if header.task not in self._tasks:
                    raise StorageError(f"entry {header.offset} is for task {header.task}, which is not here")
                concerned.setdefault(header.task, []).append(frame)
        return concerned

    @contextmanager
    def held(self, timeout: float) -> Iterator[Offset]:
        """Keep anything from being applied for the length of the block, which gets the applied offset.

        Every task's file is the state as of that offset. Raises RetriableError if a batch takes longer than
        ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        if not self._turn.acquire(timeout=timeout):
            raise RetriableError("somebody else holds the applied state; try again")
        try:
            if not self._writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise RetriableError(f"a batch is being applied for more than {timeout:g} s; try again")
        finally:
            self._turn.release()
        try:
            if self._closed:
                raise StorageError("the applied state is closed")
            if self.furthest != self._applied:
                raise StorageError("the tasks are at different offsets, since a batch could not be applied")
            yield self._applied
        finally:
            self._writing.release()

    # Reading.

    def read_depot(
        self, task: TaskId, depot: str, offset: DepotOffset, *, max_bytes: int, max_records: int
    ) -> DepotSlice:
        """Read batches from the one that holds ``offset``: one, and more as long as they fit both limits.

        Empty at the end of the depot and beyond, and if there is no such depot.
        """
        return self._task(task).read_depot(depot, offset, max_bytes=max_bytes, max_records=max_records)

    def depot_names(self, task: TaskId) -> Collection[str]:
        """Names of the depots that have records on this task. Safe on any thread."""
        return self._task(task).depot_names

    def depot_ends(self, task: TaskId) -> dict[str, DepotOffset]:
        """One beyond the last record of each depot; to be called while nothing is being applied."""
        return self._task(task).depot_ends

    def depot_bounds(self, task: TaskId, depot: str) -> tuple[DepotOffset, DepotOffset]:
        """First offset of a depot that can be read, and one beyond the last."""
        return self._task(task).depot_bounds(depot)

    def trim_point(
        self, task: TaskId, depot: str, below: DepotOffset, max_batches: int
    ) -> DepotOffset | None:
        """Where the depot would begin after a trim below an offset, of at most so many batches.

        None if there is nothing to trim.
        """
        return self._task(task).trim_point(depot, below, max_batches)

    def dropped(self, task: TaskId) -> int:
        """The latest version of the module whose deletions were carried out here. Safe on any thread."""
        return self._task(task).dropped

    def offset_at(self, task: TaskId, depot: str, timestamp_ms: int) -> DepotOffset:
        """The first offset whose batch has at least this timestamp; the end of the depot if none has."""
        return self._task(task).offset_at(depot, timestamp_ms)

    def reading_pstate(self, task: TaskId, pstate: str) -> AbstractContextManager[StoredRows | NoRows]:
        """Open the rows that a PState has on this task, as of one moment and as long as the block lasts."""
        return self._task(task).reading_pstate(pstate)

    def reading_pstates(
        self, task: TaskId, *pstates: str
    ) -> AbstractContextManager[list[StoredRows | NoRows]]:
        """Open the rows of these PStates on this task, as of the same moment."""
        return self._task(task).reading_pstates(*pstates)

    def look_up(
        self, task: TaskId, pstate: str, keys: Iterable[bytes], *, max_bytes: int, wait: bool = True
    ) -> tuple[list[bytes | None], Offset]:
        """Read the values of rows of a PState on this task; see :meth:`TaskState.look_up`."""
        return self._task(task).look_up(pstate, keys, max_bytes=max_bytes, wait=wait)

    def digest(self, task: TaskId) -> str:
        """Digest of what a task holds; to be compared between replicas that have applied the same offset."""
        return self._task(task).digest()

    def begin_digests(self, snapshot: ExitStack) -> dict[TaskId, Callable[[], str]]:
        """Begin digests of all tasks as they are between two calls of :meth:`apply`.

        See :meth:`TaskState.begin_digest`.
        """
        return {task: state.begin_digest(snapshot) for task, state in self._tasks.items()}

    def hold(self) -> HeldState:
        """Keep all tasks readable as they are between two calls of :meth:`apply`, until that is released."""
        with self._writing, ExitStack() as snapshot:
            if self._closed:
                raise StorageError("the applied state is closed")
            tasks = {task: state.hold(snapshot) for task, state in self._tasks.items()}
            held = HeldState(tasks, snapshot.pop_all(), self._held.discard)
            self._held.add(held)
        return held

    def image(self, task: TaskId, fd: int) -> None:
        """Copy a task's file to another one, beside the writer. The copy is not behind :attr:`applied`."""
        self._advanced(task).copy(fd)

    def standing(self, task: TaskId) -> AbstractContextManager[StandingFile]:
        """Show a task's file to another process that copies it, beside the writer.

        It is not behind :attr:`applied`.
        """
        return self._advanced(task).standing()

    def _advanced(self, task: TaskId) -> Environment:
        state = self._task(task)
        with self._writing:
            if self._closed:
                raise StorageError("the applied state is closed")
            state.advance(self._applied)
        return state.environment

    def folder(self, task: TaskId) -> Path:
        """Folder of the task's file, for other processes that read it."""
        return self._task(task).environment.folder

    def size_bytes(self, task: TaskId) -> int:
        """Size of a task's file, without what lies unused at its end."""
        return self._task(task).environment.size_bytes

    def clear_readers(self) -> None:
        """Give back the reader slots of processes that died while they read the files."""
        for task in self._tasks.values():
            task.environment.clear_readers()

    def transaction(self, task: TaskId) -> int:
        """Number that changes with the task's file; an image is not older than what was read here before."""
        state = self._task(task)
        with self._writing:
            if self._closed:
                raise StorageError("the applied state is closed")
            state.advance(self._applied)
            return state.environment.transaction

    def _task(self, task: TaskId) -> TaskState:
        found = self._tasks.get(task)
        if found is None:
            raise UsageError(f"task {task} is not in this group, which has {sorted(self._tasks)}")
        return found
