"""Streams of a depot and into a depot: what Spark repeats, whatever fails, is read and written once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.functions import col, concat, lit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_stretto import DefaultSource
from pyspark_stretto.errors import sentence_of
from pyspark_stretto.sink import BatchSink
from stretto.client.appending.rounds import NamedWriter
from stretto.specs.modules import DepotSpec
from tests.support.cluster import DEADLINE_SECONDS, MODULE, Cluster
from tests.support.waiting import wait_until

DEPOTS = {"events": None, "results": "word"}
PATIENCE_SECONDS = 120.0


class Faulty(DefaultSource):
    """Fails in the first attempt at each partition but the last, each in another way."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        class FaultySink(BatchSink):
            def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
                context = TaskContext.get()
                assert context is not None
                fault = context.partitionId() if context.attemptNumber() == 0 else 3
                if fault == 0:
                    next(iterator)
                    raise RuntimeError("injected, before it writes")
                if fault != 1:
                    written = super().write(iterator)
                else:
                    with patch.object(NamedWriter, "_await", interrupted(NamedWriter._await, 2)):
                        written = super().write(iterator)
                if fault == 2:
                    raise RuntimeError("injected, after it wrote")
                return written

        return FaultySink(self._parsed, schema, overwrite)


def interrupted(function: Callable[..., None], calls: int) -> Callable[..., None]:
    """The claim and one batch are answered; that the others are stored or not is not heard."""
    left = [calls]

    def call(*args: Any) -> None:
        if not left[0]:
            raise RuntimeError("injected, while it writes")
        left[0] -= 1
        function(*args)

    return call


@pytest.fixture
def cluster(start: Callable[..., Cluster]) -> Cluster:
    depots = tuple(DepotSpec(name=name, partition_by=by) for name, by in DEPOTS.items())
    return start(workers=3, tasks=2, groups=2, depots=depots)


def options(cluster: Cluster, depot: str) -> dict[str, str]:
    return {"bootstrap": ",".join(cluster.addresses()), "module": MODULE, "depot": depot}


def produce(cluster: Cluster, numbers: range) -> None:
    client = cluster.connect()
    with client.producer(MODULE, "events") as producer:
        acks = [producer.append(json.dumps({"n": n}).encode(), task=n % 2) for n in numbers]
    for ack in acks:
        ack.result(PATIENCE_SECONDS)


def stored(cluster: Cluster, depot: str) -> list[Any]:
    return [json.loads(record.data) for record in cluster.connect().reader(MODULE, depot).read_all()]


