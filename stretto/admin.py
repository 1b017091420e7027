"""What people and daemons ask of daemons, beside data: calls, and what they return.

A call is a struct whose base names its result: ``class Launch(Call[Launched])``. It travels in
:class:`stretto.wire.Ask` and comes back in :class:`~stretto.wire.Answer`, or as the one sentence of
:class:`~stretto.wire.Failed`. :mod:`stretto.service` answers, :mod:`stretto.client.calls` asks.
"""

from __future__ import annotations

import enum
import threading
from typing import Any, Generic, TypeAlias, TypeVar, get_args

import msgspec

from stretto.options import Level
from stretto.scans import PinnedGroup
from stretto.telemetry.windows import Window
from stretto.types import Epoch, Incarnation, Offset, TaskId, WorkerId
from stretto.zk.paths import GroupKey
from stretto.zk.records import (
    DepotSpec,
    FailedUpdate,
    ModuleSpec,
    Operation,
    PStateSpec,
    QuerySpec,
    RestoredFrom,
    TopologySpec,
)

Result = TypeVar("Result")


class Call(msgspec.Struct, Generic[Result], frozen=True, kw_only=True, tag_field="call", tag=True):
    """One kind of question; the subscript of the base is what comes back."""


def result_type(call: type[Call[Any]]) -> Any:
    """What a kind of call returns."""
    (base,) = call.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]


# Asked of any daemon.


class FindConductor(Call[str | None], frozen=True, kw_only=True):
    """Address of the active conductor; None while there is none."""


class LogLevel(enum.StrEnum):
    """Least first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    position: int
    """Its first byte in the log."""
    at: str = ""
    """UTC, as ISO 8601."""
    level: LogLevel | None = None
    """None: it is none of stretto's, but for instance of a traceback."""
    event: str = ""
    text: str


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    lines: tuple[LogLine, ...]
    """Oldest first."""
    earlier: int | None
    """Where to go on towards the beginning: ``before`` of the next page. None: nothing is left there."""


class Log(Call[LogPage], frozen=True, kw_only=True):
    """What a daemon said: a conductor, a supervisor, or a worker of it. Newest first, page by page."""

    worker: WorkerId | None = None
    """Asked of the supervisor of its node."""
    before: int | None = None
    """Only what is above this position."""
    level: LogLevel = LogLevel.DEBUG
    """The least; lines without one are told always."""
    lines_max: int = 200


# Asked of the conductor: modules.


class ModuleManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a module declares, told without running it."""

    name: str
    entry: str
    """``module.path:ClassName``, as an importer of the artifact writes it."""
    depots: tuple[DepotSpec, ...]
    pstates: tuple[PStateSpec, ...] = ()
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()


class OptionsAt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is set for one object of a module, or, if none is named, for the module."""

    depot: str | None = None
    topology: str | None = None
    pstate: str | None = None
    values: dict[str, Any]

    def level_of(self, module: str) -> Level:
        return Level.of(module, depot=self.depot, topology=self.topology, pstate=self.pstate)


class Launch(Call[None], frozen=True, kw_only=True):
    """Commits when enough nodes keep the artifact; :class:`ModuleStatus` tells how it goes on."""

    module: str
    artifact: str
    """Digest of what was uploaded."""
    manifest: ModuleManifest
    tasks: int
    threads: int
    workers: int
    replication_factor: int
    options: dict[str, Any] = {}
    object_options: tuple[OptionsAt, ...] = ()
    restored: RestoredFrom | None = None
    """The snapshot that its tasks begin with; without it they begin empty."""
    version: int = 1
    deleted: dict[str, int] = {}


class Destroy(Call[None], frozen=True, kw_only=True):
    """Stops the module's workers and deletes its data, for good."""

    module: str


class Update(Call[None], frozen=True, kw_only=True):
    """New code for a module that runs. Commits to trying it; :class:`ModuleStatus` tells how it goes on."""

    module: str
    artifact: str
    manifest: ModuleManifest
    delete: tuple[str, ...] = ()
    """Depots and PStates that the new code no longer declares, and whose data is to go."""


class Reassign(Call[str], frozen=True, kw_only=True):
    """Move all replicas of a module away from a node; returns what is done, in a sentence."""

    module: str
    node: str
    force: bool = False
    """Also if no other replica is in sync."""


