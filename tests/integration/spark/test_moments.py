"""Every query of a DataFrame or a view reads the present, and all its tasks read at one moment."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import CaseInsensitiveDict, EqualTo, InputPartition
from pyspark.sql.types import LongType, StringType, StructType

from pyspark_stretto import batch, moments, states
from pyspark_stretto.batch import BatchReader
from pyspark_stretto.source import DefaultSource
from stretto import control
from stretto.client.reading.scan import release
from stretto.errors import PinLost, StrettoError, UsageError
from stretto.network.asking import ask
from stretto.pstate.types import describe
from stretto.specs.modules import DepotSpec, PStateSpec
from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import MODULE, Cluster
from tests.support.states import put

TASKS = 4
COUNTS = dict[str, int]
KEYS = [f"key {number}" for number in range(40)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    specs = tuple(PStateSpec(name=name, type=describe(COUNTS)) for name in ("counts", "empty", "other"))
    folder = tmp_path_factory.mktemp("cluster")
    shape: dict[str, Any] = {"tasks": TASKS, "depots": (DepotSpec(name="events"),), "pstates": specs}
    with Cluster(folder, zookeeper.address, **shape) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "FIRST_PART_SECONDS", 0.5)
    monkeypatch.setattr(moments, "GIVE_UP_SECONDS", 1.0)


def fill(cluster: Cluster, value: int, name: str = "counts") -> dict[str, int]:
    rows = dict.fromkeys(KEYS, value)
    put(cluster, name, COUNTS, rows)
    return rows


def where(cluster: Cluster, **options: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return {"bootstrap": ",".join(cluster.addresses()), "module": MODULE, **given}


# In Spark.


@contextmanager
def changing(cluster: Cluster) -> Iterator[None]:
    """All values of all keys change together on each task, again and again, as long as the block lasts."""
    is_over = threading.Event()

    def change() -> None:
        value = 1_000
        while not is_over.is_set():
            fill(cluster, value)
            value += 1

    with ThreadPoolExecutor(1) as pool:
        changes = pool.submit(change)
        try:
            yield
        finally:
            is_over.set()
            changes.result()


def test_a_frame_and_a_view_stay_usable_and_read_the_present(spark: SparkSession, cluster: Cluster) -> None:
    fill(cluster, 1)
    frame = spark.read.format("stretto").options(**where(cluster, pstate="counts")).load()
    options = ", ".join(f"`{name}` '{value}'" for name, value in where(cluster, pstate="counts").items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW counted USING stretto OPTIONS ({options})")
    sums = "SELECT sum(value), count(*) FROM counted"
    assert frame.agg(F.sum("value"), F.count("*")).first() == (40, 40)
    assert spark.sql(sums).first() == (40, 40)
    assert frame.count() == 40
    fill(cluster, 2)
    end_all_pins(cluster)
    assert frame.agg(F.sum("value"), F.count("*")).first() == (80, 40)
    assert spark.sql(sums).first() == (80, 40)
    fill(cluster, 3)
    spark.sql("REFRESH TABLE counted")
    assert spark.sql(sums).first() == (120, 40)
    spark.catalog.dropTempView("counted")
    with changing(cluster):
        assert_one_moment(frame)


def assert_one_moment(frame: DataFrame) -> None:
    """Of a join with itself, whose two sides are read one after the other."""
    twice = frame.alias("a").join(frame.alias("b"), "key")
    pairs = twice.selectExpr("a._apply_offset as a", "b._apply_offset as b", "a.value - b.value as d")
    found = pairs.distinct().collect()
    assert found
    assert all(row["a"] == row["b"] and row["d"] == 0 for row in found), found


@pytest.mark.soak
def test_no_query_mixes_moments_whatever_it_reads_twice_or_has_cached(
    spark: SparkSession, cluster: Cluster
) -> None:
    def load() -> DataFrame:
        return spark.read.format("stretto").options(**where(cluster, pstate="counts")).load()

    frame = load()
    with changing(cluster):
        for _ in range(5):
            assert_one_moment(frame)
            assert frame.union(frame).select("value", "_task").distinct().count() == TASKS
            assert frame.orderBy("value").select("value", "_task").distinct().count() == TASKS
    fill(cluster, 7)
    half = load().cache()
    assert len(half.head(1)) == 1
    fill(cluster, 8)
    assert half.agg(F.sum("value"), F.count("*")).first() == (280, 40), "cached rows are of the moment before"
    half.unpersist()


# Without Spark around it: what its processes do, done by hand.


class Process:
    """A process of Spark that runs tasks of one query."""

    def __init__(self, reader: BatchReader, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reader = reader
        self._patch = monkeypatch

    def run(self, query: int, parts: list[InputPartition]) -> dict[str, tuple[int, int]]:
        """By key: its value, and the apply offset it was read at. Nothing is known from tasks before."""
        moments._known.clear()
        self._patch.setattr(batch, "query_of_task", lambda: query)
        rows = [row for part in parts for each in batches(self._reader, part) for row in each.to_pylist()]
        return {row["key"]: (row["value"], row["_apply_offset"]) for row in rows}

    def values(self, query: int, parts: list[InputPartition]) -> dict[str, int]:
        return {key: value for key, (value, _) in self.run(query, parts).items()}


def batches(reader: BatchReader, part: InputPartition) -> Iterator[pa.RecordBatch]:
    for each in reader.read(part):
        assert isinstance(each, pa.RecordBatch)
        yield each


def reader_of(cluster: Cluster, **options: str) -> BatchReader:
    source = DefaultSource(CaseInsensitiveDict(where(cluster, **options)))
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    return reader


@pytest.fixture
def read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Process, list[Any]]]:
    def read(**options: str) -> tuple[Process, list[Any]]:
        reader = reader_of(cluster, **options)
        return Process(reader, monkeypatch), reader.partitions()

    return read


def pins(cluster: Cluster) -> list[control.PinView]:
    network = cluster.connect()._network
    return [
        pin for address in cluster.addresses() for pin in ask(network, address, control.Pins(), timeout=5.0)
    ]


def end_all_pins(cluster: Cluster) -> None:
    """As if nobody had read them for a while."""
    reader = reader_of(cluster, pstate="counts")
    addresses = {part.where.worker: part.where for part in reader.partitions()}  # type: ignore[attr-defined]
    for pin in pins(cluster):
        if pin.worker in addresses:
            release([msgspec.structs.replace(addresses[pin.worker], pin=pin.pin, group=pin.group)])


Read = Callable[..., tuple[Process, list[Any]]]


def test_the_next_query_reads_the_present_also_on_tasks_that_had_nothing(
    read: Read, cluster: Cluster
) -> None:
    process, parts = read(pstate="empty")
    assert process.run(1, parts) == {}
    rows = fill(cluster, 5, "empty")
    assert process.run(1, parts) == {}, "a task of the same query that is run again reads the same"
    assert process.values(2, parts) == rows


def test_records_that_came_after_the_plan_are_read_by_the_next_query(read: Read, cluster: Cluster) -> None:
    def appended(count: int) -> None:
        with cluster.connect().producer(MODULE, "events") as producer:
            for number in range(count):
                _ = producer.append(b"{}", task=number % TASKS)

    def count(query: int) -> int:
        moments._known.clear()
        process._patch.setattr(batch, "query_of_task", lambda: query)
        return sum(each.num_rows for part in parts for each in batches(process._reader, part))

    appended(10)
    process, parts = read(depot="events", split_bytes="1")
    assert count(1) == 10
    appended(7)
    assert count(1) == 10
    assert count(2) == 17


def test_tasks_that_race_to_decide_agree_and_what_was_pinned_in_vain_is_given_back(
    read: Read, cluster: Cluster
) -> None:
    process, parts = read(pstate="counts")
    fill(cluster, 1)
    process.run(1, parts)
    reader, before = process._reader, {pin.pin for pin in pins(cluster)}
    decide = [parts[0].plan] * 4 + [part.plan for part in parts[1:]]

    def agree(plan: moments.Plan) -> control.ReadMoment:
        with states.reached(reader._options) as reached:
            return moments._Agreeing(reached, reader._options, reader._described, plan, 2).agree()

    with ThreadPoolExecutor(len(decide)) as pool:
        found = list(pool.map(agree, decide))
    assert len({moment.generation for moment in found}) == 1
    assert {pin.pin for pin in pins(cluster)} - before == {pinned.pin for pinned in found[0].pinned}


@pytest.mark.parametrize("schema", [None, StructType().add("key", StringType()).add("value", LongType())])
def test_a_load_that_is_planned_twice_at_once_is_read_at_one_moment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, schema: StructType | None
) -> None:
    """As Spark does if the first query of a frame joins it with itself."""
    options = CaseInsensitiveDict(where(cluster, pstate="counts"))
    fill(cluster, 1)
    sources = [DefaultSource(options), DefaultSource(options)]
    if schema is None:
        sources[0].schema()
        sources = [pickle.loads(pickle.dumps(sources[0])) for _ in range(2)]
    readers = [source.reader(schema or source.schema()) for source in sources]
    plans = []
    for number, reader in enumerate(readers):
        fill(cluster, number)
        plans.append(reader.partitions())
    values = []
    monkeypatch.setattr(batch, "query_of_task", lambda: 1)
    for reader, parts in zip(readers, plans, strict=True):
        moments._known.clear()
        assert isinstance(reader, BatchReader)
        rows = [row for part in parts for each in batches(reader, part) for row in each.to_pylist()]
        values += [row["value"] for row in rows]
    assert len(values) == 2 * len(KEYS)
    assert len(set(values)) == 1


def test_a_query_whose_pin_is_lost_fails_although_workers_were_started_anew_and_the_next_one_reads(
    read: Read, cluster: Cluster
) -> None:
    rows = fill(cluster, 1)
    process, parts = read(pstate="counts")
    first = process.run(1, parts[:1])
    for worker in cluster.workers.values():
        worker.kill()
    cluster.heal()
    changed = fill(cluster, 2)
    assert set(first) < set(rows)
    for part in parts:
        with pytest.raises(PinLost):
            process.run(1, [part])
    assert process.values(2, parts) == changed


def test_rows_in_a_cache_are_joined_by_rows_of_their_moment_or_not_at_all(
    read: Read, cluster: Cluster
) -> None:
    before = fill(cluster, 1)
    process, parts = read(pstate="counts")
    cached = process.values(1, parts[:1])
    fill(cluster, 2)
    assert cached | process.values(2, parts[1:]) == before
    after = process.values(3, parts)
    assert set(after.values()) == {2}
    with pytest.raises(UsageError, match="would mix two moments"):
        process.run(4, parts[1:])


def test_a_plan_that_let_a_group_go_reads_under_pins_of_all_groups(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another plan of the same ``load()``, with other filters, may read the group that was let go."""
    rows = fill(cluster, 1)
    reader = reader_of(cluster, pstate="counts", filters="pushed")
    assert list(reader.push([EqualTo(("key",), KEYS[0])])) == []
    parts = reader.partitions()
    assert len(parts) == 1
    assert Process(reader, monkeypatch).values(1, parts) == {KEYS[0]: rows[KEYS[0]]}
    plan = parts[0].plan  # type: ignore[attr-defined]
    moment = moments.moment_of(reader._options, reader._described, plan, 1)
    assert sorted(task for pinned in moment.pinned for task in pinned.tasks) == list(range(TASKS))


