"""Followers answer readers who accept what is a little old, and never less than these have seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stretto.client import Client
from stretto.errors import UsageError
from stretto.module.partition import owner_of
from stretto.pstate import ordered
from stretto.pstate.types import describe
from stretto.replog.core.effects import Refusal
from stretto.specs.modules import DepotSpec, PStateSpec
from stretto.vocabulary.types import Epoch, Offset, TaskId
from stretto.wire import messages as wire
from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import DEADLINE_SECONDS, MODULE, Cluster
from tests.support.states import put
from tests.support.waiting import wait_until
from tests.support.wires import Wire

TASKS = 2
COUNTS = dict[str, int]
SPECS = (PStateSpec(name="counts", type=describe(COUNTS)),)
DEPOTS = (DepotSpec(name="events"),)
WORDS = {f"word {number}": number for number in range(40)}
LONG = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, zookeeper.address, tasks=TASKS, groups=1, depots=DEPOTS, pstates=SPECS) as cluster:
        put(cluster, "counts", COUNTS, WORDS)
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Client:
    return cluster.connect()


def question(cluster: Cluster, stale: wire.Stale | None, number: int = 1) -> wire.ReadRows:
    word = "word 7"
    task = TaskId(owner_of(word, TASKS))
    return wire.ReadRows(number, cluster.key_of(), "counts", (task,), (ordered.encode(word),), stale)


def test_a_follower_answers_who_accepts_its_age_and_says_where_it_read(cluster: Cluster) -> None:
    stale = wire.Stale(60_000)
    follower = cluster.followers()[0]

    def answers() -> wire.RowValues | None:
        with Wire(follower.address) as caller:
            reply = caller.ask(question(cluster, stale))
            assert isinstance(reply, wire.RowValues | wire.Refused), reply
            return reply if isinstance(reply, wire.RowValues) else None

    wait_until(
        "the follower has applied all that is visible", lambda: answers() is not None, DEADLINE_SECONDS
    )
    reply = answers()
    assert reply is not None
    assert reply.values == (b"\x07",)
    assert (reply.epoch, reply.offset > 0) == (cluster.record().epoch, True)
    with Wire(follower.address) as caller:
        latest = caller.ask(question(cluster, None))
        assert isinstance(latest, wire.Refused)
        assert latest.reason is Refusal.NOT_LEADER
        ahead = caller.ask(question(cluster, wire.Stale(60_000, Offset(reply.offset + 1_000), Epoch(1))))
        assert isinstance(ahead, wire.Refused)
        assert ahead.reason is Refusal.TOO_STALE
        nonsense = caller.ask(question(cluster, wire.Stale(0)))
        assert isinstance(nonsense, wire.Failed)
        assert "cannot be 0 ms old" in nonsense.why


def test_readers_of_followers_see_the_same_as_those_of_leaders(client: Client) -> None:
    counts = client.pstate(MODULE, "counts", max_staleness=LONG)
    assert counts.get_many(WORDS) == WORDS
    assert counts.get("word 3") == 3
    assert counts.contains("word 3")
    assert dict(counts.items()) == WORDS
    assert list(counts.keys()) == sorted(WORDS)
    assert counts.count() == len(WORDS)
    latest = client.pstate(MODULE, "counts")
    assert latest.get("word 3") == 3
    assert latest.token
    assert client.pstate(MODULE, "counts", max_staleness=LONG, token=latest.token).get("word 3") == 3


@pytest.mark.parametrize("max_staleness", [0, -1.0, 10_000.0])
def test_an_age_that_nobody_can_mean_is_refused(client: Client, max_staleness: float) -> None:
    with pytest.raises(UsageError, match="max_staleness is in seconds"):
        client.pstate(MODULE, "counts", max_staleness=max_staleness)


def test_a_token_that_is_none_is_refused(client: Client) -> None:
    with pytest.raises(UsageError, match="is no part of a token"):
        client.pstate(MODULE, "counts", token="yesterday")


def bounds_token(client: Client) -> str:
    """Of who has seen all records."""
    reader = client.reader(MODULE, "events")
    for task in range(TASKS):
        reader.bounds(task)
    return reader.token


def test_a_tail_may_wait_at_a_follower(client: Client) -> None:
    tail = client.reader(MODULE, "events", max_staleness=LONG).tail()
    with client.producer(MODULE, "events", linger_ms=0) as producer:
        for number in range(20):
            producer.append(b"%d" % number, task=number % TASKS).result(DEADLINE_SECONDS)
            assert next(tail).data == b"%d" % number


def test_followers_answer_while_their_leader_sleeps_and_writes_are_seen_after_it(
    start: Callable[..., Cluster],
) -> None:
    cluster = start(tasks=TASKS, groups=1, depots=DEPOTS, pstates=SPECS, session_timeout_ms=20_000)
    put(cluster, "counts", COUNTS, WORDS)
    client = cluster.connect()
    with client.producer(MODULE, "events") as producer:
        for number in range(30):
            _ack = producer.append(b"%d" % number, task=number % TASKS)
    events = client.reader(MODULE, "events", max_staleness=LONG, token=bounds_token(client))
    counts = client.pstate(MODULE, "counts", max_staleness=LONG)

    def all_answer() -> bool:
        replies = []
        for follower in cluster.followers():
            with Wire(follower.address) as caller:
                replies.append(caller.ask(question(cluster, wire.Stale(60_000))))
        return all(isinstance(reply, wire.RowValues) for reply in replies)

    wait_until("both followers answer", all_answer, DEADLINE_SECONDS)
    asleep, epoch = cluster.leader(), cluster.record().epoch
    asleep.pause()
    try:
        assert counts.get_many(WORDS) == WORDS
        assert {word: counts.get(word) for word in WORDS} == WORDS
        found = [events.read(task, 0).records for task in range(TASKS)]
        assert [len(records) for records in found] == [15, 15]
        assert [events.bounds(task) for task in range(TASKS)] == [(0, 15), (0, 15)]
        # Nobody took over: it was the followers of the sleeping leader.
        assert cluster.record().epoch == epoch
    finally:
        asleep.resume()
    put(cluster, "counts", COUNTS, {"word 1": 100})
    seen = client.pstate(MODULE, "counts")
    assert seen.get("word 1") == 100
    with client.producer(MODULE, "events") as producer:
        producer.append(b"later", task=0).result(DEADLINE_SECONDS)
    latest = client.reader(MODULE, "events")
    assert latest.bounds(0) == (0, 16)
    later_events = client.reader(MODULE, "events", max_staleness=LONG, token=latest.token)
    assert [later_events.bounds(0) for _ in range(20)] == [(0, 16)] * 20
    assert later_events.read(0, 15).records[0].data == b"later"
    # Whatever they would have answered: this reader is told what was seen.
    later = client.pstate(MODULE, "counts", max_staleness=LONG, token=seen.token)
    assert [later.get("word 1") for _ in range(20)] == [100] * 20
