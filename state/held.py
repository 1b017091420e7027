"""The state of a group as it was at one entry, kept for a while: to be digested and copied beside the writer.

Transactions of all its tasks are open. They cost nothing but pages of the files that cannot be used again
meanwhile; so whoever holds a state lets it go soon, and a state that is closed lets go of it first.

A copy runs through a pipe: LMDB fills it, without the interpreter lock, and this side empties it as fast as
it may, hashing on the way.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from stretto.errors import StorageError
from stretto.process.private_files import open_private
from stretto.state.task_digest import HeldTask
from stretto.vocabulary.throttle import Throttle
from stretto.vocabulary.types import TaskId

PIPE_BYTES = 1 << 20


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Size and digest of a file that was copied."""

    size_bytes: int
    sha256: str


class HeldState:
    """All tasks of a group as of one entry, until they are released.

    Safe on any thread; what takes long is done one after the other.
    """

    def __init__(
        self, tasks: Mapping[TaskId, HeldTask], snapshot: ExitStack, let_go: Callable[[HeldState], None]
    ) -> None:
        self._tasks = tasks
        self._snapshot = snapshot
        self._let_go = let_go
        self._using = threading.Lock()
        self._released = threading.Event()

    @property
    def tasks(self) -> list[TaskId]:
        return list(self._tasks)

    def row(self, task: TaskId, pstate: str, key: bytes) -> bytes | None:
        """The value of a row of a PState, or None."""
        with self._use():
            return self._tasks[task].row(pstate, key)

    def digest(self, task: TaskId) -> str:
        with self._use():
            return self._tasks[task].digest()

    def copy(
        self,
        task: TaskId,
        file: Path,
        bytes_per_second: int,
        progress: Callable[[int], None] = lambda _: None,
    ) -> CopiedFile:
        """Copy a task to a file that appears whole and durable, at so many bytes a second (0: no limit).

        Raises StorageError, or OSError if the file cannot be written.
        """
        draft = file.with_name(f"{file.name}.{os.urandom(6).hex()}.part")
        try:
            with self._use(), open_private(draft, "xb", buffering=0) as out:
                copied = self._copy(self._tasks[task], out.fileno(), bytes_per_second, progress)
                os.fsync(out.fileno())
            draft.rename(file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return copied

    def _copy(
        self, task: HeldTask, out: int, bytes_per_second: int, progress: Callable[[int], None]
    ) -> CopiedFile:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        with suppress(OSError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        failures: list[BaseException] = []

        def fill() -> None:
            try:
                task.copy(writing)
            except BaseException as error:  # noqa: BLE001 - else half a copy would be taken for a whole one
                failures.append(error)
            finally:
                os.close(writing)

        filling = threading.Thread(target=fill, name="snapshot-copy", daemon=True)
        filling.start()
        try:
            copied = self._drain(reading, out, bytes_per_second, progress)
        finally:
            # What is not read fails to be written, and so the other side ends too.
            os.close(reading)
            filling.join()
        if failures:
            raise failures[0]
        return copied

    def _drain(
        self, reading: int, out: int, bytes_per_second: int, progress: Callable[[int], None]
    ) -> CopiedFile:
        digest, size = hashlib.sha256(), 0
        throttle = Throttle(bytes_per_second, _now_ms())
        while piece := os.read(reading, PIPE_BYTES):
            digest.update(piece)
            _write(out, piece)
            size += len(piece)
            progress(len(piece))
            throttle.take(len(piece))
            now = _now_ms()
            if self._released.wait((throttle.ready_at(now) - now) / 1_000):
                raise StorageError("the state is no longer held")
        return CopiedFile(size_bytes=size, sha256=digest.hexdigest())

    def release(self) -> None:
        """Let go of the state, after what is being digested; a copy under way ends where it is."""
        self._released.set()
        with self._using:
            self._snapshot.close()
        self._let_go(self)

    @contextmanager
    def _use(self) -> Iterator[None]:
        with self._using:
            if self._released.is_set():
                raise StorageError("the state is no longer held")
            yield


def _write(fd: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
