"""A ZooKeeper as its clients experience it.

One record, changed by compare-and-set; registrations that live as long as their session. Each session
reads through a server whose view lags, monotonically, until ``sync``; watches fire when that view
catches up. A request can be lost, or be carried out while its reply is lost: the client sees the same
either way. The requests of a session are carried out in order.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from stretto.replog.core.events import (
    CasOutcome,
    CasReply,
    Event,
    MembersSeen,
    ReadFailed,
    RecordRead,
    RegistrationSeen,
)
from stretto.replog.core.record import GroupRecord, Member, Registration
from stretto.sim.virtual.world import World
from stretto.vocabulary.types import Incarnation, WorkerId

Lost: TypeAlias = Event | Registration | None
"""What the client sees of a lost request: an event, a test to repeat, or nothing."""


class Link(enum.Enum):
    """The state of the connection between a client and the ensemble."""

    UP = "up"
    DOWN = "down"
    CUT_OFF = "cut_off"
    """The client's server answers pings but has lost the quorum."""


class Client(Protocol):
    """A process that has a session."""

    worker: WorkerId

    def deliver(self, event: Event) -> None: ...

    def session_is_over(self, session: Session) -> None: ...

    def lease_answered(self, session: Session, sent_at: int, *, is_write: bool) -> None: ...


@dataclass(eq=False)
class Session:
    """A session, as the ensemble and its client know it."""

    client: Client
    registration: Registration
    member: Member
    timeout_ms: int
    heard_at: int
    view: int
    """Index of the last change this session's server has seen."""
    alive: bool = True
    """Whether the session lasts in the ensemble's eyes."""
    closed: bool = False
    """Whether the client has given it up: its process is gone, or it knows that the session expired."""
    link: Link = Link.UP
    delivered_version: int = -1
    last_request_at: int = 0
    request_ms: int = 0
    """How much longer each request takes to arrive, in milliseconds."""
    reply_ms: int = 0
    """How much longer the answer to each heartbeat takes to come back, in milliseconds."""
    stale: bool = False
    """Whether its server learns of changes only by ``sync``."""
    watched: dict[Registration, bool] = field(default_factory=dict)


