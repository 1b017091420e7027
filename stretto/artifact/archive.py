"""The archive of a module's code: a zip that depends on nothing but the names and contents of its files.

Names are sorted, timestamps and permissions fixed. Nothing is compressed, because zlib's output differs from
build to build: so the same code has the same digest on every machine. It also means that an archive unpacks
to no more than its own size. The same checks guard packing and unpacking: a name that would leave the folder
it is unpacked into gets nowhere.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stretto.errors import PeerError, UsageError

ARTIFACT_BYTES_MAX = 512 * 1024 * 1024
"""Largest size of a module's code."""
PIECE_BYTES = 1024 * 1024
"""How many bytes of an archive are sent in one message at most."""

_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_READABLE = 0o100644 << 16
_UNIX = 3
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BLOCK_BYTES = 1024 * 1024
_UNREADABLE = (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file to pack: its name in the archive, and its content."""

    name: str
    content: Path | bytes

    def read(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()

    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A packed archive, named after its digest."""

    path: Path
    digest: str
    size: int


def pack(entries: Sequence[Entry], folder: Path) -> Artifact:
    """Write the entries to ``folder/<digest>.zip``. Raises UsageError for what no archive can hold."""
    try:
        check_names([entry.name for entry in entries])
    except PeerError as error:
        raise UsageError(f"it cannot be packed: {error}") from None
    total = sum(entry.size() for entry in entries)
    if total > ARTIFACT_BYTES_MAX:
        raise UsageError(
            f"{total:,} bytes of code are beyond the limit of {ARTIFACT_BYTES_MAX:,}; leave data out of it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=folder, suffix=".packing")
    try:
        with os.fdopen(fd, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for entry in sorted(entries, key=lambda entry: entry.name):
                info = zipfile.ZipInfo(entry.name, _FIXED_TIME)
                info.create_system = _UNIX
                info.external_attr = _READABLE
                archive.writestr(info, entry.read())
        digest = digest_of(temporary)
        path = folder / f"{digest}.zip"
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return Artifact(path=path, digest=digest, size=path.stat().st_size)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack into ``folder``, which must not exist. Raises PeerError if ``archive`` is none that we pack."""
    with _opened(archive) as opened:
        infos = opened.infolist()
        folder.mkdir()
        for info in infos:
            path = folder / info.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_content(opened, info))


def is_unpacked(archive: Path, folder: Path) -> bool:
    """Whether ``folder`` still holds every file of ``archive`` as it was. What was added does not matter."""
    with _opened(archive) as opened:
        for info in opened.infolist():
            try:
                content = (folder / info.filename).read_bytes()
            except OSError:
                return False
            if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
                return False
    return True


def digest_of(path: str | Path) -> str:
    """Return the SHA-256 of a file, by which an artifact is known."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def check_digest(digest: str) -> str:
    """Return the digest if it is one, since it becomes the name of a file; raise UsageError otherwise."""
    if not is_digest(digest):
        raise UsageError(f"{digest[:80]!r} is no digest of an artifact: 64 hexadecimal digits are")
    return digest


def check_names(names: Iterable[str]) -> None:
    """Raise PeerError for a name that leads out of the folder it is relative to, or stands for two files."""
    files: set[str] = set()
    folders: set[str] = set()
    for name in names:
        parts = name.split("/")
        if not all(parts) or {".", ".."} & set(parts) or "\\" in name or not name.isprintable():
            raise PeerError(f"{name!r} is not the name of a file below the archive's folder")
        if name in files:
            raise PeerError(f"{name!r} is in the archive twice")
        files.add(name)
        folders.update(str(parent) for parent in PurePosixPath(name).parents)
    if both := files & folders:
        raise PeerError(f"{min(both)!r} is both a file and a folder")
    if not files:
        raise PeerError("there is no file in it")


def _opened(archive: Path) -> zipfile.ZipFile:
    try:
        opened = zipfile.ZipFile(archive)
    except _UNREADABLE as error:
        raise _unreadable(error, "the artifact is no archive") from error
    try:
        _check_infos(opened.infolist())
    except PeerError:
        opened.close()
        raise
    return opened


def _check_infos(infos: Sequence[zipfile.ZipInfo]) -> None:
    check_names(info.filename for info in infos)
    if any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in infos):
        raise PeerError("the artifact is compressed or encrypted, which none of ours is")
    if sum(info.file_size for info in infos) > ARTIFACT_BYTES_MAX:
        raise PeerError("the artifact claims to hold more than any may")


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    try:
        return archive.read(info)
    except _UNREADABLE as error:
        raise _unreadable(error, f"{info.filename!r} cannot be read from the artifact") from error


def _unreadable(error: Exception, what: str) -> Exception:
    """Return the error to raise: PeerError for a damaged archive, else the error of reading the file.

    A damaged archive makes zipfile seek anywhere, which fails with EINVAL.
    """
    is_ours = isinstance(error, OSError) and error.errno != errno.EINVAL
    return error if is_ours else PeerError(f"{what} ({error})")
