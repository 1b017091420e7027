"""What Spark reads from a cluster, next to ready-made batches of the same rows that nobody has to serve.

The cluster is three workers over an embedded ZooKeeper with one group; followers serve what Spark reads. The
ready-made batches lie in files of Arrow, mapped into memory, and are yielded by a Python data source that
does nothing else. Both go through the same aggregate in the same Spark, in turn.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_stretto import register
from stretto.bench import Result
from stretto.bench.replication import (
    DEPOT,
    MODULE,
    READY_SECONDS,
    RECORD_BYTES,
    RECORDS,
    REPLICAS,
    TASKS,
    asking,
    in_turn,
    requests,
    workers,
)
from stretto.client import connect
from stretto.client.api import Client
from stretto.client.asking.question import Question
from stretto.errors import StrettoError
from stretto.module.partition import owner_of
from stretto.network.routing import Network
from stretto.pstate import ordered
from stretto.pstate.changes import Changes, pack
from stretto.pstate.types import describe
from stretto.replog.frame import Kind
from stretto.specs.modules import DepotSpec, ModuleSpec, ModuleState, PStateSpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import ProducerId, TaskId, WorkerId
from stretto.wire import messages as wire

PSTATE = "counts"
ROWS_PER_ENTRY = 20_000
READY_ROWS = 16_384
SERVING_ROWS = 400_000
SERVING_SECONDS = 4
SERVING_TARGET = 0.80
ROWS = 2_000_000
ROWS_TARGET = 0.60

Aggregate = tuple[int, int]
"""Number of rows, and the sum of their values."""


def rows(folder: Path) -> Result:
    """Measure an aggregate over all rows of a PState, against the same rows ready-made."""
    with workers(folder / "real", spec()) as addresses, session() as spark:
        fill(addresses, ROWS)
        ready = make_ready(spark, addresses, folder / "ready")

        def rate(frame: Callable[[], DataFrame]) -> float:
            started = time.perf_counter()
            check_rows(aggregate(frame()), ROWS)
            return ROWS / (time.perf_counter() - started)

        return in_turn(
            lambda: rate(lambda: from_cluster(spark, addresses)),
            lambda: rate(ready),
            unit="rows/s",
            target=ROWS_TARGET,
        )


def serving(folder: Path) -> Result:
    """Measure appends while Spark reads from followers, against appends beside a Spark as busy."""
    done = {"cluster": 0, "ready-made": 0}
    with (
        workers(folder / "real", spec()) as addresses,
        asking(_append, addresses) as append,
        session() as spark,
    ):
        fill(addresses, SERVING_ROWS)
        frames = {
            "cluster": lambda: from_cluster(spark, addresses),
            "ready-made": make_ready(spark, addresses, folder / "ready"),
        }

        def beside(which: str) -> float:
            with _again_and_again(frames[which], SERVING_ROWS) as count:
                rate = append("seconds", SERVING_SECONDS)
            done[which] += count()
            return rate

        result = in_turn(
            lambda: beside("cluster"), lambda: beside("ready-made"), unit="rec/s", target=SERVING_TARGET
        )
    told = ", ".join(f"{times} of {which}" for which, times in done.items())
    return replace(result, detail=f"{result.detail}; Spark read {SERVING_ROWS:,} rows {told}")


@contextlib.contextmanager
def _again_and_again(frame: Callable[[], DataFrame], rows: int) -> Iterator[Callable[[], int]]:
    """Run aggregates one after the other as long as the block lasts; yields a function that counts them."""
    begun, over = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    count = 0

    def read() -> None:
        nonlocal count
        try:
            while not over.is_set():
                check_rows(aggregate(frame()), rows)
                count += 1
                begun.set()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
            begun.set()

    thread = threading.Thread(target=read, name="spark")
    thread.start()
    begun.wait()
    try:
        yield lambda: count
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


def _append(commands: Connection, addresses: list[str]) -> None:
    """Append batches for so many seconds when asked, and answer with the records per second."""
    client = connect(addresses, timeout=READY_SECONDS)
    producer = client.producer(MODULE, DEPOT)
    batch = [os.urandom(RECORD_BYTES)] * RECORDS
    with client:
        for _, seconds in requests(commands):
            started, batches = time.perf_counter(), 0
            while time.perf_counter() - started < seconds:
                _ = producer.append_batch(batch)
                batches += 1
            producer.flush()
            commands.send(batches * RECORDS / (time.perf_counter() - started))


# What both measures share.


def spec() -> ModuleSpec:
    return ModuleSpec(
        artifact="",
        tasks=TASKS,
        threads=1,
        workers=REPLICAS,
        replication_factor=REPLICAS,
        state=ModuleState.RUNNING,
        depots=(DepotSpec(name=DEPOT),),
        pstates=(PStateSpec(name=PSTATE, type=describe(dict[str, int])),),
    )


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Discard the standard error of processes started in this block; what fails still raises here."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    """Yield a Spark session, and stop it at the end unless there was one before."""
    is_own = SparkSession.getActiveSession() is None
    # Spark's own choice is the python3 of PATH, which need not be the one that has stretto.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("stretto bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
    )
    with _unheard():
        spark = builder.getOrCreate()
        register(spark)
    spark.dataSource.register(ReadyMade)
    try:
        yield spark
    finally:
        if is_own:
            spark.stop()


def fill(addresses: list[str], rows: int) -> None:
    """Fill the PState with entries, as a worker does whose topology changes it."""
    values: dict[TaskId, list[tuple[bytes, bytes]]] = {}
    for number in range(rows):
        key = f"user-{number:08d}"
        values.setdefault(owner_of(key, TASKS), []).append(
            (ordered.encode(key), msgspec.msgpack.encode(number))
        )
    network = Network(addresses, None, worker=WorkerId("bench"))
    with Client(network) as client:
        client.refresh(READY_SECONDS)
        for task, found in values.items():
            for at in range(0, len(found), ROWS_PER_ENTRY):
                payload = pack({PSTATE: Changes(puts=tuple(found[at : at + ROWS_PER_ENTRY]))})

                def message(number: int, group: GroupKey, task: TaskId = task) -> wire.ToWorker:
                    return wire.AppendBatch(number, group, Kind.STATE, task, ProducerId(0), 0, 1)

                Question(network, MODULE, task, message, READY_SECONDS, bodies=[payload]).begin().wait()


def from_cluster(spark: SparkSession, addresses: list[str]) -> DataFrame:
    """Return a DataFrame that reads the PState from the cluster."""
    reader = spark.read.format("stretto").option("bootstrap", ",".join(addresses))
    return reader.option("module", MODULE).option("pstate", PSTATE).load()


def make_ready(spark: SparkSession, addresses: list[str], folder: Path) -> Callable[[], DataFrame]:
    """Store what the cluster has in files, task by task, in batches as large as those that it sends."""
    folder.mkdir()
    table = from_cluster(spark, addresses).toArrow()
    for task in table["_task"].unique().to_pylist():
        rows = table.filter(pc.equal(table["_task"], task)).combine_chunks()
        with (
            pa.OSFile(str(folder / f"{task}.arrow"), "wb") as file,
            pa.ipc.new_file(file, rows.schema) as out,
        ):
            out.write_table(rows, max_chunksize=READY_ROWS)
    return lambda: spark.read.format("ready-made").load(str(folder))


class ReadyMade(DataSource):
    """A data source of batches that lie ready in files."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> StructType:
        first = next(Path(self.options["path"]).glob("*.arrow"))
        with pa.memory_map(str(first)) as file:
            return from_arrow_schema(pa.ipc.open_file(file).schema)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - theirs is ours
        return _ReadyReader(Path(self.options["path"]))


class _ReadyReader(DataSourceReader):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(file)) for file in sorted(self._folder.glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(partition.value)) as file:
            batches = pa.ipc.open_file(file)
            for number in range(batches.num_record_batches):
                yield batches.get_batch(number)


def aggregate(frame: DataFrame) -> Aggregate:
    """Aggregate a DataFrame, which reads all of its rows."""
    [row] = frame.selectExpr("count(key) AS rows", "sum(value) AS total").collect()
    return row["rows"], row["total"]


def check_rows(found: Aggregate, rows: int) -> None:
    if found != (rows, rows * (rows - 1) // 2):
        raise StrettoError(f"Spark found {found} where there are {rows:,} rows")