@dataclass
class Manners:
    """How badly the ensemble behaves: probabilities per request or change, delays in milliseconds."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    slow_request: float = 0.0
    """How often a request waits in a server; it is carried out even if its sender dies meanwhile."""
    late_watch: float = 0.0
    quick_ms: int = 8
    late_ms: int = 1500


class Metastore:
    """A ZooKeeper with one record and its registrations, whose requests and replies may be late or lost."""

    def __init__(self, world: World, manners: Manners) -> None:
        self.world = world
        self.manners = manners
        self._change = 0
        self._record_changes: list[int] = []
        self._records: list[GroupRecord] = []
        self._created: dict[Registration, int] = {}
        self._deleted: dict[Registration, int] = {}
        self._members: dict[Registration, Member] = {}
        self.sessions: list[Session] = []
        #: Called for every committed change, with the record before, the record after, and the worker that
        #: wrote it.
        self.on_commit: Callable[[GroupRecord | None, GroupRecord, WorkerId | None], None] = lambda *_: None
        self.expiries = 0
        #: Workers whose next change of the record commits while the reply is lost.
        self.lose_next_reply: set[WorkerId] = set()
        #: Records that a compare-and-set under way would write, also those of processes that are gone.
        self.under_way: list[GroupRecord] = []
        self._writer: WorkerId | None = None

    # What is true, for the checkers and the operator.

    @property
    def record(self) -> GroupRecord:
        """The record in force."""
        return self._records[-1]

    @property
    def version(self) -> int:
        return len(self._records) - 1

    def create(self, record: GroupRecord) -> None:
        self._commit(record, None)

    def exists(self, registration: Registration) -> bool:
        return registration in self._created and registration not in self._deleted

    def is_registered(self, member: Member) -> bool:
        return any(
            each == member and self.exists(registration) for registration, each in self._members.items()
        )

    def last_record_of(self, epoch: int) -> GroupRecord | None:
        """Return the last record of an epoch; None if there was none."""
        for record in reversed(self._records):
            if record.epoch == epoch:
                return record
            if record.epoch < epoch:
                break
        return None

    def _commit(self, record: GroupRecord, who: WorkerId | None) -> None:
        before = self._records[-1] if self._records else None
        self._change += 1
        self._record_changes.append(self._change)
        self._records.append(record)
        self.world.trace("zk", "record", self.version, record)
        self.on_commit(before, record, who)
        self._spread()

    def _spread(self) -> None:
        """Let every session's server learn of the change, each in its own time."""
        random = self.world.random
        self.sessions = [session for session in self.sessions if session.alive and not session.closed]
        for session in self.sessions:
            late = self.world.chance(self.manners.late_watch)
            delay = 1 + random.randrange(self.manners.late_ms if late else self.manners.quick_ms)
            self.world.after(delay, self._catch_up, session, self._change)

    def _catch_up(self, session: Session, change: int) -> None:
        if session.stale:
            return
        session.view = max(session.view, change)
        if session.closed or session.link is not Link.UP or not session.alive:
            return
        self._tell(session)

    def _tell(self, session: Session) -> None:
        """Fire the watches that the session's view has reached."""
        seen = self._seen(session)
        if seen is not None and seen[1] > session.delivered_version:
            session.delivered_version = seen[1]
            self._reply(session, RecordRead(record=seen[0], version=seen[1]))
        for registration, told in list(session.watched.items()):
            if not told and self._deleted.get(registration, self._change + 1) <= session.view:
                session.watched[registration] = True
                self._reply(session, RegistrationSeen(registration=registration, exists=False))

    def _seen(self, session: Session) -> tuple[GroupRecord, int] | None:
        index = bisect_right(self._record_changes, session.view) - 1
        return (self._records[index], index) if index >= 0 else None

    # Sessions.

    def connect(self, client: Client, incarnation: Incarnation, member: Member, timeout_ms: int) -> Session:
        """Open a session and register under it; called when the request reaches the ensemble."""
        registration = Registration(client.worker, incarnation)
        self._change += 1
        self._created[registration] = self._change
        self._members[registration] = member
        session = Session(client, registration, member, timeout_ms, self.world.now, self._change)
        self.sessions.append(session)
        self._expect_to_hear(session)
        self._catch_up(session, self._change)
        return session

    def _expect_to_hear(self, session: Session) -> None:
        self.world.at(session.heard_at + session.timeout_ms + 1, self._expire_if_silent, session)

    def _expire_if_silent(self, session: Session) -> None:
        if not session.alive:
            return
        if self.world.now - session.heard_at > session.timeout_ms:
            self.expire(session)
        else:
            self._expect_to_hear(session)

    def expire(self, session: Session) -> None:
        """End a session and its registration; the client learns of it when it next gets through."""
        if not session.alive:
            return
        session.alive = False
        self.expiries += 1
        self.world.trace("zk", "expires", session.registration)
        self.unregister(session.registration)
        if not session.closed and session.link is Link.UP:
            self.world.after(1 + self.world.random.randrange(20), self._tell_expired, session)

    def expire_from_operator(self, session: Session) -> None:
        """Let a session expire as if the ensemble lost patience early: its own lease is over by then."""
        session.link = Link.DOWN
        self.world.after(session.timeout_ms + 1, self.expire, session)
        self.world.after(session.timeout_ms + 50, self.set_link, session, Link.UP)

    def _tell_expired(self, session: Session) -> None:
        if not session.closed and session.link is Link.UP:
            session.client.session_is_over(session)

    def unregister(self, registration: Registration) -> None:
        """Remove a registration, by expiry or by a supervisor that has proof of death."""
        if self.exists(registration):
            self._change += 1
            self._deleted[registration] = self._change
            self._spread()

    def set_link(self, session: Session, link: Link) -> None:
        session.link = link
        if link is Link.UP and not session.closed:
            if session.alive:
                self.world.after(1 + self.world.random.randrange(20), self._catch_up, session, self._change)
            else:
                self.world.after(1 + self.world.random.randrange(20), self._tell_expired, session)

    # Requests.

    def heartbeat(self, session: Session, sent_at: int) -> None:
        """Send the write that renews the lease; a server that lost the quorum answers it as a mere ping."""
        random = self.world.random
        delay = 1 + random.randrange(self.manners.quick_ms)
        if session.link is Link.CUT_OFF:
            self.world.after(delay, self._answer_heartbeat, session, sent_at, False)
        elif session.link is Link.UP:
            self.world.after(delay, self._heartbeat_arrives, session, sent_at)

    def _heartbeat_arrives(self, session: Session, sent_at: int) -> None:
        if not session.alive:
            self._tell_expired(session)
            return
        if session.link is Link.UP and not self.world.chance(self.manners.lost_request):
            session.heard_at = self.world.now
            slow = self.world.chance(self.manners.late_watch)
            delay = 1 + self.world.random.randrange(self.manners.late_ms if slow else self.manners.quick_ms)
            self.world.after(delay + session.reply_ms, self._answer_heartbeat, session, sent_at, True)

    def _answer_heartbeat(self, session: Session, sent_at: int, is_write: bool) -> None:
        if not session.closed and session.link is not Link.DOWN:
            session.client.lease_answered(session, sent_at, is_write=is_write)

    def _request(self, session: Session, lost: Lost, carry_out: Callable[..., Event], *args: Any) -> None:
        """Carry a request to the ensemble, and its reply back; either may be lost.

        ``carry_out`` runs when the request arrives, even if its sender has died meanwhile; ``lost`` is what
        the client sees when it does not arrive, or the reply does not.
        """
        random = self.world.random
        slow = self.world.chance(self.manners.slow_request)
        arrives_at = (
            self.world.now + 1 + random.randrange(self.manners.late_ms if slow else self.manners.quick_ms)
        )
        arrives_at = max(arrives_at + session.request_ms, session.last_request_at)
        session.last_request_at = arrives_at
        self.world.at(arrives_at, self._request_arrives, session, lost, carry_out, args)

    def _request_arrives(
        self, session: Session, lost: Lost, carry_out: Callable[..., Event], args: tuple[Any, ...]
    ) -> None:
        if carry_out == self._do_compare_and_set:
            self.under_way.remove(args[2])
        if not session.alive:
            if session.link is Link.UP:
                self._tell_expired(session)
            return
        delay = 1 + self.world.random.randrange(self.manners.quick_ms)
        if not self._reaches(session) or self.world.chance(self.manners.lost_request):
            self._reply_after(session, lost, delay + 50)
            return
        view = session.view
        reply = carry_out(session, *args)
        lost_reply = self.world.chance(self.manners.lost_reply) or self._told_to_lose(reply)
        if lost_reply or not self._reaches(session):  # carrying it out may have cut the link
            # The client reconnects to a server that need not have seen what it did not hear of.
            session.view = view
            self._reply_after(session, lost, delay + 50)
        else:
            self._reply_after(session, reply, delay)

    def _reaches(self, session: Session) -> bool:
        return session.link is Link.UP

    def _told_to_lose(self, reply: Event) -> bool:
        committed = isinstance(reply, CasReply) and reply.outcome is CasOutcome.OK
        if committed and self._writer is not None and self._writer in self.lose_next_reply:
            self.lose_next_reply.discard(self._writer)
            return True
        return False

    def _reply_after(self, session: Session, reply: Event | Lost, delay: int) -> None:
        if isinstance(reply, Registration):
            self.world.after(delay, self.check, session, reply)
        elif reply is not None:
            self.world.after(delay, self._reply, session, reply)

    def _reply(self, session: Session, reply: Event) -> None:
        if not session.closed:
            session.client.deliver(reply)

    def compare_and_set(
        self,
        session: Session,
        token: int,
        version: int | None,
        record: GroupRecord,
        must_exist: tuple[Registration, ...],
    ) -> None:
        lost = CasReply(token=token, outcome=CasOutcome.UNKNOWN)
        self.under_way.append(record)
        self._request(session, lost, self._do_compare_and_set, token, version, record, must_exist)

    def _do_compare_and_set(
        self,
        session: Session,
        token: int,
        version: int | None,
        record: GroupRecord,
        must_exist: tuple[Registration, ...],
    ) -> CasReply:
        if version is not None and version != self.version:
            return CasReply(token=token, outcome=CasOutcome.BAD_VERSION)
        if not all(self.exists(registration) for registration in must_exist):
            return CasReply(token=token, outcome=CasOutcome.NO_REGISTRATION)
        self._writer = session.client.worker
        self._commit(record, self._writer)
        session.view = self._change
        return CasReply(token=token, outcome=CasOutcome.OK, version=self.version)

    def read(self, session: Session, token: int, *, sync: bool) -> None:
        self._request(session, ReadFailed(token=token), self._do_read, token, sync)

    def _do_read(self, session: Session, token: int, sync: bool) -> Event:
        if sync:
            session.view = self._change
        seen = self._seen(session)
        if seen is None:
            return ReadFailed(token=token)
        return RecordRead(record=seen[0], version=seen[1], token=token)

    def check(self, session: Session, registration: Registration) -> None:
        """Test whether a registration exists, and watch it; the test is repeated until it is answered."""
        self._request(session, registration, self._do_check, registration)

    def _do_check(self, session: Session, registration: Registration) -> Event:
        session.view = self._change
        exists = self.exists(registration)
        session.watched[registration] = not exists
        return RegistrationSeen(registration=registration, exists=exists)

    def look_for_members(self, session: Session, token: int) -> None:
        self._request(session, None, self._do_look, token)

    def _do_look(self, session: Session, token: int) -> Event:
        session.view = self._change
        alive = frozenset(
            member for registration, member in self._members.items() if self.exists(registration)
        )
        return MembersSeen(token=token, alive=alive)
