from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from stretto.replog.core.events import (
    CasOutcome,
    CasReply,
    Event,
    MembersSeen,
    ReadFailed,
    RecordRead,
    RegistrationSeen,
)
from stretto.replog.core.record import GroupRecord
from stretto.sim.replication.metastore import Link, Manners, Metastore, Session
from stretto.sim.virtual.world import World
from stretto.vocabulary.types import WorkerId
from tests.support.core_group import W0, W1, incarnation_of, member, record, registration

T = TypeVar("T")
TIMEOUT_MS = 3_000


class Client:
    """Remembers what it was told, and when."""

    def __init__(self, world: World, worker: WorkerId) -> None:
        self.world = world
        self.worker = worker
        self.told: list[tuple[int, Event]] = []
        self.over_at: int | None = None
        self.leases: list[tuple[int, bool]] = []

    def deliver(self, event: Event) -> None:
        self.told.append((self.world.now, event))

    def session_is_over(self, session: Session) -> None:
        self.over_at = self.world.now
        session.closed = True

    def lease_answered(self, session: Session, sent_at: int, *, is_write: bool) -> None:
        self.leases.append((sent_at, is_write))

    def every(self, kind: type[T]) -> list[T]:
        return [event for _, event in self.told if isinstance(event, kind)]


class Ensemble:
    """A metastore with a record, and two clients with sessions."""

    def __init__(self, seed: int = 0, **manners: float) -> None:
        self.world = World(seed)
        self.store = Metastore(self.world, Manners(**manners))  # type: ignore[arg-type]
        self.commits: list[tuple[GroupRecord | None, GroupRecord, WorkerId | None]] = []
        self.store.on_commit = lambda *commit: self.commits.append(commit)
        self.store.create(record(1, W0))
        self.one, self.session = self.connect(W0)
        self.other, self.other_session = self.connect(W1)

    def connect(self, worker: WorkerId, life: int = 1) -> tuple[Client, Session]:
        client = Client(self.world, worker)
        return client, self.store.connect(client, incarnation_of(worker, life), member(worker), TIMEOUT_MS)

    def run(self, until: int = 1_000) -> None:
        """Of sessions' expiry nothing happens by then, unless ``until`` says so."""
        while self.world.next_time is not None and self.world.next_time <= until:
            self.world.advance()
        self.world.now = max(self.world.now, until)

    def cas(
        self, epoch: int, *, version: int | None = 0, session: Session | None = None, token: int = 1
    ) -> None:
        self.store.compare_and_set(session or self.session, token, version, record(epoch, W0), ())

    def outcome(self, client: Client | None = None) -> CasOutcome:
        (reply,) = (client or self.one).every(CasReply)
        return reply.outcome

    def beat(self, session: Session, every_ms: int, until: int) -> None:
        if self.world.now < until:
            self.store.heartbeat(session, self.world.now)
            self.world.after(every_ms, self.beat, session, every_ms, until)


# Changes.


def test_a_change_on_the_current_version_commits() -> None:
    ensemble = Ensemble()
    ensemble.cas(2)
    ensemble.run()
    assert ensemble.one.every(CasReply) == [CasReply(token=1, outcome=CasOutcome.OK, version=1)]
    assert ensemble.store.record == record(2, W0)
    assert ensemble.commits[-1] == (record(1, W0), record(2, W0), W0)


def test_a_change_on_another_version_is_refused() -> None:
    ensemble = Ensemble()
    ensemble.cas(2, version=4)
    ensemble.run()
    assert ensemble.outcome() is CasOutcome.BAD_VERSION
    assert ensemble.store.version == 0


def test_a_change_that_needs_a_registration_is_refused_without_it() -> None:
    ensemble = Ensemble()
    ensemble.store.compare_and_set(ensemble.session, 1, 0, record(2, W0), (registration(W1, 2),))
    ensemble.run()
    assert ensemble.outcome() is CasOutcome.NO_REGISTRATION
    ensemble.store.compare_and_set(ensemble.session, 2, 0, record(2, W0), (registration(W1),))
    ensemble.run(2_000)
    assert ensemble.store.version == 1


def test_a_lost_request_and_a_lost_reply_look_the_same_but_only_one_was_carried_out() -> None:
    lost, unheard = Ensemble(lost_request=1.0), Ensemble(lost_reply=1.0)
    for ensemble in (lost, unheard):
        ensemble.cas(2)
        ensemble.run()
        assert ensemble.outcome() is CasOutcome.UNKNOWN
    assert (lost.store.version, unheard.store.version) == (0, 1)


def test_a_reply_can_be_lost_on_demand_once_and_only_of_a_change_that_commits() -> None:
    ensemble = Ensemble()
    ensemble.store.lose_next_reply.add(W0)
    ensemble.cas(2, version=7)
    ensemble.cas(2)
    ensemble.cas(3, version=1)
    ensemble.run()
    outcomes = [reply.outcome for reply in ensemble.one.every(CasReply)]
    assert sorted(outcomes, key=str) == sorted(
        [CasOutcome.BAD_VERSION, CasOutcome.UNKNOWN, CasOutcome.OK], key=str
    )
    assert ensemble.store.version == 2