def test_queries_share_a_moment_while_it_is_held_and_then_it_is_told(
    read: Read, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fill(cluster, 1)
    process, parts = read(pstate="counts", hold_seconds="600")
    assert process.values(1, parts) == before
    after = fill(cluster, 2)
    assert process.values(2, parts) == before
    assert capsys.readouterr().err == ""
    release([part.where for part in parts])
    assert process.values(3, parts) == after
    assert process.values(4, parts) == after
    told = capsys.readouterr().err
    assert told.count("queries read as of now from here on") == 1
    with pytest.raises(UsageError, match="a pin lasts at most 3600 s here"):
        read(pstate="counts", hold_seconds="7200")


def test_a_read_of_one_moment_only_fails_when_that_is_lost(read: Read, cluster: Cluster) -> None:
    before = fill(cluster, 1)
    process, parts = read(pstate="counts", moment="load")
    fill(cluster, 2)
    assert process.values(1, parts) == before
    release([part.where for part in parts])
    with pytest.raises(PinLost, match="load it again"):
        process.run(2, parts)


# What a worker keeps of it.


def test_the_first_offer_stands_and_old_ones_make_room(read: Read, cluster: Cluster) -> None:
    _, parts = read(pstate="other")
    network, address = cluster.connect()._network, cluster.addresses()[0]
    pinned = parts[0].plan.pinned

    def decide(query: int, planned_ms: int) -> control.ReadMoment:
        offer = control.ReadMoment(query=query, planned_ms=planned_ms, pinned=pinned)
        call = control.DecideMoment(module=MODULE, plan="0" * 28, offer=offer)
        return ask(network, address, call, timeout=20.0)

    def find(query: int) -> control.MomentFound:
        call = control.FindMoment(module=MODULE, plan="0" * 28, query=query)
        return ask(network, address, call, timeout=20.0)

    for query in range(100, 170):
        assert decide(query, query).planned_ms == query
    assert decide(169, 5).planned_ms == 169
    known = ask(network, address, control.FindMoments(module=MODULE, plan="0" * 28), timeout=20.0)
    assert [moment.query for moment in known] == list(range(106, 170))
    with pytest.raises(StrettoError, match="run the query again"):
        decide(105, 1)
    with pytest.raises(StrettoError, match="more than 64 queries of this read were begun since"):
        find(105)
    assert find(170).is_begun is False
    begun = ask(
        network, address, control.AnnounceMoment(module=MODULE, plan="0" * 28, query=170), timeout=20.0
    )
    assert (begun.is_begun, find(170).is_begun, find(171).is_begun) == (True, True, False)
    with pytest.raises(StrettoError, match="cannot be a name in the metastore"):
        ask(network, address, control.FindMoments(module=MODULE, plan="a/b"), timeout=20.0)
    old = decide(170, 1)
    call = control.DecideMoment(module=MODULE, plan="1" * 28, offer=old)
    assert ask(network, address, call, timeout=20.0) == old
    assert set(cluster.operator.get_children(cluster.paths.reads_of_plan(MODULE, "0" * 28))) == {
        str(query) for query in range(107, 171)
    }, "what was announced is not kept once it is decided"
    path = cluster.paths.reads_of(MODULE)
    assert "0" * 28 in cluster.operator.get_children(path), "its newest query is young, whatever its name"
