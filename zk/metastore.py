"""A worker's access to the metastore: one session, one registration, one lease, and its groups' records.

Every method returns at once; answers and news go to the listener, as events of the core. The listener is
called on kazoo's threads, one call at a time, in order; it only enqueues, and must neither block nor raise.

A life in sessions: connect; read the module's spec and the options and tell them, for who is to go by them;
register an ephemeral under a fresh incarnation (one of an earlier incarnation may still be there: it has
another path); tell ``session_started``; follow. While the connection is lost, nothing is told: SUSPENDED is
not LOST. Back in time, everything is read again and watched again under the same incarnation. Expired:
whatever was asked is answered as unknown, then ``session_expired`` is told, and it begins anew.

The lease is renewed by a small *write* every interval, one for the whole worker. It counts from when it was
sent, and an answer never counts for another session than the one that sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, Protocol

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from stretto.options import OptionSet
from stretto.replog.core.effects import CompareAndSet, ReadRecord
from stretto.replog.core.events import CasReply, Event, MembersSeen, ReadFailed, RecordRead
from stretto.replog.core.record import GroupRecord, Registration
from stretto.specs.assignments import Assignment
from stretto.specs.modules import ModuleSpec
from stretto.vocabulary.clock import boot_time_ms
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.invariants import present
from stretto.vocabulary.types import Epoch, Incarnation, Millis, WorkerId
from stretto.zk.sessions import outcomes
from stretto.zk.sessions.credentials import Credentials
from stretto.zk.sessions.session import Done, MetastoreUnavailable, Send, Session
from stretto.zk.sessions.succession import OnFailure, Succession
from stretto.zk.watches.directory import Found, WorkerDirectory
from stretto.zk.watches.group import WatchedGroup
from stretto.zk.watches.members import MemberSearch
from stretto.zk.watches.options import WatchedOptions
from stretto.zk.watches.record import WatchedRecord, follow_assignment
from stretto.zk.watches.registrations import WatchedRegistrations
from stretto.zk.watches.survey import Survey, Surveyed
from stretto.zk.watches.znode import WatchedZnode
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import (
    ConductorRegistration,
    ResignRequest,
    WorkerRegistration,
    ZnodeDamaged,
    decode,
    encode,
)

log = structlog.get_logger()

#: Renewals of the lease per session time-out.
LEASE_RENEWALS = 6


class MetastoreListener(Protocol):
    """Where a worker's metastore sends its news and answers; implementations only enqueue."""

    def session_started(self, incarnation: Incarnation) -> None: ...

    def session_expired(self) -> None: ...

    def lease_renewed(self, sent_at_ms: Millis) -> None: ...

    def group_event(self, group: GroupKey, event: Event) -> None: ...

    def options_changed(self, options: OptionSet) -> None:
        """The options changed. Called also before every ``session_started``, changed or not."""

    def spec_changed(self, spec: ModuleSpec | None) -> None:
        """The module's spec changed; None if it was made by hand, or is gone.

        Called also before every ``session_started``.
        """


