"""The Spark job of an export, over rows that are there already: formats, filters, and what cannot be."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stretto.errors import UsageError
from stretto.export.job import Done, Order, failure_of, run
from stretto.export.running import run_job

pytestmark = pytest.mark.soak

ROWS = [
    {"page": "/a", "views": 3, "tags": ["x", "y"], "by": {"user": "ann"}},
    {"page": 'say "hi", b', "views": 1, "tags": [], "by": None},
    {"page": "", "views": 7, "tags": None, "by": {"user": None}},
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def order(source: Path, format_: str, **more: Any) -> Order:
    return Order(
        source="json",
        options={"path": str(source)},
        format=format_,
        into=str(source.parent / "tree"),
        master="",
        settings={},
        **more,
    )


def done(spark: SparkSession, asked: Order) -> Done:
    return run(asked, spark, lambda _: None)


@pytest.mark.parametrize("format_", ["parquet", "orc", "json"])
def test_nested_columns_stay_what_they_are(spark: SparkSession, source: Path, format_: str) -> None:
    told = done(spark, order(source, format_, where="views > 1"))
    assert (told.rows, told.as_json) == (2, ())
    read = spark.read.format(format_).load(str(source.parent / "tree"))
    found = {row["page"]: row.asDict(recursive=True) for row in read.collect()}
    assert found["/a"] == ROWS[0]
    assert set(found) == {"/a", ""}


def test_nested_columns_are_json_in_csv_and_an_empty_text_is_not_nothing(
    spark: SparkSession, source: Path
) -> None:
    told = done(spark, order(source, "csv"))
    assert set(told.as_json) == {"tags", "by"}
    [path] = (source.parent / "tree").glob("*.csv")
    with path.open(newline="") as file:
        rows = {row["page"]: row for row in csv.DictReader(file)}
    assert json.loads(rows["/a"]["by"]) == {"user": "ann"}
    assert json.loads(rows['say "hi", b']["tags"]) == []
    assert '""' in path.read_text()


def test_columns_are_chosen_and_become_folders(spark: SparkSession, source: Path) -> None:
    asked = order(source, "json", columns=("page", "views"), partition_by=("views",))
    told = done(spark, asked)
    assert told.rows == 3
    assert {path.name for path in (source.parent / "tree").iterdir() if path.is_dir()} == {
        "views=1",
        "views=3",
        "views=7",
    }


def test_nothing_is_an_export_too(spark: SparkSession, source: Path) -> None:
    assert done(spark, order(source, "parquet", where="views > 100")).rows == 0
    assert spark.read.parquet(str(source.parent / "tree")).columns == ["by", "page", "tags", "views"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"where": "view > 1"}, "view"),
        ({"where": "views >"}, "error"),
        ({"columns": ("pagee",)}, "did you mean page?"),
        ({"partition_by": ("vews",)}, "did you mean views?"),
        ({"partition_by": ("tags",)}, "takes plain columns, and tags is array<string>"),
        ({"columns": ("page",), "partition_by": ("page",)}, "leaves no column"),
    ],
)
def test_what_cannot_be_is_told_in_one_sentence_as_a_matter_of_usage(
    spark: SparkSession, source: Path, more: dict[str, Any], why: str
) -> None:
    with pytest.raises((PySparkException, UsageError)) as caught:
        done(spark, order(source, "parquet", **more))
    failure = failure_of(caught.value)
    assert failure.is_usage
    assert why in failure.sentence
    assert "\n" not in failure.sentence
    assert "SQLSTATE" not in failure.sentence
    assert not (source.parent / "tree").exists()


def test_a_job_runs_where_temporary_files_are_in_a_folder_with_a_space(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / 'a "folder" with spaces'
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    asked = msgspec.structs.replace(order(source, "json"), master="local[1]")
    assert run_job(asked, lambda _: None).rows == 3
    assert list(temporary.iterdir()) == []
