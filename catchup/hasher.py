"""The process that hashes blocks, and copies them where they are to be.

Reading, hashing and writing a state take the interpreter lock again and again, and wait for it each time:
beside a busy loop that costs many times the work. A process needs no lock, and may be nice to those that
answer clients. It runs this file by itself, without the rest of stretto; :mod:`stretto.catchup.hashing`
starts it.

**Past the page cache.** What is copied here is written once and read at most once more. In the page cache it
would push out the very state that it is a copy of, wait there for a disk that could have been writing all
the time, and cost more processor time than all of hashing. So files are written as O_DIRECT, from buffers
that are aligned for it; where a file system does not know that, they are ordinary files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from xxhash import xxh3_128_digest

HASH_BYTES = 16
READ_BYTES = 1024 * 1024
ALIGNED_BYTES = 4096
"""Alignment of positions, lengths and memory that every disk accepts past the page cache."""
NICENESS = 5
_BUFFERS = 4
"""Writes of a copy that are under way at once: a shared disk serves best the process with the most."""
_AUTOGROUP = Path("/proc/self/autogroup")


def be_nice(*, as_session: bool = False) -> None:
    """Let the calling thread, and what it starts from now on, give way to those that answer clients.

    ``as_session`` is for a process that leads a session of its own. Where Linux shares out processors by
    sessions first (autogroup), niceness counts inside of one only: a process that stays in its worker's takes
    from what the worker gets, and one that does not must be nice as a session.
    """
    niceness = max(os.getpriority(os.PRIO_PROCESS, 0), NICENESS)
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if as_session:
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(niceness))


def open_direct(path: Path, flags: int) -> int:
    """Open a descriptor that goes past the page cache, if the file system supports that."""
    try:
        return os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags | os.O_CLOEXEC, 0o600)


def is_direct(fd: int) -> bool:
    """Whether the descriptor goes past the page cache."""
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def is_aligned(position: int, length: int) -> bool:
    """Whether a range can be read or written past the page cache."""
    return position % ALIGNED_BYTES == length % ALIGNED_BYTES == 0


def write(fd: int, data: memoryview, position: int) -> None:
    """Write all of the data, through the page cache if it cannot go past it.

    Then all that comes later goes through it, too.
    """
    while len(data):
        try:
            written = os.pwrite(fd, data, position)
        except OSError as error:
            if error.errno != errno.EINVAL or not is_direct(fd):
                raise
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        else:
            data, position = data[written:], position + written


def hashes_in(piece: memoryview, block_bytes: int, seed: int) -> bytes:
    """Hashes of the blocks of a piece, one after the other."""
    return b"".join(
        [xxh3_128_digest(piece[at : at + block_bytes], seed) for at in range(0, len(piece), block_bytes)]
    )


def hashes_of_file(fd: int, size_bytes: int, block_bytes: int, seed: int) -> Iterator[bytes]:
    """Yield the hashes of a file's blocks, piece by piece.

    Each piece is read to where the one before was, and hashed while it is in the processor's cache.
    """
    piece_bytes = _piece_bytes(block_bytes)
    buffer = memoryview(bytearray(min(piece_bytes, size_bytes)))
    for position in range(0, size_bytes, piece_bytes):
        piece = buffer[: min(piece_bytes, size_bytes - position)]
        _read(fd, piece, position)
        yield hashes_in(piece, block_bytes, seed)


def _piece_bytes(block_bytes: int) -> int:
    return max(READ_BYTES, block_bytes) // block_bytes * block_bytes


def _say(hashes: bytes) -> None:
    sys.stdout.buffer.write(hashes)
    sys.stdout.buffer.flush()


def _copy(source: Path, size_bytes: int, fd: int, block_bytes: int, seed: int) -> None:
    """Copy a file to another one, but for its head, which comes from standard input.

    Hashes are written out when their blocks are in the file.
    """
    piece_bytes = _piece_bytes(block_bytes)
    buffers = [memoryview(mmap.mmap(-1, piece_bytes)) for _ in range(_BUFFERS)]
    head = sys.stdin.buffer.read()
    under_way: deque[tuple[Future[None], bytes]] = deque()

    def wait_for_oldest() -> None:
        written, hashes = under_way.popleft()
        written.result()
        _say(hashes)

    with source.open("rb", 0) as file, ThreadPoolExecutor(_BUFFERS) as writing:
        os.posix_fadvise(file.fileno(), 0, size_bytes, os.POSIX_FADV_SEQUENTIAL)
        for position in range(0, size_bytes, piece_bytes):
            buffer = buffers[0]
            buffers.append(buffers.pop(0))
            if len(under_way) == _BUFFERS:
                wait_for_oldest()
            piece = buffer[: min(piece_bytes, size_bytes - position)]
            _read(file.fileno(), piece, position)
            if position < len(head):
                part = head[position : position + len(piece)]
                piece[: len(part)] = part
            hashes = hashes_in(piece, block_bytes, seed)
            under_way.append((writing.submit(write, fd, piece, position), hashes))
        while under_way:
            wait_for_oldest()


def _read(fd: int, piece: memoryview, position: int) -> None:
    got = os.preadv(fd, [piece], position)
    if got < len(piece):
        raise OSError(f"the file ends at {position + got}, before its time")


def _main(arguments: list[str]) -> None:
    be_nice(as_session=True)
    match arguments:
        case ["file", size_bytes, block_bytes, seed]:
            for hashes in hashes_of_file(0, int(size_bytes), int(block_bytes), int(seed)):
                _say(hashes)
        case ["copy", source, size_bytes, fd, block_bytes, seed]:
            _copy(Path(source), int(size_bytes), int(fd), int(block_bytes), int(seed))
        case _:
            raise SystemExit("this is run by a worker")


if __name__ == "__main__":
    _main(sys.argv[1:])
