"""What a snapshot is, as one JSON file of it: enough to read it without a cluster, and to launch it in
another.

It is written last and appears at once, so a folder that has it is whole, or was damaged afterwards. It
carries a checksum of itself, and sizes and hashes of everything else.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from stretto.control import ModuleManifest, OptionsAt
from stretto.errors import StrettoError
from stretto.process.private_files import open_private
from stretto.specs.modules import DepotSpec, PStateSpec, QuerySpec, TopologySpec
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import Epoch, Offset, TaskId, WorkerId

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
ARTIFACT = "artifact.zip"


class SnapshotDamaged(StrettoError):
    """A snapshot is not what its manifest says, or has none that can be read."""


class StoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """The file of one task in a snapshot."""

    task: TaskId
    offset: Offset
    """Apply offset of the task's group at the cut: the file is the state of exactly that."""
    digest: str
    """Digest of what the file holds, as the replicas computed it."""
    size_bytes: int
    sha256: str


class GroupCut(msgspec.Struct, frozen=True, kw_only=True):
    """Where the log of one task group was cut."""

    group: int
    offset: Offset
    epoch: Epoch
    tasks: tuple[TaskId, ...]
    copied_by: WorkerId
    replicas: tuple[WorkerId, ...]
    """Replicas whose digests were compared, and are equal."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a snapshot, as its manifest file has it."""

    format_version: int = FORMAT_VERSION
    release: str
    name: str
    module: str
    cluster: str
    at_ms: int
    origin: str | msgspec.UnsetType = msgspec.UNSET
    """Origin of the module, with which a restored one goes on; unset in snapshots of earlier releases."""
    version: int
    """Version of the module's code."""
    artifact: str
    """Digest of the code, which is in the snapshot."""
    entry: str
    tasks: tuple[StoredTask, ...]
    groups: tuple[GroupCut, ...]
    depots: tuple[DepotSpec, ...]
    pstates: tuple[PStateSpec, ...]
    topologies: tuple[TopologySpec, ...]
    queries: tuple[QuerySpec, ...]
    deleted: dict[str, int] = {}
    """Objects whose data was still going, with the version that deleted them."""
    writers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """The last topology to write each PState; unset in snapshots of releases that did not keep it."""
    workers: int
    replication_factor: int
    options: tuple[OptionsAt, ...] | msgspec.UnsetType = msgspec.UNSET
    """Options set for the module and its objects; unset in snapshots of releases that did not keep them."""
    microbatches: dict[str, int] = {}
    """The latest microbatch of each topology; it took effect on all tasks, and no later one on any."""
    checksum: str = ""
    """Checksum of all the rest of the manifest."""

    @property
    def size_bytes(self) -> int:
        return sum(task.size_bytes for task in self.tasks)

    @property
    def module_manifest(self) -> ModuleManifest:
        """What the code of the module declares."""
        return ModuleManifest(
            name=self.module,
            entry=self.entry,
            depots=self.depots,
            pstates=self.pstates,
            topologies=self.topologies,
            queries=self.queries,
        )

    def sealed(self) -> Manifest:
        """The same manifest with its checksum."""
        bare = msgspec.structs.replace(self, checksum="")
        return msgspec.structs.replace(bare, checksum=hashlib.sha256(msgspec.json.encode(bare)).hexdigest())


class _Version(msgspec.Struct):
    """What manifests of every format version have in common."""

    format_version: int


def file_of(folder: Path, task: TaskId) -> Path:
    """The file of a task in the folder of a snapshot."""
    return folder / f"task-{task}" / "data.mdb"


def read_manifest(folder: Path, name: str = MANIFEST) -> Manifest:
    """Read the manifest of a snapshot; raises SnapshotDamaged, also for a folder that is no snapshot."""
    path = folder / name
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SnapshotDamaged(
            f"{folder} is no snapshot: it has no {MANIFEST}; name the folder that 'snapshot create' told"
        ) from None
    except OSError as error:
        raise SnapshotDamaged(f"{path} cannot be read ({error.strerror}); mend that") from error
    try:
        version = msgspec.json.decode(content, type=_Version).format_version
        if version != FORMAT_VERSION:
            raise SnapshotDamaged(
                f"the snapshot in {folder} has format version {version}, this release reads "
                f"{FORMAT_VERSION}; use the release that made it"
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except MALFORMED as error:
        raise SnapshotDamaged(f"{path} is damaged ({error}); use another snapshot") from None
    if manifest.sealed() != manifest:
        raise SnapshotDamaged(f"{path} is damaged: its checksum is not its own; use another snapshot")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write the manifest of a snapshot, durably and at once; returns it sealed."""
    sealed = manifest.sealed()
    draft = folder / f"{MANIFEST}.tmp"
    with open_private(draft, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(sealed), indent=1))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / MANIFEST)
    sync_folder(folder)
    return sealed


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
