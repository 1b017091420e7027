"""``spark.read.format("stretto")``: what the options ask for, as a reader or a writer of Spark."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_stretto import moments, states
from pyspark_stretto.columns.schema import DEPOT_SCHEMA, pstate_schema
from pyspark_stretto.errors import plainly
from pyspark_stretto.options import check_batch, check_reads, parse
from pyspark_stretto.states import Described


class DefaultSource(DataSource):
    """The data source ``stretto`` of Spark.

    Spark keeps it, with the description of the module that it found, so an update of the module since is
    noticed.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with plainly():
            self._parsed = parse(options)
        self._described: Described | None = None

    @classmethod
    def name(cls) -> str:
        return "stretto"

    def schema(self) -> StructType:
        with plainly():
            described = self._known()
            # Asked once for a load(), before anything is planned: what it is called is kept with it.
            self._described = replace(described, load=described.load or moments.new_name())
            if described.type is None:
                return DEPOT_SCHEMA
            return pstate_schema(described.type, self._parsed.nested)

    # What Spark asks for is imported when it asks: a task that reads has no use for what writes.

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_stretto.batch import DepotReader, PStateReader  # noqa: PLC0415

        with plainly():
            described = self._known()
            described = replace(described, load=described.load or moments.name_of(self.options))
            check_batch(self._parsed)
            if described.type is None:
                return DepotReader(self._parsed, described, schema)
            return PStateReader(self._parsed, described, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from pyspark_stretto.streaming import DepotStream  # noqa: PLC0415

        return DepotStream(self._parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_stretto.sink import BatchSink  # noqa: PLC0415

        return BatchSink(self._parsed, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from pyspark_stretto.sink import StreamSink  # noqa: PLC0415

        return StreamSink(self._parsed, schema, overwrite)

    def _known(self) -> Described:
        if self._described is None:
            check_reads(self._parsed)
            self._described = states.describe(self._parsed)
        return self._described
