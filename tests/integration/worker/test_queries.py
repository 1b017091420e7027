"""Queries of a module, on real workers: the owning task answers, or all of them together."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from stretto.client import Client, connect_async
from stretto.errors import QueryFailed, UsageError
from stretto.module.partition import owner_of
from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import DEADLINE_SECONDS, MODULE, Cluster, Code
from tests.support.commands import Done, stretto
from tests.support.waiting import wait_until

TASKS = 4
WORDS = {f"word-{number}": number % 7 + 1 for number in range(40)}
SOURCE = """
    import os
    from heapq import nlargest
    from stretto import Depot, Module, PState, query, stream

    class Words(Module):
        words = Depot(partition_by="word")
        counts = PState(dict[str, int])

        @stream(words)
        def take(self, record):
            if record["word"] != "uncounted":
                self.counts.increment(record["word"])

        @query(key="word")
        def count_of(self, word: str, default: int = 0) -> int:
            return self.counts.get(word, default=default)

        @query
        def top(self, limit: int = 3) -> list[tuple[int, str]]:
            return nlargest(limit, ((count, word) for word, count in self.counts.items()))

        @top.combine
        def top_of_all(self, parts: list[list[tuple[int, str]]], limit: int) -> list[tuple[int, str]]:
            return nlargest(limit, (each for part in parts for each in part))

        @query
        def sizes(self) -> int:
            return self.counts.count()

        @query
        def bad(self, how: str) -> int:
            if how == "raise":
                return 1 // 0
            if how == "hang":
                while True:
                    pass
            if how == "exit":
                os._exit(3)
            if how == "large":
                return "x" * (9 * 1024 * 1024)
            return 7

        @bad.combine
        def bad_combined(self, parts: list[int], how: str) -> int:
            if how == "combine":
                raise ValueError("nothing fits")
            return sum(parts)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    code = Code(folder / "code", SOURCE, "Words")
    with Cluster(
        folder,
        zookeeper.address,
        tasks=TASKS,
        groups=2,
        code=code,
        options={"executor.timeout.millis": 3_000},
    ) as cluster:
        client = cluster.connect()
        with client.producer(MODULE, "words") as producer:
            for word, count in WORDS.items():
                for _ in range(count):
                    _ack = producer.append(msgspec.json.encode({"word": word}), task=owner_of(word, TASKS))
        counts = client.pstate(MODULE, "counts")
        wait_until("all words are counted", lambda: dict(counts.items()) == WORDS, DEADLINE_SECONDS)
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Client:
    return cluster.connect()


def best(limit: int) -> list[list[object]]:
    ranked = sorted(((count, word) for word, count in WORDS.items()), reverse=True)
    return [[count, word] for count, word in ranked[:limit]]


def test_a_query_with_a_key_is_answered_by_the_task_that_owns_it(client: Client) -> None:
    assert {word: client.query(MODULE, "count_of", word) for word in WORDS} == WORDS
    assert client.query(MODULE, "count_of", "nothing") == 0
    assert client.query(MODULE, "count_of", "nothing", default=-1) == -1
    assert client.query(MODULE, "count_of", word="word-3") == WORDS["word-3"]


def test_a_query_without_a_key_is_answered_by_all_tasks_and_combined(client: Client) -> None:
    assert client.query(MODULE, "top", 10) == best(10)
    assert client.query(MODULE, "top", limit=1) == best(1)
    assert client.query(MODULE, "top") == best(3)
    sizes = client.query(MODULE, "sizes")
    assert sizes == [sum(owner_of(word, TASKS) == task for word in WORDS) for task in range(TASKS)]


def test_queries_are_asked_by_coroutines_too(cluster: Cluster) -> None:
    async def ask() -> list[object]:
        async with await connect_async(cluster.addresses()) as client:
            top = await client.query(MODULE, "top", 2)
            return [top, *await asyncio.gather(*(client.query(MODULE, "count_of", word) for word in WORDS))]

    assert asyncio.run(ask()) == [best(2), *WORDS.values()]


@pytest.mark.parametrize(
    ("how", "words", "line"),
    [
        ("raise", "ZeroDivisionError: .* \\(on task", "return 1 // 0"),
        (
            "combine",
            "ValueError: nothing fits \\(where its parts are combined\\)",
            'raise ValueError("nothing',
        ),
        ("hang", "ran longer than 3 s, and was killed", ""),
        ("exit", "ended the process that ran it", ""),
        ("large", "beyond the limit of 8388608; return less", ""),
    ],
)
def test_what_goes_wrong_in_a_query_is_told_to_who_asked(
    client: Client, how: str, words: str, line: str
) -> None:
    with pytest.raises(QueryFailed, match=words) as failed:
        client.query(MODULE, "bad", how, timeout=DEADLINE_SECONDS)
    assert line in failed.value.traceback
    assert "stretto/topology" not in failed.value.traceback
    # And it can be asked again.
    assert client.query(MODULE, "bad", "not at all", timeout=DEADLINE_SECONDS) == 7 * TASKS


