"""PStates are written by entries, and read by key, by range and in order, from the leaders of their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest

from stretto.client import Client, connect_async
from stretto.errors import UsageError
from stretto.module.partition import owner_of
from stretto.pstate import ordered
from stretto.pstate.changes import Changes, pack
from stretto.pstate.types import describe
from stretto.specs.modules import DepotSpec, PStateSpec
from stretto.vocabulary.types import TaskId
from stretto.wire import messages as wire
from stretto.worker.reads.page_residency import ENOUGH_KEYS
from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import MODULE, Cluster
from tests.support.states import append_changes, change, put
from tests.support.wires import Wire

TASKS = 4


@dataclass
class Account:
    owner: str
    balance: int = 0


SHAPES: dict[str, Any] = {
    "counts": dict[str, int],
    "many": dict[int, str],
    "views": dict[str, dict[date, int]],
    "seen": dict[str, set[int]],
    "logs": dict[str, list[str]],
    "accounts": dict[int, Account],
    "words": set[str],
    "moments": dict[tuple[str, datetime], float],
    "large": dict[str, bytes],
    "kept": dict[str, int],
    "empty": dict[str, int],
}


SPECS = tuple(PStateSpec(name=name, type=describe(shape)) for name, shape in SHAPES.items())
DEPOTS = (DepotSpec(name="events"),)

WORDS = {word: len(word) for word in ("a", "an", "ant", "bee", "been", "cat", "", "a\0b")}
ROWS = {number: f"row {number}" for number in range(-2_000, 6_000)}
LINES = [f"line {number}" for number in range(3_000)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, zookeeper.address, tasks=TASKS, depots=DEPOTS, pstates=SPECS) as cluster:
        put(cluster, "counts", SHAPES["counts"], WORDS)
        put(cluster, "many", SHAPES["many"], ROWS)
        put(cluster, "logs", SHAPES["logs"], {"today": LINES})
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Client:
    return cluster.connect()


def test_a_key_is_read_from_the_task_that_owns_it(client: Client) -> None:
    counts = client.pstate(MODULE, "counts")
    assert {word: counts.get(word) for word in WORDS} == WORDS
    assert counts.get("dog") is None
    assert counts.get("dog", default=0) == 0
    assert counts.get_many(["ant", "dog", "bee", "ant"]) == {"ant": 3, "bee": 3}
    assert [counts.contains(word) for word in ("cat", "dog")] == [True, False]
    assert len({owner_of(word, TASKS) for word in WORDS}) > 1


def test_keys_of_all_tasks_come_in_one_order(client: Client) -> None:
    counts = client.pstate(MODULE, "counts")
    assert list(counts.items()) == sorted(counts.items())
    assert list(counts.keys()) == ["", "a", "a\0b", "an", "ant", "bee", "been", "cat"]
    assert list(counts.items(prefix="an")) == [("an", 2), ("ant", 3)]
    assert list(counts.keys(start="an", end="been")) == ["an", "ant", "bee"]
    assert list(counts.keys(limit=2)) == ["", "a"]
    assert list(counts.keys(after="a", limit=2)) == ["a\0b", "an"]
    assert list(counts.keys(start="z")) == []
    assert counts.count() == 8
    assert counts.count(prefix="an") == 2
    assert counts.count(start="an", end="been") == 3
    assert counts.count(after="a", end="z") == 6


def test_more_than_an_answer_holds_comes_in_pages(client: Client) -> None:
    many = client.pstate(MODULE, "many")
    assert list(many.items()) == list(ROWS.items())
    assert list(many.keys()) == list(ROWS)
    assert many.count() == len(ROWS)
    assert many.get_many(range(0, 20_000, 3)) == {number: ROWS[number] for number in range(0, 6_000, 3)}
    assert list(many.items(start=-3, end=3)) == [(number, ROWS[number]) for number in range(-3, 3)]


def test_large_values_are_read_too(cluster: Cluster, client: Client) -> None:
    values = {f"key {number}": bytes([number]) * 700_000 for number in range(5)}
    put(cluster, "large", SHAPES["large"], values)
    large = client.pstate(MODULE, "large")
    assert large.get_many(values) == values
    assert dict(large.items()) == values


def test_inner_collections_are_read_whole_or_in_parts(cluster: Cluster, client: Client) -> None:
    days = {date(2026, 1, day): day for day in range(1, 31)}
    put(cluster, "views", SHAPES["views"], {"/": days, "/about": {date(2026, 1, 2): 7}})
    views = client.pstate(MODULE, "views")
    assert views.get("/") == days
    assert views.get("/", date(2026, 1, 3)) == 3
    assert views.get("/none") is None
    assert views.get_many(["/about", "/none"]) == {"/about": {date(2026, 1, 2): 7}}
    assert list(views.items("/", start=date(2026, 1, 29))) == [
        (date(2026, 1, 29), 29),
        (date(2026, 1, 30), 30),
    ]
    assert list(views.keys("/", limit=1)) == [date(2026, 1, 1)]
    assert (views.count(), views.count("/"), views.count("/none")) == (2, 30, 0)
    assert dict(views.items()) == {"/": days, "/about": {date(2026, 1, 2): 7}}
    change(cluster, "views", SHAPES["views"], {"/": lambda editor: editor.delete("/")})
    assert (views.contains("/"), list(views.keys())) == (False, ["/about"])


def test_sets_and_lists(cluster: Cluster, client: Client) -> None:
    put(cluster, "seen", SHAPES["seen"], {"ann": {3, 1, 2}})
    seen = client.pstate(MODULE, "seen")
    assert seen.get("ann") == {1, 2, 3}
    assert [seen.contains("ann", number) for number in (3, 4)] == [True, False]
    assert list(seen.keys("ann", start=2)) == [2, 3]

    logs = client.pstate(MODULE, "logs")
    assert logs.get("today") == LINES
    assert logs.get("today", 2_999) == "line 2999"
    assert logs.get("today", 3_000) is None
    assert logs.slice("today", start=10, stop=12) == ["line 10", "line 11"]
    assert logs.slice("today", start=2_998) == LINES[2_998:]
    assert logs.slice("today", start=5, stop=5) == []
    assert (logs.count("today"), logs.count("tomorrow")) == (3_000, 0)

    words = ["apple", "bee", "cow"]
    change(cluster, "words", SHAPES["words"], {word: adding(word) for word in words})
    assert list(client.pstate(MODULE, "words").keys()) == words
    assert client.pstate(MODULE, "words").contains("bee")


def adding(word: str) -> Any:
    return lambda editor: editor.add(word)


def test_values_are_of_the_readers_classes_or_look_like_the_authors(cluster: Cluster, client: Client) -> None:
    put(cluster, "accounts", SHAPES["accounts"], {7: Account("ann", 3)})
    assert client.pstate(MODULE, "accounts", of=dict[int, Account]).get(7) == Account("ann", 3)
    account = client.pstate(MODULE, "accounts").get(7)
    assert (type(account).__name__, account.owner, account.balance) == ("Account", "ann", 3)
    with pytest.raises(UsageError, match="int cannot become str"):
        client.pstate(MODULE, "accounts", of=dict[str, Account])


def test_tuples_and_moments_are_keys(cluster: Cluster, client: Client) -> None:
    moments = {
        (place, datetime(2026, 1, day, tzinfo=UTC)): day / 2 for place in ("de", "fr") for day in (1, 2)
    }
    put(cluster, "moments", SHAPES["moments"], moments)
    reader = client.pstate(MODULE, "moments")
    assert dict(reader.items()) == moments
    assert [key for key, _ in reader.items(prefix=("fr",))] == [key for key in moments if key[0] == "fr"]
    assert reader.get(("de", datetime(2026, 1, 2, tzinfo=UTC))) == 1.0


def test_the_async_client_reads_too(cluster: Cluster) -> None:
    async def scenario() -> tuple[Any, ...]:
        async with await connect_async(cluster.addresses()) as client:
            many = await client.pstate(MODULE, "many")
            items = [item async for item in many.items(start=0, limit=1_500)]
            got = await asyncio.gather(
                many.get(5), many.get_many([1, 2]), many.count(), many.contains(-9_999)
            )
            keys = [key async for key in many.keys(limit=2)]
            logs = await client.pstate(MODULE, "logs")
            return items, got, keys, await logs.slice("today", start=1, stop=2)

    items, got, keys, lines = asyncio.run(scenario())
    assert items == [(number, f"row {number}") for number in range(1_500)]
    assert got == ["row 5", {1: "row 1", 2: "row 2"}, 8_000, False]
    assert keys == [-2_000, -1_999]
    assert lines == ["line 1"]


def test_a_pstate_that_nobody_wrote_to_is_empty(client: Client) -> None:
    empty = client.pstate(MODULE, "empty")
    assert (empty.get("a"), empty.get_many(["a", "b"]), list(empty.items()), empty.count()) == (
        None,
        {},
        [],
        0,
    )
    assert not empty.contains("a")


def test_what_cannot_be_asked_is_told(client: Client) -> None:
    with pytest.raises(UsageError, match="has no PState count; did you mean counts"):
        client.pstate(MODULE, "count")
    with pytest.raises(UsageError, match="there is no module count"):
        client.pstate("count", "counts")
    counts = client.pstate(MODULE, "counts")
    with pytest.raises(UsageError, match="7 is no key here; give one that is a str"):
        counts.get(7)
    with pytest.raises(UsageError, match="beyond the limit of 511"):
        counts.get("x" * 600)
    with pytest.raises(UsageError, match="give a key of PState counts"):
        counts.get()
    with pytest.raises(UsageError, match="is a set, which has no values"):
        client.pstate(MODULE, "words").get_many(["a"])


def test_workers_refuse_what_they_could_not_apply_or_answer(cluster: Cluster) -> None:
    refused = [
        (pack({"nothing": Changes(puts=((b"a", b"b"),))}), "there is no PState nothing"),
        (pack({"counts": Changes(puts=((b"", b"b"),))}), "a key of PState counts is empty"),
        (pack({"counts": Changes(deletes=(bytes(512),))}), "longer than 511"),
        (b"nonsense", "changes of PStates are malformed"),
    ]
    for payload, why in refused:
        answer = append_changes(cluster, 0, payload)
        assert isinstance(answer, wire.Failed), answer
        assert why in answer.why
    group, task, row = cluster.key_of(0), TaskId(0), ordered.encode("cat")
    asked: list[tuple[wire.ToWorker, str]] = [
        (wire.ReadRows(1, group, "nothing", (task,), (b"a",)), f"module {MODULE} has no PState nothing"),
        (wire.ReadRows(2, group, "counts", (task,), (b"",)), "a key is empty"),
        (wire.ReadRows(3, group, "counts", (task,), (bytes(512),)), "longer than 511"),
        (wire.ScanRows(4, group, task, "counts", bytes(512), b"\xff", 1), "longer than 511"),
        (wire.ScanKeys(4, group, task, "counts", row, b"\xff", 3, 1, tell=True), "no path ends 3 bytes into"),
        (wire.ScanKeys(4, group, task, "counts", row, b"\xff", 5, 1, tell=True), "no path ends 5 bytes into"),
        (wire.ScanKeys(4, group, task, "counts", b"", b"\xff\xff", 0, 1, tell=True), "no path ends 0 bytes"),
        (wire.ScanKeys(4, group, task, "counts", row, b"\xff", -1, 1, tell=True), "no path ends -1 bytes"),
        (wire.ReadRows(5, group, "counts", (TaskId(99),), (b"a",)), "task 99 is not in this group"),
        (wire.ReadRows(5, group, "counts", (task,), (b"a", b"b")), "2 keys cannot lie on 1 tasks"),
        (wire.ReadRows(6, group, "counts", (task,) * 10_001, (b"a",) * 10_001), "ask for fewer at a time"),
    ]
    with Wire(cluster.leader(0).address) as caller:
        for message, why in asked:
            reply = caller.ask(message)
            assert isinstance(reply, wire.Failed), reply
            assert why in reply.why
        reply = caller.ask(wire.ReadRows(7, group, "counts", (task,), (row,)))
        assert isinstance(reply, wire.RowValues)


def test_reads_that_come_together_are_answered_one_by_one(cluster: Cluster) -> None:
    """Also when some of them can never be answered, and others go beyond a visit of the reading thread."""
    group, task = cluster.key_of(0), cluster.plans[0].tasks[0]
    known = next(number for number in ROWS if owner_of(number, TASKS) == task)
    keys = (ordered.encode(known),) * 20
    with Wire(cluster.leader(0).address) as caller:
        for number in range(300):
            its = TaskId(99) if number % 10 == 0 else task
            caller.send(wire.ReadRows(number, group, "many", (its,) * 20, keys))
        for reply in [caller.receive() for _ in range(300)]:
            if isinstance(reply, wire.Failed):
                assert reply.request % 10 == 0
            else:
                assert isinstance(reply, wire.RowValues)
                assert reply.request % 10
                assert len(reply.values) == 20
                assert None not in reply.values


def test_what_was_applied_outlives_its_leader_and_is_the_same_everywhere(
    start: Callable[..., Cluster],
) -> None:
    cluster = start(tasks=TASKS, depots=DEPOTS, pstates=SPECS)
    values = {f"key {number}": number for number in range(100)}
    put(cluster, "kept", SHAPES["kept"], values)
    client = cluster.connect()
    kept = client.pstate(MODULE, "kept")
    assert dict(kept.items()) == values
    leader = cluster.leader(0)
    leader.kill()
    assert kept.get_many(values) == values
    cluster.heal()
    change(cluster, "kept", SHAPES["kept"], {"key 7": lambda editor: editor.set("key 7", value=-7)})
    assert dict(kept.items()) == values | {"key 7": -7}
    cluster.check_replicas_agree()


@pytest.mark.soak
@pytest.mark.parametrize("reads_before", [1, ENOUGH_KEYS])
def test_a_leader_that_was_replaced_while_it_slept_answers_nothing(
    start: Callable[..., Cluster], reads_before: int
) -> None:
    """Neither by its reading thread nor, when rows are known to be in memory, by its loop."""
    cluster = start(tasks=1, groups=1, depots=DEPOTS, pstates=SPECS)
    put(cluster, "kept", SHAPES["kept"], {"a": 1})
    asleep, epoch = cluster.leader(), cluster.record().epoch

    def question(times: int = 1) -> wire.ReadRows:
        keys = (ordered.encode("a"),) * times
        return wire.ReadRows(1, cluster.key_of(), "kept", (TaskId(0),) * times, keys)

    with Wire(asleep.address) as caller:
        for times in (reads_before, 1):
            reply = caller.ask(question(times))
            assert isinstance(reply, wire.RowValues)
            assert reply.values == (b"\x01",) * times
        asleep.pause()
        cluster.wait_led_by(set(cluster.workers) - {asleep.name}, above_epoch=epoch)
        put(cluster, "kept", SHAPES["kept"], {"a": 2})
        caller.send(question())
        asleep.resume()
        assert isinstance(caller.receive(), wire.Refused)
    assert cluster.connect().pstate(MODULE, "kept").get("a") == 2
