"""Hashes of the blocks of whole files, worked out in processes of their own (:mod:`stretto.catchup.hasher`).

Of a file as it is, or of a copy, which the process itself makes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import BinaryIO

from stretto.catchup import hasher
from stretto.catchup.hasher import READ_BYTES
from stretto.state.environment import StandingFile

SMALL_BYTES = 4 << 20
"""Size below which a process is not worth its start."""


def hashes_of(fd: int, size_bytes: int, block_bytes: int, seed: int) -> bytes:
    """Hash the blocks of the first ``size_bytes`` of a file, whose position is not used; waits for it."""
    if size_bytes <= SMALL_BYTES:
        return b"".join(hasher.hashes_of_file(fd, size_bytes, block_bytes, seed))
    process = _start(["file", str(size_bytes), str(block_bytes), str(seed)], stdin=fd)
    hashes, errors = process.communicate()
    _check_ended(process, errors)
    return hashes


def copy_and_hash(
    source: StandingFile,
    fd: int,
    block_bytes: int,
    seed: int,
    on_growth: Callable[[bytearray], None] = lambda _: None,
) -> bytes:
    """Have a file copied to another one, and return the hashes of its blocks.

    ``on_growth`` is called with the hashes of the blocks that are in the file, whenever there are more:
    always the same list, which goes on growing. What it raises ends the copy.
    """
    arguments = ["copy", str(source.path), str(source.size_bytes), str(fd), str(block_bytes), str(seed)]
    with _start(arguments, stdin=subprocess.PIPE, pass_fds=(fd,)) as process:
        try:
            with contextlib.suppress(BrokenPipeError), _pipe(process.stdin) as head:
                head.write(source.head)
            hashes = bytearray()
            while part := os.read(_pipe(process.stdout).fileno(), READ_BYTES):
                hashes += part
                on_growth(hashes)
            errors = _pipe(process.stderr).read()
        except BaseException:
            process.kill()
            raise
    _check_ended(process, errors)
    return bytes(hashes)


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