def begun(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query that got as far as asking its source. Spark gives the process for this ten seconds to start,
    however busy the machine is; there is no setting for it."""
    query = start()

    def has_begun() -> bool:
        nonlocal query
        active = query.isActive
        if not active and "Python worker failed to connect back" in str(query.exception()):
            query = start()
            return False
        return not active or query.lastProgress is not None

    wait_until("the query has begun", has_begun, PATIENCE_SECONDS)
    return query


def finish(query: StreamingQuery) -> list[int]:
    """Rows of each micro-batch."""
    assert query.awaitTermination(int(PATIENCE_SECONDS)), "the query hangs"
    return [progress["numInputRows"] for progress in query.recentProgress]


@pytest.mark.soak
def test_a_stream_goes_from_depot_to_depot_once_over_restarts_and_fail_overs(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    produce(cluster, range(100))
    words = (
        spark.readStream.format("stretto")
        .options(**options(cluster, "events"))
        .option("records.max.per.trigger", "40")
        .schema("n LONG")
        .load()
        .select(concat(lit("w"), (col("n") % 7).cast("string")).alias("word"), "n")
    )

    def begin() -> StreamingQuery:
        writing = words.writeStream.format("stretto").options(**options(cluster, "results"))
        return (
            writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    assert finish(begun(begin)) == [40, 40, 20]
    assert Counter(each["n"] for each in stored(cluster, "results")) == Counter(range(100))

    # The last batch again, as after a crash between the writing and Spark's note of it.
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink()
    cluster.leader().kill()
    produce(cluster, range(100, 150))
    assert sum(finish(begun(begin))) == 20 + 50
    assert Counter(each["n"] for each in stored(cluster, "results")) == Counter(range(150))
    by_word: dict[str, set[int]] = {}
    for record in cluster.connect().reader(MODULE, "results").read_all():
        by_word.setdefault(json.loads(record.data)["word"], set()).add(record.task)
    assert all(len(tasks) == 1 for tasks in by_word.values())


@pytest.mark.soak
def test_a_leader_that_dies_while_a_stream_reads_costs_no_record(
    spark: SparkSession, cluster: Cluster
) -> None:
    produce(cluster, range(200))
    reading = spark.readStream.format("stretto").options(**options(cluster, "events"))
    rows = reading.option("records.max.per.trigger", "30").load()
    query = begun(lambda: rows.writeStream.format("memory").queryName("seen").start())
    try:
        cluster.leader().kill()
        produce(cluster, range(200, 260))
        query.processAllAvailable()
    finally:
        query.stop()
    seen = spark.sql("SELECT _task, offset, value FROM seen").collect()
    assert Counter(json.loads(row.value)["n"] for row in seen) == Counter(range(260))
    assert {(row._task, row.offset) for row in seen} == {
        (record.task, record.offset) for record in cluster.connect().reader(MODULE, "events").read_all()
    }
    assert max(progress["numInputRows"] for progress in query.recentProgress) <= 30


@pytest.mark.soak
def test_tasks_that_fail_before_amid_and_after_writing_write_their_rows_once(
    spark: SparkSession, cluster: Cluster
) -> None:
    spark.dataSource.register(Faulty)
    rows = spark.range(0, 80, 1, 4).select(
        concat(lit("w"), (col("id") % 7).cast("string")).alias("word"), col("id").alias("n")
    )
    rows.write.format("faulty").options(**options(cluster, "results")).mode("append").save()
    assert Counter(each["n"] for each in stored(cluster, "results")) == Counter(range(80))


@pytest.mark.soak
def test_a_write_that_is_repeated_under_its_name_adds_nothing_and_other_rows_are_refused(
    spark: SparkSession, cluster: Cluster
) -> None:
    def write(rows: DataFrame) -> None:
        writing = rows.write.format("stretto").options(**options(cluster, "results"))
        writing.option("write.id", "nightly").mode("append").save()

    rows = spark.range(0, 20, 1, 2).select(lit("w").alias("word"), col("id").alias("n"))
    write(rows)
    write(rows.sortWithinPartitions(col("n").desc()))
    assert Counter(each["n"] for each in stored(cluster, "results")) == Counter(range(20))
    with pytest.raises(PySparkException) as caught:
        write(rows.select("word", (col("n") + 1).alias("n")))
    assert "was begun with other rows than those computed now" in (sentence_of(caught.value) or "")
    assert len(stored(cluster, "results")) == 20


@pytest.mark.soak
def test_what_cannot_be_written_or_read_is_told_in_the_driver(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    rows = spark.range(0, 2).select(col("id").alias("n"))

    def refusal(depot: str, mode: str = "append") -> str:
        with pytest.raises(PySparkException) as caught:
            rows.write.format("stretto").options(**options(cluster, depot)).mode(mode).save()
        return sentence_of(caught.value) or str(caught.value)

    assert refusal("result") == f"module {MODULE} has no depot result; did you mean results?"
    assert "is partitioned by 'word', and the rows have no such column; they have n" in refusal("results")
    assert 'write with .mode("append")' in refusal("events", "overwrite")
    produce(cluster, range(4))
    reading = spark.readStream.format("stretto").options(**options(cluster, "events")).option("start", "3")
    writing = (
        reading.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    query = begun(writing.start)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(int(DEADLINE_SECONDS))
    assert "option start is 3 on task 0, where depot events has 0 to 2" in str(caught.value)
