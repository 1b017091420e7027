"""What the core relies on in a metastore, whether it is the simulator's or a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stretto.replog.core.events import CasOutcome, RecordRead
from stretto.replog.core.record import GroupRecord, Member, Registration
from stretto.vocabulary.types import Epoch, Incarnation, StorageId, WorkerId
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.znodes.paths import Paths
from tests.contracts.metastores import MetastoreUnderTest, RealMetastore, SimulatedMetastore
from tests.support.servers import paths, zookeeper

__all__ = ["paths", "zookeeper"]

CREATED = GroupRecord(
    epoch=Epoch(0),
    leader=None,
    leader_incarnation=None,
    isr=(Member(WorkerId("a"), StorageId("disk-of-a")), Member(WorkerId("b"), StorageId("disk-of-b"))),
)


def led_by(registration: Registration, epoch: int) -> GroupRecord:
    return CREATED.with_leader(registration.worker, registration.incarnation, Epoch(epoch))


@pytest.fixture
def simulated() -> MetastoreUnderTest:
    metastore = SimulatedMetastore()
    metastore.create(CREATED)
    return metastore


@pytest.fixture
def real(zookeeper: EmbeddedZooKeeper, paths: Paths) -> Iterator[MetastoreUnderTest]:
    with RealMetastore(zookeeper.port, paths) as metastore:
        metastore.create(CREATED)
        yield metastore


@pytest.fixture(params=["simulated", "real"])
def metastore(request: pytest.FixtureRequest) -> MetastoreUnderTest:
    under_test: MetastoreUnderTest = request.getfixturevalue(request.param)
    return under_test


def test_the_record_changes_only_on_its_version(metastore: MetastoreUnderTest) -> None:
    a = metastore.connect("a")
    first = a.cas(0, led_by(a.registration, 1))
    assert first is not None
    assert (first.outcome, first.version) == (CasOutcome.OK, 1)
    for wrong in (0, 2):
        reply = a.cas(wrong, led_by(a.registration, 7))
        assert reply is not None
        assert reply.outcome is CasOutcome.BAD_VERSION
    assert a.read().version == 1
    assert a.read().record == led_by(a.registration, 1)


def test_the_record_changes_only_if_every_required_registration_exists(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    ghost = Registration(WorkerId("b"), Incarnation("never-was"))
    refused = a.cas(0, led_by(a.registration, 1), must_exist=(b.registration, ghost))
    assert refused is not None
    assert refused.outcome is CasOutcome.NO_REGISTRATION
    taken = a.cas(0, led_by(a.registration, 1), must_exist=(b.registration,))
    assert taken is not None
    assert taken.outcome is CasOutcome.OK


def test_a_bad_version_is_told_before_a_missing_registration(metastore: MetastoreUnderTest) -> None:
    a = metastore.connect("a")
    ghost = Registration(WorkerId("b"), Incarnation("never-was"))
    reply = a.cas(5, led_by(a.registration, 1), must_exist=(ghost,))
    assert reply is not None
    assert reply.outcome is CasOutcome.BAD_VERSION


def test_one_of_two_that_race_for_a_version_wins(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    for version in range(5):
        tokens = [
            (client, client.start_cas(version, led_by(client.registration, version + 1))) for client in (a, b)
        ]
        outcomes = []
        for client, token in tokens:
            reply = client.wait_cas(token)
            assert reply is not None
            outcomes.append(reply.outcome)
        assert sorted(outcome.name for outcome in outcomes) == ["BAD_VERSION", "OK"]
        winner = a if outcomes[0] is CasOutcome.OK else b
        for client in (a, b):
            assert client.read().record.leader == winner.registration.worker


def test_whoever_follows_is_told_later_versions_in_order(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    b.wait_told_version(0)
    for version in range(20):
        assert a.cas(version, led_by(a.registration, version + 1)) is not None
    b.wait_told_version(20)
    told = b.told_versions()
    assert told == sorted(set(told))
    assert told[-1] == 20


def test_a_read_after_sync_sees_the_newest_and_one_without_may_not(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    b.wait_told_version(0)
    b.fall_behind()
    for version in range(5):
        assert a.cas(version, led_by(a.registration, version + 1)) is not None
        lazy = b.read(sync=False)
        assert version <= lazy.version <= version + 1 or lazy.version == 0
        assert b.read().version == version + 1


def test_a_session_never_reads_backwards(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    b.fall_behind()
    seen = 0
    for version in range(5):
        assert a.cas(version, led_by(a.registration, version + 1)) is not None
        for sync in (False, True, False):
            read = b.read(sync=sync)
            assert read.version >= seen
            seen = read.version
    assert seen == 5


def test_a_registration_is_seen_while_its_session_lives(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    assert b.check(a.registration)
    assert b.check(a.registration)
    assert not b.check(Registration(WorkerId("a"), Incarnation("never-was")))


def test_a_registration_disappears_with_its_session_and_that_is_told(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    old = a.registration
    assert b.check(old)
    a.cut()
    a.expire()
    b.wait_gone(old)
    assert not b.check(old)


def test_silence_beyond_the_time_out_ends_a_session(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    old = a.registration
    assert b.check(old)
    a.cut()
    b.wait_gone(old)
    a.heal()
    a.wait_session(2)
    assert a.registration.incarnation != old.incarnation
    assert b.check(a.registration)


def test_a_short_silence_does_not_end_a_session(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    a.cut()
    a.heal()
    reply = a.cas_until_answered(0, led_by(a.registration, 1))
    assert reply.outcome is CasOutcome.OK
    assert b.check(a.registration)
    assert a.sessions == 1


def test_whoever_was_cut_off_is_told_what_it_missed(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    b.wait_told_version(0)
    assert b.check(a.registration)
    old = a.registration
    b.cut()
    assert a.cas(0, led_by(old, 1)) is not None
    a.cut()
    a.expire()
    b.heal()
    b.wait_told_version(1)
    b.wait_gone(old)


def test_a_fresh_incarnation_registers_beside_the_old_one(metastore: MetastoreUnderTest) -> None:
    a, watcher = metastore.connect("a"), metastore.connect("b")
    a.cut()
    again = metastore.connect("a")
    assert again.registration != a.registration
    assert watcher.check(again.registration)
    a.expire()
    watcher.check(a.registration)
    watcher.wait_gone(a.registration)
    assert watcher.check(again.registration)


def test_what_an_expired_session_writes_is_refused(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    a.expire()
    reply = a.cas(0, led_by(a.registration, 1))
    assert reply is None or reply.outcome is not CasOutcome.OK
    a.wait_session(2)
    assert b.read().version == 0
    reply = a.cas(0, led_by(a.registration, 1))
    assert reply is not None
    assert reply.outcome is CasOutcome.OK


def test_what_was_asked_while_cut_off_is_not_done_by_the_next_session(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    a.cut()
    token = a.start_cas(0, led_by(a.registration, 1))
    a.expire()
    a.heal()
    reply = a.wait_cas(token)
    assert reply is None or reply.outcome is CasOutcome.UNKNOWN
    a.wait_session(2)
    assert a.read().version == 0
    assert b.read().version == 0


def test_a_lost_reply_is_unknown_and_a_synced_read_tells(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    reply = a.cas_losing_the_reply(0, led_by(a.registration, 1))
    assert reply.outcome is CasOutcome.UNKNOWN
    assert reply.version is None
    assert a.read_until_answered().version == 1
    assert b.read().version == 1
    assert a.sessions == 1


def test_members_with_a_live_registration_are_found(metastore: MetastoreUnderTest) -> None:
    a, b = metastore.connect("a"), metastore.connect("b")
    both = {Member(WorkerId(worker), StorageId(f"disk-of-{worker}")) for worker in ("a", "b")}
    assert b.look_for_members() == both
    old = a.registration
    assert b.check(old)
    a.cut()
    a.expire()
    b.wait_gone(old)
    assert b.look_for_members() == {Member(WorkerId("b"), StorageId("disk-of-b"))}


def test_a_new_session_is_told_the_record_again(metastore: MetastoreUnderTest) -> None:
    a = metastore.connect("a")
    a.wait_told_version(0)
    a.expire()
    a.wait_session(2)
    a.wait_told_version(0, times=2)
    read = a.read()
    assert read == RecordRead(record=CREATED, version=0, token=read.token)
