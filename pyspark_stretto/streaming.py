"""Depots as streams: each micro-batch is exactly the records between two offsets of every task.

Only what is committed is read, and that never changes: a batch that Spark repeats, after a restart or while
another leader takes over, has the same records. Leaders tell where a depot ends; followers of the ISR serve
the records, unless leaders are asked for, and leaders those that no follower has yet. How far a query has
come is in its checkpoint and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_stretto.columns.records import Records, check_schema
from pyspark_stretto.connecting import client_of
from pyspark_stretto.errors import plainly
from pyspark_stretto.options import Options, check_applies, check_tasks
from stretto.client import Reader
from stretto.client.operating.modules import find_depot
from stretto.client.reading.scan import MAX_STALENESS_SECONDS
from stretto.control import is_same_module
from stretto.errors import OffsetTrimmed, StrettoError, UsageError

Offsets: TypeAlias = dict[str, int | str]
"""Offsets by task, ascending, after the origin of their module; Spark compares them as text."""
ORIGIN = "origin"


@dataclass(frozen=True)
class RecordRange(InputPartition):
    """Records ``[start, end)`` of one task."""

    task: int
    start: int
    end: int


class DepotStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream of a depot's records, in micro-batches that each cover one range of offsets of every task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        #: The latest ends of the tasks, as leaders reported them.
        self._ends: dict[int, int] | None = None
        #: With Trigger.AvailableNow: the ends at which the query stops.
        self._target: dict[int, int] | None = None
        with plainly():
            if options.end is not None or options.end_ms is not None:
                raise UsageError("a stream has no end; take end and end.time away, or read without a stream")
            if options.depot is None or options.module is None:
                raise UsageError(
                    'a stream is of a depot: give .option("module", ...) and .option("depot", ...)'
                )
            check_applies(options, "a stream")
            self._module = options.module
            self._depot = options.depot
            check_schema(options.object, schema)
            find_depot(self._module, client_of(options).describe(self._module), self._depot)

    def initialOffset(self) -> Offsets:  # noqa: N802
        with plainly():
            reader, origin = self._reader(), self._origin()
            bounds = reader.all_bounds()
            if self._options.start_ms is not None:
                at_ms = self._options.start_ms
                return told({task: reader.offset_at(task, at_ms) for task in bounds}, origin)
            return told(beginning(self._options, bounds), origin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.records_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        with plainly():
            origin = self._origin()
            check_origin(self._options, start, origin)
            bounds = self._reader().all_bounds()
            self._ends = {task: end for task, (_, end) in bounds.items()}
            at = offsets_of(start)
            check_reachable(self._options, at, bounds)
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end = admitted(at, self._target or self._ends, most)
            # A checkpoint without an origin gets one with the next records, and no batch for its own sake.
            return start if end == at else told(end, origin)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with plainly():
            self._target = {task: end for task, (_, end) in self._reader().all_bounds().items()}

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        return None if self._ends is None else told(self._ends)

    def partitions(self, start: Offsets, end: Offsets) -> list[RecordRange]:
        with plainly():
            # A batch that is repeated after a restart was planned by who has asked for the origin then.
            check_origin(self._options, end, self._origin())
        begins = offsets_of(start)
        return [
            RecordRange(task, begins.get(task, 0), stop)
            for task, stop in sorted(offsets_of(end).items())
            if begins.get(task, 0) < stop
        ]

    def read(self, partition: RecordRange) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        with plainly():
            task, start, end = partition.task, partition.start, partition.end
            stale = None if self._options.source == "leader" else MAX_STALENESS_SECONDS
            stored = self._reader(max_staleness=stale).batches(task, start, end)
            try:
                yield from Records(self._schema).batches(stored, task=task, start=start, end=end)
            except OffsetTrimmed as trimmed:
                raise _lost(self._options, task, start, trimmed.start) from None

    def _origin(self) -> str:
        return client_of(self._options).describe(self._module).origin_of(self._depot)

    def _reader(self, max_staleness: float | None = None) -> Reader:
        return client_of(self._options).reader(self._module, self._depot, max_staleness=max_staleness)


def beginning(options: Options, bounds: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Return where a query without a checkpoint begins: where the options say, or at the first record."""
    given = options.start
    check_tasks(options, options.module or "", len(bounds))
    found = {}
    for task, (start, end) in bounds.items():
        at = start if given is None else given if isinstance(given, int) else given.get(task, start)
        if given is not None and not start <= at <= end:
            raise UsageError(
                f"option start is {at} on task {task}, where depot {options.depot} has {start} to {end}"
            )
        found[task] = at
    return found


def check_origin(options: Options, offsets: Offsets, origin: str) -> None:
    """Raise UsageError if the checkpoint is of an earlier module or depot of this name."""
    was = offsets.get(ORIGIN)
    if was and origin and was != origin:
        what, end = f"a module {options.module}", "destroyed"
        if is_same_module(str(was), origin):
            what, end = f"a depot {options.depot} of {options.module}", "deleted"
        raise UsageError(
            f"the checkpoint is of {what} that was {end}, and the one of that name has other records; "
            "begin with a new checkpoint"
        )


def check_reachable(options: Options, at: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]) -> None:
    """Raise a StrettoError if records that the checkpoint needs never existed or are gone."""
    if at.keys() != bounds.keys():
        raise UsageError(
            f"the checkpoint is of {len(at)} tasks, and {options.module} has {len(bounds)}; begin "
            "with a new checkpoint"
        )
    for task, (start, end) in bounds.items():
        if at[task] > end:
            raise UsageError(
                f"the checkpoint is at offset {at[task]} of task {task}, where depot {options.depot} ends at "
                f"{end}: {options.module} was launched anew or restored; begin with a new checkpoint"
            )
        if at[task] < start:
            raise _lost(options, task, at[task], start)


def _lost(options: Options, task: int, at: int, start: int) -> StrettoError:
    return StrettoError(
        f"records {at} to {start} of task {task} were removed by the retention of depot {options.depot} "
        "before they were read; keep more of them, and begin with a new checkpoint"
    )


def admitted(at: Mapping[int, int], ends: Mapping[int, int], most: int | None) -> dict[int, int]:
    """Return where a micro-batch ends: everywhere, or ``most`` records further, shared by backlog."""
    waiting = {task: max(0, ends[task] - start) for task, start in at.items()}
    total = sum(waiting.values())
    if most is None or total <= most:
        return {task: start + waiting[task] for task, start in at.items()}
    shares = {task: count * most // total for task, count in waiting.items()}
    left = most - sum(shares.values())
    for task in sorted(waiting, key=lambda task: shares[task] - waiting[task] * most / total):
        if left and shares[task] < waiting[task]:
            shares[task] += 1
            left -= 1
    return {task: start + shares[task] for task, start in at.items()}


def told(offsets: Mapping[int, int], origin: str = "") -> Offsets:
    """Return offsets in the form that Spark stores."""
    by_task = {str(task): offset for task, offset in sorted(offsets.items())}
    return {ORIGIN: origin, **by_task} if origin else {**by_task}


def offsets_of(told: Offsets) -> dict[int, int]:
    """Return the offsets by task from the form that Spark stores."""
    return {int(task): int(offset) for task, offset in told.items() if task != ORIGIN}
