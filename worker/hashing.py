"""Hashes of the blocks of a file, worked out in a process of its own.

Hashing gives up the interpreter lock for each block and has to wait for it again: beside a busy loop that
costs many times the hashing. A process needs no lock, and may be nice to those that answer clients. It runs
this file by itself, without the rest of stretto. The file to hash is its standard input.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator

HASH_BYTES = 16
READ_BYTES = 1 << 20
SMALL_BYTES = 4 << 20
"""Below this a process is not worth its start."""
NICENESS = 5


def hashes_of(fd: int, size_bytes: int, block_bytes: int) -> bytes:
    """Of the first ``size_bytes`` of a file, whose position is not used. Blocks until done."""
    if size_bytes <= SMALL_BYTES:
        return b"".join(_hashes(fd, size_bytes, block_bytes))
    command = [sys.executable, "-I", "-S", __file__, str(size_bytes), str(block_bytes)]
    done = subprocess.run(command, stdin=fd, capture_output=True, check=False)
    if done.returncode != 0 or len(done.stdout) != -(-size_bytes // block_bytes) * HASH_BYTES:
        raise OSError(f"blocks could not be hashed: {done.stderr.decode(errors='replace').strip()[-200:]}")
    return done.stdout


def _hashes(fd: int, size_bytes: int, block_bytes: int) -> Iterator[bytes]:
    sha256 = hashlib.sha256
    read_bytes = max(READ_BYTES, block_bytes) // block_bytes * block_bytes
    for position in range(0, size_bytes, read_bytes):
        wanted = min(read_bytes, size_bytes - position)
        data = memoryview(os.pread(fd, wanted, position))
        if len(data) < wanted:
            raise OSError(f"the file ends at {position + len(data)} instead of {size_bytes}")
        for at in range(0, wanted, block_bytes):
            yield sha256(data[at : at + block_bytes]).digest()[:HASH_BYTES]


if __name__ == "__main__":
    os.nice(NICENESS)
    for hashed in _hashes(0, int(sys.argv[1]), int(sys.argv[2])):
        sys.stdout.buffer.write(hashed)
