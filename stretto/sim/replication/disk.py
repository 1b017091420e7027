"""A folder in memory that forgets what was not synced, and can be torn, damaged and wiped.

It passes the same contract as the folder on a real disk, so the log above it is the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from stretto.replog.identity import ASIDE_PREFIX
from stretto.vocabulary.types import Buffer


class SimFile:
    """A file with the bytes that a reader sees now, and those that survive a power loss for certain."""

    __slots__ = ("data", "durable", "folder")

    def __init__(self, folder: SimFolder) -> None:
        self.folder = folder
        self.data = bytearray()
        self.durable = b""

    def writev(self, position: int, buffers: Sequence[Buffer]) -> None:
        self.folder.fail_if_told()
        data = self.data
        if position > len(data):
            data.extend(bytes(position - len(data)))
        for buffer in buffers:
            data[position : position + len(buffer)] = buffer
            position += len(buffer)

    def read(self, position: int, length: int) -> bytes:
        return bytes(self.data[position : position + length])

    def absent(self, position: int, length: int) -> None:
        """Report nothing as absent: everything is in memory."""

    def fdatasync(self) -> None:
        self.folder.fail_if_told()
        self.durable = bytes(self.data)

    def truncate(self, size: int) -> None:
        self.folder.fail_if_told()
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))

    def size(self) -> int:
        return len(self.data)

    def close(self) -> None:
        """Do nothing: in memory, no file is held open."""


class SimFolder:
    """A flat set of named files, with those names that survive a power loss."""

    def __init__(self) -> None:
        self._files: dict[str, SimFile] = {}
        self._durable_names: dict[str, SimFile] = {}
        #: Called before each write and sync; True makes it fail, as on a broken disk.
        self.breaks: Callable[[], bool] | None = None

    def fail_if_told(self) -> None:
        """Raise OSError if the disk is broken."""
        if self.breaks is not None and self.breaks():
            raise OSError(5, "Input/output error")

    # The contract.

    def names(self) -> list[str]:
        return sorted(self._files)

    def open(self, name: str, *, create: bool = False) -> SimFile:
        if create and name not in self._files:
            self.fail_if_told()
            self._files[name] = SimFile(self)
        return self._files[self._existing(name)]

    def rename(self, old: str, new: str) -> None:
        self.fail_if_told()
        self._files[new] = self._files.pop(self._existing(old))

    def remove(self, name: str) -> None:
        self.fail_if_told()
        del self._files[self._existing(name)]

    def _existing(self, name: str) -> str:
        if name not in self._files:
            raise FileNotFoundError(2, "No such file", name)
        return name

    def sync(self) -> None:
        self.fail_if_told()
        self._durable_names = dict(self._files)

    # What a world knows of it.

    def segments(self) -> list[str]:
        """Return the names of the log's segments, without files that were set aside."""
        return [
            name for name in self._files if name.endswith(".replog") and not name.startswith(ASIDE_PREFIX)
        ]

    # What goes wrong.

    def lose_power(self, random: Random) -> None:
        """Keep what was synced, and a random part of the rest."""
        if self._files != self._durable_names and random.random() < 0.5:
            self._files = dict(self._durable_names)
        for file in self._files.values():
            file.data = bytearray(_torn(file.durable, file.data, random))
            file.durable = bytes(file.data)
        self._durable_names = dict(self._files)

    def flip_a_bit(self, random: Random) -> str | None:
        """Damage one byte somewhere, and return the name of its file; None if all are empty."""
        names = [name for name in self.names() if self._files[name].data]
        if not names:
            return None
        name = random.choice(names)
        file = self._files[name]
        position = random.randrange(len(file.data))
        file.data[position] ^= 1 << random.randrange(8)
        file.durable = bytes(file.data)
        return name


def _torn(durable: bytes, data: bytearray, random: Random) -> bytes:
    if not data.startswith(durable):
        return durable if random.random() < 0.5 else bytes(data)
    kept = random.randint(len(durable), len(data))
    torn = bytes(data[:kept])
    if random.random() < 0.3:
        torn += bytes(len(data) - kept)
    return torn
