"""Reading in batch: a plan made in the driver, and its parts, read by Spark's Python processes.

Planning pins every task group once; all parts of the plan, and every attempt at one, read under these pins.
Spark keeps the plan for all queries of a ``load()``: each of them reads the same parts at a moment of its own
(:mod:`~pyspark_stretto.moments`). So a part says what to read at any moment: ranges of keys, or of offsets,
that leave nothing out whatever there is by then. A task that Spark tries again reads the same, and a pin that
is lost fails the read with a sentence that names it.

There is a part for each task, and several for one that is large. Parts of all groups come in turn: Spark
reads them in this order, and so all pins are read from early on until the end.
"""

from __future__ import annotations

import os
import secrets
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise, zip_longest
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from pyspark_stretto import states
from pyspark_stretto.columns.pages import Columns
from pyspark_stretto.columns.records import Records, check_schema
from pyspark_stretto.columns.schema import POSITION, check_fits, key_name, pstate_schema, shape_of
from pyspark_stretto.columns.values import arrow_type
from pyspark_stretto.errors import plainly
from pyspark_stretto.filters import DepotFilters, KeyFilters
from pyspark_stretto.moments import Plan, moment_of, pinned_of, query_of_task
from pyspark_stretto.options import Options, check_tasks
from pyspark_stretto.renewing import Pins, renewed
from pyspark_stretto.states import Described, Piece, Where, opened
from stretto.client.reading.scan import PinnedGroup, Scan
from stretto.errors import OffsetTrimmed, PeerError, UsageError
from stretto.network.keys import ClusterKey
from stretto.pstate import types
from stretto.pstate.ordered import Range, behind, end_of
from stretto.pstate.tree import Elements
from stretto.pstate.types import Type
from stretto.vocabulary.invariants import check

PARTS_MAX = 1_000
"""Most parts that one task is split into."""
PUSHED = (
    "filters are pushed, so every query needs a load() of its own: Spark reads only what these filters ask "
    "for in all that comes from this load(), and another query would miss rows without a word"
)
"""Warning about pushed filters, issued where Spark plans: standard error is the driver's there."""


