"""Spark reads a snapshot by its folder, with no cluster anywhere."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from stretto.pstate.types import describe
from stretto.snapshot.manifest import write_manifest
from stretto.specs.modules import PStateSpec
from tests.unit.snapshot.snapshots import made


@pytest.mark.soak
def test_a_snapshot_is_read_without_a_cluster(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "bank" / "one"
    folder.mkdir(parents=True)
    declared = (PStateSpec(name="counts", type=describe(dict[str, int])),)
    write_manifest(folder, msgspec.structs.replace(made(folder, tmp_path / "scratch"), pstates=declared))
    counts = spark.read.format("stretto").option("pstate", "counts").load(str(folder))
    assert counts.where("value >= 100").count() == 100
    events = spark.read.format("stretto").option("depot", "events").load(str(folder))
    assert [tuple(row) for row in events.groupBy("_task").count().orderBy("_task").collect()] == [
        (0, 200),
        (1, 200),
    ]
