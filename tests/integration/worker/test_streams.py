"""Streams on real workers: what people append is processed, whoever leads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stretto.client.appending.producer import Producer
from stretto.client.reading.pstate import PStateReader
from stretto.errors import ProcessingFailed
from stretto.module.partition import owner_of
from stretto.pstate.changes import pack
from stretto.replog.frame import Kind
from stretto.vocabulary.types import Epoch, ProducerId, TaskId
from stretto.wire import messages as wire
from tests.support.cluster import DEADLINE_SECONDS, MODULE, Cluster, Code
from tests.support.commands import stretto
from tests.support.waiting import wait_until
from tests.support.wires import Wire

COUNTS = """
    from stretto import Depot, Module, PState, step, stream

    class Words(Module):
        words = Depot(partition_by="word")
        sentences = Depot()
        here = PState(dict[str, int])
        counts = PState(dict[str, int])

        @stream(words)
        def take(self, record):
            return self.here.increment(record["word"])

        @stream(sentences)
        def split(self, sentence):
            for word in sentence.split():
                self.count.at(word)(word)

        @step
        def count(self, word: str) -> None:
            self.counts.increment(word)
"""
FAILING = """
    import time
    from stretto import Depot, Module, PState, step, stream

    class Fragile(Module):
        events = Depot()
        seen = PState(dict[int, int])
        there = PState(dict[int, int])

        @stream(events)
        def take(self, number):
            if number == 13:
                raise ValueError("thirteen")
            if number == 99:
                end = time.monotonic() + 30
                while time.monotonic() < end:
                    sum(range(1_000_000))
            if number < 0:
                self.fail.on((self.task + 1) % self.tasks)(number)
            self.keep.at(number)(number)
            return number * 2

        @step
        def keep(self, number: int) -> None:
            self.seen.increment(number)

        @step
        def fail(self, number: int) -> None:
            raise LookupError(f"nothing under {number}")
