"""Under which name a partition of a write is written: what is written twice is recognized by it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from pyspark_stretto import sink
from pyspark_stretto.options import Options
from pyspark_stretto.sink import StreamSink, Target
from stretto.errors import UsageError
from stretto.specs.modules import DepotSpec

SCHEMA = StructType([StructField("value", StringType())])


class Writers:
    """A client that tells which writers it was asked for, and what they wrote."""

    def __init__(self) -> None:
        self.written: dict[tuple[str, int], list[tuple[int, dict[int, list[bytes]]]]] = {}

    def named_writer(self, module: str, depot: str, name: str, part: int, *, lasting: bool) -> Any:
        assert (module, depot) == ("Counts", "events")
        rounds = self.written.setdefault((name, part), [])
        return SimpleNamespace(home=0, write=lambda number, records: rounds.append((number, records)))


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> Writers:
    writers = Writers()
    monkeypatch.setattr(sink, "client_of", lambda _: writers)
    return writers


def run_in(monkeypatch: pytest.MonkeyPatch, partition: int, batch: int) -> None:
    properties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(batch)}
    context = SimpleNamespace(partitionId=lambda: partition, getLocalProperty=properties.get)
    monkeypatch.setattr(TaskContext, "get", lambda: context)


def test_partitions_of_a_batch_are_written_under_names_of_their_own(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(Options(), "Counts", DepotSpec(name="events"), 4, ("value",))
    monkeypatch.setattr(Target, "of", lambda *_: target)
    stream = StreamSink(Options(), SCHEMA, False)
    for batch in (5, 6):
        for partition in (0, 2):
            run_in(monkeypatch, partition, batch)
            rows = pa.RecordBatch.from_pylist([{"value": f"{batch} {partition}"}])
            stream.write(iter([rows]))
    assert writers.written == {
        ("query q", 0): [(5, {0: [b"5 0"]}), (6, {0: [b"6 0"]})],
        ("query q", 2): [(5, {0: [b"5 2"]}), (6, {0: [b"6 2"]})],
    }


def checked(depot: DepotSpec, **columns: DataType) -> None:
    schema = StructType([StructField(name, type_) for name, type_ in columns.items()])
    Target(Options(), "Counts", depot, 4, tuple(columns)).check(schema)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"_task": LongType()}, "there are no columns to write but _task"),
        ({"value": LongType()}, "the column value is the record when it is alone"),
        ({"value": StringType(), "_task": StringType()}, "the column _task is a number, not string"),
        (
            {"name": StringType()},
            "is partitioned by 'user', and the rows have no such column; they",
        ),
    ],
)
def test_rows_that_are_no_records_of_the_depot_are_refused(columns: dict[str, DataType], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        checked(DepotSpec(name="events", partition_by="user"), **columns)


def test_rows_that_are_records_of_the_depot_are_taken() -> None:
    by_user = DepotSpec(name="events", partition_by="user")
    checked(by_user, user=StringType(), value=LongType())
    checked(by_user, value=StringType())
    checked(by_user, name=StringType(), _task=LongType())
