"""The identity of a replica's folder: which replica it is, and whether it can be trusted.

The group's record lists ISR members by worker *and storage id*. The id stands for the promise that
everything this replica ever confirmed is still here; whoever cannot keep the promise must come back
under a fresh id, which no record lists, and so cannot be elected before it has caught up. That is:

- the folder is empty or has no readable identity: the disk was replaced, wiped or damaged;
- it was not closed cleanly, confirmed before syncing (``fsync=interval``), and the machine has
  restarted since. A mere crash of the process loses nothing: the page cache is the kernel's;
- what is in it was found corrupt, or a write failed: the owner calls :meth:`Identity.renew`.

In the first and last case the files that are there are set aside under a prefix, for people to look
at; nothing is deleted. The identity file is replaced atomically; setting aside is begun by writing
the fresh id down with the prefix, so that a crash in the middle is taken up where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec
from crc32c import crc32c

from stretto.errors import StrettoError, UsageError
from stretto.replog.segment import TEMPORARY, replace_durably
from stretto.replog.storage import Folder
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import StorageId

IDENTITY_NAME = "identity"
ASIDE_PREFIX = "aside."
FORMAT_VERSION = 1

Fsync: TypeAlias = Literal["always", "interval"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the identity file."""

    format_version: int = FORMAT_VERSION
    storage_id: StorageId
    cluster: str
    group: str
    fsync: Fsync
    """How writes were confirmed since the log was last known to be synced."""
    boot_id: str
    """Id of the machine's boot; another one means that the machine restarted."""
    clean: bool = False
    """Whether the replica was closed after a last sync."""
    setting_aside: str | None = None
    """Prefix under which all other files are being set aside, if that is under way."""


class _Version(msgspec.Struct):
    """What every version of the identity file has in common."""

    format_version: int


class Identity:
    """The identity of an opened folder. Not clean until :meth:`mark_clean`."""

    def __init__(
        self,
        folder: Folder,
        record: Record,
        fresh: str | None,
        new_storage_id: Callable[[], StorageId],
    ) -> None:
        self._folder = folder
        self._record = record
        self._new_storage_id = new_storage_id
        #: Whether a write of the file failed: either record may be in it.
        self._is_unsure = False
        #: Why the id is a new one; None if it is the one that was here.
        self.fresh = fresh

    @property
    def storage_id(self) -> StorageId:
        return self._record.storage_id

    @property
    def fsync(self) -> Fsync | None:
        """How writes are confirmed; None after a write of the file that failed, until one succeeds."""
        return None if self._is_unsure else self._record.fsync

    def mark_fsync(self, fsync: Fsync) -> None:
        """Note how writes are confirmed from now on.

        To ``interval``: before the first write that is confirmed unsynced. To ``always``: after a sync.
        Opening the log is one; so call this with the configured mode whenever the log was opened.
        """
        if fsync != self.fsync:
            self._replace(fsync=fsync)

    def mark_clean(self) -> None:
        """Note that everything is synced and nothing more will be written."""
        self._replace(clean=True)

    def renew(self, reason: str) -> None:
        """Set all files aside and take a fresh id. The log in the folder must be closed."""
        storage_id = self._new_storage_id()
        self._replace(storage_id=storage_id, clean=False, setting_aside=_prefix(storage_id))
        _set_aside(self._folder, _prefix(storage_id))
        self._replace(setting_aside=None)
        self.fresh = reason

    def _replace(self, **changes: object) -> None:
        record = msgspec.structs.replace(self._record, **changes)
        self._is_unsure = True
        _write(self._folder, record)
        self._is_unsure = False
        self._record = record


def open_identity(
    folder: Folder,
    *,
    cluster: str,
    group: str,
    fsync: Fsync,
    boot_id: str,
    new_storage_id: Callable[[], StorageId],
) -> Identity:
    """Read or create the identity of ``folder``, and note that it is in use.

    Raises UsageError if the folder belongs to another cluster or group, StrettoError if another release
    wrote it.
    """
    names = folder.names()
    found = _read(folder) if IDENTITY_NAME in names else None
    if found is None:
        record = Record(
            storage_id=new_storage_id(), cluster=cluster, group=group, fsync=fsync, boot_id=boot_id
        )
        return Identity(folder, record, _create(folder, names, record), new_storage_id)
    _refuse_foreign(found, cluster, group)
    fresh = None
    storage_id = found.storage_id
    unsynced = not found.clean and found.fsync == "interval"
    if found.setting_aside is not None:
        _set_aside(folder, found.setting_aside)
        fresh = "setting files aside was interrupted"
    elif unsynced and found.boot_id != boot_id:
        storage_id = new_storage_id()
        fresh = "the machine restarted before everything was synced"
    elif unsynced:
        # What an earlier process confirmed may still be in the page cache alone: see mark_fsync.
        fsync = "interval"
    record = Record(storage_id=storage_id, cluster=cluster, group=group, fsync=fsync, boot_id=boot_id)
    _write(folder, record)
    return Identity(folder, record, fresh, new_storage_id)


def _refuse_foreign(found: Record, cluster: str, group: str) -> None:
    if (found.cluster, found.group) != (cluster, group):
        raise UsageError(
            f"the folder belongs to group {found.group} of cluster {found.cluster}, "
            f"not to group {group} of cluster {cluster}; give each replica its own folder"
        )


def _create(folder: Folder, names: list[str], record: Record) -> str:
    """Give the folder its first identity, or a new one if it has lost it; returns why."""
    why = "the folder is empty"
    damaged = IDENTITY_NAME in names
    if damaged or _others(names):
        prefix = _prefix(record.storage_id)
        if damaged:
            folder.rename(IDENTITY_NAME, prefix + IDENTITY_NAME)
        _write(folder, msgspec.structs.replace(record, setting_aside=prefix))
        _set_aside(folder, prefix)
        why = "the folder has no readable identity"
    _write(folder, record)
    return why


def _prefix(storage_id: StorageId) -> str:
    """Make a prefix for files set aside; those of one renewal cannot collide with those of another."""
    return f"{ASIDE_PREFIX}{storage_id}."


def _others(names: list[str]) -> list[str]:
    """Files that are part of the replica's state, besides its identity."""
    ours = (IDENTITY_NAME, IDENTITY_NAME + TEMPORARY)
    return [name for name in names if name not in ours and not name.startswith(ASIDE_PREFIX)]


def _set_aside(folder: Folder, prefix: str) -> None:
    for name in _others(folder.names()):
        folder.rename(name, prefix + name)
    folder.sync()


def _write(folder: Folder, record: Record) -> None:
    content = msgspec.json.encode(record)
    replace_durably(folder, IDENTITY_NAME, b"%s\n%08x\n" % (content, crc32c(content))).close()
    folder.sync()


def _read(folder: Folder) -> Record | None:
    """Read the identity file; None if it is damaged. Raises StrettoError if another release wrote it."""
    file = folder.open(IDENTITY_NAME)
    content, _, checksum = file.read(0, file.size()).partition(b"\n")
    file.close()
    if checksum != b"%08x\n" % crc32c(content):
        return None
    try:
        version = msgspec.json.decode(content, type=_Version).format_version
        if version != FORMAT_VERSION:
            raise StrettoError(
                f"the replica's folder has format version {version}, this release reads {FORMAT_VERSION}; "
                "open it with the release that wrote it"
            )
        return msgspec.json.decode(content, type=Record)
    except MALFORMED:
        return None
