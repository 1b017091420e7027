"""What a follower has of a leader's state before all of it is here: files that are no state yet.

They are in ``incoming/`` of the replica's folder, laid out like the state that they become. A file that an
earlier transfer left, of whatever leader, is hashed and used as far as its blocks are those of the image:
what it holds need not be trusted or remembered. So there is no journal, and a restarted follower goes on
with all that had reached its disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stretto.catchup import blocks, messages
from stretto.catchup.messages import Run
from stretto.errors import PeerError, StorageError
from stretto.replog.core.guards import GUARDS
from stretto.replog.folder import OsFolder
from stretto.replog.frame import decode
from stretto.replog.log import Replog
from stretto.types import Offset, TaskId
from stretto.worker.environment import SPARE_BYTES, NoSpace
from stretto.worker.hashing import hashes_of
from stretto.worker.images import task_folder
from stretto.worker.state import AppliedState

INCOMING = "incoming"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Abandoned(StorageError):
    """The transfer was given up meanwhile."""


class Staging:
    """Of one transfer. Any thread; what is given up lets go before the next transfer touches the files."""

    def __init__(self, replica: Path, tasks: tuple[TaskId, ...], previous: Staging | None) -> None:
        self.folder = replica / INCOMING
        self._tasks = tasks
        self._previous = previous
        self._fds: dict[TaskId, int] = {}
        #: Of the image that the file becomes; of what it is, once a round is complete.
        self._hashes: dict[TaskId, bytes] = {}
        self._block_bytes = dict.fromkeys(tasks, blocks.BLOCK_BYTES)
        self._log: Replog | None = None
        self._busy = 0
        self._closed = False
        self._changed = threading.Condition()

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
        """Returns when nobody works on the files any more."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._busy == 0)
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()
            if self._log is not None:
                self._log.close()
                self._log = None

    # Rounds.

    def prepare(self, task: TaskId) -> None:
        """Hash what is there."""
        with self._working():
            previous = self._previous
            if previous is not None:
                previous.close()
                self._previous = None
            folder = task_folder(self.folder / "state", task)
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(folder / "data.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with self._changed:
                self._fds[task] = fd
            self._hash(task, blocks.BLOCK_BYTES)

    def _hash(self, task: TaskId, block_bytes: int) -> None:
        fd = self._fds[task]
        self._hashes[task] = hashes_of(fd, os.fstat(fd).st_size, block_bytes)
        self._block_bytes[task] = block_bytes

    def compare(self, image: messages.Image, parts: tuple[bytes, ...]) -> list[Run] | None:
        """The blocks that are missing; None if the list came damaged. Raises NoSpace, and may be repeated."""
        with self._working():
            task, listed = image.task, b"".join(parts)
            count = blocks.blocks_in(image.size_bytes, image.block_bytes)
            if image.base:
                try:
                    hashes = blocks.apply_changes(self._hashes[task], listed, count)
                except PeerError:
                    return None
            else:
                hashes = listed
            if len(hashes) != count * blocks.HASH_BYTES or blocks.digest_of(hashes) != image.digest:
                return None
            if image.block_bytes != self._block_bytes[task]:
                self._hash(task, image.block_bytes)
            self._make_room(task, image.size_bytes)
            missing = blocks.missing_runs(self._hashes[task], hashes)
            self._hashes[task] = hashes
            return missing

    def _make_room(self, task: TaskId, size_bytes: int) -> None:
        """All of it at once: a disk that is too small is noticed before anything is sent."""
        fd = self._fds[task]
        status, disk = os.fstat(fd), os.fstatvfs(fd)
        lacking = size_bytes - status.st_blocks * 512 + SPARE_BYTES
        free = disk.f_bavail * disk.f_frsize
        if lacking > free:
            raise NoSpace(
                f"the disk of {self.folder} has {free} bytes left and {lacking} are needed to receive the "
                f"leader's state; free some space"
            )
        try:
            os.ftruncate(fd, size_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise NoSpace(
                f"{self.folder} cannot hold {size_bytes} bytes ({error}); free some space"
            ) from error

    def store(self, image: messages.Image, runs: tuple[Run, ...], body: memoryview) -> tuple[Run, ...]:
        """Write the blocks that are what the image lists; returns the others."""
        with self._working():
            fd, hashes = self._fds[image.task], self._hashes[image.task]
            damaged: list[Run] = []
            position = 0
            for first, count in runs:
                length = blocks.length_of((first, count), image.size_bytes, image.block_bytes)
                part = body[position : position + length]
                position += length
                bad = _damaged(part, length, first, image.block_bytes, hashes)
                if not bad:
                    _write(fd, part, first * image.block_bytes)
                else:
                    damaged.append((first, count))
            if position != len(body):
                return runs
            return tuple(damaged)

    # The end.

    def store_entries(self, start: Offset, body: memoryview) -> None:
        with self._working():
            if self._log is None:
                shutil.rmtree(self.folder / "replog", ignore_errors=True)
                (self.folder / "replog").mkdir(parents=True)
                self._log = Replog.open(OsFolder(self.folder / "replog"))
                self._log.reset(start, ())
            self._log.append(decode(body))
            self._log.sync()

    def assemble(self, end: Offset) -> None:
        """Bring all tasks to ``end``, durably, as after a crash: a state that can be installed."""
        with self._working():
            for fd in self._fds.values():
                os.fdatasync(fd)
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


def _damaged(part: memoryview, length: int, first: int, block_bytes: int, hashes: bytes) -> bool:
    if len(part) != length:
        return True
    start = first * blocks.HASH_BYTES
    expected = hashes[start : start + -(-length // block_bytes) * blocks.HASH_BYTES]
    for index, at in enumerate(range(0, length, block_bytes)):
        place = index * blocks.HASH_BYTES
        hashed = blocks.hash_of(part[at : at + block_bytes])
        if not GUARDS.is_block_of(hashed, expected[place : place + blocks.HASH_BYTES]):
            return True
    return False


def _write(fd: int, data: memoryview, position: int) -> None:
    while len(data):
        written = os.pwrite(fd, data, position)
        data, position = data[written:], position + written
