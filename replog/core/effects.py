"""What the core asks its driver to do, in the order of the list it returns.

Ordering with the disk is data: the event in ``Persist.then`` is handed back to the core once the
write is durable. When one group commit covers several, only the last need be handed back, because
it implies the others: that is how one confirmation covers many entries.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from stretto.replog.core.messages import AnyMessage, Entries
from stretto.replog.core.record import GroupRecord, Registration
from stretto.replog.frame import Frame
from stretto.types import Epoch, Offset, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.events import Persisted


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Append to the replog now (readable at once); step ``then`` when it is durable."""

    frames: tuple[Frame, ...]
    then: Persisted


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Drop the replog from ``end`` on, before any later Persist; step ``then`` when the rest is durable."""

    end: Offset
    then: Persisted


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Retention: the replog is not needed below ``start``. Answer with LogCut."""

    start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    to: WorkerId
    message: AnyMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEntries:
    """Read whole frames from ``start``, at most ``max_bytes`` of them, send them with ``message``,
    and say how far that went with a Sent event. Read before any later effect is carried out: the message
    speaks of the log as it is now."""

    to: WorkerId
    message: Entries
    attempt: int
    start: Offset
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Apply the replog up to ``end``; answer with Applied, and with StateSynced once that is durable."""

    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAndSet:
    """One ZooKeeper multi: every registration in ``must_exist`` exists, and the record, still at
    ``version``, becomes ``record``. Answer with CasReply."""

    token: int
    version: int | None
    """None only in a mutant that forgets the condition."""
    record: GroupRecord
    must_exist: tuple[Registration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """``sync``, then read the record; answer with RecordRead carrying the token."""

    token: int
    sync: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRegistration:
    """``sync``, test that the path exists, leave a watch, and report either way with RegistrationSeen."""

    registration: Registration


@dataclass(frozen=True, slots=True, kw_only=True)
class LookForMembers:
    """``sync``, then report with MembersSeen which members of the ISR have a live registration."""

    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Read the applied state for this request, then step Sampled with a fresh clock."""

    request: int


class Refusal(enum.StrEnum):
    """Why a request was not taken: it has had no effect."""

    NOT_LEADER = "not_leader"
    NOT_READY = "not_ready"
    """The new leader still applies what it inherited."""
    HANDING_OVER = "handing_over"
    STALLED = "stalled"
    OVERLOADED = "overloaded"
    NO_LEASE = "no_lease"
    SEQUENCE_GAP = "sequence_gap"
    UNKNOWN_PRODUCER = "unknown_producer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """The append is applied, hence visible, at ``offset`` (None: long ago, position forgotten)."""

    offset: Offset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: Refusal
    leader: WorkerId | None
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The append may or may not be applied later; retrying the same sequence is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadServed:
    """What was sampled may be shown to the reader."""


Result: TypeAlias = Acked | Refused | Unknown | ReadServed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    request: int
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeState:
    """Ship the applied state to a follower; the log stays pinned from the applied offset meanwhile."""

    to: WorkerId
    epoch: Epoch
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallState:
    """Replace log and applied state by the state that arrived, atomically; then step StateInstalled, or
    TransferFailed if that is impossible."""

    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Keep this replica's folder for the operator, and begin again with an empty one."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """This replica must not go on. The driver closes it and says why."""

    why: str
    renew: bool
    """Its folder cannot be trusted: set it aside, and begin again with a fresh storage id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResign:
    """Delete the resign request: it was carried out, refused, or is stale."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One line per transition, for logs and telemetry."""

    event: str
    fields: dict[str, Any]


Effect: TypeAlias = (
    Persist
    | Truncate
    | Cut
    | Send
    | SendEntries
    | Apply
    | CompareAndSet
    | ReadRecord
    | CheckRegistration
    | LookForMembers
    | Sample
    | Reply
    | ServeState
    | InstallState
    | SetAside
    | Stop
    | ForgetResign
    | Note
)
