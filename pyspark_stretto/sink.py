"""Rows that become records of a depot, once, however often Spark computes them.

A partition of a write is written under a name (:mod:`stretto.client.appending.rounds`): that of the write, or
of the query, and the number of the partition; the round is the micro-batch. A task that Spark runs again,
twice at once, or for a micro-batch that it repeats after a restart, is recognized by the workers. Nothing is
sent before a partition is computed to its end, so a task that fails in its own code has written nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from pyspark_stretto.columns.schema import TASK, VALUE
from pyspark_stretto.connecting import client_of
from pyspark_stretto.errors import plainly
from pyspark_stretto.options import Options, Use, check_applies
from stretto.client.appending.rounds import RoundClaimed
from stretto.client.operating.modules import find_depot
from stretto.errors import StrettoError, UsageError
from stretto.module.partition import Partitioner, task_of_bytes
from stretto.specs.modules import DepotSpec
from stretto.vocabulary.decoding import MALFORMED

LIFE_SECONDS = 3 * 24 * 3600
"""How long a write that is no stream may take; the workers remember its rounds for longer than that."""
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_from_json = msgspec.json.Decoder().decode


@dataclass
class Written(WriterCommitMessage):
    """Spark's commit message of one partition."""

    rows: int


@dataclass(frozen=True)
class Target:
    """The depot, and how rows become its records. It is made in the driver and sent to every task."""

    options: Options
    module: str
    depot: DepotSpec
    tasks: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, options: Options, schema: StructType, overwrite: bool, use: Use) -> Target:
        """Find the depot that the options name. Raises UsageError if the rows cannot be written there."""
        if overwrite:
            raise UsageError('a depot is only ever appended to; write with .mode("append")')
        if options.pstate is not None or options.depot is None or options.module is None:
            raise UsageError(
                'rows are appended to a depot: give .option("module", ...) and .option("depot", ...)'
            )
        check_applies(options, use)
        description = client_of(options).describe(options.module)
        depot = find_depot(options.module, description, options.depot)
        target = cls(options, options.module, depot, description.tasks, tuple(schema.fieldNames()))
        target.check(schema)
        return target

    @property
    def is_plain(self) -> bool:
        """Whether the column ``value`` is the whole record, and not a field of one."""
        return set(self.names) - {TASK} == {VALUE}

    @property
    def chooses_task(self) -> bool:
        """Whether the rows name their tasks, in a column ``_task``."""
        return TASK in self.names

    def check(self, schema: StructType) -> None:
        """Raise UsageError unless rows of this schema can be records of the depot."""
        types = {field.name: field.dataType for field in schema.fields}
        if not types.keys() - {TASK}:
            raise UsageError("there are no columns to write but _task")
        for name, type_ in types.items():
            strange = _no_json(type_)
            if strange is not None:
                raise UsageError(
                    f"column {name} has {strange.simpleString()}, which JSON has nothing for; write it as "
                    f"text, by CAST({name} AS STRING), or leave it out"
                )
        if self.is_plain and not isinstance(types[VALUE], StringType | BinaryType):
            raise UsageError(
                f"the column value is the record when it is alone, as text or bytes; it is "
                f"{types[VALUE].simpleString()} here: give it another name to write it as a field"
            )
        if self.chooses_task:
            if not isinstance(types[TASK], IntegralType):
                raise UsageError(f"the column {TASK} is a number, not {types[TASK].simpleString()}")
            return
        if self.depot.rule == "custom":
            raise UsageError(
                f"a function of its module chooses the tasks of depot {self.depot.name}, and Spark does not "
                f"have it; add a column {TASK} with the task of each row"
            )
        by = self.depot.partition_by
        for field in () if by is None or self.is_plain else (by,) if isinstance(by, str) else by:
            if field not in types:
                raise UsageError(
                    f"depot {self.depot.name} is partitioned by {field!r}, and the rows have no such column; "
                    f"they have {', '.join(types)}"
                )

    def records(self, batches: Iterable[pa.RecordBatch], home: int) -> dict[int, list[bytes]]:
        """Return the rows as records by task; ``home`` is the task of records that may be on any."""
        found: dict[int, list[bytes]] = {}
        partitioner = Partitioner(self.depot, self.tasks)
        for batch in batches:
            rows = _plain_rows(batch)
            chosen = [row.pop(TASK) for row in rows] if self.chooses_task else [None] * len(rows)
            for row, task in zip(rows, chosen, strict=True):
                if self.is_plain:
                    record, placed = self._record(row[VALUE], partitioner, is_chosen=self.chooses_task)
                elif self.chooses_task:
                    record, placed = msgspec.json.encode(row), None
                else:
                    record, placed = partitioner.place(row)
                at = task if self.chooses_task else home if placed is None else placed
                if type(at) is not int or not 0 <= at < self.tasks:
                    raise UsageError(
                        f"{TASK} is {at} in a row, and {self.module} has tasks 0 to {self.tasks - 1}"
                    )
                found.setdefault(at, []).append(record)
        return found

    def _record(
        self, value: str | bytes | None, partitioner: Partitioner, *, is_chosen: bool
    ) -> tuple[bytes, int | None]:
        if value is None:
            raise UsageError("value is null in a row, and no record is; leave such rows out")
        record = value.encode() if isinstance(value, str) else value
        if is_chosen:
            return record, None
        if self.depot.partition_by is None and self.depot.rule != "custom":
            return record, task_of_bytes(self.depot)
        try:
            decoded = _from_json(record)
        except MALFORMED as error:
            raise UsageError(
                f"depot {self.depot.name} places records by what is in them, and a value is no JSON: {error}"
            ) from None
        return record, partitioner.place(decoded).task

    def write(
        self, batches: Iterator[pa.RecordBatch], *, name: str, round_: int, lasting: bool
    ) -> WriterCommitMessage:
        """Write all rows of one partition, as one round of a named writer."""
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        writer = client_of(self.options).named_writer(
            self.module, self.depot.name, name, part, lasting=lasting
        )
        records = self.records(batches, writer.home)
        try:
            writer.write(round_, records)
        except RoundClaimed:
            raise StrettoError(
                f"partition {part} of {name}, batch {round_}, was begun with other rows than those computed "
                "now, so it cannot be completed; compute the same rows again, in the same partitions"
            ) from None
        return Written(sum(map(len, records.values())))


