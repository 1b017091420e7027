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
    """Retention: the replog is not needed below ``start``. The driver answers with LogCut."""

    start: Offset


class Send(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Send a message without frames to another replica."""

    to: WorkerId
    message: AnyMessage


class SendEntries(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Read whole frames from ``start`` and send them with ``message``, at most ``max_bytes`` of them.

    The driver says how far that went with a Sent event. It reads before any later effect is carried out: the
    message speaks of the log as it is now.
    """

    to: WorkerId
    message: Entries
    attempt: int
    start: Offset
    max_bytes: int


class Apply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Apply the replog up to ``end``; answer with Applied, and with StateSynced once that is durable."""

    end: Offset


class CompareAndSet(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Change the group's record by one ZooKeeper multi; answer with CasReply.

    Every registration in ``must_exist`` exists, and the record, still at ``version``, becomes ``record``.
    """

    token: int
    version: int | None
    """Version that the record must still have; None only in a mutant that forgets the condition."""
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
    """The new leader is still applying what it inherited."""
    HANDING_OVER = "handing_over"
    STALLED = "stalled"
    OVERLOADED = "overloaded"
    NO_LEASE = "no_lease"
    TOO_STALE = "too_stale"
    """A follower could not answer within the staleness bound; the leader can."""
    SEQUENCE_GAP = "sequence_gap"
    UNKNOWN_PRODUCER = "unknown_producer"
    CLAIMED = "claimed"
    """The named producer's round was claimed for other records, or a later round was claimed."""
    PAUSED = "paused"
    """The module takes no records until somebody resumes it."""
    SEALED = "sealed"
    """The group's tasks are about to go on in other groups: the client asks again and finds out which."""


class Acked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The append is committed at ``offset``; reads from now on see it.

    ``offset`` is None if that was long ago and the position is forgotten.
    """

    offset: Offset | None


class Refused(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The request was not taken and has had no effect."""

    reason: Refusal
    leader: WorkerId | None
    epoch: Epoch


class Unknown(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The append may or may not be applied later; retrying the same sequence is safe."""


class ReadServed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The sampled state may be shown to the reader."""

    epoch: Epoch
    """Epoch in which the read was served."""


Result: TypeAlias = Acked | Refused | Unknown | ReadServed


class Reply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Answer a client's request."""

    request: int
    result: Result


class ServeState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Answer what a follower asks of the applied state; the log stays pinned from ``pinned`` meanwhile.

    PinMoved moves the pin.
    """

    to: WorkerId
    epoch: Epoch
    incarnation: Incarnation
    """The follower's incarnation."""
    attempt: int
    pinned: Offset


class StopServing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Stop serving our state to a follower: the log cannot be kept for it any longer, so it begins again."""

    to: WorkerId


class FetchState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Ask the leader for its state, which it keeps its log for; then step StateArrived or TransferFailed.

    Meanwhile the driver steps TransferProgressed.
    """

    leader: WorkerId
    epoch: Epoch
    attempt: int


class InstallState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Replace log and applied state by the state that arrived, atomically; then step StateInstalled.

    If that is impossible, step TransferFailed.
    """

    end: Offset


class SetAside(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Keep this replica's folder for the operator, and begin again with an empty one."""

    why: str


class Stop(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Close this replica, which must not go on, and say why."""

    why: str
    renew: bool
    """Whether its folder cannot be trusted: set it aside, and begin again with a fresh storage id."""


class ForgetResign(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Delete the resign request: it was carried out, refused, or is stale."""

    epoch: Epoch


class FinishWork(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Finish what callers wait for before a hand-over, begin nothing of the kind, and step WorkFinished.

    Appends are taken until then, for a while.
    """

    epoch: Epoch


class Note(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Report one transition, for logs and telemetry."""

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