class Scale(Call[str], frozen=True, kw_only=True):
    """More or fewer workers or replicas; returns what is done, in a sentence."""

    module: str
    workers: int | None = None
    replication_factor: int | None = None


class ScaleThreads(Call[str], frozen=True, kw_only=True):
    """The same tasks in more or fewer groups; returns what is done, in a sentence."""

    module: str
    threads: int


class AbandonScaling(Call[str], frozen=True, kw_only=True):
    """Give up a change of threads that is under way."""

    module: str


class Pause(Call[None], frozen=True, kw_only=True):
    """Take no more records and run no more topologies, until it is resumed; reads go on."""

    module: str


class Resume(Call[None], frozen=True, kw_only=True):
    module: str


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    worker: WorkerId
    node: str
    address: str | None
    """None while it is not registered."""
    paused: bool = False
    """It refuses records, as its module demands."""


class MicrobatchView(msgspec.Struct, frozen=True, kw_only=True):
    """How far a microbatch topology is, by the leader of task 0."""

    topology: str
    id: int
    """Of the latest microbatch; 0 before the first."""
    version: int
    """How often it was begun anew."""
    phase: str
    lag: int | None
    """Records that no committed microbatch has; None if that is not known yet."""
    why: str
    """Why its latest version came to nothing, if it did."""


class Microbatches(Call[tuple[MicrobatchView, ...]], frozen=True, kw_only=True):
    """Asked of the worker that leads task 0; another one knows of none."""

    module: str


class PinView(msgspec.Struct, frozen=True, kw_only=True):
    """A pin that a worker keeps."""

    pin: str
    group: str
    worker: WorkerId
    offset: Offset
    holder: str
    age_ms: int
    idle_ms: int
    """Since it was read."""
    sent_bytes: int
    """To its readers, so far."""


class ModuleView(msgspec.Struct, frozen=True, kw_only=True):
    module: str
    state: str
    artifact: str
    tasks: int
    threads: int
    next_threads: int = 0
    """How many it is being scaled to; 0 if it is not."""
    workers: int
    replication_factor: int
    depots: tuple[DepotSpec, ...]
    pstates: tuple[PStateSpec, ...]
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    processes: tuple[WorkerView, ...]
    version: int = 1
    """Of its code: +1 with every update."""
    failed_update: FailedUpdate | None = None
    """Why the latest update was rolled back, if it was."""
    groups: int
    led: int
    """How many of its groups have a leader that is registered."""
    moved: int = 0
    """How many have exactly the replicas that the assignment gives them."""
    problems: tuple[str, ...]
    """One sentence each; none when all is well."""
    microbatches: tuple[MicrobatchView, ...] = ()
    """Not by the conductor, which does not know, but added by who asks for one module."""
    pins: tuple[PinView, ...] = ()
    """Added likewise, from its workers."""


class Modules(Call[tuple[ModuleView, ...]], frozen=True, kw_only=True):
    module: str | None = None
    """Only this one; an unknown one is refused."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    address: str | None
    """Of its supervisor; None while that is not registered."""
    labels: dict[str, str]
    workers: int
    """Processes assigned to it."""
    running: int
    """Of these, how many are registered."""
    leaders: int
    leadership_allowed: bool


class Nodes(Call[tuple[NodeView, ...]], frozen=True, kw_only=True):
    pass


# Asked of the conductor: leadership.


class SwitchView(msgspec.Struct, frozen=True, kw_only=True):
    group: GroupKey
    leader: WorkerId
    target: WorkerId


class NodeLeaders(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    leaders: int
    ideal: float
    allowed: bool


class LeadershipView(msgspec.Struct, frozen=True, kw_only=True):
    module: str
    state: str
    nodes: tuple[NodeLeaders, ...]
    leaderless: tuple[GroupKey, ...]
    switches: tuple[SwitchView, ...]
    """What a balancing would do now."""
    imbalance: float
    threshold: float


class Leadership(Call[LeadershipView], frozen=True, kw_only=True):
    module: str


class Balance(Call[LeadershipView], frozen=True, kw_only=True):
    """Balance now, whatever the threshold; returns what is about to be switched."""

    module: str


class AllowLeadership(Call[None], frozen=True, kw_only=True):
    node: str


class DisallowLeadership(Call[None], frozen=True, kw_only=True):
    """Move leaders away from a node, and let none come back, until it is allowed again."""

    node: str


class ResignLeader(Call[Epoch], frozen=True, kw_only=True):
    """Hand a group over to another member; returns the epoch that is asked to end."""

    module: str
    group: int
    to: WorkerId


# Asked of the conductor: options and operations.


class OptionLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Where an option is set: the whole cluster, a module, or one object of a module."""

    module: str | None = None
    depot: str | None = None
    topology: str | None = None
    pstate: str | None = None


