"""What the znodes hold: small JSON, so that people and any ZooKeeper shell can read it.

A field that a later version adds is ignored by an earlier one; a field that is missing, or of the wrong
type, makes the znode damaged, which is told with its path.
"""

from __future__ import annotations

import enum
from typing import Literal, TypeVar

import msgspec

from stretto.errors import StrettoError
from stretto.pstate.types import Type
from stretto.types import Epoch, Incarnation, StorageId, WorkerId
from stretto.zk.paths import GroupKey


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
    """Of the process: who started it knows it by this. Empty for one that was started by hand."""
    members: dict[str, StorageId] = {}
    """The storage id of the replica it holds of each group, by ``str(GroupKey)``."""
    artifact: str = ""
    """Digest of the code it goes by; that of the module's spec, or an earlier one for a moment."""
    paused: bool = False
    """It takes no records, as the module's spec demands."""
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
    """Where leadership is disallowed."""

    nodes: tuple[str, ...] = ()


class DestroyedModules(msgspec.Struct, frozen=True, kw_only=True):
    """What nodes that were away have to delete when they return."""

    groupings: dict[str, int] = {}
    """By module, its last grouping: those have ever higher numbers, so whatever has this one or a lower one
    is of a module that is no more, and a namesake launched later has a higher one."""

    def has(self, module: str, grouping: int) -> bool:
        return grouping <= self.groupings.get(module, -1)

    def adding(self, module: str, grouping: int, most: int) -> DestroyedModules:
        """The latest so many."""
        all_of = sorted({**self.groupings, module: grouping}.items(), key=lambda each: each[1])
        return DestroyedModules(groupings=dict(all_of[-most:]))


class ModuleState(enum.StrEnum):
    LAUNCHING = "launching"
    RUNNING = "running"
    LEADERSHIP_BALANCING = "leadership-balancing"
    UPDATING = "updating"
    SCALING = "scaling"
    PAUSED = "paused"
    DESTROYING = "destroying"


class DepotSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    partition_by: str | tuple[str, ...] | None = None
    """The field, or fields, whose hash chooses the task; None spreads records evenly."""
    rule: Literal["hash", "global", "custom"] = "hash"
    """``global`` is task 0; ``custom`` is a function of the module, which only its importers have."""
    since: int = 1
    """The version of the module that it came with. One that was deleted and is declared anew is another."""

    @property
    def declared(self) -> DepotSpec:
        """As its code says it."""
        return msgspec.structs.replace(self, since=1)


class PStateSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: Type


class TopologySpec(msgspec.Struct, frozen=True, kw_only=True):
    """A function that takes records, with the steps that it hops to: what a worker drives."""

    name: str
    kind: Literal["stream", "microbatch"]
    depots: tuple[str, ...]
    pstates: tuple[str, ...] = ()
    """Those that it writes; no other topology does."""
    retry: Literal["individual", "all-after", "none"] = "individual"
    batch: bool = False
    """Its function takes many records at once, and is not asked which of them made a hop."""


class QuerySpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    parameters: tuple[str, ...] = ()
    key: str | None = None
    """The parameter whose argument chooses the task; None asks all of them."""
    key_type: Type | None = None
    """What that argument becomes: JSON, or text, says no dates, bytes and tuples."""


