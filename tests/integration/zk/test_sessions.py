"""Sessions, registration and lease of a worker, with a network that fails on demand."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from stretto.errors import UsageError
from stretto.replog.core.effects import ReadRecord
from stretto.replog.core.events import RegistrationSeen
from stretto.replog.core.record import Registration
from stretto.vocabulary.clock import boot_time_ms
from stretto.vocabulary.types import StorageId, WorkerId
from stretto.zk.metastore import Metastore
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.sessions.credentials import Credentials
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import WorkerRegistration, decode
from tests.support.proxy import Proxy
from tests.support.recorder import Expired, Recorder, Renewed, Started
from tests.support.servers import GROUP, LONG_SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS, Workers
from tests.support.waiting import wait_until


def renewed_after(recorder: Recorder, moment: int) -> Renewed:
    return recorder.wait(
        f"a lease sent after {moment}",
        lambda _: next((each for each in recorder.of(Renewed) if each.sent_at >= moment), None),
    ) or pytest.fail("unreachable")


def wait_gone(recorder: Recorder, registration: Registration) -> None:
    recorder.wait_event(RegistrationSeen, lambda seen: seen.registration == registration and not seen.exists)


def test_the_registration_says_who_and_where_and_belongs_to_the_session(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    metastore, _ = workers.open(zookeeper.address, "a")
    incarnation = metastore.incarnation
    assert incarnation is not None
    path = workers.paths.registration(WorkerId("a"), incarnation)
    data, stat = operator.get(path)
    registration = decode(data, WorkerRegistration, path)
    assert (registration.worker, registration.incarnation) == ("a", incarnation)
    assert registration.storage_of(GROUP) == "disk-of-a"
    assert stat.ephemeralOwner != 0
    metastore.close()
    assert operator.exists(path) is None
    assert metastore.incarnation is None


def test_the_negotiated_time_out_is_the_servers(
    zookeeper: EmbeddedZooKeeper, workers: Workers, paths: Paths
) -> None:
    recorder = Recorder()
    metastore = Metastore(
        zookeeper.address,
        paths=paths,
        worker=WorkerId("a"),
        session_timeout_ms=1,
        registration=lambda incarnation: WorkerRegistration(
            worker=WorkerId("a"), incarnation=incarnation, node="n", address="127.0.0.1:1"
        ),
        listener=recorder,
        lease_interval_ms=100,
    )
    metastore.start()
    try:
        recorder.wait_started()
        assert metastore.negotiated_timeout_ms == 600  # two ticks, the least it grants
    finally:
        metastore.close()
    other, _ = workers.open(zookeeper.address, "b")
    assert other.negotiated_timeout_ms == SESSION_TIMEOUT_MS


def test_the_lease_is_renewed_again_and_again(zookeeper: EmbeddedZooKeeper, workers: Workers) -> None:
    _, recorder = workers.open(zookeeper.address, "a")
    recorder.wait("five renewals", lambda _: len(recorder.of(Renewed)) >= 5)
    renewals = recorder.of(Renewed)
    sent = [each.sent_at for each in renewals]
    assert sent == sorted(sent)
    assert all(each.sent_at <= each.heard_at for each in renewals)


def test_back_in_time_the_incarnation_lives_on(proxy: Proxy, workers: Workers) -> None:
    metastore, recorder = workers.open(proxy.address, "a", session_timeout_ms=LONG_SESSION_TIMEOUT_MS)
    incarnation = metastore.incarnation
    proxy.cut()
    wait_until(
        "the connection is lost", lambda: not metastore._session or not metastore._session.is_connected
    )
    proxy.heal()
    renewed_after(recorder, boot_time_ms())
    assert metastore.incarnation == incarnation
    assert len(recorder.of(Started)) == 1
    assert recorder.of(Expired) == []


def test_after_expiry_there_is_a_new_incarnation(
    zookeeper: EmbeddedZooKeeper, proxy: Proxy, workers: Workers
) -> None:
    metastore, recorder = workers.open(proxy.address, "a")
    watcher, seen = workers.open(zookeeper.address, "b")
    old = Registration(WorkerId("a"), recorder.wait_started())
    watcher.check(GROUP, old)
    proxy.silence()
    wait_gone(seen, old)
    # Nobody told the client: it learns that its session is over when it is back.
    assert recorder.of(Expired) == []
    proxy.heal()
    fresh = recorder.wait_started(2)
    assert fresh != old.incarnation
    assert metastore.incarnation == fresh
    assert len(recorder.of(Expired)) == 1
    kinds = [type(each) for each in recorder.heard if isinstance(each, Started | Expired)]
    assert kinds == [Started, Expired, Started]


@pytest.mark.parametrize("fault", ["cut", "silence", "swallow_replies"])
def test_whoever_is_cut_off_has_no_lease_and_no_old_answer_renews_a_new_one(
    zookeeper: EmbeddedZooKeeper, proxy: Proxy, workers: Workers, fault: str
) -> None:
    _, recorder = workers.open(proxy.address, "a")
    watcher, seen = workers.open(zookeeper.address, "b")
    old = Registration(WorkerId("a"), recorder.wait_started())
    renewed_after(recorder, boot_time_ms())
    watcher.check(GROUP, old)
    getattr(proxy, fault)()
    cut_at = boot_time_ms()
    if fault == "swallow_replies":
        # Its requests go on to arrive, and keep the session alive until it gives the connection up.
        wait_until("silence is noticed", lambda: _suspended(recorder, cut_at))
        proxy.silence()
    wait_gone(seen, old)
    assert all(each.sent_at <= cut_at for each in recorder.of(Renewed))
    proxy.heal()
    recorder.wait_started(2)
    renewed_after(recorder, boot_time_ms())
    first, second = recorder.of(Started)
    assert first.incarnation != second.incarnation
    expired = recorder.of(Expired)[0]
    for each in recorder.of(Renewed):
        assert each.sent_at <= cut_at or each.sent_at >= expired.heard_at
        assert not expired.heard_at < each.heard_at < second.heard_at


def _suspended(recorder: Recorder, cut_at: int) -> bool:
    """No renewal for so long that the one on its way must be lost."""
    heard = [each.heard_at for each in recorder.of(Renewed)]
    return boot_time_ms() - max([cut_at, *heard]) > SESSION_TIMEOUT_MS // 4


def test_silence_is_noticed_however_much_is_asked(proxy: Proxy, workers: Workers) -> None:
    """What is sent proves nothing: only answers do."""
    session_timeout_ms = 3 * SESSION_TIMEOUT_MS
    metastore, recorder = workers.open(proxy.address, "a", session_timeout_ms=session_timeout_ms)
    session = metastore._session
    assert session is not None
    renewed_after(recorder, boot_time_ms())
    proxy.silence()
    cut_at = boot_time_ms()

    def is_suspended() -> bool:
        """Asks ten times a second: never so much that kazoo has nothing more to send."""
        if len(session._in_flight) < (boot_time_ms() - cut_at) // 100:
            metastore.read(GROUP, ReadRecord(token=1, sync=False))
        return not session.is_connected

    wait_until("it is suspended", is_suspended)
    assert boot_time_ms() - cut_at < 1.5 * session_timeout_ms


def test_a_deleted_registration_ends_the_session(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    """A supervisor that has proof of death is believed by the one it declared dead."""
    _, recorder = workers.open(zookeeper.address, "a")
    old = recorder.wait_started()
    operator.delete(workers.paths.registration(WorkerId("a"), old))
    assert recorder.wait_started(2) != old
    assert len(recorder.of(Expired)) == 1


@pytest.mark.parametrize("is_cut", [False, True])
def test_whoever_gives_its_registration_up_has_another_soon_also_over_a_lost_connection(
    proxy: Proxy, workers: Workers, operator: KazooClient, is_cut: bool
) -> None:
    metastore, recorder = workers.open(proxy.address, "a")
    old = recorder.wait_started()
    if is_cut:
        proxy.cut()
        session = metastore._session
        wait_until("the connection is lost", lambda: session is not None and not session.is_connected)
    metastore.reincarnate()
    proxy.heal()
    assert recorder.wait_started(2) != old
    assert len(recorder.of(Expired)) == 1
    assert operator.exists(workers.paths.registration(WorkerId("a"), old)) is None


def test_a_changed_registration_is_written_also_over_a_lost_connection(
    proxy: Proxy, paths: Paths, operator: KazooClient
) -> None:
    storages = {str(GROUP): StorageId("disk-1")}
    recorder = Recorder()
    metastore = Metastore(
        proxy.address,
        paths=paths,
        worker=WorkerId("a"),
        session_timeout_ms=LONG_SESSION_TIMEOUT_MS,
        registration=lambda incarnation: WorkerRegistration(
            worker=WorkerId("a"),
            incarnation=incarnation,
            node="n",
            address="127.0.0.1:1",
            members=dict(storages),
        ),
        listener=recorder,
    )
    metastore.start()
    try:
        path = paths.registration(WorkerId("a"), recorder.wait_started())

        def storage() -> StorageId | None:
            return decode(operator.get(path)[0], WorkerRegistration, path).storage_of(GROUP)

        assert storage() == "disk-1"
        storages[str(GROUP)] = StorageId("disk-2")
        metastore.update_registration()
        wait_until("it is written", lambda: storage() == "disk-2")
        proxy.cut()
        storages[str(GROUP)] = StorageId("disk-3")
        metastore.update_registration()
        proxy.heal()
        wait_until("it is written", lambda: storage() == "disk-3")
        assert len(recorder.of(Started)) == 1
    finally:
        metastore.close()


def test_it_starts_before_zookeeper_does(zookeeper: EmbeddedZooKeeper, proxy: Proxy, paths: Paths) -> None:
    proxy.cut()
    recorder = Recorder()
    metastore = Metastore(
        proxy.address,
        paths=paths,
        worker=WorkerId("a"),
        session_timeout_ms=SESSION_TIMEOUT_MS,
        registration=lambda incarnation: WorkerRegistration(
            worker=WorkerId("a"), incarnation=incarnation, node="n", address="127.0.0.1:1"
        ),
        listener=recorder,
    )
    metastore.start()
    try:
        assert recorder.heard == []
        proxy.heal()
        recorder.wait_started()
    finally:
        metastore.close()


def test_nothing_is_heard_after_closing(zookeeper: EmbeddedZooKeeper, workers: Workers) -> None:
    metastore, recorder = workers.open(zookeeper.address, "a")
    metastore.follow(GROUP)
    metastore.close()
    heard = len(recorder.heard)
    metastore.check(GROUP, Registration(WorkerId("a"), recorder.wait_started()))
    metastore.close()
    assert len(recorder.heard) == heard
    assert recorder.of(Expired) == []


def test_without_the_credentials_nothing_can_be_read_or_changed(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    credentials = Credentials("stretto", "secret")
    assert "secret" not in repr(credentials)
    metastore, _ = workers.open(zookeeper.address, "a", credentials=credentials)
    incarnation = metastore.incarnation
    assert incarnation is not None
    path = workers.paths.registration(WorkerId("a"), incarnation)
    for call in (operator.get, operator.delete):
        with pytest.raises(NoAuthError):
            call(path)
    workers.open(zookeeper.address, "b", credentials=credentials)


@pytest.mark.parametrize("hosts", ["localhost:port", ""])
def test_a_bad_connection_string_is_told(hosts: str, paths: Paths) -> None:
    with pytest.raises(UsageError, match="is not a ZooKeeper connection string"):
        Metastore(
            hosts,
            paths=paths,
            worker=WorkerId("a"),
            session_timeout_ms=SESSION_TIMEOUT_MS,
            registration=lambda _: pytest.fail("never asked"),
            listener=Recorder(),
        )
