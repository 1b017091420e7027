"""The folder of a replica whose tasks come from other groups: prepared beside these, then given their files.

A worker that has applied the seals of all groups that a next group takes tasks from *prepares* its replica of
it: a folder with a storage id, an empty log, and a small file that says where each task's files are. That is
what it registers. When the next grouping is in force, opening the folder moves the files into it; nothing is
copied, however much there is. Each step may be done again, so a crash is taken up where it stopped.

**Why the storage id may be listed before the files are there.** It promises the state as of the seals. A file
that says that it is sealed for this grouping *is* that state: only entries that change nothing follow a seal,
unless the grouping was abandoned, and then nobody lists this replica. It was made durable before the replica
was registered. A file that does not say so is not taken: the replica begins anew, under another id.

**Where the log begins.** All replicas of the group have to agree on it, and each knows the seals alone: one
beyond the highest of them. So offsets of a task never go back, whichever log it is in.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
from crc32c import crc32c

from stretto.errors import StorageCorrupt
from stretto.replog.folder import OsFolder
from stretto.replog.identity import open_identity
from stretto.replog.intent import Change, Intent
from stretto.replog.intent import carry_out as carry_out_intent
from stretto.replog.segment import replace_durably
from stretto.replog.storage import EpochStart
from stretto.state.environment import StateCorrupt
from stretto.state.task_meta import Seal
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import Epoch, Offset, StorageId, TaskId

TAKEOVER = "takeover"
PREPARING = "preparing-"


class Takeover(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file that says where the tasks' files are."""

    grouping: int
    start: Offset
    """Where the log begins."""
    epoch: Epoch
    """The highest epoch in which any of the old logs was sealed; it counts as the one that ran below
    ``start``."""
    sources: dict[TaskId, str]
    """The folder, beside this one, of the replica that has each task."""


def planned(grouping: int, seals: Mapping[TaskId, tuple[str, Seal]]) -> Takeover:
    """Plan the takeover of tasks that are in these folders, with these seals."""
    return Takeover(
        grouping=grouping,
        start=Offset(max(seal.offset for _, seal in seals.values()) + 1),
        epoch=max(seal.epoch for _, seal in seals.values()),
        sources={task: folder for task, (folder, _) in seals.items()},
    )


def prepare(replica: Path, takeover: Takeover, *, cluster: str, group: str, boot_id: str) -> StorageId:
    """Make the folder of the next replica, unless it is there: then it keeps its storage id, which may be
    listed by now."""

    def identify(folder: Path) -> StorageId:
        identity = open_identity(
            OsFolder(folder / "replog"),
            cluster=cluster,
            group=group,
            fsync="always",
            boot_id=boot_id,
            new_storage_id=lambda: StorageId(secrets.token_hex(8)),
        )
        return identity.storage_id

    if (replica / TAKEOVER).exists() and read(replica) == takeover:
        return identify(replica)
    shutil.rmtree(replica, ignore_errors=True)
    draft = replica.with_name(f"{PREPARING}{replica.name}")
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "replog").mkdir(parents=True)
    storage_id = identify(draft)
    before = EpochStart(takeover.epoch, Offset(takeover.start - 1))
    carry_out_intent(
        OsFolder(draft / "replog"), Intent(change=Change.RESET, offset=takeover.start, before=before)
    )
    content = msgspec.json.encode(takeover)
    folder = OsFolder(draft)
    replace_durably(folder, TAKEOVER, b"%s\n%08x\n" % (content, crc32c(content))).close()
    folder.sync()
    os.rename(draft, replica)
    OsFolder(replica.parent).sync()
    return storage_id


def take_files(replica: Path, takeover: Takeover) -> None:
    """Move the tasks' files here, which nobody has open. Raises StateCorrupt if one is nowhere."""
    state = replica / "state"
    state.mkdir(exist_ok=True)
    for task, folder in takeover.sources.items():
        here, there = state / f"task-{task}", replica.with_name(folder) / "state" / f"task-{task}"
        if not here.exists():
            if not there.exists():
                raise StateCorrupt(f"the files of task {task} are neither in {here} nor in {there}")
            os.rename(there, here)
            # Where it is now before where it was: a power loss must not find it in neither.
            OsFolder(state).sync()
            OsFolder(there.parent).sync()
    OsFolder(state).sync()
    OsFolder(replica).sync()


def finish(replica: Path) -> None:
    """Delete the takeover file: the replica has all its files."""
    folder = OsFolder(replica)
    folder.remove(TAKEOVER)
    folder.sync()


def read(replica: Path) -> Takeover:
    """Read the takeover file of a replica."""
    content, _, checksum = (replica / TAKEOVER).read_bytes().partition(b"\n")
    if checksum == b"%08x\n" % crc32c(content):
        try:
            return msgspec.json.decode(content, type=Takeover)
        except MALFORMED:
            pass
    raise StorageCorrupt(TAKEOVER, Offset(0), 0, "it does not match its checksum")
