"""A leader's state takes the place of a replica's own: files, applied offset, producers and log together.

What is staged is whole and durable. Then one small file, ``install``, is written: from that moment the change
has happened. Carrying it out moves the old state away, the new one in its place, and empties the log at the
offset of the new state; each step may be done again. A folder that is opened and has this file carries it
out first; so a crash leaves the old state with the old log, or the new state with an empty one.

**The storage id stays.** It promises that all that this replica ever confirmed is still here. A replica goes
far only if the ISR does not list it, and the state it installs does not end below its log (``may_install``);
an entry of its log that is decided is in that state, since the leader applied everything below its end, and
one that is not decided was promised to nobody: the leader that counts it has a later epoch, and
counts only what is confirmed in that epoch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from crc32c import crc32c

from stretto.catchup.staging import INCOMING
from stretto.errors import StorageCorrupt
from stretto.replog.folder import OsFolder
from stretto.replog.intent import Change, Intent
from stretto.replog.intent import carry_out as carry_out_intent
from stretto.replog.segment import replace_durably
from stretto.replog.storage import EpochStart
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import Offset, StorageId

INSTALL = "install"
OUTGOING = "outgoing"


class Install(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file that says which state is being installed."""

    storage_id: StorageId
    """Id of the folder that it was written for; it means nothing to any other."""
    end: Offset
    before: EpochStart | None
    """The epoch that ran just below ``end``."""


def steps(replica: Path, install: Install) -> Iterator[None]:
    """Carry out an installation step by step, in order; it may stop between any two steps."""
    content = msgspec.json.encode(install)
    folder = OsFolder(replica)
    replace_durably(folder, INSTALL, b"%s\n%08x\n" % (content, crc32c(content))).close()
    yield
    folder.sync()
    yield
    yield from _carry_out(replica, install)


def carry_out(replica: Path, install: Install) -> None:
    """Carry out an installation to its end."""
    for _ in steps(replica, install):
        pass


def resume(replica: Path, storage_id: StorageId) -> bool:
    """Finish an installation that a crash interrupted; True if there was one to finish.

    Raises StorageCorrupt if it cannot be read.
    """
    if not (replica / INSTALL).exists():
        shutil.rmtree(replica / OUTGOING, ignore_errors=True)
        return False
    install = _read(replica)
    if install.storage_id != storage_id:
        (replica / INSTALL).unlink()
        OsFolder(replica).sync()
        return False
    for _ in _carry_out(replica, install):
        pass
    return True


def _carry_out(replica: Path, install: Install) -> Iterator[None]:
    incoming, state, outgoing = replica / INCOMING, replica / "state", replica / OUTGOING
    folder = OsFolder(replica)
    if (incoming / "state").exists():
        if state.exists():
            shutil.rmtree(outgoing, ignore_errors=True)
            yield
            os.rename(state, outgoing)
            folder.sync()
            yield
        OsFolder(incoming / "state").sync()
        os.rename(incoming / "state", state)
        # Where it is now before where it was: a power loss must not find it in neither.
        folder.sync()
        OsFolder(incoming).sync()
        yield
    intent = Intent(change=Change.RESET, offset=install.end, before=install.before)
    carry_out_intent(OsFolder(replica / "replog"), intent)
    yield
    folder.remove(INSTALL)
    folder.sync()
    yield
    shutil.rmtree(outgoing, ignore_errors=True)
    shutil.rmtree(incoming, ignore_errors=True)


def _read(replica: Path) -> Install:
    content, _, checksum = (replica / INSTALL).read_bytes().partition(b"\n")
    if checksum == b"%08x\n" % crc32c(content):
        try:
            return msgspec.json.decode(content, type=Install)
        except MALFORMED:
            pass
    raise StorageCorrupt(INSTALL, Offset(0), 0, "it does not match its checksum")