class _Pushing:
    """Stands in for a reader's ``pushFilters``, and takes filters only if the ``load()`` asks for it.

    Spark pushes none unless ``spark.sql.python.filterPushdown.enabled`` is set, and without that refuses a
    reader whose ``pushFilters`` is not that of its base class. Ours has to work either way.

    A plan with filters is kept by Spark for all queries of a ``load()``, those without filters among them,
    which would find rows missing. So nothing is taken unless that ``load()`` asks for it.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        if not self._reader.takes_filters:
            return filters
        if filters:
            warnings.warn(PUSHED, stacklevel=1)
        with plainly():
            return self._reader.push(filters)


class Part(InputPartition):
    """A part of one task, number ``part`` of the ``parts`` that share a pin or a snapshot."""

    def __init__(self, where: Where, task: int, offset: int) -> None:
        super().__init__(task)
        self.where = where
        self.task = task
        self.offset = offset
        self.part = 0
        self.parts = 1
        #: Pins of the whole plan.
        self.pins = Pins()
        #: The plan that each query carries out at a moment of its own; None if it is only read under these
        #: pins.
        self.plan: Plan | None = None


class RowsPart(Part):
    """Rows of one task, with keys in these ranges."""

    def __init__(self, where: Where, task: int, offset: int, ranges: list[Range]) -> None:
        super().__init__(where, task, offset)
        self.ranges = ranges


class RecordsPart(Part):
    """Records ``[start, end)`` of one task, limited to those that the options and filters ask for.

    The first part of a task starts at None and the last part ends at None: nothing lies before or behind
    them, also of records that came after the plan was made, or were trimmed away since.

    The first part of a task has none before it, and the last part none behind it, also of records that came
    after the plan was made, or were trimmed away since: None says so.
    """

    def __init__(self, where: Where, task: int, offset: int, start: int | None, end: int | None) -> None:
        super().__init__(where, task, offset)
        self.start = start
        self.end = end


class BatchReader(DataSourceReader):
    """What the readers of PStates and of depots have in common: planning, reporting, and opening a part."""

    def __init__(self, options: Options, described: Described, schema: StructType) -> None:
        self._options = options
        self._described = described
        self._schema = schema

    @property
    def takes_filters(self) -> bool:
        """Whether the ``load()`` asks for filters to be pushed."""
        return self._options.filters == "pushed"

    @property
    def pushFilters(self) -> _Pushing:  # noqa: N802 - Spark calls it so
        return _Pushing(self)

    @abstractmethod
    def push(self, filters: list[Filter]) -> list[Filter]:
        """Take the filters that narrow what is read, and return those that Spark has to apply itself."""

    @abstractmethod
    def _plan(self, piece: Piece, scan: Scan) -> list[Part]:
        """Return the parts of one piece."""

    def partitions(self) -> list[InputPartition]:
        with plainly():
            pieces = states.find(self._options, self._described)
            key = self._options.cluster_key()
            planned = [self._planned(piece, key) for piece in pieces]
            parts = [part for turn in zip_longest(*planned) for part in turn if part is not None]
            wheres = [each[0].where for each in planned if each]
            pinned = tuple(where for where in wheres if isinstance(where, PinnedGroup))
            pins = Pins.of(pinned)
            for part in parts:
                part.pins = pins
            if self._options.replans and parts:
                # A group of which nothing is read was let go: then these are not the pins of a moment, which
                # another plan of the same name may ask for that group too.
                first = Plan.of(self._described.load, pinned if all(planned) else ())
                for part in parts:
                    part.plan = first.of_others
                parts[0].plan = first
            if self._options.report is not None:
                self._report(Path(self._options.report), pieces)
            return [*parts]

    def _records(self) -> dict[int, tuple[int, int]] | None:
        """Return the range of records that is read of each task; None for a PState."""
        return None

    def _planned(self, piece: Piece, key: ClusterKey | None) -> list[Part]:
        with opened(piece.where, key) as scan:
            planned = self._plan(piece, scan)
            for number, part in enumerate(planned):
                part.part, part.parts = number, len(planned)
            if not planned:
                states.let_go(scan)
        return planned

    @contextmanager
    def _opened(self, part: Part) -> Iterator[tuple[Scan, int]]:
        """Open what the part is read from, with its apply offset, as of the moment of this task's query."""
        key = self._options.cluster_key()
        where, offset, pins = part.where, part.offset, part.pins
        query = query_of_task() if part.plan is not None else None
        if part.plan is not None and query is not None:
            moment = moment_of(self._options, self._described, part.plan, query)
            where = pinned_of(moment, part.task)
            offset, pins = where.offset, Pins.of(moment.pinned)
        with renewed(pins, key), opened(where, key) as scan:
            yield scan, offset

    def _report(self, path: Path, pieces: list[Piece]) -> None:
        """Write a report of what is about to be read; it replaces the one before atomically."""
        told: dict[str, object] = {
            "module": self._described.module,
            "origin": self._described.origin,
            "version": self._described.version,
            "pstate": self._options.pstate,
            "depot": self._options.depot,
            "snapshot": self._described.folder,
            "groups": [piece.told() for piece in pieces],
            "records": self._records(),
        }
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(told)) + b"\n")
            os.replace(draft, path)
        except OSError as error:
            raise UsageError(f"what is read cannot be told in {path}: {error.strerror}") from None