class BatchSink(DataSourceArrowWriter):
    """Writer of a batch DataFrame: the whole write is one round, under a name of its own."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        with plainly():
            self._target = Target.of(options, schema, overwrite, "a write")
        self._name = f"write {options.write_id or secrets.token_hex(16)}"
        self._began = time.time()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with plainly():
            if time.time() - self._began > LIFE_SECONDS:
                raise StrettoError(
                    "the write began days ago, and what it wrote may be forgotten; begin it anew"
                )
            return self._target.write(iterator, name=self._name, round_=0, lasting=False)


class StreamSink(DataSourceStreamArrowWriter):
    """Writer of a streaming query: each micro-batch is a round, under the name of the query."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        with plainly():
            self._target = Target.of(options, schema, overwrite, "a stream's write")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with plainly():
            context = TaskContext.get()
            query = context.getLocalProperty(_QUERY_ID) if context is not None else None
            batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
            if query is None or batch is None:
                raise StrettoError(
                    "Spark did not tell which query and batch this is, so it cannot be written once"
                )
            return self._target.write(iterator, name=f"query {query}", round_=int(batch), lasting=True)


def _no_json(type_: DataType) -> DataType | None:
    """Return the part of a type, at any depth, that cannot be written as JSON; None if there is none."""
    inner: tuple[DataType, ...] = ()
    match type_:
        case YearMonthIntervalType() | CalendarIntervalType() | VariantType():
            return type_
        case ArrayType():
            inner = (type_.elementType,)
        case MapType():
            inner = (type_.keyType, type_.valueType)
        case StructType():
            inner = tuple(field.dataType for field in type_.fields)
        case _:
            return None
    return next((found for found in map(_no_json, inner) if found is not None), None)


def _plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows as JSON has them, with times in UTC whatever the session's zone is."""
    arrays = [
        column if (wanted := _in_utc(column.type)) == column.type else column.cast(wanted)
        for column in batch.columns
    ]
    table = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
    rows = table.to_pylist(maps_as_pydicts="strict")
    keeps_bytes = batch.schema.names in ([VALUE], [VALUE, TASK], [TASK, VALUE])
    return rows if keeps_bytes else msgspec.to_builtins(rows)  # type: ignore[no-any-return]


def _in_utc(type_: pa.DataType) -> pa.DataType:
    """Return the type with all its zoned times, at any depth, in UTC."""
    if pa.types.is_timestamp(type_) and type_.tz:
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_in_utc(type_.key_type), type_.item_field.with_type(_in_utc(type_.item_type)))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_in_utc(type_.value_type)))
    return type_
