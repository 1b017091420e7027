"""What a driver of the replication core needs of a log, and of the folder the log lives in.

:class:`Storage` is the contract that the replog passes over a real folder and over the simulator's
folder alike; :class:`Folder` is the contract of those folders. Appending and making durable are two
calls, so that a driver can gather what is waiting and pay for one ``fdatasync``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from stretto.replog.frame import Frame, Header
from stretto.vocabulary.types import Buffer, Epoch, Offset


class EpochStart(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An epoch and the offset of its first entry."""

    epoch: Epoch
    start: Offset


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Whole frames read from a log: entries ``[start, end)``, as they were appended."""

    start: Offset
    end: Offset
    buffers: tuple[Buffer, ...]


class Storage(Protocol):
    """Interface of the replog of one replica. Not thread-safe except where a method says so."""

    @property
    def start_offset(self) -> Offset:
        """Lowest offset that can be read."""
        ...

    @property
    def end_offset(self) -> Offset:
        """End of what was appended, durable or not."""
        ...

    @property
    def durable_end_offset(self) -> Offset:
        """End of what survives a power loss."""
        ...

    @property
    def history(self) -> tuple[EpochStart, ...]:
        """The epochs of the log, ascending.

        The first is the one that was running just below ``start_offset``, if any.
        """
        ...

    def append(self, frames: Sequence[Frame]) -> None:
        """Add frames at the end; readable at once, durable after :meth:`sync`."""
        ...

    def sync(self) -> Offset:
        """Make everything appended durable: one ``writev``, one ``fdatasync``. Returns the durable end.

        Raises StorageError if either fails; the log then refuses everything but :meth:`close`.
        """
        ...

    def read(self, start: Offset, end: Offset, max_bytes: int) -> Chunk:
        """Read whole frames from ``start`` (a frame boundary) up to ``end``, at least one.

        More than one only within ``max_bytes``. Raises StorageCorrupt if what is on disk fails its checksum.
        """
        ...

    def absent(self, start: Offset, max_bytes: int) -> Callable[[], None] | None:
        """None if a :meth:`read` from ``start`` does not wait for the disk; else a function to call first.

        The function does the waiting instead, once and on any thread.
        """
        ...

    def headers(self, start: Offset) -> Iterator[Header]:
        """Headers of the frames from the one that holds ``start`` to the end of the log."""
        ...

    def truncate(self, end: Offset) -> None:
        """Durably drop everything from ``end`` (a frame boundary) on."""
        ...

    def cut(self, start: Offset) -> Offset:
        """Drop what lies wholly below ``start``, in whole segments, for retention.

        Returns the new ``start_offset``, at most ``start``.
        """
        ...

    def reset(self, start: Offset, history: tuple[EpochStart, ...]) -> None:
        """Durably replace the log by an empty one that begins at ``start``.

        Of ``history``, which ends there, the last epoch is kept.
        """
        ...

    def close(self) -> None: ...


class File(Protocol):
    """A file opened by :meth:`Folder.open`."""

    def writev(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers at ``position``. Raises OSError; a short write is finished or raised."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Read up to ``length`` bytes: fewer only at the end of the file."""
        ...

    def absent(self, position: int, length: int) -> Callable[[], None] | None:
        """None if that range can be read without waiting for the disk; else a function that fetches it.

        It brings the range into memory, is called once, on any thread, also if the file is closed meanwhile.
        """
        ...

    def fdatasync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Folder(Protocol):
    """The folder of one replica: a flat set of named files."""

    def names(self) -> list[str]: ...

    def open(self, name: str, *, create: bool = False) -> File:
        """Open a file for reading and writing. Raises FileNotFoundError without ``create``."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically, in place of one named ``new``; durable after :meth:`sync`."""
        ...

    def remove(self, name: str) -> None: ...

    def sync(self) -> None:
        """Make creations, renames and removals durable."""
        ...
