"""A replica's folder: its identity, its replog and its applied state, opened so that they agree.

Layout: ``<replica>/replog`` (log segments and the identity file) and ``<replica>/state`` (one LMDB
environment per task); ``incoming``, ``install`` and ``outgoing`` while a leader's state takes their place
(:mod:`stretto.catchup.install`), ``spool`` while it copies its own, ``takeover`` until it has the files of
tasks that come from other groups (:mod:`stretto.worker.replica.takeover`). Whatever cannot be trusted is set
aside under another name, never deleted, and the replica begins again, empty and under a fresh storage id, so
that no record mistakes it for what it was.
"""

from __future__ import annotations

import os
import secrets
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import structlog

from stretto.catchup.images import remove_spools
from stretto.catchup.install import INSTALL, Install, carry_out, resume
from stretto.catchup.staging import INCOMING
from stretto.errors import StorageCorrupt
from stretto.process.folder_lock import boot_id
from stretto.process.private_files import private_folder
from stretto.replog.folder import OsFolder
from stretto.replog.frame import Frame, decode
from stretto.replog.identity import ASIDE_PREFIX, Identity, open_identity
from stretto.replog.log import Replog
from stretto.replog.storage import EpochStart
from stretto.snapshot.seeding import stage
from stretto.specs.assignments import GroupPlan
from stretto.specs.modules import RestoredFrom
from stretto.state.applied import AppliedState, LogTooShort, StateCorrupt
from stretto.vocabulary.types import Epoch, Offset, StorageId
from stretto.worker.replica import takeover
from stretto.worker.replica.takeover import TAKEOVER

log = structlog.get_logger()

ROOM_BYTES = 1 << 20
READ_BYTES = 4 << 20


@dataclass
class ReplicaStorage:
    """An opened replica."""

    identity: Identity
    log: Replog
    state: AppliedState
    unapplied: list[Frame]
    """What the log holds from where the state ends; read while the replica is opened, where that may take
    time."""

    @property
    def storage_id(self) -> StorageId:
        """The random id that stands for all that this replica ever confirmed."""
        return self.identity.storage_id

    def close(self) -> None:
        self.log.close()
        self.state.close()


class ReplicaFolder:
    """Where the replica of one group lives on this worker."""

    def __init__(
        self,
        path: Path,
        plan: GroupPlan,
        *,
        cluster: str,
        pool: Executor,
        restored: RestoredFrom | None = None,
    ) -> None:
        """Name the folder of a replica; if ``restored`` is given, a replica that would begin empty begins
        with that."""
        self._restored = restored
        self._path = path
        self._plan = plan
        self._cluster = cluster
        self._pool = pool

    def open(self) -> ReplicaStorage:
        """Open what is there, or begin empty. Raises UsageError for a folder of another cluster or group."""
        folder, identity = self._identify()
        try:
            return self._open(folder, identity)
        except (StorageCorrupt, StateCorrupt, LogTooShort) as error:
            return self._renew(folder, identity, str(error))

    def install(self, install: Install, identity: Identity) -> ReplicaStorage:
        """Replace log and state by what is staged. Both are closed, and the identity stays what it is."""
        carry_out(self._path, install)
        return ReplicaStorage(identity, *self._open_both(OsFolder(self._path / "replog"), create=False))

    def check_room(self) -> None:
        """Check that there is room for a while, or raise OSError: a replica that stopped for lack of space
        must not come back only to stand for leader and stop again."""
        probe = self._path / "room"
        try:
            with probe.open("wb") as file:
                file.write(bytes(ROOM_BYTES))
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)

    def renew(self, why: str) -> ReplicaStorage:
        """Set aside what is there, because it cannot be trusted any more, and begin empty."""
        return self._renew(*self._identify(), why)

    def _identify(self) -> tuple[OsFolder, Identity]:
        private_folder(self._path)
        private_folder(self._path / "replog")
        folder = OsFolder(self._path / "replog")
        identity = open_identity(
            folder,
            cluster=self._cluster,
            group=str(self._plan.key),
            fsync="always",
            boot_id=boot_id(),
            new_storage_id=lambda: StorageId(secrets.token_hex(8)),
        )
        return folder, identity

    def _open(self, folder: OsFolder, identity: Identity) -> ReplicaStorage:
        remove_spools(self._path)
        resume(self._path, identity.storage_id)
        fresh = identity.fresh is not None
        if fresh and not _has_segments(folder):
            self._set_state_aside(identity.storage_id)
            if self._restored is not None:
                self._seed(self._restored, identity.storage_id)
        opened = self._open_both(folder, create=fresh)
        identity.mark_fsync("always")
        return ReplicaStorage(identity, *opened)

    def _seed(self, restored: RestoredFrom, storage_id: StorageId) -> None:
        """Fill the folder from a snapshot, as a state that a leader sent is installed: a crash leaves nothing
        or all of it."""
        log.info("replica_restoring", group=str(self._plan.key), folder=restored.folder)
        end = stage(restored, self._plan.tasks, self._path / INCOMING / "state")
        before = EpochStart(Epoch(0), Offset(0))
        carry_out(self._path, Install(storage_id=storage_id, end=end, before=before))

    def _open_both(self, folder: OsFolder, *, create: bool) -> tuple[Replog, AppliedState, list[Frame]]:
        moves = takeover.read(self._path) if (self._path / TAKEOVER).exists() else None
        if moves is not None:
            takeover.take_files(self._path, moves)
        replog = Replog.open(folder, create=create)
        try:
            state = AppliedState.open(self._path / "state", self._plan.tasks, pool=self._pool)
            try:
                if moves is not None:
                    state.move(moves.grouping, moves.start)
                state.recover(replog)
                if moves is not None:
                    takeover.finish(self._path)
                unapplied = frames_from(replog, state.applied)
            except BaseException:
                state.close()
                raise
        except BaseException:
            replog.close()
            raise
        return replog, state, unapplied

    def _renew(self, folder: OsFolder, identity: Identity, why: str) -> ReplicaStorage:
        log.error("replica_set_aside", group=str(self._plan.key), why=why, folder=str(self._path))
        identity.renew(why)
        self._set_state_aside(identity.storage_id)
        return self._open(folder, identity)

    def _set_state_aside(self, storage_id: StorageId) -> None:
        for name in ("state", INSTALL, TAKEOVER):
            path = self._path / name
            if path.exists():
                path.rename(self._path / f"{ASIDE_PREFIX}{storage_id}.{name}")


def frames_from(replog: Replog, start: Offset) -> list[Frame]:
    """Read the frames of a log from an offset to its end."""
    frames: list[Frame] = []
    at = start
    while at < replog.end_offset:
        chunk = replog.read(at, replog.end_offset, READ_BYTES)
        frames.extend(decode(b"".join(chunk.buffers)))
        at = chunk.end
    return frames


def _has_segments(folder: OsFolder) -> bool:
    return any(name.endswith(".replog") and not name.startswith(ASIDE_PREFIX) for name in folder.names())
