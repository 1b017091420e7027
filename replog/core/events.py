"""What happens to a replica. Each is handed to ``Replica.step`` together with the time."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from stretto.replog.core.messages import AnyMessage
from stretto.replog.core.producers import ProducerTable
from stretto.replog.core.record import GroupRecord, Member, Registration
from stretto.replog.core.settings import Settings
from stretto.replog.frame import Buffer, Frame, Kind
from stretto.replog.storage import EpochStart
from stretto.types import Epoch, Incarnation, Millis, Offset, ProducerId, TaskId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The deadline the replica asked for has come. Harmless at any moment; the first one starts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    sender: WorkerId
    message: AnyMessage
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A SendEntries went out and carried entries up to ``end``."""

    to: WorkerId
    incarnation: Incarnation
    """Of the receiver: ``message.to``."""
    attempt: int
    end: Offset


# Disk and applied state.


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """Everything below ``end`` is durable; counts only for the same generation of the log."""

    end: Offset
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFailed:
    """A write failed or a checksum did not match. Never retried."""

    why: str
    suspect: bool
    """What the disk holds may not be what was confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCut:
    """The log begins at ``start`` now."""

    start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Entries below ``end`` are visible in the applied state."""

    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSynced:
    """The applied state below ``end`` survives a power loss."""

    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StateArrived:
    """A leader's state is here, whole and verified, and not installed. It answers one FetchState."""

    epoch: Epoch
    attempt: int
    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInstalled:
    """An InstallState was carried out, atomically: applied state, producers, and an empty log at ``end``.

    The history is of the epochs that began below ``end``.
    """

    end: Offset
    history: tuple[EpochStart, ...]
    producers: ProducerTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFailed:
    """The leader's state did not arrive whole, or could not be installed; the old state stands."""


# Metastore.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRead:
    """The record as the metastore showed it: after a watch (no token), or for a ReadRecord."""

    record: GroupRecord
    version: int
    token: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFailed:
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationSeen:
    registration: Registration
    exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersSeen:
    """The members with a live registration, for a LookForMembers."""

    token: int
    alive: frozenset[Member]

    def __repr__(self) -> str:
        return f"MembersSeen(token={self.token}, alive={sorted(self.alive)})"


class CasOutcome(enum.Enum):
    OK = "ok"
    BAD_VERSION = "bad_version"
    NO_REGISTRATION = "no_registration"
    UNKNOWN = "unknown"
    """The reply was lost: the change may or may not have been made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CasReply:
    token: int
    outcome: CasOutcome
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionExpired:
    """Our metastore session, with our registration, is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted:
    """Registered again, as a new incarnation."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewed:
    """A write through the ensemble, sent at ``sent_at`` on our clock, was acknowledged."""

    sent_at: Millis


# Clients and operators.


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    request: int
    kind: Kind
    task: TaskId
    producer: ProducerId
    sequence: int
    count: int
    payload: Buffer
    timestamp_ms: int
    timeout_ms: Millis | None = None
    """When its outcome is reported as unknown; None: that of the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The applied state was sampled for a read; the time of this step was taken *after* that."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resign:
    """Hand leadership to ``target``; meant for the leader of ``epoch`` and nobody else."""

    epoch: Epoch
    target: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsChanged:
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
    | TransferFailed
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
    | Sampled
    | Resign
    | OptionsChanged
)
