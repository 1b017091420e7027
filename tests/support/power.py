"""A folder in memory that knows what a power loss would leave of it.

Writes and truncations of a file are safe once its ``fdatasync`` returned; creations, renames and
removals once the folder's ``sync`` did. Of everything else, any part may survive: each change of the
folder by itself, each file's unsynced bytes wholly, in part, or not at all. ``crash_before`` raises
:class:`PowerLoss` instead of performing the operation with that number; :meth:`survivors` then
enumerates the folders that one might find afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stretto.vocabulary.types import Buffer

SUBSETS_MAX = 64


class PowerLoss(BaseException):
    """The power is lost; no Exception, so that no handler takes it."""


class Inode:
    """A file's content, with the part that survives a power loss for certain."""

    def __init__(self, content: bytes = b"") -> None:
        self.live = bytearray(content)
        self.durable = bytes(content)

    def survivors(self) -> list[bytes]:
        """Return what may be found of the content: what is durable, all, or a write cut in the middle."""
        live, durable = bytes(self.live), self.durable
        found = [durable]
        if live != durable:
            found.append(live)
            if len(live) > len(durable) and live.startswith(durable):
                middle = (len(durable) + len(live)) // 2
                found.append(live[:middle])
                found.append(durable + bytes(len(live) - len(durable)))
        return found


class PowerFile:
    def __init__(self, folder: PowerFolder, inode: Inode) -> None:
        self._folder = folder
        self._inode = inode

    def writev(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._folder.operate("writev")
        data = b"".join(buffers)
        live = self._inode.live
        if len(live) < position:
            live.extend(bytes(position - len(live)))
        live[position : position + len(data)] = data

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._inode.live[position : position + length])

    def absent(self, position: int, length: int) -> None:
        """Report nothing as absent: everything is in memory."""

    def fdatasync(self) -> None:
        self._folder.operate("fdatasync")
        self._inode.durable = bytes(self._inode.live)

    def truncate(self, size: int) -> None:
        self._folder.operate("truncate")
        live = self._inode.live
        if len(live) < size:
            live.extend(bytes(size - len(live)))
        del live[size:]

    def size(self) -> int:
        return len(self._inode.live)

    def close(self) -> None:
        pass


class PowerFolder:
    """A folder in memory that records what is synced."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = {name: Inode(content) for name, content in (files or {}).items()}
        self._durable_files = dict(self.files)
        #: Changes of the folder since its last sync; each maps names to their file or to nothing.
        self._changes: list[dict[str, Inode | None]] = []
        self.operations: list[str] = []
        self.crash_before: int | None = None
        self.fail_before: int | None = None

    def operate(self, what: str) -> None:
        if self.crash_before == len(self.operations):
            raise PowerLoss
        if self.fail_before == len(self.operations):
            raise OSError(5, f"{what} failed")
        self.operations.append(what)

    def names(self) -> list[str]:
        return list(self.files)

    def open(self, name: str, *, create: bool = False) -> PowerFile:
        if name not in self.files:
            if not create:
                raise FileNotFoundError(2, "no such file", name)
            self._change("create", {name: Inode()})
        return PowerFile(self, self.files[name])

    def rename(self, old: str, new: str) -> None:
        self._change("rename", {old: None, new: self.files[old]})

    def remove(self, name: str) -> None:
        if name not in self.files:
            raise FileNotFoundError(2, "no such file", name)
        self._change("remove", {name: None})

    def sync(self) -> None:
        self.operate("sync")
        self._durable_files = dict(self.files)
        self._changes.clear()

    def power_off(self) -> PowerFolder:
        """Return the folder with everything unsynced gone."""
        return PowerFolder({name: inode.durable for name, inode in self._durable_files.items()})

    def process_exit(self) -> PowerFolder:
        """Return the same folder with the page cache intact: a new process sees all, durable or not."""
        survivor = PowerFolder()
        survivor.files = dict(self.files)
        survivor._durable_files = dict(self._durable_files)
        survivor._changes = list(self._changes)
        return survivor

    def survivors(self) -> Iterator[PowerFolder]:
        """Yield folders that may be found after a power loss now."""
        for changes in _subsets(self._changes):
            files = _apply(self._durable_files, changes)
            for found in _contents(files):
                yield PowerFolder(found)

    def _change(self, what: str, names: dict[str, Inode | None]) -> None:
        self.operate(what)
        self._changes.append(names)
        self.files = _apply(self.files, [names])


def _apply(files: dict[str, Inode], changes: Sequence[dict[str, Inode | None]]) -> dict[str, Inode]:
    files = dict(files)
    for change in changes:
        for name, inode in change.items():
            files.pop(name, None)
            if inode is not None:
                files[name] = inode
    return files


def _contents(files: dict[str, Inode]) -> Iterator[dict[str, bytes]]:
    """Yield all files as durable, all as written, and each unsynced file by itself in each way."""
    durable = {name: inode.durable for name, inode in files.items()}
    yield durable
    unsynced = {name: inode.survivors()[1:] for name, inode in files.items() if inode.live != inode.durable}
    if len(unsynced) > 1:
        yield {name: bytes(inode.live) for name, inode in files.items()}
    for name, variants in unsynced.items():
        for content in variants:
            yield durable | {name: content}


def _subsets(changes: Sequence[dict[str, Inode | None]]) -> Iterator[list[dict[str, Inode | None]]]:
    """Yield all subsets of a few changes; of many, all, none, each alone and each missing."""
    count = len(changes)
    if 2**count <= SUBSETS_MAX:
        masks: list[int] = list(range(2**count))
    else:
        everything = 2**count - 1
        single = [1 << bit for bit in range(count)]
        masks = [0, everything, *single, *(everything ^ one for one in single)]
    for mask in masks:
        yield [change for bit, change in enumerate(changes) if mask >> bit & 1]
