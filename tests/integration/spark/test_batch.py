"""Spark reads PStates and depots of a running cluster: every row once, as of one offset for each group."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_stretto.batch import BatchReader, PStateReader, RowsPart
from pyspark_stretto.errors import sentence_of
from pyspark_stretto.source import DefaultSource
from stretto import control
from stretto.client.reading.scan import PinnedGroup, release
from stretto.errors import PinLost, UsageError
from stretto.module.partition import owner_of
from stretto.network.asking import ask
from stretto.pstate.types import describe
from stretto.specs.modules import DepotSpec, ModuleSpec, PStateSpec
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.znodes.records import decode, encode
from tests.support.cluster import DEADLINE_SECONDS, MODULE, Cluster
from tests.support.states import put
from tests.support.waiting import wait_until

TASKS = 4


@dataclass
class Account:
    owner: str
    balance: int = 0


SHAPES: dict[str, Any] = {
    "counts": dict[str, int],
    "views": dict[str, dict[date, int]],
    "seen": dict[str, set[int]],
    "logs": dict[str, list[str]],
    "accounts": dict[int, Account],
    "words": set[str],
    "moments": dict[tuple[str, datetime], Decimal],
    "nothing": dict[str, int],
    "moving": dict[str, int],
}
COUNTS = {f"word {number:04d}": number for number in range(3_000)}
VIEWS = {f"/{page}": {date(2026, 1, day): page * day for day in range(1, 4)} for page in range(20)}
SEEN = {"ann": {1, 2, 300}, "bob": {-7}}
LOGS = {"today": ["one", "two"], "never": ["three"]}
ACCOUNTS = {number: Account(f"owner {number}", number * 10) for number in range(-5, 5)}
MOMENTS = {("a", datetime(2026, 1, 1, 12, tzinfo=UTC)): Decimal("1.25")}
RECORDS = [{"user": f"user {number}", "n": number} for number in range(500)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    specs = tuple(PStateSpec(name=name, type=describe(shape)) for name, shape in SHAPES.items())
    depots = (DepotSpec(name="events", partition_by="user"),)
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, zookeeper.address, tasks=TASKS, depots=depots, pstates=specs) as cluster:
        put(cluster, "counts", SHAPES["counts"], COUNTS)
        put(cluster, "views", SHAPES["views"], VIEWS)
        put(cluster, "seen", SHAPES["seen"], SEEN)
        put(cluster, "logs", SHAPES["logs"], LOGS)
        put(cluster, "accounts", SHAPES["accounts"], ACCOUNTS)
        put(cluster, "moments", SHAPES["moments"], MOMENTS)
        with cluster.connect().producer(MODULE, "events") as producer:
            for record in RECORDS:
                _ = producer.append(msgspec.json.encode(record), task=owner_of(record["user"], TASKS))
        yield cluster


@pytest.fixture(scope="module")
def load(spark: SparkSession, cluster: Cluster) -> Callable[..., DataFrame]:
    def load(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("stretto").option("bootstrap", ",".join(cluster.addresses()))
        reader = reader.option("module", MODULE)
        for name, value in options.items():
            reader = reader.option(name.replace("_", "."), value)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


def test_every_row_of_a_pstate_is_read_once_with_its_task_and_offset(
    load: Callable[..., DataFrame], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    rows = load(pstate="counts", report=str(report)).collect()
    assert {row["key"]: row["value"] for row in rows} == COUNTS
    assert len(rows) == len(COUNTS)
    assert all(row["_task"] == owner_of(row["key"], TASKS) for row in rows)
    told = msgspec.json.decode(report.read_bytes())
    offsets = {task: group["offset"] for group in told["groups"] for task in group["tasks"]}
    assert {(row["_task"], row["_apply_offset"]) for row in rows} == set(offsets.items())
    assert not any(group["by_leader"] for group in told["groups"])


@pytest.mark.soak
def test_all_shapes_come_with_their_types(load: Callable[..., DataFrame]) -> None:
    views = load(pstate="views")
    assert views.schema.simpleString() == (
        "struct<key:string,key_2:date,value:bigint,_task:int,_apply_offset:bigint>"
    )
    found: dict[str, dict[date, int]] = {}
    for row in views.collect():
        found.setdefault(row["key"], {})[row["key_2"]] = row["value"]
    assert found == VIEWS
    assert {row["key"]: row["value"] for row in load(pstate="views", nested="map").collect()} == VIEWS
    seen = load(pstate="seen", nested="map").collect()
    assert {row["key"]: set(row["value"]) for row in seen} == SEEN
    logs = load(pstate="logs").collect()
    assert sorted((row["key"], row["position"], row["value"]) for row in logs) == [
        ("never", 0, "three"),
        ("today", 0, "one"),
        ("today", 1, "two"),
    ]
    [moment] = load(pstate="moments").collect()
    assert (moment["key"]["_1"], moment["value"]) == ("a", Decimal("1.25"))
    assert load(pstate="nothing").count() == 0
    assert load(pstate="words").columns == ["key", "_task", "_apply_offset"]


@pytest.mark.soak
def test_large_tasks_are_read_in_parts_and_keys_of_maps_are_not_cut(load: Callable[..., DataFrame]) -> None:
    counts = load(pstate="counts", split_bytes="8192")
    assert counts.rdd.getNumPartitions() > 2 * TASKS
    assert counts.agg(F.count("key"), F.sum("value")).first() == (len(COUNTS), sum(COUNTS.values()))
    views = load(pstate="views", nested="map", split_bytes="1")
    assert {row["key"]: row["value"] for row in views.collect()} == VIEWS


@pytest.mark.soak
def test_filters_on_keys_choose_what_is_read(spark: SparkSession, load: Callable[..., DataFrame]) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        counts = load(pstate="counts", filters="pushed")
        one = counts.where("key = 'word 0007'")
        assert one.rdd.getNumPartitions() == 1
        assert [row["value"] for row in one.collect()] == [7]
        few = counts.where("key in ('word 0001', 'word 2999', 'other')").select("value")
        assert sorted(row["value"] for row in few.collect()) == [1, 2999]
        assert counts.where("key >= 'word 2000' and key < 'word 2010' and value > 2004").count() == 5
        assert counts.where("key like 'word 01%'").count() == 100
        assert counts.where("_task = 2").select("_task").distinct().collect() == [(2,)]
        views = load(pstate="views", filters="pushed")
        assert views.where("key = '/3' and key_2 > DATE'2026-01-01'").count() == 2
        accounts = load(pstate="accounts", filters="pushed").where("key < 0 and balance > -40")
        assert {row["owner"] for row in accounts.collect()} == {"owner -3", "owner -2", "owner -1"}
        moments = load(pstate="moments", filters="pushed")
        assert moments.where("key._1 = 'a'").count() == 1
        assert moments.where("key._1 > 'a'").count() == 0
        one = moments.where("key._1 = 'a' and key._2 = TIMESTAMP'2026-01-01 12:00:00Z'")
        assert one.rdd.getNumPartitions() == 1
        assert [row["value"] for row in one.collect()] == [Decimal("1.25")]
        events = load(depot="events", filters="pushed")
        assert events.where("offset >= 5 and offset < 8").count() == 3 * TASKS
        assert events.where("timestamp > TIMESTAMP'2020-01-01 00:00:00Z'").count() == len(RECORDS)
        unasked = load(pstate="counts")
        assert unasked.where("key = 'word 0007'").count() == 1
        assert unasked.count() == len(COUNTS), "a plan with filters is kept for queries without"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.soak
def test_records_of_a_depot_are_read_by_offset_and_time(load: Callable[..., DataFrame]) -> None:
    events = load(depot="events").collect()
    assert (
        sorted((msgspec.json.decode(row["value"]) for row in events), key=lambda each: each["n"]) == RECORDS
    )
    assert {(row["_task"], row["offset"]) for row in events} == {
        (task, offset)
        for task in range(TASKS)
        for offset in range(sum(owner_of(record["user"], TASKS) == task for record in RECORDS))
    }
    assert load(depot="events", start="10", end='{"0": 12, "1": 10, "2": 11, "3": 5}').count() == 3
    assert load(depot="events", start_time="2100-01-01T00:00:00+00:00").count() == 0
    assert load(depot="events", start_time="2020-01-01T00:00:00Z", split_bytes="4096").count() == len(RECORDS)
    parsed = load("user string, n bigint, offset bigint", depot="events")
    assert parsed.agg(F.sum("n"), F.count("user")).first() == (sum(range(500)), 500)


@pytest.mark.soak
def test_what_cannot_be_read_is_told_in_one_sentence(
    load: Callable[..., DataFrame], spark: SparkSession, cluster: Cluster
) -> None:
    def refusal(schema: str | None = None, **options: str) -> str:
        with pytest.raises(PySparkException) as caught:
            load(schema, **options).collect()
        assert "Traceback" not in str(caught.value)
        return sentence_of(caught.value) or str(caught.value)

    assert refusal(pstate="count") == f"module {MODULE} has no PState count; did you mean counts?"
    assert refusal(depot="event") == f"module {MODULE} has no depot event; did you mean events?"
    assert refusal(pstate="counts", module="count") == f"there is no module count; did you mean {MODULE}?"
    assert "say what to read" in refusal()
    assert "no cluster answers at 127.0.0.1:1, 127.0.0.1:2;" in refusal(
        pstate="counts", bootstrap="127.0.0.1:1,127.0.0.1:2"
    )
    assert refusal("key string, valu bigint", pstate="counts") == (
        "the schema given has a column valu, and PState counts has none; did you mean value?"
    )
    assert "does not fit the schema given" in refusal("user bigint", depot="events")


def failing_at_first(notes: Path) -> type[DefaultSource]:
    """Reads that break in the first attempt at each part, after some rows, and tell of the pins they had."""

    class BrokenReader(PStateReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            assert isinstance(partition, RowsPart)
            assert isinstance(partition.where, PinnedGroup)
            attempt = context.attemptNumber()
            (notes / f"{partition.task}-{attempt}").write_text(partition.where.pin)
            for batch in super().read(partition):
                yield batch
                if attempt == 0:
                    raise RuntimeError("injected, while it reads")

    class Broken(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "broken"

        def reader(self, schema: StructType) -> DataSourceReader:
            return BrokenReader(self._parsed, self._known(), schema)

    return Broken


@pytest.mark.soak
def test_a_task_that_fails_amid_a_part_reads_it_again_under_the_same_pin(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    before = {f"key {number}": number for number in range(40)}
    put(cluster, "moving", SHAPES["moving"], before)
    spark.dataSource.register(failing_at_first(tmp_path))
    where = {"bootstrap": ",".join(cluster.addresses()), "module": MODULE, "pstate": "moving"}
    where["moment"] = "load"
    rows = spark.read.format("broken").options(**where).load()
    assert rows.rdd.getNumPartitions() == TASKS
    put(cluster, "moving", SHAPES["moving"], dict.fromkeys(before, -1))
    found = rows.collect()
    assert len(found) == len(before)
    assert {row["key"]: row["value"] for row in found} == before
    for task in range(TASKS):
        first, second = ((tmp_path / f"{task}-{attempt}").read_text() for attempt in (0, 1))
        assert first == second


@pytest.mark.soak
def test_a_read_whose_worker_died_fails_in_the_driver_and_names_the_pin(
    spark: SparkSession, cluster: Cluster, load: Callable[..., DataFrame], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    rows = load(pstate="counts", moment="load", report=str(report))
    assert rows.rdd.getNumPartitions() == TASKS
    group = msgspec.json.decode(report.read_bytes())["groups"][0]
    cluster.workers[group["worker"]].kill()
    try:
        with pytest.raises(PySparkException) as caught:
            rows.collect()
    finally:
        cluster.heal()
    sentence = sentence_of(caught.value)
    assert sentence is not None
    assert re.match(r"pin \w+ of group \S+ on worker \S+ is lost: ", sentence)
    assert sentence.endswith("load it again")
    assert load(pstate="counts").count() == len(COUNTS)


# Without Spark around it: what its processes do, done by hand.


def source_of(cluster: Cluster, **options: str) -> DefaultSource:
    given = {"bootstrap": ",".join(cluster.addresses()), "module": MODULE, **options}
    return DefaultSource(CaseInsensitiveDict(given))


def reader_of(source: DefaultSource) -> BatchReader:
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    return reader


def read_all(reader: BatchReader, parts: list[InputPartition]) -> dict[str, int]:
    batches = [batch for part in parts for batch in pickle.loads(pickle.dumps(reader)).read(part)]
    return {row["key"]: row["value"] for batch in batches for row in batch.to_pylist()}


def test_a_part_that_is_read_again_is_the_same_and_a_lost_pin_is_named(cluster: Cluster) -> None:
    before = {f"key {number}": number for number in range(40)}
    put(cluster, "moving", SHAPES["moving"], before)
    reader = reader_of(source_of(cluster, pstate="moving"))
    parts = reader.partitions()
    assert read_all(reader, parts) == before
    put(cluster, "moving", SHAPES["moving"], dict.fromkeys(before, -1))
    assert read_all(reader, parts) == before
    assert read_all(reader, reader.partitions()) == dict.fromkeys(before, -1)
    assert isinstance(parts[0], RowsPart)
    assert isinstance(parts[0].where, PinnedGroup)
    pinned = parts[0].where
    release([pinned])
    with pytest.raises(PinLost, match=f"pin {pinned.pin} of group {pinned.group} on worker {pinned.worker}"):
        read_all(reader, parts)


@pytest.mark.soak
def test_pins_that_wait_for_their_turn_last_while_other_parts_are_read(start: Callable[..., Cluster]) -> None:
    specs = (PStateSpec(name="counts", type=describe(SHAPES["counts"])),)
    idle_ms = 3_000
    options = {"pin.idle.timeout.millis": idle_ms}
    slow = start(
        workers=3, tasks=TASKS, groups=2, depots=(DepotSpec(name="events"),), pstates=specs, options=options
    )
    put(slow, "counts", SHAPES["counts"], COUNTS)
    network = slow.connect()._network
    reader = reader_of(source_of(slow, pstate="counts"))
    first, *others = parts = reader.partitions()
    assert [part.where.group for part in parts] == [parts[0].where.group, parts[1].where.group] * 2  # type: ignore[attr-defined]

    def pins() -> list[control.PinView]:
        return [
            pin for address in slow.addresses() for pin in ask(network, address, control.Pins(), timeout=5.0)
        ]

    reading = reader.read(first)
    begun = next(reading)
    wait_until(
        "the pins are older than an idle one gets",
        lambda: all(pin.age_ms > 2 * idle_ms for pin in pins()),
        DEADLINE_SECONDS,
    )
    rows = [row for batch in [begun, *reading] for row in batch.to_pylist()]
    found = {row["key"]: row["value"] for row in rows} | read_all(reader, others)
    assert found == COUNTS


def test_leaders_serve_if_they_are_asked_to(cluster: Cluster, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    reader = reader_of(source_of(cluster, pstate="counts", report=str(report), **{"from": "leader"}))
    assert read_all(reader, reader.partitions()) == COUNTS
    told = msgspec.json.decode(report.read_bytes())
    assert [group["worker"] for group in told["groups"]] == [
        cluster.leader(number).name for number in range(len(cluster.plans))
    ]
    assert all(group["by_leader"] for group in told["groups"])


def test_an_update_of_the_module_after_the_frame_was_made_is_told(cluster: Cluster) -> None:
    reader = reader_of(source_of(cluster, pstate="counts"))
    path = cluster.paths.spec(MODULE)
    before = decode(cluster.operator.get(path)[0], ModuleSpec, path)
    after = msgspec.structs.replace(before, version=before.version + 1, artifact=f"{before.version:064d}")
    updates = {worker: worker.said("module_updated") for worker in cluster.workers.values()}
    cluster.operator.set(path, encode(after))
    wait_until(
        "every worker goes by the new version",
        lambda: all(worker.said("module_updated") > count for worker, count in updates.items()),
        DEADLINE_SECONDS,
    )
    versions = f"from version {before.version} to {after.version}"
    with pytest.raises(UsageError, match=f"module {MODULE} was updated {versions} after this DataFrame"):
        reader.partitions()
    reader = reader_of(source_of(cluster, pstate="counts"))
    assert read_all(reader, reader.partitions()) == COUNTS
