"""What the core asks its driver to do, in the order of the list it returns.

Ordering with the disk is data: the event in ``Persist.then`` is handed back to the core once the
write is durable. When one group commit covers several, only the last need be handed back, because
it implies the others: that is how one confirmation covers many entries.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from stretto.replog.core.messages import AnyMessage, Entries
from stretto.replog.core.record import GroupRecord, Registration
from stretto.replog.frame import Frame
from stretto.vocabulary.types import Epoch, Incarnation, Offset, WorkerId

if TYPE_CHECKING:
    from stretto.replog.core.events import Persisted


class Persist(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Append to the replog now (readable at once); step ``then`` when it is durable."""

    frames: tuple[Frame, ...]
    then: Persisted


class Truncate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Drop the replog from ``end`` on, before any later Persist; step ``then`` when the rest is durable."""

    end: Offset
    then: Persisted


class Cut(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Retention: the replog is not needed below ``start``. Answer with LogCut."""

    start: Offset


class Send(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    to: WorkerId
    message: AnyMessage


class SendEntries(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Read whole frames from ``start``, at most ``max_bytes`` of them, send them with ``message``,
    and say how far that went with a Sent event. Read before any later effect is carried out: the message
    speaks of the log as it is now."""

    to: WorkerId
    message: Entries
    attempt: int
    start: Offset
    max_bytes: int


class Apply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Apply the replog up to ``end``; answer with Applied, and with StateSynced once that is durable."""

    end: Offset


class CompareAndSet(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One ZooKeeper multi: every registration in ``must_exist`` exists, and the record, still at
    ``version``, becomes ``record``. Answer with CasReply."""

    token: int
    version: int | None
    """None only in a mutant that forgets the condition."""
    record: GroupRecord
    must_exist: tuple[Registration, ...] = ()


class ReadRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``sync``, then read the record; answer with RecordRead carrying the token."""

    token: int
    sync: bool = True


class CheckRegistration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``sync``, test that the path exists, leave a watch, and report either way with RegistrationSeen."""

    registration: Registration


class LookForMembers(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``sync``, then report with MembersSeen which members of the ISR have a live registration."""

    token: int


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Read the applied state for this request, then step Sampled with a fresh clock."""

    request: int


class ReadClock(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Step ClockRead with a fresh clock."""


class Refusal(enum.StrEnum):
    """Why a request was not taken: it has had no effect."""

    NOT_LEADER = "not_leader"
    NOT_READY = "not_ready"
    """The new leader still applies what it inherited."""
    HANDING_OVER = "handing_over"
    STALLED = "stalled"
    OVERLOADED = "overloaded"
    NO_LEASE = "no_lease"
    TOO_STALE = "too_stale"
    """A follower could not answer within the bound: the leader can."""
    SEQUENCE_GAP = "sequence_gap"
    UNKNOWN_PRODUCER = "unknown_producer"
    CLAIMED = "claimed"
    """A named producer's round was claimed for other records, or a later one was."""
    PAUSED = "paused"
    """The module takes no records until somebody resumes it."""
    SEALED = "sealed"
    """Its tasks are about to go on in other groups: ask again, and find out which."""


class Acked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The append is decided, at ``offset`` (None: long ago, position forgotten): who reads from now on sees
    it."""

    offset: Offset | None


class Refused(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    reason: Refusal
    leader: WorkerId | None
    epoch: Epoch


class Unknown(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The append may or may not be applied later; retrying the same sequence is safe."""


class ReadServed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was sampled may be shown to the reader."""

    epoch: Epoch
    """In which it was served."""


Result: TypeAlias = Acked | Refused | Unknown | ReadServed


class Reply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    request: int
    result: Result


class ServeState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Answer what a follower asks of the applied state; the log stays pinned from ``pinned`` meanwhile, which
    PinMoved moves."""

    to: WorkerId
    epoch: Epoch
    incarnation: Incarnation
    """Of the follower."""
    attempt: int
    pinned: Offset


class StopServing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The log could not be kept any longer for a follower that receives our state: let it begin again."""

    to: WorkerId


class FetchState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Ask the leader for its state, which it keeps its log for; then step StateArrived or TransferFailed, and
    TransferProgressed meanwhile."""

    leader: WorkerId
    epoch: Epoch
    attempt: int


class InstallState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Replace log and applied state by the state that arrived, atomically; then step StateInstalled, or
    TransferFailed if that is impossible."""

    end: Offset


class SetAside(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Keep this replica's folder for the operator, and begin again with an empty one."""

    why: str


class Stop(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """This replica must not go on. The driver closes it and says why."""

    why: str
    renew: bool
    """Its folder cannot be trusted: set it aside, and begin again with a fresh storage id."""


class ForgetResign(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Delete the resign request: it was carried out, refused, or is stale."""

    epoch: Epoch


class FinishWork(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A hand-over is about to begin: end what somebody waits for, begin nothing of the kind, and then step
    WorkFinished. Appends are taken until then, for a while."""

    epoch: Epoch


class Note(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    | ReadClock
    | Reply
    | ServeState
    | StopServing
    | FetchState
    | InstallState
    | SetAside
    | Stop
    | ForgetResign
    | FinishWork
    | Note
)
