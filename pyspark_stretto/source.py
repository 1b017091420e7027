"""``spark.read.format("stretto")``: what the options ask for, as a reader or a writer of Spark."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_stretto.errors import plainly
from pyspark_stretto.options import Options, check_reads, parse
from pyspark_stretto.schema import DEPOT_SCHEMA


class DefaultSource(DataSource):
    """Spark pickles it with what it has found out, so that the cluster is asked for the schema once."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with plainly():
            self._parsed: Options = parse(options)

    @classmethod
    def name(cls) -> str:
        return "stretto"

    def schema(self) -> StructType:
        with plainly():
            check_reads(self._parsed)
        return DEPOT_SCHEMA

    # What Spark asks for is imported when it asks: a task that reads has no use for what writes.

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from pyspark_stretto.streaming import DepotStream  # noqa: PLC0415

        return DepotStream(self._parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_stretto.sink import BatchSink  # noqa: PLC0415

        return BatchSink(self._parsed, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from pyspark_stretto.sink import StreamSink  # noqa: PLC0415

        return StreamSink(self._parsed, schema, overwrite)
