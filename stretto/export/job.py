"""The Spark job of an export, in a process of its own: ``python -m stretto.export.job ORDER.json``.

It reads by the ``stretto`` data source, writes into a folder that nobody sees yet, and tells on its standard
output how far it is and how it ended, an event of JSON on each line. What Spark and Java have to say goes to
the standard error, which is a log. It ends with its standard input: nobody waits for it any more then, and so
it takes away the folder that its order lies in, with Spark's scratch files.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from stretto.errors import PinLost, StrettoError, UsageError
from stretto.export.columns import WRITE_OPTIONS, WRITE_SETTINGS, Shaped, nested, shaped_for
from stretto.vocabulary.suggest import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOOK_SECONDS = 0.25
"""How often progress is looked at, for people only. Spark reports none to Python by itself."""
END_SECONDS = 10.0
ATTEMPTS = 3
_PIN_LOST = f"{PinLost.__module__}.{PinLost.__qualname__}: "


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the Spark job of an export is to do."""

    source: str = "stretto"
    options: dict[str, str]
    """Options of the data source."""
    schema: str | None = None
    """Schema that a person gives for the records of a depot, as SQL writes it."""
    format: str
    where: str | None = None
    columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    into: str
    master: str
    settings: dict[str, str]
    """Settings of Spark."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Spark tasks of the job: how many are done, of how many."""

    done: int
    tasks: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """The job is done: what it wrote."""

    rows: int
    schema: dict[str, Any]
    as_json: tuple[str, ...]
    as_microseconds: tuple[str, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The job failed: why, and whether a person asked wrongly."""

    sentence: str
    is_usage: bool


Event: TypeAlias = Progress | Done | Failed
Tell: TypeAlias = Callable[[Event], None]


def main(path: str) -> int:
    """Run the job of an order file; events go to standard output, all else to standard error."""
    # Whoever reads the events closes the pipe when it has enough, and no longer wants us then.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    ending = _EndWithInput(Path(path).parent)
    ending.start()
    order = msgspec.json.decode(Path(path).read_bytes(), type=Order)

    def tell(event: Event) -> None:
        out.write(msgspec.json.encode(event) + b"\n")

    try:
        return _main(order, tell)
    finally:
        if ending.has_begun:
            # What fails now fails because of that.
            ending.join()


def _main(order: Order, tell: Tell) -> int:
    try:
        session = _session(order)
    except Exception as error:
        tell(Failed(f"Spark did not start with master {order.master}: {plain(error)}", False))
        raise
    try:
        tell(run_to_the_end(order, session, tell))
    except Exception as error:
        tell(failure_of(error))
        raise
    finally:
        session.stop()
    return 0


class _EndWithInput(threading.Thread):
    """Kills all of the job when nobody waits for it, and clears away what it has in ``scratch``."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(daemon=True)
        self._scratch = scratch
        self.has_begun = False

    def run(self) -> None:
        # Not by sys.stdin, whose lock a thread must not have when the interpreter ends.
        while os.read(0, 4096):
            pass
        self.has_begun = True
        deadline = time.monotonic() + END_SECONDS
        while (others := _others_of_group()) and time.monotonic() < deadline:
            for pid in others:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(LOOK_SECONDS)
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)


def _others_of_group() -> list[int]:
    """Other processes of the job: Java and what else writes files, but not those that are dead already."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) == os.getpgrp() and state not in "ZX" and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def _session(order: Order) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - it takes a second, which who only waits can spare

    from pyspark_stretto import register  # noqa: PLC0415

    builder = SparkSession.builder.master(order.master).appName("stretto export")
    for name, value in order.settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def run_to_the_end(order: Order, spark: SparkSession, tell: Tell) -> Done:
    """Run the job, and again if a pin was lost, by the death of a worker or because all of it took too long.

    Nobody has seen what it wrote, so to plan anew, at other offsets, mixes nothing.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return run(order, spark, tell)
        except Exception as error:
            if _PIN_LOST not in str(error):
                raise
            shutil.rmtree(order.into, ignore_errors=True)
    return run(order, spark, tell)