class PStateReader(BatchReader):
    """Reader of the rows of a PState."""

    def __init__(self, options: Options, described: Described, schema: StructType) -> None:
        super().__init__(options, described, schema)
        check(described.type is not None, "a PState has a type")
        self._type: Type = described.type  # type: ignore[assignment]
        check_fits(options.object, pstate_schema(self._type, options.nested), schema)
        self._filters = KeyFilters(self._key_columns())

    def _key_columns(self) -> list[tuple[str | None, Type]]:
        shape = shape_of(self._type)
        levels = [(key_name(level), type_) for level, type_ in enumerate(shape.keys)]
        if isinstance(shape.end, Elements):
            levels.append((POSITION, types.Plain("int")))
        wanted = {field.name: to_arrow_type(field.dataType, timezone="UTC") for field in self._schema.fields}
        return [(name if wanted.get(name) == arrow_type(type_) else None, type_) for name, type_ in levels]

    def push(self, filters: list[Filter]) -> list[Filter]:
        return self._filters.push(filters)

    def _plan(self, piece: Piece, scan: Scan) -> list[Part]:
        name = self._options.pstate or ""
        sizes = scan.sizes()
        parts: list[Part] = []
        for task in piece.tasks:
            ranges = self._filters.ranges(task, self._described.tasks)
            size = sizes[task].pstates.get(name) if task in sizes else None
            if not ranges or (size is None and not self._options.replans):
                continue
            pieces = min(-(-size.bytes // self._options.split_bytes), PARTS_MAX) if size is not None else 1
            if pieces > 1 and len(ranges) == 1:
                cuts = self._cuts(scan.splits(task, name, pieces, *ranges[0]))
                parts += [
                    RowsPart(piece.where, task, piece.offset, [each]) for each in _between(ranges[0], cuts)
                ]
            else:
                parts.append(RowsPart(piece.where, task, piece.offset, ranges))
        return parts

    def _cuts(self, keys: list[bytes]) -> list[bytes]:
        """Return where keys are cut into parts; a first key that becomes one row is not cut."""
        if self._options.nested == "rows":
            return keys
        found: list[bytes] = []
        for key in keys:
            try:
                found.append(behind(key[: end_of(key, 0)]))
            except PeerError:
                continue
        return sorted(set(found))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RowsPart):
            return
        with plainly(), self._opened(partition) as (scan, offset):
            states.check_task(scan, partition.task)
            columns = Columns(self._type, self._schema, self._options.nested)
            for start, end in partition.ranges:
                pages = scan.rows(partition.task, self._options.pstate or "", start, end)
                yield from columns.batches(pages, task=partition.task, apply_offset=offset)
            states.part_read(scan, partition.part, partition.parts)


class DepotReader(BatchReader):
    """Reader of the records of a depot."""

    def __init__(self, options: Options, described: Described, schema: StructType) -> None:
        super().__init__(options, described, schema)
        check_schema(options.object, schema)
        check_tasks(options, described.module, described.tasks)
        self._filters = DepotFilters()
        #: Records that the plan covers, by task.
        self._planned_records: dict[int, tuple[int, int]] = {}

    def push(self, filters: list[Filter]) -> list[Filter]:
        return self._filters.push(filters)

    def _plan(self, piece: Piece, scan: Scan) -> list[Part]:
        name = self._options.depot or ""
        sizes = scan.sizes()
        parts: list[Part] = []
        for task in piece.tasks:
            if not self._filters.fits(task):
                continue
            size = sizes[task].depots.get(name) if task in sizes else None
            start, end, count = 0, 0, 1
            if size is not None:
                first, beyond = scan.bounds(task, name)
                start, end = self._range(scan, task, first, beyond)
                # The bytes of this range, since records of a depot are of similar size.
                share = size.bytes * max(0, end - start) // max(1, beyond - first)
                count = max(1, min(-(-share // self._options.split_bytes), PARTS_MAX, end - start))
            if start < end:
                self._planned_records[task] = (start, end)
            elif not self._options.replans:
                continue
            cuts = [start + (end - start) * number // count for number in range(1, count)]
            edges = pairwise([None, *cuts, None])
            parts += [RecordsPart(piece.where, task, piece.offset, *edge) for edge in edges]
        return parts

    def _records(self) -> dict[int, tuple[int, int]] | None:
        return self._planned_records or None

    def _range(self, scan: Scan, task: int, first: int, beyond: int) -> tuple[int, int]:
        """Return which of the existing records ``[first, beyond)`` the options and filters ask for."""
        options, depot = self._options, self._options.depot or ""
        start = _of_task(options.start, task)
        end = _of_task(options.end, task)
        if start is not None and start < first:
            raise OffsetTrimmed(depot, task, start, first)
        if isinstance(options.start, dict) and start is not None and start > beyond:
            raise UsageError(
                f"option start is {start} on task {task}, where depot {depot} has {first} to {beyond}; "
                f"was {self._described.module} launched anew, or restored?"
            )
        if options.start_ms is not None:
            start = scan.offset_at(task, depot, options.start_ms)
        if options.end_ms is not None:
            end = scan.offset_at(task, depot, options.end_ms)
        if self._filters.start_ms is not None:
            start = max(start or 0, scan.offset_at(task, depot, self._filters.start_ms))
        low = max(first, start or 0, self._filters.start)
        high = min(beyond, beyond if end is None else end, self._filters.end)
        return low, high

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RecordsPart):
            return
        depot = self._options.depot or ""
        with plainly(), self._opened(partition) as (scan, offset):
            task = partition.task
            states.check_task(scan, task)
            start, end = self._range(scan, task, *scan.bounds(task, depot))
            start = start if partition.start is None else max(start, partition.start)
            end = end if partition.end is None else min(end, partition.end)
            if start < end:
                stored = scan.batches(task, depot, start, end)
                records = Records(self._schema, offset)
                yield from records.batches(stored, task=task, start=start, end=end)
            states.part_read(scan, partition.part, partition.parts)


def _between(range_: Range, cuts: list[bytes]) -> list[Range]:
    start, end = range_
    edges = [start, *(cut for cut in cuts if start < cut < end), end]
    return list(pairwise(edges))


def _of_task(offsets: dict[int, int] | int | None, task: int) -> int | None:
    return offsets.get(task) if isinstance(offsets, dict) else offsets
