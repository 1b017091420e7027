"""An option that does nothing where it is given is refused: whoever gives it expects something of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_stretto.columns.schema import DEPOT_SCHEMA
from pyspark_stretto.options import APPLIES, OPTIONS, parse
from pyspark_stretto.source import DefaultSource
from stretto.errors import UsageError

DOCS = Path(__file__).resolve().parents[3] / "docs" / "build" / "spark.md"
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


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5"])
def test_a_number_of_bytes_or_records_is_whole_and_above_0(value: str) -> None:
    for name in ("split.bytes", "records.max.per.trigger"):
        with pytest.raises(UsageError, match=f"option {name} is a whole number above 0"):
            parse({name: value})
    assert parse({"split.bytes": "1"}).split_bytes == 1


def test_offsets_are_one_for_all_or_one_for_each_task() -> None:
    assert parse({"start": "0", "end": '{"0": 17, "1": 4}'}).start == 0
    assert parse({"end": '{"0": 17, "1": 4}'}).end == {0: 17, 1: 4}
    for value in ("-1", '{"0": 3, "1": -1}'):
        with pytest.raises(UsageError, match="offsets begin at 0"):
            parse({"start": value})
    with pytest.raises(UsageError, match="is an offset, or offsets by task"):
        parse({"start": "first"})


def test_times_are_milliseconds_or_have_a_zone() -> None:
    assert parse({"start.time": "1700"}).start_ms == 1_700
    assert parse({"end.time": "1970-01-01T01:00:01+01:00"}).end_ms == 1_000
    for value in ("yesterday", "2026-01-31T12:00:00"):
        with pytest.raises(UsageError, match="is a time such as"):
            parse({"start.time": value})


def test_options_have_names_and_choices() -> None:
    with pytest.raises(UsageError, match="has no option bootstrp; did you mean bootstrap"):
        parse({"bootstrp": "h:1"})
    with pytest.raises(UsageError, match="option from is follower or leader, not 'both'"):
        parse({"from": "both"})
    found = parse({"BOOTSTRAP": "a:1, b:2,", "from": "leader"})
    assert (found.bootstrap, found.source) == (("a:1", "b:2"), "leader")


def test_each_query_reads_the_present_unless_it_is_told_otherwise() -> None:
    assert parse({}).replans
    for name, value in (("path", "/p"), ("at", "monday"), ("moment", "load"), ("report", "/r")):
        assert not parse({name: value}).replans
