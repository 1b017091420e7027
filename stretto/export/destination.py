"""The folder of an export, which changes as a whole or not at all.

A new export is built beside the folder, in ``.NAME.exporting``, as the whole tree that is to be seen: what is
kept of the old one by hard links, and what is new. Then the two trees change places, in one system call where
the file system has it (``renameat2`` with RENAME_EXCHANGE). Where it has not, the old tree is moved aside
first; who is killed between the two steps leaves it there, and the next export moves it back. So whoever
reads the folder finds the old export or the new one, and a failed one leaves nothing.

The manifest takes its place right after that. It lies ready before, in ``.NAME.exporting`` too; it names all
files of the export, so whoever comes after one that was killed in between sees to which tree it belongs.

A lock lasts as long as the process that exports: what is left of one that was killed is nobody's.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stretto.errors import StrettoError, UsageError
from stretto.export.manifest import INSIDE, SUFFIX, Manifest, decode, encode

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NOT_SUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


class Destination:
    """The folder that an export is written to, to be used within :meth:`locked`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute().resolve()
        self._beside = self.folder.parent / f".{self.folder.name}.exporting"
        self._lock: int | None = None

    @property
    def tree(self) -> Path:
        """Where a new export is written."""
        return self._beside / "tree"

    @property
    def report(self) -> Path:
        """Where the data source reports what it has read."""
        return self._beside / "report.json"

    @property
    def manifest(self) -> Path:
        """Where the manifest of the export that is there lies."""
        return self.folder.parent / f"{self.folder.name}{SUFFIX}"

    @property
    def _aside(self) -> Path:
        return self._beside / "aside"

    @property
    def _next_manifest(self) -> Path:
        """Where the manifest of the tree lies that is about to take the place of the export that is there."""
        return self._beside / "manifest.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other exports, and clear away what an interrupted one left."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        lock = self._take_lock()
        try:
            self._recover()
            yield
        finally:
            # While it is locked, so that nobody else's is deleted.
            if self._next_manifest.exists():
                self._finish_manifest()
            if self.folder.exists() or not self._aside.exists():
                shutil.rmtree(self._beside, ignore_errors=True)
            os.close(lock)

    def _take_lock(self) -> int:
        while True:
            self._beside.mkdir(mode=0o700, exist_ok=True)
            path = self._beside / "lock"
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise StrettoError(
                    f"another export writes to {self.folder} now; wait for it, or choose another folder"
                ) from None
            try:
                if os.path.samestat(os.fstat(lock), path.stat()):
                    return lock
            except FileNotFoundError:
                pass
            # Whoever had it has deleted it meanwhile.
            os.close(lock)

    def _recover(self) -> None:
        if self._aside.exists() and not self.folder.exists():
            self._aside.rename(self.folder)
        if self._next_manifest.exists():
            self._finish_manifest()
        self.report.unlink(missing_ok=True)
        for left in (self.tree, self._aside):
            if left.exists():
                shutil.rmtree(left)

    def _finish_manifest(self) -> None:
        """Publish the next manifest if its tree has taken the export's place; delete it if not."""
        files = decode(self._next_manifest.read_bytes(), str(self._next_manifest)).files
        if self.folder.exists() and files_in(self.folder) == files:
            os.replace(self._next_manifest, self.manifest)
        else:
            self._next_manifest.unlink()

    # What is there.

    def present(self) -> Manifest | None:
        """The manifest of the export that is there; None if there is none.

        Raises UsageError if something else is there: that is never touched.
        """
        if not self.folder.exists():
            return None
        if not self.folder.is_dir():
            raise UsageError(f"{self.folder} is a file; name a folder")
        manifest = self._told()
        if manifest is None:
            if any(self.folder.iterdir()):
                raise UsageError(
                    f"{self.folder} holds files and is no export, or {self.manifest.name} was not taken "
                    "along with it; name a new or an empty folder"
                )
            return None
        if manifest.files and not any(self.folder.iterdir()):
            return None
        strange = sorted(files_in(self.folder) - manifest.files)
        if strange:
            raise UsageError(
                f"{self.folder / strange[0]} was not written by an export, and would be lost; move it away"
            )
        missing = sorted(manifest.files - files_in(self.folder))
        if missing:
            raise StrettoError(
                f"{self.folder / missing[0]} is missing from the export that is there; "
                "delete the folder, and export all of it anew"
            )
        return manifest

    def _told(self) -> Manifest | None:
        """The manifest of what is there: beside the folder, or in it if an earlier release wrote it last."""
        paths = [path for path in (self.manifest, self.folder / INSIDE) if path.exists()]
        found = [decode(path.read_bytes(), str(path)) for path in paths]
        fitting = [manifest for manifest in found if manifest.files == files_in(self.folder)]
        return next(iter(fitting or found), None)

    # Publication.

    def publish(self, manifest: Manifest, kept: Manifest | None = None) -> None:
        """Make what is in :attr:`tree`, and what is ``kept`` of the export that is there, the export."""
        for file in sorted(kept.files if kept is not None else ()):
            _link(self.folder / file, self.tree / file)
        self.tree.mkdir(exist_ok=True)
        _sync_tree(self.tree)
        draft = self._next_manifest.with_suffix(".draft")
        draft.write_bytes(encode(manifest))
        _sync(draft)
        os.replace(draft, self._next_manifest)
        _sync(self._beside)
        if not self.folder.exists() or not any(self.folder.iterdir()):
            self.tree.rename(self.folder)
        elif not _exchange(self.tree, self.folder):
            self.folder.rename(self._aside)
            self.tree.rename(self.folder)
        os.replace(self._next_manifest, self.manifest)
        _sync(self.folder.parent)


def files_in(folder: Path) -> set[str]:
    """Files of data in a folder, relative to it: what Spark reads."""
    found = set()
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        found |= {os.path.relpath(os.path.join(here, name), folder) for name in names if not _is_hidden(name)}
    return found


def _is_hidden(name: str) -> bool:
    """Whether Spark and Arrow pass over a name; the folder of a partition may well be called ``_task=3``."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        shutil.copy2(source, target)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders at once; False if the file system cannot."""
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_SUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _sync_tree(folder: Path) -> None:
    for here, _, names in os.walk(folder):
        for name in names:
            _sync(Path(here, name))
        _sync(Path(here))


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