def test_after_a_lost_reply_the_server_of_the_session_need_not_have_seen_the_change() -> None:
    ensemble = Ensemble(lost_reply=1.0, late_watch=1.0, late_ms=100_000)
    ensemble.cas(2)
    ensemble.run(100)
    ensemble.store.manners = Manners()
    ensemble.store.read(ensemble.session, 5, sync=False)
    ensemble.run(200)
    (read,) = [each for each in ensemble.one.every(RecordRead) if each.token == 5]
    assert read.version == 0


def test_requests_of_a_session_are_carried_out_in_order() -> None:
    for seed in range(50):
        ensemble = Ensemble(seed, slow_request=0.5, late_ms=500)
        for version in range(4):
            ensemble.cas(version + 2, version=version, token=version)
        ensemble.store.read(ensemble.session, 9, sync=False)
        ensemble.run(2_900)
        outcomes = {reply.outcome for reply in ensemble.one.every(CasReply)}
        assert outcomes == {CasOutcome.OK}
        (read,) = [each for each in ensemble.one.every(RecordRead) if each.token == 9]
        assert read.version == 4


def test_a_request_is_carried_out_although_its_sender_died_meanwhile() -> None:
    ensemble = Ensemble()
    ensemble.cas(2)
    ensemble.session.closed = True
    ensemble.run()
    assert ensemble.store.version == 1
    assert ensemble.one.every(CasReply) == []


@pytest.mark.parametrize("link", [Link.DOWN, Link.CUT_OFF])
def test_without_a_link_to_the_quorum_a_request_is_lost(link: Link) -> None:
    ensemble = Ensemble()
    ensemble.store.set_link(ensemble.session, link)
    ensemble.cas(2)
    ensemble.store.read(ensemble.session, 5, sync=True)
    ensemble.run()
    assert ensemble.outcome() is CasOutcome.UNKNOWN
    assert ensemble.one.every(ReadFailed) == [ReadFailed(token=5)]
    assert ensemble.store.version == 0


# Views.


def test_a_read_is_stale_until_sync() -> None:
    ensemble = Ensemble()
    ensemble.other_session.stale = True
    ensemble.cas(2)
    ensemble.run(100)
    ensemble.store.read(ensemble.other_session, 5, sync=False)
    ensemble.run(200)
    ensemble.store.read(ensemble.other_session, 6, sync=True)
    ensemble.run(300)
    ensemble.store.read(ensemble.other_session, 7, sync=False)
    ensemble.run(400)
    versions = {each.token: each.version for each in ensemble.other.every(RecordRead) if each.token}
    assert versions == {5: 0, 6: 1, 7: 1}


def test_the_view_of_a_session_never_goes_back() -> None:
    for seed in range(30):
        ensemble = Ensemble(seed, late_watch=0.5, late_ms=300)
        views: list[int] = []
        for version in range(6):
            ensemble.world.at(100 * version, partial(ensemble.cas, version + 2, version=version))
        watch_view(ensemble, views)
        ensemble.run(2_900)
        watched = [each.version for each in ensemble.other.every(RecordRead)]
        assert watched == sorted(set(watched))
        assert watched[-1] == 6
        assert views == sorted(views)


def watch_view(ensemble: Ensemble, views: list[int]) -> None:
    views.append(ensemble.other_session.view)
    if ensemble.world.now < 2_000:
        ensemble.world.after(10, watch_view, ensemble, views)


def test_a_watch_may_be_late_but_is_delivered() -> None:
    delays = []
    for seed in range(30):
        ensemble = Ensemble(seed, late_watch=1.0, late_ms=1_500)
        ensemble.run(10)
        ensemble.cas(2)
        ensemble.run(2_900)
        (at,) = [
            at for at, event in ensemble.other.told if isinstance(event, RecordRead) and event.version == 1
        ]
        delays.append(at)
    assert max(delays) > 700


def test_a_session_whose_link_was_down_hears_of_changes_when_it_is_up() -> None:
    ensemble = Ensemble()
    ensemble.store.set_link(ensemble.other_session, Link.DOWN)
    ensemble.cas(2)
    ensemble.run(500)
    assert [each.version for each in ensemble.other.every(RecordRead)] == [0]
    ensemble.store.set_link(ensemble.other_session, Link.UP)
    ensemble.run(600)
    assert [each.version for each in ensemble.other.every(RecordRead)] == [0, 1]


# Registrations.


def test_a_watch_on_a_registration_fires_when_it_goes() -> None:
    ensemble = Ensemble()
    ensemble.store.check(ensemble.session, registration(W1))
    ensemble.run(100)
    assert ensemble.one.every(RegistrationSeen) == [
        RegistrationSeen(registration=registration(W1), exists=True)
    ]
    ensemble.store.unregister(registration(W1))
    ensemble.run(200)
    assert [each.exists for each in ensemble.one.every(RegistrationSeen)] == [True, False]