class Metastore(Succession):
    """A worker's access to the metastore; every method returns at once, and answers go to the listener."""

    def __init__(
        self,
        hosts: str,
        *,
        paths: Paths,
        worker: WorkerId,
        session_timeout_ms: int,
        registration: Callable[[Incarnation], WorkerRegistration],
        listener: MetastoreListener,
        options_of: str | None = None,
        credentials: Credentials | None = None,
        on_failure: OnFailure | None = None,
        lease_interval_ms: int | None = None,
    ) -> None:
        """``options_of`` is the module whose spec and options are followed; without it, none are."""
        super().__init__(
            hosts,
            session_timeout_ms=session_timeout_ms,
            credentials=credentials,
            tick_seconds=(lease_interval_ms or session_timeout_ms / LEASE_RENEWALS) / 1000,
            thread="metastore-lease",
            on_failure=on_failure,
            worker=worker,
        )
        self.paths = paths
        self._worker = worker
        self._registration = registration
        self._listener = listener
        self._registration_changed = False
        #: When the renewal of the lease that is on its way was sent; None if there is none.
        self._pulse_sent_ms: Millis | None = None
        self._groups: dict[GroupKey, WatchedGroup] = {}
        self._registrations = WatchedRegistrations(self)
        self._options = None if options_of is None else WatchedOptions(self, options_of, self._options_read)
        self._spec: WatchedRecord[ModuleSpec] | None = None
        if options_of is not None:
            self._spec = WatchedRecord(self, paths.spec(options_of), ModuleSpec, self._spec_read)
        self._directory: WorkerDirectory | None = None
        self._assignment: WatchedZnode | None = None

    # Life.

    @property
    def incarnation(self) -> Incarnation | None:
        """Incarnation of the registered session; None if there is none."""
        with self.lock:
            return self._session.incarnation if self._session and self._is_registered else None

    @property
    def negotiated_timeout_ms(self) -> Millis | None:
        """The session time-out that the ensemble granted; known once a session has started."""
        with self.lock:
            return self._session.negotiated_timeout_ms if self._session and self._is_registered else None

    def connected(self, session: Session) -> None:
        if session is not self._session:
            return
        if self._is_registered:
            self._resume(session, new_session=False)
        elif self._options is not None and self._spec is not None:
            self._options.restart(new_session=True)
            self._spec.restart(new_session=True)
        else:
            self._register(session)

    def _options_read(self, options: OptionSet) -> None:
        if not self._closing.is_set():
            self._listener.options_changed(options)
            self._register_if_told()

    def _spec_read(self, spec: ModuleSpec | None) -> None:
        if not self._closing.is_set():
            self._listener.spec_changed(spec)
            self._register_if_told()

    def _register_if_told(self) -> None:
        """Register once options and spec were read in this session.

        By these a worker counts replicas and takes records.
        """
        is_told = self._options is not None and self._options.is_told
        if is_told and self._spec is not None and self._spec.is_told and self._session is not None:
            self._register(self._session)

    def _expired(self) -> None:
        self._listener.session_expired()

    # Registration.

    def update_registration(self) -> None:
        """Write the registration again: the storage ids in it have changed."""
        with self.lock:
            self._registration_changed = True
            self._write_registration()

    def reincarnate(self) -> None:
        """Give up the registration, however long that takes; a fresh incarnation follows, as after an expiry.

        To be called when nobody serves by the lease any more: others may lead before this is answered.
        """
        with self.lock:
            if self._session is not None and self._is_registered:
                self._give_up(self._session)

    def _give_up(self, session: Session) -> None:
        if session is not self._session:
            return
        path = present(session.registration_path, "registration path")

        def deleted(_: Any, error: Exception | None) -> None:
            if error is None or isinstance(error, NoNodeError):
                session.give_up()
            else:
                self.again_later(lambda: self._give_up(session))

        session.submit(lambda client: client.delete_async(path), deleted)

    def _register(self, session: Session) -> None:
        """Create the registration, again on every connection until it is known to be there; idempotent."""
        if session is not self._session or self._is_registered:
            return
        path = self.paths.registration(self._worker, session.incarnation)
        self._registration_changed = False
        data = encode(self._registration(session.incarnation))

        def created(_: Any, error: Exception | None) -> None:
            if error is None:
                self._registered(session, path)
            elif isinstance(error, NodeExistsError):
                session.submit(lambda client: client.exists_async(path), found)
            else:
                failed(error)

        def found(stat: Any, error: Exception | None) -> None:
            if error is None and stat is not None and stat.ephemeralOwner == session.session_id:
                self._registered(session, path)
            elif error is not None:
                failed(error)

        def failed(error: Exception) -> None:
            if not isinstance(error, outcomes.LOST_ANSWER):
                log.error("registration_failed", path=path, error=outcomes.told(error, path))
                self.again_later(lambda: self._register(session))

        session.submit(lambda client: client.create_async(path, data, ephemeral=True, makepath=True), created)

    def _registered(self, session: Session, path: str) -> None:
        if session is not self._session or self._is_registered:
            return
        session.registration_path = path
        self._is_registered = True
        log.info("session_started", worker=self._worker, incarnation=session.incarnation)
        self._listener.session_started(session.incarnation)
        self._resume(session, new_session=True)

    def _resume(self, session: Session, *, new_session: bool) -> None:
        """Renew the lease, by which a leader serves, then read and watch everything again."""
        self._pulse_sent_ms = None
        self._pulse(session)
        if self._registration_changed:
            self._write_registration()
        self._registrations.restart()
        if self._options is not None and self._spec is not None and not new_session:
            self._options.restart(new_session=False)
            self._spec.restart(new_session=False)
        if self._directory is not None:
            self._directory.restart()
        if self._assignment is not None:
            self._assignment.restart()
        for followed in list(self._groups.values()):
            followed.restart(new_session=new_session)

    def _write_registration(self) -> None:
        session = self._session
        if session is None or not self._is_registered or not self._registration_changed:
            return
        path = present(session.registration_path, "registration path")
        data = encode(self._registration(session.incarnation))
        self._registration_changed = False

        def written(_: Any, error: Exception | None) -> None:
            if error is not None:
                self._registration_changed = True
                if not isinstance(error, outcomes.LOST_ANSWER):
                    log.error("registration_failed", path=path, error=repr(error))
                    self.again_later(self._write_registration)
                elif session.is_connected:
                    self._write_registration()

        session.submit(lambda client: client.set_async(path, data), written)

    # Lease.

    def _ticked(self, session: Session) -> None:
        if self._is_registered:
            self._pulse(session)
            self._expect_answers(session)

    def _pulse(self, session: Session) -> None:
        """Renew the lease, unless a renewal is on its way: they need not pile up."""
        if self._pulse_sent_ms is not None or not session.is_connected:
            return
        self._pulse_sent_ms = sent_at_ms = boot_time_ms()

        def answered(_: Any, error: Exception | None) -> None:
            if session is self._session and self._is_registered:
                if self._pulse_sent_ms == sent_at_ms:
                    self._pulse_sent_ms = None
                if error is None:
                    self._listener.lease_renewed(sent_at_ms)

        session.pulse(answered)

    # What the groups of this worker share.

    def ask(self, send: Send, done: Done) -> None:
        """Send a request under the registered session; it fails at once if there is none."""
        self._started_session().submit(send, done)

    def ask_synced(self, send: Send, done: Done) -> None:
        """Send a read that sees all that was committed when it was asked for."""
        self._started_session().submit_synced(send, done)

    def ask_early(self, send: Send, done: Done) -> None:
        """Send a request, also before there is a registration."""
        (self._session or _NO_SESSION).submit(send, done)

    def ask_early_synced(self, send: Send, done: Done) -> None:
        (self._session or _NO_SESSION).submit_synced(send, done)

    def _started_session(self) -> Session | _NoSession:
        return self._session if self._session is not None and self._is_registered else _NO_SESSION

    def tell(self, group: GroupKey, event: Event) -> None:
        """Pass an event of a group to the listener."""
        if not self._closing.is_set():
            self._listener.group_event(group, event)

    def leads_here(self, record: GroupRecord) -> bool:
        """Whether a record names this worker, in this incarnation, as leader."""
        session = self._session
        return (
            session is not None
            and record.leader == self._worker
            and record.leader_incarnation == session.incarnation
        )

    def watch(self, fired: Callable[[WatchedEvent], None]) -> Callable[[WatchedEvent], None]:
        def on_event(event: WatchedEvent) -> None:
            with self.lock:
                # NONE is news of the connection, which :meth:`connected` and :meth:`over` take in.
                if event.type != EventType.NONE and not self._closing.is_set():
                    try:
                        fired(event)
                    except BaseException as error:  # noqa: BLE001 - on a thread of kazoo's, which would hide it
                        self.failed(error)

        return on_event

    # Groups.

    def follow(self, group: GroupKey) -> None:
        """Report a group's record now, if there is one, and whenever it changes; and requests to resign."""
        with self.lock:
            if group not in self._groups:
                followed = self._groups[group] = WatchedGroup(self, group)
                followed.restart(new_session=True)

    def unfollow(self, group: GroupKey) -> None:
        with self.lock:
            followed = self._groups.pop(group, None)
            if followed is not None:
                followed.stop()
            self._registrations.forget(group)

    def compare_and_set(self, group: GroupKey, effect: CompareAndSet) -> None:
        """Replace a group's record if its version still holds; answered by a CasReply."""
        path = self.paths.group(group)
        data = encode(effect.record)
        version = present(effect.version, "version of a compare-and-set")
        must_exist = [self.paths.registration_of(each) for each in effect.must_exist]

        def send(client: KazooClient) -> Any:
            # The record first: if several conditions fail, a bad version is the one to know.
            transaction = client.transaction()
            transaction.set_data(path, data, version)
            for registration_path in must_exist:
                transaction.check(registration_path, -1)
            return transaction.commit_async()

        def done(results: Any, error: Exception | None) -> None:
            outcome, new_version = outcomes.of_compare_and_set(path, results, error)
            self.tell(group, CasReply(token=effect.token, outcome=outcome, version=new_version))

        with self.lock:
            self.ask(send, done)

    def read(self, group: GroupKey, effect: ReadRecord) -> None:
        """Read a group's record; answered by a RecordRead with the token, or a ReadFailed."""
        path = self.paths.group(group)

        def done(value: Any, error: Exception | None) -> None:
            if error is not None:
                self.tell(group, ReadFailed(token=effect.token))
                return
            data, stat = value
            try:
                record = decode(data, GroupRecord, path)
            except ZnodeDamaged as damage:
                log.error("znode_damaged", path=damage.path, problem=damage.problem)
                self.tell(group, ReadFailed(token=effect.token))
            else:
                self.tell(group, RecordRead(record=record, version=stat.version, token=effect.token))

        with self.lock:
            ask = self.ask_synced if effect.sync else self.ask
            ask(lambda client: client.get_async(path), done)

    def check(self, group: GroupKey, registration: Registration) -> None:
        """Test whether a registration exists; answered by a RegistrationSeen, and another when it is gone.

        The answer comes however long that takes.
        """
        with self.lock:
            self._registrations.check(group, registration)

    def look_for_members(self, group: GroupKey, token: int) -> None:
        """Find the members of a group's ISR that are alive; answered by a MembersSeen.

        By nothing if it failed, so the core asks again in time.
        """
        with self.lock:
            MemberSearch(
                self, group, lambda alive: self.tell(group, MembersSeen(token=token, alive=alive))
            ).start()

    def watch_workers(self, found: Found) -> None:
        """Report the registrations of all workers now, and whenever one comes or goes.

        ``found`` is called like the listener, once there is a session.
        """
        with self.lock:
            self._directory = WorkerDirectory(self, found)
            if self._is_registered:
                self._directory.restart()

    def follow_assignment(self, module: str, told: Callable[[Assignment], None]) -> None:
        """Report a module's assignment now, and whenever it changes.

        ``told`` is called like the listener, once there is a session.
        """
        with self.lock:
            self._assignment = follow_assignment(self, module, told)
            if self._is_registered:
                self._assignment.restart()

    def survey(self, module: str | None, known: Collection[GroupKey], surveyed: Surveyed) -> None:
        """Report the groups of a module, or of all, but for the known ones, as far as they can be read."""
        with self.lock:
            Survey(self, known, surveyed).start(module)

    def find_conductor(self, found: Callable[[str | None, Exception | None], None]) -> None:
        """Report the address of the active conductor, None if there is none; or why that is not known."""
        path = self.paths.conductor_leader

        def done(value: Any, error: Exception | None) -> None:
            if isinstance(error, NoNodeError):
                found(None, None)
            elif error is not None:
                found(None, error)
            else:
                try:
                    found(decode(value[0], ConductorRegistration, path).address, None)
                except ZnodeDamaged as damage:
                    found(None, damage)

        with self.lock:
            self.ask(lambda client: client.get_async(path), done)

    def request(self, send: Send, *, synced: bool = False) -> Future[Any]:
        """Send one request, for a thread that may wait for its answer.

        The future raises what kazoo raises, or MetastoreUnavailable if the answer was lost.
        """
        future: Future[Any] = Future()

        def done(value: Any, error: Exception | None) -> None:
            if error is None:
                future.set_result(value)
            elif isinstance(error, outcomes.LOST_ANSWER):
                lost = MetastoreUnavailable(f"ZooKeeper at {self._hosts} did not answer; try again")
                future.set_exception(lost)
            else:
                future.set_exception(error)

        with self.lock:
            (self.ask_synced if synced else self.ask)(send, done)
        return future

    def forget_resign(self, group: GroupKey, epoch: Epoch) -> None:
        """Delete the request to resign that was meant for this epoch."""
        with self.lock:
            followed = self._groups.get(group)
            if followed is not None:
                followed.forget_resign(epoch)

    # For planners, and for tests.

    def create_group(self, group: GroupKey, record: GroupRecord) -> Future[bool]:
        """Create a group's record; False if it was there already."""
        path, data = self.paths.group(group), encode(record)
        return self._change(lambda client: client.create_async(path, data, makepath=True))

    def request_resign(self, group: GroupKey, request: ResignRequest) -> Future[bool]:
        """Ask a group's leader to resign; False if there is a request already.

        The leader deletes the request when it is done with it.
        """
        path, data = self.paths.resign(group), encode(request)
        return self._change(lambda client: client.create_async(path, data))

    def _change(self, send: Send) -> Future[bool]:
        future: Future[bool] = Future()

        def done(_: Any, error: Exception | None) -> None:
            match error:
                case None:
                    future.set_result(True)
                case NodeExistsError():
                    future.set_result(False)
                case _ if isinstance(error, outcomes.LOST_ANSWER):
                    lost = MetastoreUnavailable(f"ZooKeeper at {self._hosts} did not answer; try again")
                    future.set_exception(lost)
                case _:
                    future.set_exception(error)

        with self.lock:
            self.ask(send, done)
        return future


class _NoSession:
    """Stands for the session between two: every request fails like one whose session expired."""

    def submit(self, send: Send, done: Done) -> None:
        del send
        done(None, outcomes.expired())

    submit_synced = submit


_NO_SESSION = _NoSession()