class SetOption(Call[None], frozen=True, kw_only=True):
    level: OptionLevel
    name: str
    value: Any
    """Text is read as the option's type; anything else must be of it."""


class UnsetOption(Call[None], frozen=True, kw_only=True):
    level: OptionLevel
    name: str


class OptionView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: Any
    origin: str
    default: Any
    unit: str
    doc: str


class Options(Call[tuple[OptionView, ...]], frozen=True, kw_only=True):
    level: OptionLevel


class Operations(Call[tuple[Operation, ...]], frozen=True, kw_only=True):
    """Newest last."""

    module: str | None = None
    limit: int = 100


# Asked of the conductor: snapshots.


class Specification(Call[ModuleSpec], frozen=True, kw_only=True):
    """All that was launched, as it is now."""

    module: str


class SnapshotView(msgspec.Struct, frozen=True, kw_only=True):
    module: str
    name: str
    folder: str
    """``DIR/<module>/<name>``, as the nodes and who asked for it see it."""
    state: str
    """creating, or complete."""
    at_ms: int
    tasks: int
    size_bytes: int


class Snapshots(Call[tuple[SnapshotView, ...]], frozen=True, kw_only=True):
    """Those that are noted, oldest first; also of modules that are gone."""

    module: str | None = None


class BeginSnapshot(Call[None], frozen=True, kw_only=True):
    """Note that it is being made. Refused if there is one of that name."""

    module: str
    name: str
    folder: str


class FinishSnapshot(Call[int], frozen=True, kw_only=True):
    """Note that it is whole; returns how many complete ones of the module are to be kept, 0 for all."""

    module: str
    name: str
    size_bytes: int


class ForgetSnapshot(Call[None], frozen=True, kw_only=True):
    """Its files are gone, or nobody's business any more."""

    module: str
    name: str


# Asked of a supervisor.


class SeesSnapshot(Call[str], frozen=True, kw_only=True):
    """Why a node cannot take the files of a snapshot from a folder; empty if it can."""

    folder: str
    checksum: str
    """Of its manifest."""


class HasArtifact(Call[bool], frozen=True, kw_only=True):
    digest: str


class HeldOfArtifact(Call[int], frozen=True, kw_only=True):
    """How many bytes of it are there, from its beginning: where an upload goes on."""

    digest: str


class PutArtifact(Call[bool], frozen=True, kw_only=True):
    """A piece of an artifact, in the body of the message; True once it is whole and its digest is right."""

    digest: str
    offset: int
    size: int
    """Of the whole."""


class GetArtifact(Call[int], frozen=True, kw_only=True):
    """A piece comes in the body; returns the size of the whole."""

    digest: str
    offset: int


class LocalWorkers(Call[tuple[WorkerView, ...]], frozen=True, kw_only=True):
    """The workers of this node: where to ask on when there is no conductor."""


# Asked of a worker.


