"""Records, watches and requests to resign, for one group and for very many."""

from __future__ import annotations

from functools import partial

from kazoo.client import KazooClient

from stretto.replog.core.effects import CompareAndSet, ReadRecord
from stretto.replog.core.events import (
    CasOutcome,
    CasReply,
    MembersSeen,
    ReadFailed,
    RecordRead,
    RegistrationSeen,
    Resign,
)
from stretto.replog.core.record import GroupRecord, Member, Registration
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, StorageId, WorkerId
from stretto.zk.creation import evenly
from stretto.zk.metastore import Metastore
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.watches.daemon_session import DaemonSession
from stretto.zk.watches.options import read_all
from stretto.zk.znodes.records import ResignRequest, encode
from tests.support.proxy import Proxy
from tests.support.recorder import Recorder, Started
from tests.support.servers import GROUP, LONG_SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS, Workers
from tests.support.waiting import wait_until

A, B = WorkerId("a"), WorkerId("b")
CREATED = GroupRecord(
    epoch=Epoch(0),
    leader=None,
    leader_incarnation=None,
    isr=(Member(A, StorageId("disk-of-a")), Member(B, StorageId("disk-of-b"))),
)
#: More than go out at a time, and than kazoo's wake-up socket takes.
MANY = [GroupKey("counts", 1, number) for number in range(700)]


def _is_answer_to(token: int, read: RecordRead) -> bool:
    return read.token == token


def registration_of(worker: WorkerId, metastore: Metastore) -> Registration:
    incarnation = metastore.incarnation
    assert incarnation is not None
    return Registration(worker, incarnation)


def lead(metastore: Metastore, recorder: Recorder, version: int, epoch: int) -> GroupRecord:
    """Worker a wins an election."""
    incarnation = metastore.incarnation
    assert incarnation is not None
    record = CREATED.with_leader(A, incarnation, Epoch(epoch))
    metastore.compare_and_set(GROUP, CompareAndSet(token=-epoch, version=version, record=record))
    reply = recorder.wait_event(CasReply, lambda reply: reply.token == -epoch)
    assert reply.outcome is CasOutcome.OK
    return record