def test_testing_a_registration_that_is_gone_says_so() -> None:
    ensemble = Ensemble()
    ensemble.store.unregister(registration(W1))
    ensemble.store.check(ensemble.session, registration(W1))
    ensemble.store.check(ensemble.session, registration(W1, life=9))
    ensemble.run(100)
    assert [each.exists for each in ensemble.one.every(RegistrationSeen)] == [False, False]


def test_a_test_of_a_registration_is_repeated_until_it_is_answered() -> None:
    ensemble = Ensemble(lost_reply=1.0)
    ensemble.store.check(ensemble.session, registration(W1))
    ensemble.run(500)
    assert ensemble.one.every(RegistrationSeen) == []
    ensemble.store.manners = Manners()
    ensemble.run(1_000)
    assert [each.exists for each in ensemble.one.every(RegistrationSeen)] == [True]


def test_unregistering_takes_exactly_that_incarnation() -> None:
    ensemble = Ensemble()
    ensemble.connect(W1, life=2)
    ensemble.store.unregister(registration(W1))
    assert not ensemble.store.exists(registration(W1))
    assert ensemble.store.exists(registration(W1, 2))
    assert ensemble.store.is_registered(member(W1))


def test_looking_for_members_finds_those_with_a_live_registration() -> None:
    ensemble = Ensemble()
    ensemble.store.unregister(registration(W1))
    ensemble.store.look_for_members(ensemble.session, 3)
    ensemble.run(100)
    assert ensemble.one.every(MembersSeen) == [MembersSeen(token=3, alive=frozenset([member(W0)]))]


# Sessions.


def is_alive(session: Session) -> bool:
    return session.alive


def test_a_session_lives_while_it_is_heard_and_expires_after_silence() -> None:
    ensemble = Ensemble()
    ensemble.beat(ensemble.session, 1_000, until=10_000)
    ensemble.run(10_000)
    assert is_alive(ensemble.session)
    assert not is_alive(ensemble.other_session)
    last_heard = ensemble.session.heard_at
    ensemble.run(last_heard + TIMEOUT_MS)
    assert is_alive(ensemble.session)
    ensemble.run(last_heard + TIMEOUT_MS + 1)
    assert not is_alive(ensemble.session)
    assert not ensemble.store.exists(registration(W0))
    assert ensemble.store.expiries == 2


def test_a_client_learns_that_its_session_is_over_only_when_it_gets_through() -> None:
    ensemble = Ensemble()
    ensemble.store.set_link(ensemble.other_session, Link.DOWN)
    ensemble.run(5_000)
    assert not is_alive(ensemble.other_session)
    assert ensemble.other.over_at is None
    ensemble.store.set_link(ensemble.other_session, Link.UP)
    ensemble.run(5_100)
    assert ensemble.other.over_at is not None


def test_requests_of_an_expired_session_are_not_carried_out() -> None:
    ensemble = Ensemble()
    ensemble.store.expire(ensemble.session)
    ensemble.cas(2)
    ensemble.run(100)
    assert ensemble.store.version == 0
    assert ensemble.one.every(CasReply) == []
    assert ensemble.one.over_at is not None


def test_a_heartbeat_is_answered_as_a_write_with_the_time_of_its_sending() -> None:
    ensemble = Ensemble()
    ensemble.store.heartbeat(ensemble.session, 77)
    ensemble.run(100)
    assert ensemble.one.leases == [(77, True)]


def test_a_server_that_lost_the_quorum_answers_pings_and_keeps_no_session() -> None:
    ensemble = Ensemble()
    ensemble.store.set_link(ensemble.session, Link.CUT_OFF)
    ensemble.beat(ensemble.session, 500, until=4_000)
    ensemble.run(4_000)
    assert {is_write for _, is_write in ensemble.one.leases} == {False}
    assert not is_alive(ensemble.session)


def test_an_operators_expiry_waits_until_the_lease_is_over() -> None:
    ensemble = Ensemble()
    ensemble.beat(ensemble.session, 500, until=9_000)
    ensemble.run(1_000)
    ensemble.store.expire_from_operator(ensemble.session)
    ensemble.run(1_000 + TIMEOUT_MS - 600)
    assert is_alive(ensemble.session)
    ensemble.run(1_000 + TIMEOUT_MS + 200)
    assert not is_alive(ensemble.session)
    assert ensemble.one.over_at is not None


# The truth.


def test_the_last_record_of_an_epoch_is_remembered() -> None:
    ensemble = Ensemble()
    last: Callable[[int], GroupRecord | None] = ensemble.store.last_record_of
    ensemble.store.create(record(1, W0, (W0,)))
    ensemble.store.create(record(3, W1))
    assert last(1) == record(1, W0, (W0,))
    assert last(2) is None
    assert last(3) == record(3, W1)
    assert last(4) is None