def test_who_gives_up_a_query_holds_up_nobody(cluster: Cluster) -> None:
    """Ten of them would hang for three seconds each on every task, one after the other."""

    async def give_up() -> object:
        async with await connect_async(cluster.addresses()) as client:
            hanging = [asyncio.ensure_future(client.query(MODULE, "bad", "hang")) for _ in range(10)]
            await asyncio.wait(hanging, timeout=1)
            for each in hanging:
                each.cancel()
            await asyncio.wait(hanging)
            assert all(each.cancelled() for each in hanging)
            return await client.query(MODULE, "bad", "not at all", timeout=25)

    assert asyncio.run(give_up()) == 7 * TASKS


PATIENT = """
    import os
    from pathlib import Path
    from stretto import Module, Depot, query

    class Patient(Module):
        words = Depot()

        @query
        def wait_in(self, folder: str) -> int:
            Path(folder, str(os.getpid())).touch()
            while True:
                pass

        @query
        def sizes(self) -> int:
            return 1
"""
ASKER = """
import sys
from stretto.client import connect
folder, *addresses = sys.argv[1:]
connect(addresses).query("{module}", "wait_in", folder, timeout=300)
"""


@pytest.mark.soak
def test_a_query_whose_asker_is_killed_is_ended_wherever_it_runs(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Long before its time is over; and the parts of it that wait for an executor never run."""
    code = Code(tmp_path / "code", PATIENT, "Patient")
    cluster = start(code=code, tasks=TASKS, groups=2, options={"executor.timeout.millis": 600_000})
    running = tmp_path / "running"
    running.mkdir()
    command = [sys.executable, "-c", ASKER.format(module=MODULE), str(running), *cluster.addresses()]
    asker = subprocess.Popen(command)
    try:
        wait_until("an executor runs it", lambda: any(running.iterdir()), DEADLINE_SECONDS)
    finally:
        asker.kill()
        asker.wait()

    def have_ended() -> bool:
        return not any(Path(f"/proc/{each.name}").exists() for each in running.iterdir())

    wait_until("those who ran it are ended", have_ended, DEADLINE_SECONDS)
    assert cluster.connect().query(MODULE, "sizes", timeout=DEADLINE_SECONDS) == [1] * TASKS
    assert have_ended(), "no part of it began later"


def test_a_query_that_hangs_takes_no_stream_with_it(cluster: Cluster, client: Client) -> None:
    with ThreadPoolExecutor(1) as pool, client.producer(MODULE, "words", ack="all", linger_ms=0) as producer:
        hanging = pool.submit(client.query, MODULE, "bad", "hang", timeout=DEADLINE_SECONDS)
        processed = 0
        while not hanging.done():
            for task in range(TASKS):
                record = msgspec.json.encode({"word": "uncounted"})
                producer.append(record, task=task).result(DEADLINE_SECONDS)
                processed += 1
        assert isinstance(hanging.exception(), QueryFailed)
    assert processed >= TASKS
    killed = [
        line for worker in cluster.workers.values() for line in worker.log() if "executor_killed" in line
    ]
    assert killed
    assert all("/q" in json.loads(line)["executor"] for line in killed)


def test_what_nobody_can_ask_is_refused(client: Client) -> None:
    with pytest.raises(UsageError, match="has no query tap"):
        client.query(MODULE, "tap")
    with pytest.raises(UsageError, match="needs word, which chooses the task"):
        client.query(MODULE, "count_of")
    with pytest.raises(UsageError, match="an argument of top cannot be sent"):
        client.query(MODULE, "top", object())
    with pytest.raises(QueryFailed, match="too many positional arguments"):
        client.query(MODULE, "top", 1, 2)
    with pytest.raises(QueryFailed, match="top cannot take"):
        client.query(MODULE, "top", "many")


def test_queries_are_asked_from_a_shell(cluster: Cluster) -> None:
    def ask(*args: str) -> Done:
        return stretto("query", MODULE, *args, "--bootstrap", ",".join(cluster.addresses()))

    assert ask("count_of", "word-3", "--json").out == f"{WORDS['word-3']}\n"
    assert ask("count_of", '"nothing"', "--named", "default=-1").lines == ["-1"]
    assert json.loads(ask("top", "2").out) == best(2)
    failed = ask("bad", "raise")
    assert (failed.code, failed.out) == (1, "")
    assert "return 1 // 0" in failed.err
    assert "query bad of counts failed: ZeroDivisionError" in failed.err.splitlines()[-1]
    assert ask("tap").code == 2
    assert ask("top", "--named", "2").code == 2


def test_queries_are_answered_after_a_leader_died(cluster: Cluster, client: Client) -> None:
    cluster.leader(0).kill()
    assert client.query(MODULE, "top", 10, timeout=DEADLINE_SECONDS) == best(10)
    cluster.heal()
    assert client.query(MODULE, "sizes", timeout=DEADLINE_SECONDS) == client.query(MODULE, "sizes")
