"""Hashes of the blocks of files, worked out in processes of their own (:mod:`stretto.worker.hasher`).

Of a file as it is; of a copy, which the process itself writes as it comes in; and of what a follower has
received, which it finds in memory that both share.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from stretto.worker import hasher
from stretto.worker.hasher import HASH_BYTES, QUESTION, READ_BYTES, be_nice

SMALL_BYTES = 4 << 20
"""Below this a process is not worth its start."""
_PIPE_BYTES = 1 << 20


def hashes_of(fd: int, size_bytes: int, block_bytes: int) -> bytes:
    """Of the first ``size_bytes`` of a file, whose position is not used. Blocks until done."""
    if size_bytes <= SMALL_BYTES:
        return b"".join(hasher.hashes_of_file(fd, size_bytes, block_bytes))
    process = _start(["file", str(size_bytes), str(block_bytes)], stdin=fd)
    hashes, errors = process.communicate()
    _check_ended(process, errors)
    return hashes


def copy_and_hash(
    copy: Callable[[int], None], fd: int, block_bytes: int, grew: Callable[[int], None] = lambda _: None
) -> bytes:
    """Let ``copy`` write to a pipe, have that written to a file, and return the hashes of its blocks.

    ``grew`` is told how many blocks are hashed and in the file, whenever there are more.
    """
    process = _start(["copy", str(fd), str(block_bytes)], stdin=subprocess.PIPE, pass_fds=(fd,))
    pipe = _pipe(process.stdin)
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    failures: list[BaseException] = []

    def run() -> None:
        be_nice()
        try:
            copy(pipe.fileno())
        except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
            failures.append(error)
        finally:
            pipe.close()

    copying = threading.Thread(target=run, name="copy")
    copying.start()
    hashes = bytearray()
    try:
        while part := os.read(_pipe(process.stdout).fileno(), READ_BYTES):
            hashes += part
            grew(len(hashes) // HASH_BYTES)
    finally:
        _pipe(process.stdout).close()
        copying.join()
        with process:
            errors = _pipe(process.stderr).read()
    # A process that ends breaks the pipe, which the copy then complains about.
    _check_ended(process, errors)
    if failures:
        raise failures[0]
    return bytes(hashes)


class HashedParts:
    """Memory for parts that were received, shared with a process that hashes them. Any thread."""

    def __init__(self, parts: int, part_bytes: int) -> None:
        self._count, self.part_bytes = parts, part_bytes
        self._lock = threading.Lock()
        self._life: _Life | None = None

    @contextmanager
    def put(self, part: memoryview, block_bytes: int) -> Iterator[tuple[memoryview, bytes]]:
        """A copy that is aligned for a disk, as long as it is used, and its hashes."""
        with self._lock:
            if self._life is None:
                self._life = _Life(self._count, self.part_bytes)
            life = self._life
        with life.place() as position:
            # By the kernel, which does not need the interpreter lock.
            hasher.write(life.fd, part, position)
            with self._lock:
                hashes = life.ask(position, len(part), block_bytes)
                if hashes is None:
                    life.end()
                    if self._life is life:
                        self._life = None
                    raise OSError("what was received could not be hashed")
            with life.memory[position : position + len(part)] as copied:
                yield copied, hashes

    def close(self) -> None:
        with self._lock:
            if self._life is not None:
                self._life.end()
                self._life = None


class _Life:
    """One process and the memory that it sees. The memory goes with its last user."""

    def __init__(self, parts: int, part_bytes: int) -> None:
        size_bytes = parts * part_bytes
        self.fd = os.memfd_create("stretto-parts", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, size_bytes)
        self.memory = memoryview(mmap.mmap(self.fd, size_bytes))
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for part in range(parts):
            self._free.put(part * part_bytes)
        self._process = _start(
            ["shared", str(self.fd), str(size_bytes)], stdin=subprocess.PIPE, pass_fds=(self.fd,)
        )

    @contextmanager
    def place(self) -> Iterator[int]:
        position = self._free.get()
        try:
            yield position
        finally:
            self._free.put(position)

    def ask(self, position: int, length: int, block_bytes: int) -> bytes | None:
        """One question at a time. None: there is nobody to ask."""
        wanted = -(-length // block_bytes) * HASH_BYTES
        try:
            question = _pipe(self._process.stdin)
            question.write(QUESTION.pack(position, length, block_bytes))
            question.flush()
            hashes = _pipe(self._process.stdout).read(wanted)
        except (OSError, ValueError):
            return None
        return hashes if len(hashes) == wanted else None

    def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


def _pipe(stream: object) -> BinaryIO:
    if stream is None:
        raise OSError("the hashing process has no such pipe")
    return stream  # type: ignore[return-value]


def _start(arguments: list[str], stdin: int, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", hasher.__file__, *arguments]
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def _check_ended(process: subprocess.Popen[bytes], errors: bytes) -> None:
    if process.wait() != 0:
        problem = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise OSError(f"blocks could not be hashed: {problem or 'the process was killed'}")
