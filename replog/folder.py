"""A replica's folder on a real file system.

Thin on purpose: what must be ordered or made durable is decided by the log; here every call is one
system call, plus what POSIX leaves to its callers: writes that take only part of what they were
given, and vectors longer than the kernel accepts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from stretto.vocabulary.types import Buffer

_VECTOR_MAX = os.sysconf("SC_IOV_MAX")
_ANYWHERE = bytearray(64 * 1024)
"""Buffer for bytes that are read only to bring them into the page cache."""


class OsFile:
    """A file opened by :class:`OsFolder`."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writev(self, position: int, buffers: Sequence[Buffer]) -> None:
        for first in range(0, len(buffers), _VECTOR_MAX):
            vector = buffers[first : first + _VECTOR_MAX]
            position = _write_all(self._fd, position, vector)

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        # A signal or the 2 GiB limit of one call can end a read early; only b"" means end of file.
        pieces = [data]
        got = len(data)
        while got < length and (data := os.pread(self._fd, length - got, position + got)):
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def absent(self, position: int, length: int) -> Callable[[], None] | None:
        end = min(position + length, self.size())
        try:
            at = _read_to_nowhere(self._fd, position, end, os.RWF_NOWAIT)
        except OSError as error:
            # A file system that cannot tell is read as ever, and so is a file that cannot be read.
            at = position if error.errno == errno.EAGAIN else end
        if at >= end:
            return None
        fd = os.dup(self._fd)

        def fetch() -> None:
            try:
                _read_to_nowhere(fd, at, end, 0)
            finally:
                os.close(fd)

        return fetch

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFolder:
    """A folder by its path, which must exist. With ``read_only`` nothing in it can be changed."""

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._read_only = read_only

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path))

    def open(self, name: str, *, create: bool = False) -> OsFile:
        flags = os.O_CLOEXEC | (os.O_RDONLY if self._read_only else os.O_RDWR)
        if create and not self._read_only:
            flags |= os.O_CREAT
        return OsFile(os.open(self.path / name, flags, 0o600))

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path / old, self.path / new)

    def remove(self, name: str) -> None:
        os.unlink(self.path / name)

    def sync(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _read_to_nowhere(fd: int, position: int, end: int, flags: int) -> int:
    """Read a range only to bring it into the page cache; return how far that came."""
    while position < end:
        left = min(end - position, _VECTOR_MAX * len(_ANYWHERE))
        whole, rest = divmod(left, len(_ANYWHERE))
        got = os.preadv(fd, [_ANYWHERE] * whole + [memoryview(_ANYWHERE)[:rest]], position, flags)
        position += got
        if got < left:
            break
    return position


def _write_all(fd: int, position: int, vector: Sequence[Buffer]) -> int:
    """Write the whole vector at ``position``; return where it ended."""
    left = sum(map(len, vector))
    while True:
        written = os.pwritev(fd, vector, position)
        position += written
        left -= written
        if not left:
            return position
        if not written:
            raise OSError("the file system took none of the bytes it was given")
        vector = _after(vector, written)


def _after(vector: Sequence[Buffer], written: int) -> list[Buffer]:
    """What remains of ``vector`` once its first ``written`` bytes are gone."""
    for index, buffer in enumerate(vector):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *vector[index + 1 :]]
        written -= len(buffer)
    return []
