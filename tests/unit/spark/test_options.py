"""An option that does nothing where it is given is refused: whoever gives it expects something of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_stretto.options import APPLIES, OPTIONS
from pyspark_stretto.schema import DEPOT_SCHEMA
from pyspark_stretto.source import DefaultSource
from stretto.errors import UsageError

DOCS = Path(__file__).resolve().parents[3] / "docs" / "SPARK.md"
REACH = {"bootstrap": "127.0.0.1:1", "module": "M"}
ROWS = StructType([StructField("n", LongType())])
VALUES = {
    "from": "leader",
    "at": "monday",
    "path": "/snapshots/monday",
    "nested": "map",
    "split.bytes": "1000",
    "filters": "pushed",
    "report": "/tmp/report.json",
    "start": "0",
    "end": "3",
    "start.time": "0",
    "end.time": "3",
    "records.max.per.trigger": "5",
    "write.id": "nightly",
    "pstate": "counts",
}


def source(**options: str) -> DefaultSource:
    return DefaultSource(CaseInsensitiveDict(REACH | {"depot": "events"} | options))


def test_every_option_applies_to_something_and_is_documented() -> None:
    assert frozenset().union(*APPLIES.values()) == OPTIONS.keys()
    table = DOCS.read_text().split("## Options")[1].split("##")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall("`(.+?)`", row)} == OPTIONS.keys()


@pytest.mark.parametrize("name", ["at", "path", "nested", "split.bytes", "filters", "report", "write.id"])
def test_a_stream_refuses_what_only_batches_and_writes_have(name: str) -> None:
    with pytest.raises(UsageError, match=f"option {name} has no effect on a stream; take it away: "):
        source(**{name: VALUES[name]}).streamReader(DEPOT_SCHEMA)


@pytest.mark.parametrize("name", sorted(VALUES.keys() - {"write.id", "pstate"}))
def test_a_write_refuses_what_only_reads_have(name: str) -> None:
    with pytest.raises(UsageError, match=f"option {name} has no effect on a write; take it away: "):
        source(**{name: VALUES[name]}).writer(ROWS, overwrite=False)


def test_the_write_of_a_stream_is_known_by_its_query_and_not_by_a_name() -> None:
    with pytest.raises(UsageError, match=r"option write\.id has no effect on a stream's write"):
        source(**{"write.id": "nightly"}).streamWriter(ROWS, overwrite=False)