def test_a_record_is_followed_before_it_exists_and_over_its_deletion(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    metastore, recorder = workers.open(zookeeper.address, "a")
    metastore.follow(GROUP)
    metastore.read(GROUP, ReadRecord(token=1))
    recorder.wait_event(ReadFailed)
    assert metastore.create_group(GROUP, CREATED).result(30) is True
    assert metastore.create_group(GROUP, CREATED).result(30) is False
    recorder.wait_event(RecordRead, lambda read: read.version == 0)
    operator.delete(workers.paths.group(GROUP))
    metastore.compare_and_set(GROUP, CompareAndSet(token=2, version=0, record=CREATED))
    reply = recorder.wait_event(CasReply)
    assert reply.outcome is CasOutcome.BAD_VERSION


def test_many_changes_between_two_reads_are_one_event(
    zookeeper: EmbeddedZooKeeper, proxy: Proxy, workers: Workers, operator: KazooClient
) -> None:
    follower, recorder = workers.open(proxy.address, "b")
    assert follower.create_group(GROUP, CREATED).result(30)
    follower.follow(GROUP)
    recorder.wait_event(RecordRead)
    proxy.cut()
    path = workers.paths.group(GROUP)
    for epoch in range(1, 41):
        operator.set(path, encode(CREATED.with_leader(A, Incarnation("i"), Epoch(epoch))))
    proxy.heal()
    recorder.wait_event(RecordRead, lambda read: read.version == 40)
    assert [read.version for read in recorder.events(RecordRead)] == [0, 40]


def test_whoever_unfollows_hears_no_more(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    metastore, recorder = workers.open(zookeeper.address, "b")
    other = GroupKey("counts", 1, 1)
    for group in (GROUP, other):
        assert metastore.create_group(group, CREATED).result(30)
        metastore.follow(group)
        recorder.wait_event(RecordRead, group=group)
    metastore.unfollow(GROUP)
    for group in (GROUP, other):
        operator.set(workers.paths.group(group), encode(CREATED))
    recorder.wait_event(RecordRead, lambda read: read.version == 1, other)
    assert [read.version for read in recorder.events(RecordRead, GROUP)] == [0]
    # WatchedPath again, it is told what is there now.
    metastore.follow(GROUP)
    recorder.wait_event(RecordRead, lambda read: read.version == 1, GROUP)


def test_a_damaged_record_is_not_passed_on_and_a_mended_one_is(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    metastore, recorder = workers.open(zookeeper.address, "b")
    assert metastore.create_group(GROUP, CREATED).result(30)
    metastore.follow(GROUP)
    recorder.wait_event(RecordRead)
    path = workers.paths.group(GROUP)
    operator.set(path, b'{"epoch": "one"}')
    metastore.read(GROUP, ReadRecord(token=7))
    recorder.wait_event(ReadFailed, lambda failed: failed.token == 7)
    operator.set(path, encode(CREATED))
    recorder.wait_event(RecordRead, lambda read: read.version == 2)
    assert [read.version for read in recorder.events(RecordRead)] == [0, 2]


def test_a_damaged_registration_keeps_the_search_for_members_from_answering(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    metastore, recorder = workers.open(zookeeper.address, "b")
    assert metastore.create_group(GROUP, CREATED).result(30)
    damaged = workers.paths.registration(A, Incarnation("damaged"))
    operator.create(damaged, b"?", makepath=True)
    metastore.look_for_members(GROUP, 1)
    # The search takes three steps: the record, the incarnations, what they hold.
    for token in (2, 3, 4):
        metastore.read(GROUP, ReadRecord(token=token))
        recorder.wait_event(RecordRead, partial(_is_answer_to, token))
    operator.delete(damaged)
    metastore.look_for_members(GROUP, 5)
    recorder.wait_event(MembersSeen, lambda seen: seen.token == 5)
    assert [seen.token for seen in recorder.events(MembersSeen)] == [5]


def test_only_the_leader_is_told_to_resign_and_it_deletes_the_request(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    leader, of_leader = workers.open(zookeeper.address, "a")
    follower, of_follower = workers.open(zookeeper.address, "b")
    assert leader.create_group(GROUP, CREATED).result(30)
    for metastore in (leader, follower):
        metastore.follow(GROUP)
    lead(leader, of_leader, version=0, epoch=1)
    of_leader.wait_event(RecordRead, lambda read: read.version == 1)
    request = ResignRequest(epoch=Epoch(1), target=B)
    assert follower.request_resign(GROUP, request).result(30) is True
    assert follower.request_resign(GROUP, request).result(30) is False
    assert of_leader.wait_event(Resign) == Resign(epoch=Epoch(1), target=B)

    path = workers.paths.resign(GROUP)
    leader.forget_resign(GROUP, Epoch(7))
    wait_until("it was looked at", lambda: not leader._groups[GROUP]._epochs_to_forget)
    assert operator.exists(path) is not None
    leader.forget_resign(GROUP, Epoch(1))
    wait_until("the request is deleted", lambda: operator.exists(path) is None)

    # The next one is heard too.
    assert follower.request_resign(GROUP, ResignRequest(epoch=Epoch(1), target=A)).result(30)
    of_leader.wait_event(Resign, lambda resign: resign.target == A)
    assert of_follower.events(Resign) == []


def test_a_request_that_was_there_first_is_told_to_the_new_leader(
    zookeeper: EmbeddedZooKeeper, workers: Workers
) -> None:
    leader, recorder = workers.open(zookeeper.address, "a")
    assert leader.create_group(GROUP, CREATED).result(30)
    leader.follow(GROUP)
    recorder.wait_event(RecordRead)
    assert leader.request_resign(GROUP, ResignRequest(epoch=Epoch(1), target=B)).result(30)
    lead(leader, recorder, version=0, epoch=1)
    assert recorder.wait_event(Resign) == Resign(epoch=Epoch(1), target=B)


def test_a_request_is_deleted_also_over_a_lost_connection(
    proxy: Proxy, workers: Workers, operator: KazooClient
) -> None:
    leader, recorder = workers.open(proxy.address, "a")
    assert leader.create_group(GROUP, CREATED).result(30)
    leader.follow(GROUP)
    lead(leader, recorder, version=0, epoch=1)
    assert leader.request_resign(GROUP, ResignRequest(epoch=Epoch(1), target=B)).result(30)
    recorder.wait_event(Resign)
    proxy.cut()
    leader.forget_resign(GROUP, Epoch(1))
    assert operator.exists(workers.paths.resign(GROUP)) is not None
    proxy.heal()
    wait_until("the request is deleted", lambda: operator.exists(workers.paths.resign(GROUP)) is None)
    assert len(recorder.events(Resign)) == 1


def test_very_many_groups_follow_and_share_one_watch_on_a_worker(
    zookeeper: EmbeddedZooKeeper, proxy: Proxy, workers: Workers
) -> None:
    long_ms = LONG_SESSION_TIMEOUT_MS
    leader, _ = workers.open(zookeeper.address, "a", session_timeout_ms=long_ms)
    follower, recorder = workers.open(proxy.address, "b", groups=(), session_timeout_ms=long_ms)
    for future in [leader.create_group(group, CREATED) for group in MANY]:
        assert future.result(30)
    for group in MANY:
        follower.follow(group)
    recorder.wait("all records", lambda _: len(recorder.events(RecordRead)) == len(MANY))
    registration = registration_of(A, leader)
    for group in MANY:
        follower.check(group, registration)
    recorder.wait("all tests", lambda _: len(recorder.events(RegistrationSeen)) == len(MANY))
    session = follower._session
    assert session is not None
    path = workers.paths.registration_of(registration)
    assert len(session._client._data_watchers[path]) == 1

    # Reconnected, it follows them all again, and tells nothing twice.
    proxy.cut()
    wait_until("it is cut off", lambda: not session.is_connected)
    proxy.heal()
    wait_until("it is back", lambda: len(session._client._data_watchers) == len(MANY) + 1)
    for group in MANY:
        follower.compare_and_set(group, CompareAndSet(token=1, version=0, record=CREATED))
    recorder.wait("all changes", lambda _: len(recorder.events(CasReply)) == len(MANY))
    assert {reply.outcome for reply in recorder.events(CasReply)} == {CasOutcome.OK}
    leader.close()
    recorder.wait(
        "all told",
        lambda _: sum(not seen.exists for seen in recorder.events(RegistrationSeen)) == len(MANY),
    )
    recorder.wait("all records", lambda _: len(recorder.events(RecordRead)) == 2 * len(MANY))
    assert len(recorder.of(Started)) == 1


def test_requests_keep_their_order(zookeeper: EmbeddedZooKeeper, workers: Workers) -> None:
    metastore, recorder = workers.open(zookeeper.address, "a")
    assert metastore.create_group(GROUP, CREATED).result(30)
    for number in range(300):
        metastore.compare_and_set(GROUP, CompareAndSet(token=number, version=number, record=CREATED))
        metastore.read(GROUP, ReadRecord(token=number, sync=number % 3 == 0))
    recorder.wait("all answers", lambda _: len(recorder.events(RecordRead)) == 300)
    replies = recorder.events(CasReply)
    assert [(reply.token, reply.outcome) for reply in replies] == [
        (number, CasOutcome.OK) for number in range(300)
    ]
    assert [read.version for read in recorder.events(RecordRead)] == list(range(1, 301))


def test_no_znode_is_big(zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient) -> None:
    groups = tuple(GroupKey("a-module-with-a-long-name", 12, number) for number in range(32))
    storage = "0123456789abcdef" * 2
    metastore, _ = workers.open(zookeeper.address, "worker-0123456789", storage=storage, groups=groups)
    five = tuple(Member(WorkerId(f"worker-{number:010}"), StorageId(storage)) for number in range(5))
    record = GroupRecord(
        epoch=Epoch(10**9), leader=five[0].worker, leader_incarnation=Incarnation("i" * 16), isr=five
    )
    for group in groups:
        assert metastore.create_group(group, record).result(30)
    sizes = {}

    def walk(path: str) -> None:
        sizes[path] = len(operator.get(path)[0])
        for child in operator.get_children(path):
            walk(f"{path}/{child}")

    walk(workers.paths.root)
    assert len(sizes) > 32
    assert max(sizes.values()) < 4096
    assert max(size for path, size in sizes.items() if "/groups/" in path) < 512


def test_znodes_that_nobody_of_the_cluster_made_hide_no_others(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    """ZooKeeper lets people create what no worker, module or incarnation can be called."""
    paths = workers.paths
    for parent in (paths.workers, paths.worker(A), paths.worker(B), paths.modules):
        operator.create(f"{parent}/zookeeper", makepath=True)
        operator.create(f"{parent}/\N{NO-BREAK SPACE}")
    metastore, recorder = workers.open(zookeeper.address, "a")
    workers.open(zookeeper.address, "b")
    operator.create(paths.assignment("counts"), encode(evenly(1, 1, [A, B], 2)), makepath=True)
    told: list[frozenset[str]] = []
    metastore.watch_workers(lambda found: told.append(frozenset(found)))
    wait_until("both are found", lambda: {"a", "b"} in told)
    seen: list[int] = []
    metastore.survey(None, [], lambda groups, _: seen.append(len(groups)))
    wait_until("the group is found", lambda: seen == [1])

    assert metastore.create_group(GROUP, CREATED).result(30)
    metastore.look_for_members(GROUP, 1)
    assert recorder.wait_event(MembersSeen).alive == frozenset(CREATED.isr)

    assert read_all(operator, paths).levels == {}
    view = DaemonSession(
        zookeeper.address,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        registration=lambda incarnation: (paths.node("n", incarnation), b""),
        started=lambda _: None,
    )
    children: list[list[str] | None] = []
    view.follow_children(paths.modules, children.append)
    view.start()
    wait_until("modules are listed", lambda: ["counts"] in children)
    assert view.children(paths.modules) == ["counts"]
    view.close()
