"""Under which producers the partitions of a write reach the workers, who know by them what is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_stretto import sink
from pyspark_stretto.options import Options
from pyspark_stretto.sink import BatchSink, StreamSink, Written
from stretto import connect
from stretto.control import ModuleDescription
from stretto.errors import StrettoError
from stretto.replog.core.producers import is_lasting, is_named
from stretto.specs.modules import DepotSpec
from stretto.vocabulary.types import Offset
from stretto.wire import messages as wire
from tests.unit.client.workers import MODULE, FakeWorker

OPTIONS = Options(module=MODULE, depot="d")
SCHEMA = StructType([StructField("value", StringType())])
DESCRIPTION = ModuleDescription(tasks=2, depots=(DepotSpec(name="d"),))


class Context:
    """A task of Spark's."""

    def __init__(self, query: str | None, batch: int | None, partition: int = 0) -> None:
        self._properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": batch}
        self._partition = partition

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        value = self._properties[name]
        return None if value is None else str(value)

    def partitionId(self) -> int:  # noqa: N802
        return self._partition


class Spark:
    """Runs tasks, each in a context, against a worker that takes whatever it is sent."""

    def __init__(self, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[wire.AppendBatch] = []
        self._context: Context | None = None
        worker.answer = self._take
        client = connect([worker.address])
        self.close = client.close
        module = SimpleNamespace(describe=lambda _: DESCRIPTION, named_writer=client.named_writer)
        monkeypatch.setattr(sink, "client_of", lambda _: module)
        monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: self._context))

    def _take(self, message: wire.AppendBatch) -> wire.ToClient:
        self.sent.append(message)
        return wire.Appended(message.request, Offset(0))

    def run(self, writer: BatchSink | StreamSink, context: Context | None) -> list[wire.AppendBatch]:
        """What a task that writes two rows sends: a claim, and the records."""
        self._context = context
        self.sent.clear()
        rows = pa.RecordBatch.from_pylist([{"value": "a"}, {"value": "b"}])
        assert writer.write(iter([rows])) == Written(2)
        return list(self.sent)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    worker = FakeWorker()
    spark = Spark(worker, monkeypatch)
    yield spark
    spark.close()
    worker.close()


def test_a_round_of_a_stream_is_known_for_good(spark: Spark) -> None:
    """A query that rested for weeks repeats its latest micro-batch first."""
    sent = spark.run(StreamSink(OPTIONS, SCHEMA, overwrite=False), Context("q", 7))
    assert len(sent) == 2
    assert all(is_lasting(message.producer) for message in sent)


def test_a_write_that_is_no_stream_may_be_forgotten(spark: Spark) -> None:
    sent = spark.run(BatchSink(OPTIONS, SCHEMA, overwrite=False), Context(None, None))
    assert len(sent) == 2
    assert all(is_named(message.producer) and not is_lasting(message.producer) for message in sent)


def test_a_micro_batch_that_is_repeated_comes_as_the_same_round_and_another_as_another(spark: Spark) -> None:
    def keys(query: str, batch: int) -> list[tuple[int, int]]:
        # Each attempt has a writer of its own, as after a restart.
        sent = spark.run(StreamSink(OPTIONS, SCHEMA, overwrite=False), Context(query, batch))
        return [(message.producer, message.sequence) for message in sent]

    first = keys("q", 7)
    assert keys("q", 7) == first
    following, other = keys("q", 8), keys("another", 7)
    assert [producer for producer, _ in following] == [producer for producer, _ in first]
    assert all(after > before for (_, before), (_, after) in zip(first, following, strict=True))
    assert not {producer for producer, _ in other} & {producer for producer, _ in first}


@pytest.mark.parametrize("context", [None, Context("q", None), Context(None, 7)])
def test_a_stream_whose_batch_is_not_known_writes_nothing(spark: Spark, context: Context | None) -> None:
    with pytest.raises(StrettoError, match="cannot be written once"):
        spark.run(StreamSink(OPTIONS, SCHEMA, overwrite=False), context)
    assert spark.sent == []
