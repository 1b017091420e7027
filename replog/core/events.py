"""What happens to a replica. Each is handed to ``Replica.step`` together with the time."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from stretto.replog.core.messages import AnyMessage
from stretto.replog.core.producers import ProducerTable
from stretto.replog.core.record import GroupRecord, Member, Registration
from stretto.replog.core.settings import Settings
from stretto.replog.frame import Frame, Kind
from stretto.replog.storage import EpochStart
from stretto.vocabulary.types import Buffer, Epoch, Incarnation, Millis, Offset, ProducerId, TaskId, WorkerId


class Tick(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The deadline that the replica asked for has come. Harmless at any moment; the first one starts it."""


class Received(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message of another replica came, with the frames that travelled beside it."""

    sender: WorkerId
    message: AnyMessage
    frames: tuple[Frame, ...] = ()


class Sent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A SendEntries went out and carried entries up to ``end``."""

    to: WorkerId
    incarnation: Incarnation
    """The receiver's incarnation: ``message.to``."""
    attempt: int
    end: Offset


# Disk and applied state.


class Persisted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything below ``end`` is durable; counts only for the same generation of the log."""

    end: Offset
    generation: int


class StorageFailed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A write failed or a checksum did not match. Never retried."""

    why: str
    suspect: bool
    """Whether what the disk holds may not be what was confirmed."""


class LogCut(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The log begins at ``start`` now."""

    start: Offset


class Applied(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Entries below ``end`` are visible in the applied state."""

    end: Offset


class StateSynced(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The applied state below ``end`` survives a power loss."""

    end: Offset


class StateArrived(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A leader's state is here, whole and verified, but not installed; it answers one FetchState."""

    epoch: Epoch
    attempt: int
    end: Offset


class StateInstalled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An InstallState was carried out, atomically: applied state, producers, and an empty log at ``end``.

    The history is of the epochs that began below ``end``.
    """

    end: Offset
    history: tuple[EpochStart, ...]
    producers: ProducerTable


class TransferProgressed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The leader answers a transfer: no need to ask it anew for now."""

    epoch: Epoch
    attempt: int


class TransferFailed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The leader's state did not arrive whole, or could not be installed; the old state stands."""


class PinMoved(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A follower that receives our state needs our log from ``start`` on; None: it no longer receives it."""

    to: WorkerId
    epoch: Epoch
    incarnation: Incarnation
    """The follower's incarnation."""
    start: Offset | None


# Metastore.


class RecordRead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The record as the metastore showed it: after a watch (no token), or for a ReadRecord."""

    record: GroupRecord
    version: int
    token: int | None = None


class ReadFailed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A ReadRecord got no answer."""

    token: int


class RegistrationSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whether a registration exists, for a CheckRegistration or by its watch."""

    registration: Registration
    exists: bool


class MembersSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The members with a live registration, for a LookForMembers."""

    token: int
    alive: frozenset[Member]

    def __repr__(self) -> str:
        return f"MembersSeen(token={self.token}, alive={sorted(self.alive)})"


class CasOutcome(enum.Enum):
    """How a compare-and-set ended."""

    OK = "ok"
    BAD_VERSION = "bad_version"
    NO_REGISTRATION = "no_registration"
    UNKNOWN = "unknown"
    """The reply was lost: the change may or may not have been made."""


class CasReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a CompareAndSet, and the record's new version if it is known."""

    token: int
    outcome: CasOutcome
    version: int | None = None


class SessionExpired(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Our metastore session, with our registration, is gone."""


class SessionStarted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Our metastore session began anew: we are registered again, as a new incarnation."""

    incarnation: Incarnation


class LeaseRenewed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A write through the ensemble, sent at ``sent_at`` on our clock, was acknowledged."""

    sent_at: Millis


# Clients and operators.


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A client, or the worker itself, asks to append entries."""

    request: int
    kind: Kind
    task: TaskId
    producer: ProducerId
    sequence: int
    count: int
    payload: Buffer
    timestamp_ms: int
    timeout_ms: Millis | None = None
    """Time after which its outcome is reported as unknown; None means that of the settings."""
    until_applied: bool = False
    """Whether it is acknowledged only when it is applied, not as soon as it is committed."""


class Read(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A client asks to read the applied state.

    Of a leader; with ``max_staleness_ms``, of a follower too that has applied what is below ``after``.
    """

    request: int
    max_staleness_ms: Millis | None = None
    after: Offset = Offset(0)
    after_epoch: Epoch = Epoch(0)
    """Epoch in which the caller saw what is below ``after``."""
    asks_first: bool = False
    """Whether a follower first asks its leader what is visible now; unanswered, it uses older word."""
    is_sampled: bool = False
    """Whether a leader's driver has sampled the state just before this step, so that no Sample is needed.

    The time of the step was taken after that. A Sample is needed all the same if something acknowledged was
    not applied.
    """


class ClockRead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The clock was read for a ReadClock: the time of this step was taken after it."""


class Sampled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The applied state was sampled for a read; the time of this step was taken *after* that."""

    request: int


class Resign(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Hand leadership to ``target``; meant for the leader of ``epoch`` and nobody else."""

    epoch: Epoch
    target: WorkerId | None = None
    """Worker to hand over to; None if this worker stops, and the leader chooses."""


class WorkFinished(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A FinishWork of the leader of that epoch is done: no caller waits for anything under way."""

    epoch: Epoch


class ReplicasChanged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The assignment gives the group other replicas. A worker that it once left out is never in it again."""

    plan: int
    """Number of the assignment; goes up with every such change."""
    replicas: tuple[WorkerId, ...]
    """Workers of the replicas, preferred leader first."""


class Regrouping(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an assignment says of groupings, by their numbers; 0 is none."""

    present: int
    """The grouping in force."""
    next: int = 0
    """The grouping that is to follow: the log is to be sealed for it."""
    closing: int = 0
    """The grouping that may be in force at any moment from now on: nothing is to be shown to readers."""
    abandoned: int = 0
    """The latest grouping that was given up."""


class OptionsChanged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The settings were changed."""

    settings: Settings


Event: TypeAlias = (
    Tick
    | Received
    | Sent
    | Persisted
    | StorageFailed
    | LogCut
    | Applied
    | StateSynced
    | StateArrived
    | StateInstalled
    | TransferProgressed
    | TransferFailed
    | PinMoved
    | RecordRead
    | ReadFailed
    | RegistrationSeen
    | MembersSeen
    | CasReply
    | SessionExpired
    | SessionStarted
    | LeaseRenewed
    | Append
    | Read
    | ClockRead
    | Sampled
    | Resign
    | WorkFinished
    | ReplicasChanged
    | Regrouping
    | OptionsChanged
)
