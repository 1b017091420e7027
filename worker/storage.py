"""A replica's folder: its identity, its replog and its applied state, opened so that they agree.

Layout: ``<replica>/replog`` (log segments and the identity file) and ``<replica>/state`` (one LMDB
environment per task). Whatever cannot be trusted is set aside under another name, never deleted, and the
replica begins again, empty and under a fresh storage id, so that no record mistakes it for what it was.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import structlog

from stretto.errors import StorageCorrupt, UsageError
from stretto.replog.folder import OsFolder
from stretto.replog.identity import Fsync, Identity, open_identity
from stretto.replog.log import Replog
from stretto.types import StorageId
from stretto.worker.plan import GroupPlan
from stretto.worker.state import AppliedState, LogTooShort, StateCorrupt

log = structlog.get_logger()


def boot_id() -> str:
    """Changes with every start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def lock_folder(path: Path) -> int:
    """Keep other processes out of a data folder for as long as the descriptor is open."""
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            f"{path} is in use by another process; stop it first, or give this one its own --data-dir"
        ) from None
    return descriptor


@dataclass
class ReplicaStorage:
    identity: Identity
    log: Replog
    state: AppliedState

    @property
    def storage_id(self) -> StorageId:
        return self.identity.storage_id


def open_replica(path: Path, plan: GroupPlan, *, cluster: str, fsync: Fsync) -> ReplicaStorage:
    """Open what is there, or begin. Raises UsageError for a folder of another cluster or group."""
    folder, identity = _identify(path, plan, cluster, fsync)
    try:
        return _open(path, folder, plan, identity, fsync)
    except (StorageCorrupt, StateCorrupt, LogTooShort) as error:
        return _renew(path, folder, plan, identity, fsync=fsync, why=str(error))


def set_aside(path: Path, plan: GroupPlan, *, cluster: str, fsync: Fsync, why: str) -> ReplicaStorage:
    """Begin again with a folder that cannot be trusted any more."""
    folder, identity = _identify(path, plan, cluster, fsync)
    return _renew(path, folder, plan, identity, fsync=fsync, why=why)


def _identify(path: Path, plan: GroupPlan, cluster: str, fsync: Fsync) -> tuple[OsFolder, Identity]:
    (path / "replog").mkdir(parents=True, exist_ok=True)
    folder = OsFolder(path / "replog")
    identity = open_identity(
        folder,
        cluster=cluster,
        group=str(plan.key),
        fsync=fsync,
        boot_id=boot_id(),
        new_storage_id=lambda: StorageId(secrets.token_hex(8)),
    )
    return folder, identity


def _open(path: Path, folder: OsFolder, plan: GroupPlan, identity: Identity, fsync: Fsync) -> ReplicaStorage:
    fresh = identity.fresh is not None
    if fresh and not any(name.endswith(".replog") for name in folder.names()):
        _set_aside(path / "state", identity.storage_id)
    replog = Replog.open(folder, create=fresh)
    identity.mark_fsync(fsync)
    try:
        state = AppliedState.open(path / "state", plan.tasks)
        try:
            state.recover(replog)
        except BaseException:
            state.close()
            raise
    except BaseException:
        replog.close()
        raise
    return ReplicaStorage(identity, replog, state)


def _renew(
    path: Path, folder: OsFolder, plan: GroupPlan, identity: Identity, *, fsync: Fsync, why: str
) -> ReplicaStorage:
    """Set everything aside and begin again under a fresh storage id."""
    log.error("replica_set_aside", group=str(plan.key), why=why, folder=str(path))
    identity.renew(why)
    _set_aside(path / "state", identity.storage_id)
    return _open(path, folder, plan, identity, fsync)


def _set_aside(state: Path, storage_id: StorageId) -> None:
    if state.exists():
        state.rename(state.with_name(f"aside.{storage_id}.{state.name}"))
