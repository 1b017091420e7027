"""Spark reads a snapshot by its folder, with no cluster anywhere; a damaged one is told in the driver."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_stretto.errors import sentence_of
from stretto.pstate.types import describe
from stretto.snapshot.manifest import file_of, write_manifest
from stretto.types import TaskId
from stretto.zk.records import PStateSpec
from tests.unit.snapshot.snapshots import made


@pytest.mark.soak
def test_a_snapshot_is_read_without_a_cluster_and_its_damage_is_told_in_the_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "bank" / "one"
    folder.mkdir(parents=True)
    declared = (PStateSpec(name="counts", type=describe(dict[str, int])),)
    write_manifest(folder, msgspec.structs.replace(made(folder, tmp_path / "scratch"), pstates=declared))

    def counts() -> DataFrame:
        """Anew, since Spark keeps the plan of what was loaded."""
        return spark.read.format("stretto").option("pstate", "counts").load(str(folder))

    assert counts().where("value >= 100").count() == 100
    events = spark.read.format("stretto").option("depot", "events").load(str(folder))
    assert [tuple(row) for row in events.groupBy("_task").count().orderBy("_task").collect()] == [
        (0, 200),
        (1, 200),
    ]
    path = file_of(folder, TaskId(1))
    stored = bytearray(path.read_bytes())
    stored[-100] ^= 1
    path.write_bytes(stored)
    with pytest.raises(PySparkException) as caught:
        counts().count()
    assert sentence_of(caught.value) == (
        f"{path} is damaged: it is not the file that the manifest tells of; use another snapshot"
    )
    assert "Traceback" not in str(caught.value)