class RestoredFrom(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that a module begins with."""

    folder: str
    checksum: str
    """Of its manifest."""


class ModuleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What was launched; the code itself is never in the metastore."""

    artifact: str
    """Digest."""
    tasks: int
    threads: int
    workers: int
    replication_factor: int
    state: ModuleState
    entry: str = ""
    """Where the module's class is in the artifact."""
    depots: tuple[DepotSpec, ...] = ()
    pstates: tuple[PStateSpec, ...] = ()
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    origin: str = ""
    """A random word of its launch. Whatever becomes of the module, it keeps it, and so does a copy that is
    restored from a snapshot; a namesake that is launched later has another. Empty: not known."""
    version: int = 1
    """+1 with every update."""
    deleted: dict[str, int] = {}
    """Depots, PStates and topologies that updates deleted and whose data is still going, with the version
    that did."""
    writers: dict[str, str] = {}
    """The topology that writes each PState, or was the last to; it may be deleted by now."""
    update: Update | None = None
    """Only while it is updating."""
    failed_update: FailedUpdate | None = None
    """Why the latest update was rolled back, if it was."""
    restored: RestoredFrom | None = None
    """Only while it is launched: an empty replica begins with what this has."""

    @property
    def is_paused(self) -> bool:
        """Neither records nor topologies change anything."""
        state = self.state if self.update is None else self.update.next.state
        return state is ModuleState.PAUSED and self.state is not ModuleState.DESTROYING


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """New code on its way."""

    id: str
    next: ModuleSpec
    """What is to be, once all nodes have loaded the code."""
    delete: tuple[str, ...]
    """Depots, PStates and topologies whose data goes."""
    began_ms: int
    is_switched: bool = False
    """The spec is the new one, and workers take it up."""


class FailedUpdate(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    node: str
    why: str
    traceback: str = ""
    """Its author's own, if their code raised."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a node fared with the code of an update."""

    id: str
    """Of the update."""
    why: str = ""
    """Empty: it loads."""
    traceback: str = ""


class PlacedWorker(msgspec.Struct, frozen=True, array_like=True):
    """A worker process and the node that runs it."""

    worker: WorkerId
    node: str


class NextGrouping(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that the tasks are to make, on the same workers; see :mod:`stretto.conductor.regrouping`."""

    generation: int
    groups: tuple[tuple[int, ...], ...]
    began_ms: int
    closing: bool = False
    """All its replicas are prepared; it is in force as soon as the present leaders show nothing more."""
    unclean_epochs: tuple[int, ...] = ()
    """Of the present groups, when it began. After an unclean election two replicas may be sealed at different
    entries."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks make a group, which workers hold its replicas, and where these run.

    Groups name their workers by position in one table, so that hundreds of groups stay a few KB.
    """

    generation: int
    tasks: int
    """How many; the groups share them out in contiguous runs."""
    workers: tuple[PlacedWorker, ...]
    groups: tuple[tuple[int, ...], ...]
    """The replicas of each group as positions in ``workers``, preferred leader first."""
    plan: int = 0
    """Goes up whenever groups get other replicas; a worker that a group lost never returns to it."""
    retired: tuple[PlacedWorker, ...] = ()
    """No group counts on these any more: they are stopped and their data is deleted."""
    named: int = 0
    """How many names of workers were given so far; none is given twice."""
    given_up: tuple[int, ...] = ()
    """Groups whose members in sync were given up by force: these, and no others, may elect uncleanly until
    the change under way is done."""
    next: NextGrouping | None = None
    """What the tasks are being regrouped into."""
    abandoned: int = 0
    """The latest grouping that was given up before it was in force."""

    def __post_init__(self) -> None:
        groups = self.groups if self.next is None else (*self.groups, *self.next.groups)
        if any(not 0 <= index < len(self.workers) for group in groups for index in group):
            raise ValueError(f"a group names a worker beyond the {len(self.workers)} there are")

    @property
    def following(self) -> Assignment | None:
        """As it is once the next grouping is in force."""
        if self.next is None:
            return None
        return msgspec.structs.replace(
            self, generation=self.next.generation, groups=self.next.groups, next=None, given_up=()
        )

    @property
    def replicas(self) -> tuple[tuple[WorkerId, ...], ...]:
        """The workers of each group, preferred leader first, by group number."""
        return tuple(tuple(self.workers[index].worker for index in group) for group in self.groups)

    @property
    def nodes(self) -> dict[WorkerId, str]:
        """Where each worker process runs."""
        return {placed.worker: placed.node for placed in self.workers}

    @property
    def homes(self) -> dict[WorkerId, str]:
        """The node of each worker, also of those that are retired."""
        return {placed.worker: placed.node for placed in (*self.workers, *self.retired)}

    def tasks_of(self, group: int) -> range:
        return run_of(self.tasks, len(self.groups), group)


def run_of(tasks: int, groups: int, group: int) -> range:
    """Equal runs: no group has two tasks more than another."""
    return range(-(-group * tasks // groups), -(-(group + 1) * tasks // groups))


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


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done to the cluster."""

    at_ms: int
    what: str
    module: str | None = None
    outcome: str = "done"


Record = TypeVar("Record", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()


def encode(record: msgspec.Struct) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes, kind: type[Record], path: str) -> Record:
    """What ``path`` holds; raises ZnodeDamaged."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ZnodeDamaged(path, str(error)) from None