"""
VOCABULARY = [f"word-{number}" for number in range(50)]


def record(word: str) -> bytes:
    return msgspec.json.encode({"word": word})


def counted(reader: PStateReader) -> dict[Any, int]:
    return dict(reader.items())


def wait_for(reader: PStateReader, expected: dict[str, int]) -> None:
    def is_there() -> bool:
        return sum(counted(reader).values()) >= sum(expected.values())

    wait_until(f"{sum(expected.values())} words are counted", is_there, DEADLINE_SECONDS)


def test_without_hops_every_record_counts_once_although_leaders_are_killed(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(code=Code(tmp_path / "code", COUNTS, "Words"), tasks=4, groups=2)
    client = cluster.connect()
    tasks = cluster.assignment.tasks
    expected: Counter[str] = Counter()
    with client.producer(MODULE, "words", batch_records=50) as producer:
        for number in range(6_000):
            word = VOCABULARY[number % 50]
            _ack = producer.append(record(word), task=owner_of(word, tasks))
            expected[word] += 1
            if number in (2_000, 4_000):
                cluster.leader(number // 2_000 - 1).kill()
                cluster.heal()
    reader = client.pstate(MODULE, "here")
    wait_for(reader, expected)
    assert counted(reader) == expected
    cluster.check_replicas_agree()


def test_steps_run_on_the_tasks_that_own_their_keys(start: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start(code=Code(tmp_path / "code", COUNTS, "Words"), tasks=4, groups=2)
    client = cluster.connect()
    expected: Counter[str] = Counter()
    with client.producer(MODULE, "sentences") as producer:
        for number in range(500):
            words = [VOCABULARY[(number * 7 + place) % 50] for place in range(5)]
            _ack = producer.append(msgspec.json.encode(" ".join(words)))
            expected.update(words)
    reader: Any = client.pstate(MODULE, "counts")
    wait_for(reader, expected)
    assert counted(reader) == expected


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_no_step_is_lost_although_leaders_are_killed(start: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start(code=Code(tmp_path / "code", COUNTS, "Words"), tasks=4, groups=2)
    client = cluster.connect()
    expected: Counter[str] = Counter()
    with client.producer(MODULE, "sentences", batch_records=20) as producer:
        for number in range(2_000):
            words = [VOCABULARY[(number * 7 + place) % 50] for place in range(5)]
            _ack = producer.append(msgspec.json.encode(" ".join(words)))
            expected.update(words)
            if number in (500, 1_000, 1_500):
                cluster.leader(number // 500 % 2).kill()
                cluster.heal()
    reader = client.pstate(MODULE, "counts")

    def is_all_there() -> bool:
        found = counted(reader)
        return all(found.get(word, 0) >= count for word, count in expected.items())

    wait_until("every word is counted as often as it was said", is_all_there, 2 * DEADLINE_SECONDS)
    cluster.check_replicas_agree()


def test_an_append_can_wait_for_its_streams_and_gets_what_they_return(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    code = Code(tmp_path / "code", FAILING, "Fragile")
    cluster = start(
        code=code, tasks=2, groups=2, options={"topology.stream.retries": 1, "executor.timeout.millis": 2_000}
    )
    client = cluster.connect()
    with client.producer(MODULE, "events", ack="all") as producer:
        acks = [producer.append(msgspec.json.encode(number), task=number % 2) for number in range(20)]
        assert [ack.result(DEADLINE_SECONDS) for ack in acks[:13]] == [
            {"take": 2 * number} for number in range(13)
        ]
        with pytest.raises(ProcessingFailed, match="take failed on the record: ValueError: thirteen"):
            raise AssertionError(acks[13].result(DEADLINE_SECONDS))
        seen = client.pstate(MODULE, "seen")
        assert counted(seen) == {number: 1 for number in range(20) if number != 13}
        assert asyncio.run(awaited(producer)) == {"take": 200}
        with pytest.raises(ProcessingFailed, match="LookupError: nothing under -1"):
            raise AssertionError(producer.append(b"-1", task=0).result(DEADLINE_SECONDS))

        wait_until("both are parked", lambda: len(parked(cluster)) == 2, DEADLINE_SECONDS)
        assert {failure["record"]: failure["attempts"] for failure in parked(cluster)} == {"13": 2, "-1": 2}
        assert 'raise ValueError("thirteen")' in str(parked(cluster))
        done = stretto("failures", MODULE, "--offset", "6", "--forget", *at(cluster))
        assert done.out == f"forgot 1 record of {MODULE}\n"
        wait_until("one is forgotten", lambda: len(parked(cluster)) == 1, DEADLINE_SECONDS)
        assert "will be tried again" in stretto("failures", MODULE, "--retry", *at(cluster)).out


@pytest.mark.soak
def test_a_function_that_holds_the_interpreter_costs_no_membership_and_no_lease(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    code = Code(tmp_path / "code", FAILING, "Fragile")
    options = {"topology.stream.retries": 0, "executor.timeout.millis": 6_000}
    cluster = start(code=code, tasks=1, groups=1, options=options)
    epoch, leader = cluster.record().epoch, cluster.leader()
    client = cluster.connect()
    reader = client.reader(MODULE, "events")
    with client.producer(MODULE, "events") as producer:
        producer.append(b"99").result(DEADLINE_SECONDS)
        reads = 0
        while leader.said("executor_killed") == 0:
            # Appends and reads go on at their leader, lease and all: none waits until the function is ended.
            producer.append(b"1").result(5.0)
            reads += len(reader.read(0, 0).records) > 0
        assert reads > 20
    wait_until("the record is parked", lambda: len(parked(cluster)) == 1, DEADLINE_SECONDS)
    assert [failure["error"] for failure in parked(cluster)] == ["ran longer than 6 s, and was killed"]
    seen = client.pstate(MODULE, "seen")
    wait_until("the others are processed", lambda: seen.get(1, default=0) > 20, DEADLINE_SECONDS)
    assert cluster.record().epoch == epoch
    assert cluster.isr() == set(cluster.workers)
    assert not any(worker.said("steps_down") for worker in cluster.workers.values())


def test_neither_clients_nor_calls_that_are_none_get_at_pstates(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(code=Code(tmp_path / "code", COUNTS, "Words"), tasks=1, groups=1)
    with Wire(cluster.leader().address) as caller:
        group, number = cluster.key_of(), caller.number()
        message = wire.AppendBatch(number, group, Kind.STATE, TaskId(0), ProducerId(0), 0, 1)
        answer = caller.ask(message, pack({}))
    assert isinstance(answer, wire.Failed)
    assert "changed by the topologies of their module" in answer.why
    for calls in (b"", b"\xc1", b"\x91\x01"):
        with Wire(cluster.leader().address, worker="w9") as caller:
            hop = wire.RunSteps(caller.number(), group, TaskId(0), "split", TaskId(9), Epoch(1), 1, 0, 0, "")
            caller.send(hop, calls)
            # Who sends such a thing is no longer listened to. It would have ended executor and worker.
            assert isinstance(caller.ask(wire.GetMetadata(1)), wire.HelloRefused)


async def awaited(producer: Producer) -> dict[str, Any]:
    return await producer.append(b"100", task=1)


def at(cluster: Cluster) -> list[str]:
    return ["--bootstrap", ",".join(cluster.addresses())]


def parked(cluster: Cluster) -> list[dict[str, Any]]:
    done = stretto("failures", MODULE, "--json", *at(cluster))
    return list(msgspec.json.decode(done.out)["parked"]) if done.code == 0 else []