class FollowerView(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as its leader knows it."""

    worker: WorkerId
    confirmed: Offset | None
    in_isr: bool


class TaskCatchup(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a transfer of state."""

    task: TaskId
    phase: str
    """waiting, preparing, asking, listing, comparing, fetching or complete."""
    round: int
    offset: Offset | None
    """Of the latest image that is complete here."""
    size_bytes: int | None
    """Of the image under way; None before the first is known."""
    left_bytes: int
    """Of this round; known from fetching on."""


class CatchupView(msgspec.Struct, frozen=True, kw_only=True):
    """How a replica receives its leader's state."""

    leader: WorkerId
    round: int
    min_rounds: int
    leader_applied: Offset
    received_bytes: int
    """In this transfer, over all rounds."""
    bytes_per_second: int
    damaged_blocks: int
    """Refused, and asked for again."""
    since_ms: int
    waits: str
    """What keeps it waiting, in a sentence: a full disk, a leader that refuses."""
    tasks: tuple[TaskCatchup, ...]


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as it knows itself."""

    group: GroupKey
    worker: WorkerId
    incarnation: Incarnation | None
    role: str
    """leader, follower, candidate, near, far or stopped."""
    epoch: Epoch
    leader: WorkerId | None
    isr: tuple[WorkerId, ...]
    osr: tuple[WorkerId, ...]
    min_isr: int
    start: Offset
    end: Offset
    apply: Offset
    """Decided; :attr:`applied` follows it."""
    applied: Offset
    stalled: bool
    serving: bool
    paused: bool = False
    """It refuses records, as its module demands."""
    leaderless: bool = False
    """It found the leader of its epoch gone, and none has followed."""
    since_ms: int
    """How long its role, its epoch and its state have been what they are."""
    why: str = ""
    """What keeps it from its work, in words: why it is stopped, or does not serve."""
    followers: tuple[FollowerView, ...] = ()
    catchup: CatchupView | None = None
    """Only while it receives its leader's state."""


class ModuleDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What clients of a module have to know of it."""

    tasks: int
    depots: tuple[DepotSpec, ...] | None
    """None: it was not launched but made by hand, and takes records for any depot."""
    pstates: tuple[PStateSpec, ...] = ()
    topologies: tuple[TopologySpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    version: int = 1
    """Of its code: +1 with every update."""


def describe(spec: ModuleSpec) -> ModuleDescription:
    return ModuleDescription(
        tasks=spec.tasks,
        depots=spec.depots,
        pstates=spec.pstates,
        topologies=spec.topologies,
        queries=spec.queries,
        version=spec.version,
    )


class Describe(Call[ModuleDescription], frozen=True, kw_only=True):
    """What the worker's module is; every worker of it knows, so no conductor is needed."""

    module: str


class Replicas(Call[tuple[ReplicaView, ...]], frozen=True, kw_only=True):
    module: str | None = None


class DigestView(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica held at a marker."""

    offset: Offset
    digests: dict[TaskId, str]


class Digests(Call[DigestView | None], frozen=True, kw_only=True):
    """Of a replica at a marker of its group's log; None as long as it has none (yet)."""

    group: GroupKey
    marker: str


class HoldView(msgspec.Struct, frozen=True, kw_only=True):
    led: tuple[tuple[GroupKey, Epoch], ...]
    """What this worker leads, and holds."""
    waits: str
    """What has begun and is not done yet, in words; empty when nothing is."""


class HoldTopologies(Call[HoldView], frozen=True, kw_only=True):
    """Begin no records and no microbatch for a while; what has begun goes on. Asked again, it lasts on."""

    token: str
    """Whose hold it is."""
    hold_ms: int
    """From now; 0 ends it."""


class MicrobatchCut(msgspec.Struct, frozen=True, kw_only=True):
    """A microbatch topology as the rows of one task tell."""

    id: int
    """The latest on record, which task 0 has; 0 if there is none."""
    tasks: tuple[TaskId, ...] | None
    """Who has a part in it; None if it is not committed."""
    rolled: int
    """The latest that took effect on this task."""


class CutTask(msgspec.Struct, frozen=True, kw_only=True):
    microbatches: dict[str, MicrobatchCut]
    digest: str | None = None
    """None until it is computed."""
    size_bytes: int | None = None
    """Of its copy, which is whole; None until then."""
    sha256: str = ""


class CutView(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica holds of the marker of a snapshot."""

    offset: Offset
    epoch: Epoch
    cluster: str
    tasks: dict[TaskId, CutTask]
    copied_bytes: int
    problem: str
    """Why it will not be copied here; empty as long as all is well."""


class Cut(Call[CutView | None], frozen=True, kw_only=True):
    """None as long as the marker is not applied, and once it is let go. Asking keeps it for a while more."""

    group: GroupKey
    marker: str


class CopyCut(Call[bool], frozen=True, kw_only=True):
    """Begin to write the tasks of a group to a folder; :class:`Cut` tells how it goes on. False: there is
    nothing to copy any more."""

    group: GroupKey
    marker: str
    folder: str
    token: str
    """What is in the file ``creating`` of that folder: by it a worker knows that it sees the right one."""


class DropCut(Call[None], frozen=True, kw_only=True):
    """Nobody wants it any more."""

    group: GroupKey
    marker: str


class Windows(Call[tuple[Window, ...]], frozen=True, kw_only=True):
    """What a worker measured: the windows that it still has, from one on."""

    since_ms: int = 0


class StoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """A transition of a replica."""

    at_ms: int
    """Of the Unix epoch."""
    event: str
    fields: dict[str, Any]


class Story(Call[tuple[StoryLine, ...]], frozen=True, kw_only=True):
    """What a worker's replica of a group went through lately, oldest first."""

    group: GroupKey


class FailureKey(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a topology did not manage."""

    topology: str
    depot: str
    task: TaskId
    offset: int


class FailureView(FailureKey, frozen=True, kw_only=True):
    at_ms: int
    attempts: int
    error: str
    traceback: str
    record: str
    """How it begins."""


class TopologyView(msgspec.Struct, frozen=True, kw_only=True):
    """A stream on one task."""

    topology: str
    task: TaskId
    lag: int
    """Records that are visible and not processed."""
    retrying: int
    """Records that failed, and are tried again."""


class FailuresView(msgspec.Struct, frozen=True, kw_only=True):
    parked: tuple[FailureView, ...] = ()
    """Records that are not tried again."""
    streams: tuple[TopologyView, ...] = ()
    problems: tuple[str, ...] = ()
    """Why nothing runs at all; one sentence each."""


class Failures(Call[FailuresView], frozen=True, kw_only=True):
    """What the module's code did not manage in a group; asked of its leader."""

    group: GroupKey


class SettleFailures(Call[int], frozen=True, kw_only=True):
    """Try parked records of a group again, or forget them; how many there were. Asked of its leader."""

    group: GroupKey
    keys: tuple[FailureKey, ...]
    again: bool


class PinGroup(Call[PinnedGroup], frozen=True, kw_only=True):
    """Keep the state of a group readable as it is now, until nobody has read it for a while."""

    group: GroupKey
    max_staleness_ms: int | None = None
    """A follower may do so if it shows all that was visible so long ago; None: only the leader."""
    holder: str
    """For whom, to be shown to people."""


class Pins(Call[tuple[PinView, ...]], frozen=True, kw_only=True):
    """Those that a worker keeps, oldest first."""


AnyCall: TypeAlias = (
    FindConductor
    | Log
    | Launch
    | Destroy
    | Update
    | Reassign
    | Scale
    | ScaleThreads
    | AbandonScaling
    | Pause
    | Resume
    | Modules
    | Nodes
    | Leadership
    | Balance
    | AllowLeadership
    | DisallowLeadership
    | ResignLeader
    | SetOption
    | UnsetOption
    | Options
    | Operations
    | Specification
    | Snapshots
    | BeginSnapshot
    | FinishSnapshot
    | ForgetSnapshot
    | SeesSnapshot
    | HasArtifact
    | HeldOfArtifact
    | PutArtifact
    | GetArtifact
    | Describe
    | LocalWorkers
    | Replicas
    | Microbatches
    | Digests
    | HoldTopologies
    | Cut
    | CopyCut
    | DropCut
    | Windows
    | Story
    | Failures
    | SettleFailures
    | PinGroup
    | Pins
)

_calls: msgspec.msgpack.Decoder[AnyCall] = msgspec.msgpack.Decoder(AnyCall)
_encode = msgspec.msgpack.Encoder().encode


def encode(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


def decode_call(raw: msgspec.Raw) -> AnyCall:
    """Raises msgspec.DecodeError for what is no call."""
    return _calls.decode(raw)


def decode_result(call: Call[Result], raw: msgspec.Raw) -> Result:
    result: Result = _decoder(type(call)).decode(raw)
    return result


_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}
_deciding = threading.Lock()


def _decoder(call: type[Call[Any]]) -> msgspec.msgpack.Decoder[Any]:
    """Made by one thread at a time: two that look into the same struct for the first time crash msgspec."""
    found = _decoders.get(call)
    if found is None:
        with _deciding:
            found = _decoders.setdefault(call, msgspec.msgpack.Decoder(result_type(call)))
    return found
