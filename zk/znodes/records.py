"""What the znodes hold: small JSON, so that people and any ZooKeeper shell can read it.

A field that a later version adds is ignored by an earlier one; a field that is missing, or of the wrong
type, makes the znode damaged, which is told with its path.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from stretto.errors import StrettoError
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, StorageId, WorkerId


class ZnodeDamaged(StrettoError):
    """A znode does not hold what belongs there."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"the znode {path} is damaged: {problem}")
        self.path = path
        self.problem = problem


class NodeRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's supervisor, as long as its session lives."""

    node: str
    incarnation: Incarnation
    address: str
    folder: str = ""
    """A random word that stands for the supervisor's data folder: two of one name are told apart by it."""
    labels: dict[str, str] = {}


class WorkerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a worker, as long as its session lives."""

    worker: WorkerId
    incarnation: Incarnation
    node: str
    address: str
    launch: str = ""
    """Random word by which the supervisor knows the process; empty for one that was started by hand."""
    members: dict[str, StorageId] = {}
    """The storage id of the replica it holds of each group, by ``str(GroupKey)``."""
    artifact: str = ""
    """Digest of the code it runs; that of the module's spec, or an earlier one for a moment."""
    paused: bool = False
    """Whether it takes no records, as the module's spec demands."""
    dropped: int = 0
    """The latest version of the module whose deletions all its replicas have carried out."""
    closed: int = 0
    """The grouping for which its replicas show nothing more to readers, unless that is abandoned."""

    def storage_of(self, group: GroupKey) -> StorageId | None:
        return self.members.get(str(group))


class ConductorRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """The active conductor, as long as its session lives."""

    incarnation: Incarnation
    address: str
    host: str = ""
    """The machine's boot and network, within which nobody else has that address."""


class DrainedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes on which leadership is disallowed."""

    nodes: tuple[str, ...] = ()


class DestroyedModules(msgspec.Struct, frozen=True, kw_only=True):
    """The modules that nodes which were away have to delete when they return."""

    groupings: dict[str, int] = {}
    """The last grouping of each module.

    Groupings have ever higher numbers, so whatever has this one or a lower one is of a module that is no
    more, and a namesake launched later has a higher one.
    """

    def has(self, module: str, grouping: int) -> bool:
        """Whether a grouping is of a module that was destroyed."""
        return grouping <= self.groupings.get(module, -1)

    def adding(self, module: str, grouping: int, most: int) -> DestroyedModules:
        """These with one more; only the latest ``most`` are kept."""
        all_of = sorted({**self.groupings, module: grouping}.items(), key=lambda each: each[1])
        return DestroyedModules(groupings=dict(all_of[-most:]))


class SnapshotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a module, which lies elsewhere."""

    folder: str
    state: Literal["creating", "complete"]
    at_ms: int
    tasks: int
    size_bytes: int = 0


class ResignRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks the leader of ``epoch``, and nobody else, to hand over to ``target``."""

    epoch: Epoch
    target: WorkerId


Record = TypeVar("Record", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()


def encode(record: msgspec.Struct) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes, kind: type[Record], path: str) -> Record:
    """Decode what the znode at ``path`` holds; raises ZnodeDamaged."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ZnodeDamaged(path, str(error)) from None
