"""What a follower has of a leader's state before all of it is here: files that are no state yet.

They are in ``incoming/`` of the replica's folder, laid out like the state that they become. A file that an
earlier transfer left, of whatever leader, is hashed and used as far as its blocks are those of the image:
what it holds need not be trusted or remembered. So there is no journal, and a restarted follower goes on
with all that had reached its disk.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stretto.catchup import hasher
from stretto.catchup.hashing import hashes_of
from stretto.catchup.images import task_folder
from stretto.catchup.machines import blocks
from stretto.catchup.machines.fetch import WINDOW
from stretto.errors import PeerError, StorageError
from stretto.replog.core.guards import GUARDS
from stretto.replog.folder import OsFolder
from stretto.replog.frame import decode
from stretto.replog.log import Replog
from stretto.state.applied import AppliedState
from stretto.state.environment import SPARE_BYTES, NoSpace
from stretto.vocabulary.types import Offset, TaskId
from stretto.wire import catchup
from stretto.wire.catchup import Run

INCOMING = "incoming"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FEW_BYTES = 64 * 1024
"""Size up to which the page cache costs less than the disk."""
SYNC_BYTES = 64 << 20
"""How much is written to the page cache before it is synced, so that little is left to do at the end."""


class Abandoned(StorageError):
    """The transfer was given up meanwhile."""


class AlignedParts:
    """Aligned memory for parts that were received, to write them past the page cache. Safe on any thread."""

    def __init__(self, parts: int, part_bytes: int) -> None:
        self.part_bytes = part_bytes
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(parts):
            self._free.put(memoryview(mmap.mmap(-1, part_bytes)))

    @contextmanager
    def put(self, part: memoryview) -> Iterator[memoryview]:
        """Copy a part into aligned memory for the length of the block."""
        buffer = self._free.get()
        try:
            copied = buffer[: len(part)]
            copied[:] = part
            yield copied
        finally:
            self._free.put(buffer)


class Staging:
    """The files that one transfer writes, until they are installed.

    Safe on any thread. A transfer that is given up lets go of the files before the next one touches them.
    """

    def __init__(
        self, replica: Path, tasks: tuple[TaskId, ...], previous: Staging | None, *, seed: int = 0
    ) -> None:
        self.folder = replica / INCOMING
        self._tasks = tasks
        self._previous = previous
        self._seed = seed
        self._fds: dict[TaskId, int] = {}
        #: Descriptors of the same files that go past the page cache.
        self._direct: dict[TaskId, int] = {}
        #: Hashes of the image that the file becomes; of the file itself, before the first round and once one
        #: is complete.
        self._hashes: dict[TaskId, bytes | bytearray] = {}
        self._block_bytes = dict.fromkeys(tasks, blocks.BLOCK_BYTES)
        #: Sizes of the images that there was room for, or was not.
        self._sizes_bytes: dict[TaskId, int] = {}
        self._parts = AlignedParts(WINDOW, blocks.PART_BYTES)
        self._unsynced_bytes = 0
        self._log: Replog | None = None
        self._busy = 0
        self._closed = False
        self._changed = threading.Condition()

    def _file(self, task: TaskId) -> Path:
        return task_folder(self.folder / "state", task) / "data.mdb"

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._changed:
            if self._closed:
                raise Abandoned("the transfer was given up")
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Close the files, once no thread works on them any more."""
        with self._changed:
            self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        self._changed.wait_for(lambda: self._busy == 0)
        if self._previous is not None:
            self._previous.close()
            self._previous = None
        for fds in (self._fds, self._direct):
            for fd in fds.values():
                os.close(fd)
            fds.clear()
        if self._log is not None:
            self._log.close()
            self._log = None

    def discard(self) -> None:
        """Close, and delete the files.

        A transfer that begins meanwhile waits, as for any other work. If one has begun already, it has closed
        this, and the files are its own.
        """
        with self._changed:
            if self._closed:
                return
            self._let_go()
            self._busy += 1
        try:
            if self.folder.exists():
                shutil.rmtree(self.folder)
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    # Rounds.

    def prepare(self, task: TaskId) -> bool:
        """Hash what is staged for a task; True if nothing is."""
        with self._working():
            previous = self._previous
            if previous is not None:
                previous.close()
                self._previous = None
            self._file(task).parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._file(task), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            direct = hasher.open_direct(self._file(task), os.O_WRONLY)
            with self._changed:
                self._fds[task], self._direct[task] = fd, direct
            self._hash(task, blocks.BLOCK_BYTES)
            return not self._hashes[task]

    def _hash(self, task: TaskId, block_bytes: int) -> None:
        fd = self._fds[task]
        self._hashes[task] = hashes_of(fd, os.fstat(fd).st_size, block_bytes, self._seed)
        self._block_bytes[task] = block_bytes

    def compare(self, image: catchup.Image, parts: tuple[bytes, ...]) -> list[Run] | None:
        """Find the blocks that are missing; None if the list came damaged.

        Raises NoSpace, and may be repeated.
        """
        with self._working():
            task, listed = image.task, b"".join(parts)
            count = blocks.blocks_in(image.size_bytes, image.block_bytes)
            if image.base:
                try:
                    hashes = blocks.apply_changes(bytes(self._hashes[task]), listed, count)
                except PeerError:
                    return None
            else:
                hashes = listed
            if len(hashes) != count * blocks.HASH_BYTES or blocks.digest_of(hashes) != image.digest:
                return None
            if image.block_bytes != self._block_bytes[task]:
                self._hash(task, image.block_bytes)
            self._make_room({task: image.size_bytes})
            missing = blocks.missing_runs(bytes(self._hashes[task]), hashes)
            self._hashes[task] = hashes
            return missing

    def make_room(self, sizes_bytes: dict[TaskId, int]) -> None:
        """Make room for images of these sizes. Raises NoSpace, and may be repeated."""
        with self._working():
            self._make_room(sizes_bytes)

    def _make_room(self, sizes_bytes: dict[TaskId, int]) -> None:
        """Make room for whole images, so that a disk that is too small is noticed before anything is sent."""
        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        with self._changed:
            self._sizes_bytes |= sizes_bytes
            # Of all tasks: what others were promised and have not written yet still counts as free.
            lacking = SPARE_BYTES + sum(
                max(0, size_bytes - os.fstat(self._fds[task]).st_blocks * 512)
                for task, size_bytes in self._sizes_bytes.items()
            )
        if lacking > free:
            raise NoSpace(
                f"the disk of {self.folder} has {free} bytes left and {lacking} are needed to receive the "
                f"leader's state; free some space"
            )
        for task, size_bytes in sizes_bytes.items():
            with self._no_space(f"{size_bytes} bytes"):
                os.ftruncate(self._fds[task], size_bytes)

    @contextmanager
    def _no_space(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in NO_SPACE:
                raise
            raise NoSpace(f"{self.folder} cannot hold {what} ({cause}); free some space") from error

    def store(self, image: catchup.Image, runs: tuple[Run, ...], body: memoryview) -> tuple[Run, ...]:
        """Write blocks; return those that are not what the image lists. Raises NoSpace."""
        with self._working():
            listed = self._hashes[image.task]
            damaged: list[Run] = []
            for run, part in _parts(runs, body, image.size_bytes, image.block_bytes):
                if part is None:
                    damaged.append(run)
                    continue
                start = run[0] * blocks.HASH_BYTES
                with self._hashed(part, image.block_bytes) as (data, hashes):
                    good, bad = _told_apart(run[0], hashes, bytes(listed[start : start + len(hashes)]))
                    for first, count in good:
                        at = (first - run[0]) * image.block_bytes
                        piece = data[at : at + count * image.block_bytes]
                        self._write(image.task, first * image.block_bytes, piece)
                    damaged += bad
            return tuple(damaged)

    def store_ahead(self, task: TaskId, block_bytes: int, runs: tuple[Run, ...], body: memoryview) -> None:
        """Write whole blocks of an image whose list is not known yet. Raises NoSpace."""
        with self._working():
            end = max(first + count for first, count in runs)
            for run, part in _parts(runs, body, end * block_bytes, block_bytes):
                if part is not None:
                    with self._hashed(part, block_bytes) as (data, hashes):
                        self._write(task, run[0] * block_bytes, data)
                    self._keep(task, run[0], hashes, block_bytes)

    def _keep(self, task: TaskId, first: int, hashes: bytes, block_bytes: int) -> None:
        with self._changed:
            kept = self._hashes[task]
            if not isinstance(kept, bytearray):
                kept = self._hashes[task] = bytearray(kept)
            self._block_bytes[task] = block_bytes
            start = first * blocks.HASH_BYTES
            kept.extend(bytes(max(0, start + len(hashes) - len(kept))))
            kept[start : start + len(hashes)] = hashes

    @contextmanager
    def _hashed(self, part: memoryview, block_bytes: int) -> Iterator[tuple[memoryview, bytes]]:
        """Yield the part, in memory that it can be written from, and its hashes."""
        if FEW_BYTES < len(part) <= self._parts.part_bytes:
            with self._parts.put(part) as copied:
                yield copied, hasher.hashes_in(copied, block_bytes, self._seed)
        else:
            yield part, hasher.hashes_in(part, block_bytes, self._seed)

    def _write(self, task: TaskId, position: int, data: memoryview) -> None:
        """Write bytes: much at once past the page cache, a little here and there through it."""
        length = len(data)
        past_cache = length > FEW_BYTES and hasher.is_aligned(position, length)
        fd = self._direct[task] if past_cache else self._fds[task]
        with self._no_space("more"):
            hasher.write(fd, data, position)
        if not hasher.is_direct(fd):
            self._sync_some(task, length)

    def _sync_some(self, task: TaskId, length: int) -> None:
        with self._changed:
            self._unsynced_bytes += length
            if self._unsynced_bytes < SYNC_BYTES:
                return
            self._unsynced_bytes = 0
        os.fdatasync(self._fds[task])

    # The end.

    def store_entries(self, start: Offset, body: memoryview) -> None:
        """Keep the frames between the images. Raises NoSpace, and may not be repeated."""
        with self._working(), self._no_space("the entries between the images"):
            if self._log is None:
                shutil.rmtree(self.folder / "replog", ignore_errors=True)
                (self.folder / "replog").mkdir(parents=True)
                self._log = Replog.open(OsFolder(self.folder / "replog"))
                self._log.reset(start, ())
            self._log.append(decode(body))
            self._log.sync()

    def assemble(self, end: Offset, *, verify_structure: bool = False) -> None:
        """Bring all tasks to ``end``, durably, as after a crash: a state that can be installed.

        With ``verify_structure``, what came is checked by LMDB's own rules before LMDB sees it.
        Raises NoSpace, and may be repeated.
        """
        with self._working(), self._no_space("the state that came"):
            for fd in self._fds.values():
                os.fdatasync(fd)
            if verify_structure:
                for task in self._tasks:
                    _verify_structure(task, self._file(task))
            state = AppliedState.open(self.folder / "state", self._tasks)
            try:
                if self._log is not None:
                    state.recover(self._log)
                if (state.applied, state.furthest) != (end, end):
                    raise StorageError(
                        f"the state that came is at [{state.applied}, {state.furthest}], not at {end}"
                    )
                state.checkpoint()
            finally:
                state.close()


def _verify_structure(task: TaskId, file: Path) -> None:
    """Check an image by LMDB's own rules, in a process of its own.

    It is slow, and would hold the interpreter lock all the time.
    """
    command = [sys.executable, "-I", "-m", "lmdb", "verify", "-e", str(file.parent)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        problem = next(iter((done.stdout + done.stderr).splitlines()), "no reason was told")
        raise StorageError(
            f"the image of task {task} came as the leader has it and is damaged ({problem}); "
            "let another replica lead the group"
        )


def _parts(
    runs: tuple[Run, ...], body: memoryview, size_bytes: int, block_bytes: int
) -> Iterator[tuple[Run, memoryview | None]]:
    """Yield each run with its bytes; None if a body of that length cannot be these runs."""
    lengths = [blocks.length_of(run, size_bytes, block_bytes) for run in runs]
    position = 0
    for run, length in zip(runs, lengths, strict=True):
        yield run, body[position : position + length] if sum(lengths) == len(body) else None
        position += length


def _told_apart(first: int, hashes: bytes, listed: bytes) -> tuple[list[Run], list[Run]]:
    """Split blocks, from ``first`` on, into runs that are as listed and runs that are not."""
    told: tuple[list[Run], list[Run]] = ([], [])
    are_good = (
        GUARDS.is_block_of(hashes[at : at + blocks.HASH_BYTES], listed[at : at + blocks.HASH_BYTES])
        for at in range(0, len(hashes), blocks.HASH_BYTES)
    )
    for is_good, group in itertools.groupby(are_good):
        count = len(list(group))
        told[not is_good].append((first, count))
        first += count
    return told
