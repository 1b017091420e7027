"""The simulator's metastore and the real one behind one face, for the contract they both keep.

The simulator's clients live in virtual time: waiting means to let the world go on. The real ones are
:class:`~stretto.zk.metastore.Metastore` objects that reach a real ZooKeeper through a proxy each.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol, Self, TypeVar

from kazoo.client import KazooClient

from stretto.replog.core.effects import CompareAndSet, ReadRecord
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
from stretto.sim.replication.metastore import Link, Manners, Metastore, Session
from stretto.sim.virtual.world import World
from stretto.vocabulary.invariants import present
from stretto.vocabulary.types import Incarnation, StorageId, WorkerId
from stretto.zk.znodes.paths import Paths
from tests.support.proxy import Proxy
from tests.support.recorder import Started, Told
from tests.support.servers import GROUP, SESSION_TIMEOUT_MS, Workers
from tests.support.waiting import wait_until

T = TypeVar("T")


class ClientUnderTest(ABC):
    """A worker with a session, which follows the one group. Subclasses know how to ask and to wait."""

    def __init__(self, worker: str) -> None:
        self.worker = WorkerId(worker)
        self._tokens = 0

    # What differs.

    @property
    @abstractmethod
    def registration(self) -> Registration: ...

    @property
    @abstractmethod
    def sessions(self) -> int:
        """How many it has had."""

    @abstractmethod
    def events(self) -> list[Event]: ...

    @abstractmethod
    def wait(self, what: str, condition: Callable[[], T]) -> T:
        """The first true value."""

    @abstractmethod
    def pause(self) -> None:
        """As long as the core waits before it asks again, or less."""

    @abstractmethod
    def cut(self) -> None: ...

    @abstractmethod
    def heal(self) -> None: ...

    @abstractmethod
    def expire(self) -> None:
        """The ensemble ends the session; the client is told when it gets through."""

    @abstractmethod
    def fall_behind(self) -> None:
        """Its server hears of nothing but by sync, if it can be had."""

    @abstractmethod
    def cas_losing_the_reply(self, version: int, record: GroupRecord) -> CasReply: ...

    @abstractmethod
    def _send_cas(self, effect: CompareAndSet) -> None: ...

    @abstractmethod
    def _send_read(self, effect: ReadRecord) -> None: ...

    @abstractmethod
    def _send_check(self, registration: Registration) -> None: ...

    @abstractmethod
    def _send_look(self, token: int) -> None: ...

    # What does not.

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _all(self, kind: type[T]) -> list[T]:
        return [event for event in self.events() if isinstance(event, kind)]

    def start_cas(self, version: int, record: GroupRecord, must_exist: tuple[Registration, ...] = ()) -> int:
        token = self._token()
        self._send_cas(CompareAndSet(token=token, version=version, record=record, must_exist=must_exist))
        return token

    def wait_cas(self, token: int) -> CasReply | None:
        """None if the session was over before an answer came."""
        sessions = self.sessions

        def answer() -> list[CasReply | None]:
            replies: list[CasReply | None] = [reply for reply in self._all(CasReply) if reply.token == token]
            return replies or ([None] if self.sessions > sessions else [])

        return self.wait(f"the answer to {token}", answer)[0]

    def cas(
        self, version: int, record: GroupRecord, must_exist: tuple[Registration, ...] = ()
    ) -> CasReply | None:
        return self.wait_cas(self.start_cas(version, record, must_exist))

    def cas_until_answered(self, version: int, record: GroupRecord) -> CasReply:
        """For when the connection comes back: nothing is sent, or nothing gets there, before."""
        while True:
            reply = present(self.cas(version, record), "reply")
            if reply.outcome is not CasOutcome.UNKNOWN:
                return reply
            self.pause()

    def _try_read(self, *, sync: bool) -> RecordRead | ReadFailed:
        token = self._token()
        self._send_read(ReadRecord(token=token, sync=sync))

        def answer() -> list[RecordRead | ReadFailed]:
            answers: list[RecordRead | ReadFailed] = [*self._all(RecordRead), *self._all(ReadFailed)]
            return [each for each in answers if each.token == token]

        return self.wait(f"the answer to {token}", answer)[0]

    def read(self, *, sync: bool = True) -> RecordRead:
        answer = self._try_read(sync=sync)
        assert isinstance(answer, RecordRead), answer
        return answer

    def read_until_answered(self) -> RecordRead:
        while True:
            answer = self._try_read(sync=True)
            if isinstance(answer, RecordRead):
                return answer
            self.pause()

    def _seen(self, registration: Registration) -> list[bool]:
        return [seen.exists for seen in self._all(RegistrationSeen) if seen.registration == registration]

    def check(self, registration: Registration) -> bool:
        before = len(self._seen(registration))
        self._send_check(registration)
        self.wait(f"a test of {registration}", lambda: len(self._seen(registration)) > before)
        return self._seen(registration)[before]

    def wait_gone(self, registration: Registration) -> None:
        self.wait(f"{registration} to be gone", lambda: False in self._seen(registration))

    def told_versions(self) -> list[int]:
        return [read.version for read in self._all(RecordRead) if read.token is None]

    def wait_told_version(self, version: int, times: int = 1) -> None:
        self.wait(f"version {version}", lambda: self.told_versions().count(version) >= times)

    def look_for_members(self) -> frozenset[Member]:
        token = self._token()
        self._send_look(token)
        return self.wait(
            "members", lambda: [seen.alive for seen in self._all(MembersSeen) if seen.token == token]
        )[0]

    def wait_session(self, number: int) -> None:
        self.wait(f"session {number}", lambda: self.sessions >= number)


class MetastoreUnderTest(Protocol):
    def create(self, record: GroupRecord) -> None: ...

    def connect(self, worker: str) -> ClientUnderTest: ...


# The simulator's.


class SimulatedClient(ClientUnderTest):
    def __init__(self, metastore: SimulatedMetastore, worker: str) -> None:
        super().__init__(worker)
        self._world = metastore.world
        self._metastore = metastore.metastore
        self._incarnations = metastore.incarnations
        self._events: list[Event] = []
        self._sessions = 0
        self._session = self._connect()

    def _connect(self) -> Session:
        self._incarnations.append(self.worker)
        incarnation = Incarnation(f"{self.worker}.{len(self._incarnations)}")
        member = Member(self.worker, StorageId(f"disk-of-{self.worker}"))
        self._sessions += 1
        session = self._metastore.connect(self, incarnation, member, SESSION_TIMEOUT_MS)
        self._heartbeat(session)
        return session

    def _heartbeat(self, session: Session) -> None:
        if not session.closed:
            self._metastore.heartbeat(session, self._world.now)
            self._world.after(SESSION_TIMEOUT_MS // 6, self._heartbeat, session)

    # What the metastore tells.

    def deliver(self, event: Event) -> None:
        self._events.append(event)

    def session_is_over(self, session: Session) -> None:
        if session is self._session and not session.closed:
            session.closed = True
            self._world.after(50, self._reconnect)

    def _reconnect(self) -> None:
        self._session = self._connect()

    def lease_answered(self, session: Session, sent_at: int, *, is_write: bool) -> None:
        del session, sent_at, is_write

    # What a test does.

    @property
    def registration(self) -> Registration:
        return self._session.registration

    @property
    def sessions(self) -> int:
        return self._sessions

    def events(self) -> list[Event]:
        return self._events

    def wait(self, what: str, condition: Callable[[], T]) -> T:
        deadline = self._world.now + 60_000
        while not (value := condition()):
            assert self._world.advance(), what
            assert self._world.now < deadline, what
        return value

    def pause(self) -> None:
        until = self._world.now + 100
        self.wait("some time", lambda: self._world.now >= until)

    def cut(self) -> None:
        self._metastore.set_link(self._session, Link.DOWN)

    def heal(self) -> None:
        self._metastore.set_link(self._session, Link.UP)

    def expire(self) -> None:
        self._metastore.expire(self._session)

    def fall_behind(self) -> None:
        self._session.stale = True

    def cas_losing_the_reply(self, version: int, record: GroupRecord) -> CasReply:
        self._metastore.lose_next_reply.add(self.worker)
        return present(self.cas(version, record), "reply")

    def _send_cas(self, effect: CompareAndSet) -> None:
        self._metastore.compare_and_set(
            self._session, effect.token, effect.version, effect.record, effect.must_exist
        )

    def _send_read(self, effect: ReadRecord) -> None:
        self._metastore.read(self._session, effect.token, sync=effect.sync)

    def _send_check(self, registration: Registration) -> None:
        self._metastore.check(self._session, registration)

    def _send_look(self, token: int) -> None:
        self._metastore.look_for_members(self._session, token)


class SimulatedMetastore:
    def __init__(self) -> None:
        self.world = World(seed=1)
        self.metastore = Metastore(self.world, Manners())
        self.incarnations: list[WorkerId] = []

    def create(self, record: GroupRecord) -> None:
        self.metastore.create(record)

    def connect(self, worker: str) -> ClientUnderTest:
        return SimulatedClient(self, worker)


# ZooKeeper.


class RealClient(ClientUnderTest):
    def __init__(self, workers: Workers, server_port: int, proxy: Proxy, worker: str) -> None:
        super().__init__(worker)
        self._server = f"127.0.0.1:{server_port}"
        self._proxy = proxy
        self._metastore, self._recorder = workers.open(proxy.address, worker)
        self._metastore.follow(GROUP)

    @property
    def registration(self) -> Registration:
        return Registration(self.worker, self._recorder.of(Started)[-1].incarnation)

    @property
    def sessions(self) -> int:
        return len(self._recorder.of(Started))

    def events(self) -> list[Event]:
        return [told.event for told in self._recorder.of(Told)]

    def wait(self, what: str, condition: Callable[[], T]) -> T:
        return self._recorder.wait(what, lambda _: condition())

    def pause(self) -> None:
        time.sleep(0.02)

    def cut(self) -> None:
        self._proxy.cut()

    def heal(self) -> None:
        self._proxy.heal()

    def expire(self) -> None:
        """By somebody who takes the session over, past the proxy, and closes it."""
        session = present(self._metastore._session, "session")
        thief = KazooClient(
            self._server, client_id=(session._client._session_id, session._client._session_passwd)
        )
        thief.start()
        thief.stop()
        thief.close()

    def fall_behind(self) -> None:
        """A lone server has nothing to fall behind."""

    def cas_losing_the_reply(self, version: int, record: GroupRecord) -> CasReply:
        self._proxy.swallow_replies()
        token = self.start_cas(version, record)
        observer = KazooClient(self._server)
        observer.start()
        path = self._metastore.paths.group(GROUP)
        wait_until("the change is made", lambda: observer.get(path)[1].version == version + 1)
        observer.stop()
        observer.close()
        self._proxy.heal()
        return present(self.wait_cas(token), "reply")

    def _send_cas(self, effect: CompareAndSet) -> None:
        self._metastore.compare_and_set(GROUP, effect)

    def _send_read(self, effect: ReadRecord) -> None:
        self._metastore.read(GROUP, effect)

    def _send_check(self, registration: Registration) -> None:
        self._metastore.check(GROUP, registration)

    def _send_look(self, token: int) -> None:
        self._metastore.look_for_members(GROUP, token)


class RealMetastore:
    def __init__(self, server_port: int, paths: Paths) -> None:
        self._port = server_port
        self._closing = ExitStack()
        self._workers = Workers(paths, self._closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def create(self, record: GroupRecord) -> None:
        conductor, _ = self._workers.open(f"127.0.0.1:{self._port}", "conductor")
        assert conductor.create_group(GROUP, record).result(30)

    def connect(self, worker: str) -> ClientUnderTest:
        proxy = self._closing.enter_context(Proxy(self._port))
        return RealClient(self._workers, self._port, proxy, worker)
