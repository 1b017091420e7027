"""Streams on real workers: what people append is processed, whoever leads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stretto.client.pstate import PStateReader
from stretto.partition import owner_of
from tests.integration.cluster import DEADLINE_SECONDS, MODULE, Cluster, Code
from tests.integration.zk.waiting import wait_until

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
VOCABULARY = [f"word-{number}" for number in range(50)]


def record(word: str) -> bytes:
    return msgspec.json.encode({"word": word})


def counted(reader: PStateReader) -> dict[str, int]:
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
    cluster.wait_healed()
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
