"""Hashes of the blocks of files, worked out in processes of their own.

Hashing gives up the interpreter lock for each block and has to wait for it again: beside a busy loop that
costs many times the hashing. A process needs no lock, and may be nice to those that answer clients. It runs
this file by itself, without the rest of stretto, and reads what it hashes from the page cache: a copy that is
being made, as far as it has come; or what a follower has just written.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

HASH_BYTES = 16
READ_BYTES = 512 * 1024
SMALL_BYTES = 4 << 20
"""Below this a process is not worth its start."""
NICENESS = 5
_AUTOGROUP = Path("/proc/self/autogroup")
_LOOK_SECONDS = 0.002
_RANGE = struct.Struct("<QQQQ")


def be_nice(*, as_session: bool = False) -> None:
    """The calling thread, and what it starts from now on, gives way to those that answer clients.

    ``as_session`` is for a process that leads a session of its own. Where Linux shares out processors by
    sessions first (autogroup), niceness counts inside of one only: a process that stays in its worker's takes
    from what the worker gets, and one that does not must be nice as a session.
    """
    niceness = max(os.getpriority(os.PRIO_PROCESS, 0), NICENESS)
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if as_session:
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(niceness))


def hashes_of(fd: int, size_bytes: int, block_bytes: int) -> bytes:
    """Of the first ``size_bytes`` of a file, whose position is not used. Blocks until done."""
    if size_bytes <= SMALL_BYTES:
        return b"".join(_hashes(_read(fd, 0, size_bytes, block_bytes), block_bytes))
    process = _start(["file", str(size_bytes), str(block_bytes)], stdin=fd)
    hashes, errors = process.communicate()
    _check_ended(process, errors)
    return hashes


def copy_and_hash(
    copy: Callable[[int], None], fd: int, block_bytes: int, grew: Callable[[int], None] = lambda _: None
) -> bytes:
    """Run ``copy`` on a file, which it writes from beginning to end, and return the hashes of what it wrote.

    ``grew`` is told how many blocks are written and hashed, whenever there are more.
    """
    process = _start(["growing", str(fd), str(block_bytes)], stdin=subprocess.PIPE, pass_fds=(fd,))
    failures: list[BaseException] = []

    def run() -> None:
        be_nice()
        try:
            copy(fd)
        except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
            failures.append(error)
            process.kill()
        else:
            _pipe(process.stdin).close()

    copying = threading.Thread(target=run, name="copy")
    copying.start()
    hashes = bytearray()
    try:
        while part := os.read(_pipe(process.stdout).fileno(), READ_BYTES):
            hashes += part
            grew(len(hashes) // HASH_BYTES)
    finally:
        copying.join()
        with process:
            errors = _pipe(process.stderr).read()
    if failures:
        raise failures[0]
    _check_ended(process, errors)
    return bytes(hashes)


class WrittenHashes:
    """Hashes of what was written to the files of a folder. Any thread; one question at a time."""

    def __init__(self, files: dict[int, Path]) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def of(self, file: int, position: int, length: int, block_bytes: int) -> bytes:
        with self._lock:
            if self._process is None:
                named = [f"{number}={path}" for number, path in self._files.items()]
                self._process = _start(["ranges", *named], stdin=subprocess.PIPE)
            process = self._process
            try:
                question = _pipe(process.stdin)
                question.write(_RANGE.pack(file, position, length, block_bytes))
                question.flush()
                wanted = -(-length // block_bytes) * HASH_BYTES
                hashes = _pipe(process.stdout).read(wanted)
            except BrokenPipeError:
                hashes, wanted = b"", 1
            if len(hashes) != wanted:
                self._end()
                raise OSError("what was written could not be hashed")
            return hashes

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _pipe(stream: object) -> BinaryIO:
    if stream is None:
        raise OSError("the hashing process has no such pipe")
    return stream  # type: ignore[return-value]


def _start(arguments: list[str], stdin: int, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", __file__, *arguments]
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
        raise OSError(f"blocks could not be hashed: {errors.decode(errors='replace').strip()[-200:]}")


def _hashes(pieces: Iterator[memoryview], block_bytes: int) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), block_bytes):
            yield blake3(piece[at : at + block_bytes]).digest(HASH_BYTES)


def _read(fd: int, start: int, end: int, block_bytes: int) -> Iterator[memoryview]:
    """Each piece lies where the one before was: it is hashed while it is in the processor's cache."""
    piece_bytes = max(READ_BYTES, block_bytes) // block_bytes * block_bytes
    buffer = memoryview(bytearray(min(piece_bytes, end - start)))
    for position in range(start, end, piece_bytes):
        piece = buffer[: min(piece_bytes, end - position)]
        got = os.preadv(fd, [piece], position)
        if got < len(piece):
            raise OSError(f"the file ends at {position + got} instead of {end}")
        yield piece


def _say(hashes: Iterator[bytes]) -> None:
    sys.stdout.buffer.write(b"".join(hashes))
    sys.stdout.buffer.flush()


def _hash_growing(fd: int, block_bytes: int) -> None:
    """A file that is written forward, until standard input ends."""
    piece_bytes = max(READ_BYTES, block_bytes) // block_bytes * block_bytes
    done, whole, patience = 0, False, 0.0
    while not whole:
        # Nothing is ever sent: it is readable once it has ended.
        whole = bool(select.select([0], [], [], patience)[0])
        size = os.fstat(fd).st_size
        end = size if whole else size // piece_bytes * piece_bytes
        for position in range(done, end, piece_bytes):
            _say(_hashes(_read(fd, position, min(end, position + piece_bytes), block_bytes), block_bytes))
        patience = _LOOK_SECONDS if end == done else 0.0
        done = end


def _hash_ranges(files: dict[int, str]) -> None:
    fds: dict[int, int] = {}
    while question := sys.stdin.buffer.read(_RANGE.size):
        file, position, length, block_bytes = _RANGE.unpack(question)
        if file not in fds:
            fds[file] = os.open(files[file], os.O_RDONLY)
        _say(_hashes(_read(fds[file], position, position + length, block_bytes), block_bytes))


def _main(arguments: list[str]) -> None:
    be_nice(as_session=True)
    match arguments:
        case ["file", size_bytes, block_bytes]:
            _say(_hashes(_read(0, 0, int(size_bytes), int(block_bytes)), int(block_bytes)))
        case ["growing", fd, block_bytes]:
            _hash_growing(int(fd), int(block_bytes))
        case ["ranges", *files]:
            named = (file.split("=", 1) for file in files)
            _hash_ranges({int(number): path for number, path in named})
        case _:
            raise SystemExit("this is run by a worker")


if __name__ == "__main__":
    _main(sys.argv[1:])