def run(order: Order, spark: SparkSession, tell: Tell) -> Done:
    """Run the job in a session that is there."""
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql import functions as sql  # noqa: PLC0415

    reader = spark.read.format(order.source).options(**order.options)
    if order.schema is not None:
        reader = reader.schema(order.schema)
    with _set(spark, {name: value for name, value in WRITE_SETTINGS.items() if name not in order.settings}):
        shape = shaped(order, reader.load())
        counted = Observation("export")
        written = shape.rows.observe(counted, sql.count(sql.lit(1)).alias("rows"))
        writer = written.write.format(order.format).options(**WRITE_OPTIONS.get(order.format, {}))
        if order.partition_by:
            writer = writer.partitionBy(*order.partition_by)
        with _Watching(spark, tell):
            writer.save(f"file://{order.into}")
    return Done(int(counted.get["rows"]), shape.schema.jsonValue(), shape.as_json, shape.as_microseconds)


@contextmanager
def _set(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Change settings of the session, as long as the block lasts."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def shaped(order: Order, rows: DataFrame) -> Shaped:
    """What is to be written, as the format can hold it."""
    if order.where is not None:
        rows = rows.where(order.where)
    if order.columns:
        _check_columns("--columns", order.columns, rows.schema)
        rows = rows.select(*(f"`{column}`" for column in order.columns))
    _check_partitions(order, rows.schema)
    return shaped_for(rows, order.format, order.partition_by)


def _check_columns(flag: str, names: tuple[str, ...], schema: StructType) -> None:
    for name in names:
        if name not in schema.names:
            raise UsageError(
                f"{flag} names {name}, and there is no such column; {did_you_mean(name, schema.names)}"
            )


def _check_partitions(order: Order, schema: StructType) -> None:
    _check_columns("--partition-by", order.partition_by, schema)
    if order.partition_by and len(set(order.partition_by)) == len(schema.names):
        raise UsageError("--partition-by leaves no column for the files; name fewer")
    inside = set(nested(schema)) & set(order.partition_by)
    if inside:
        kind = schema[min(inside)].dataType.simpleString()
        raise UsageError(f"--partition-by takes plain columns, and {min(inside)} is {kind}")


class _Watching:
    """Reports how far Spark is, from another thread, as long as the block lasts."""

    def __init__(self, spark: SparkSession, tell: Tell) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._tell = tell
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        #: Tasks that are done and all tasks, by stage: Spark forgets stages that are over.
        self._stages: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        said = (0, 0)
        while not self._is_over.wait(LOOK_SECONDS):
            for stage in self._tracker.getActiveStageIds():
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    self._stages[stage] = (info.numCompletedTasks, info.numTasks)
            done, tasks = (
                (sum(each) for each in zip(*self._stages.values(), strict=True)) if self._stages else (0, 0)
            )
            if (done, tasks) != said:
                said = (done, tasks)
                self._tell(Progress(*said))


# What went wrong, in a sentence.

_CODE = re.compile(r"^\[[A-Z_.0-9]+\] ")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$", re.DOTALL)


def failure_of(error: BaseException) -> Failed:
    """Why a job failed, in a sentence."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415

    from pyspark_stretto.errors import sentence_of  # noqa: PLC0415

    if isinstance(error, StrettoError):
        return Failed(str(error), isinstance(error, UsageError))
    sentence = sentence_of(error)
    if sentence is not None:
        return Failed(sentence, ".UsageError: " in str(error))
    return Failed(plain(error), isinstance(error, AnalysisException | ParseException))


def plain(error: BaseException) -> str:
    """The first thing that Spark says, without its codes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        # What Java raised stands below, behind its class.
        lines[0] = lines[1].lstrip(": ").partition(": ")[2] or lines[1]
    return _STATE.sub("", _CODE.sub("", lines[0])).rstrip(".;")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
