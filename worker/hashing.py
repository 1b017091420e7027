"""Hashes of the blocks of a file, worked out in a process of its own.

Hashing gives up the interpreter lock for each block and has to wait for it again: beside a busy loop that
costs many times the hashing. A process needs no lock, and may be nice to those that answer clients. It runs
this file by itself, without the rest of stretto. A copy is hashed while it is made: it comes through a pipe,
and the process writes it to its file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

HASH_BYTES = 16
READ_BYTES = 1 << 20
SMALL_BYTES = 4 << 20
"""Below this a process is not worth its start."""
NICENESS = 5


def hashes_of(fd: int, size_bytes: int, block_bytes: int) -> bytes:
    """Of the first ``size_bytes`` of a file, whose position is not used. Blocks until done."""
    if size_bytes <= SMALL_BYTES:
        return b"".join(_hashes(_read_file(fd, size_bytes, block_bytes), block_bytes))
    process = _start(["file", str(size_bytes), str(block_bytes)], stdin=fd)
    return _finish(process)


def copy_and_hash(copy: Callable[[int], None], fd: int, block_bytes: int) -> bytes:
    """Run ``copy`` on a descriptor; what it writes goes to ``fd``, and its hashes are returned."""
    process = _start(["pipe", str(fd), str(block_bytes)], stdin=subprocess.PIPE, pass_fds=(fd,))
    try:
        if process.stdin is not None:
            with process.stdin as pipe:
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, READ_BYTES)
                copy(pipe.fileno())
    except BaseException:
        process.kill()
        process.communicate()
        raise
    process.stdin = None
    return _finish(process)


def _start(arguments: list[str], stdin: int, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", __file__, *arguments]
    return subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=pass_fds
    )


def _finish(process: subprocess.Popen[bytes]) -> bytes:
    hashes, errors = process.communicate()
    if process.returncode != 0:
        raise OSError(f"blocks could not be hashed: {errors.decode(errors='replace').strip()[-200:]}")
    return hashes


def _hashes(pieces: Iterator[bytes], block_bytes: int) -> Iterator[bytes]:
    sha256 = hashlib.sha256
    for piece in pieces:
        data = memoryview(piece)
        for at in range(0, len(data), block_bytes):
            yield sha256(data[at : at + block_bytes]).digest()[:HASH_BYTES]


def _piece_bytes(block_bytes: int) -> int:
    return max(READ_BYTES, block_bytes) // block_bytes * block_bytes


def _read_file(fd: int, size_bytes: int, block_bytes: int) -> Iterator[bytes]:
    piece_bytes = _piece_bytes(block_bytes)
    for position in range(0, size_bytes, piece_bytes):
        wanted = min(piece_bytes, size_bytes - position)
        piece = os.pread(fd, wanted, position)
        if len(piece) < wanted:
            raise OSError(f"the file ends at {position + len(piece)} instead of {size_bytes}")
        yield piece


def _through(file: int, block_bytes: int) -> Iterator[bytes]:
    """What comes in over standard input, which goes to a file on its way."""
    piece_bytes = _piece_bytes(block_bytes)
    with os.fdopen(0, "rb", piece_bytes) as source:
        while piece := source.read(piece_bytes):
            left = memoryview(piece)
            while left:
                left = left[os.write(file, left) :]
            yield piece


def _main(arguments: list[str]) -> None:
    os.nice(NICENESS)
    kind, number, block_bytes = arguments[0], int(arguments[1]), int(arguments[2])
    pieces = _through(number, block_bytes) if kind == "pipe" else _read_file(0, number, block_bytes)
    hashes = b"".join(_hashes(pieces, block_bytes))
    sys.stdout.buffer.write(hashes)


if __name__ == "__main__":
    _main(sys.argv[1:])
