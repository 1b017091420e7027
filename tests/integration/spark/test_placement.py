"""What Spark writes lies on the task that any client chooses: the cases of
:mod:`tests.support.placements`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stretto.module.module import declarations
from tests.support.cluster import MODULE, Cluster
from tests.support.placements import CASES, TASKS, Case, Placed

COLUMNS = {"int": "bigint", "bytes": "binary", "moment": "timestamp"}
"""Some keys that are columns, of which type; all of them are in the units."""


@pytest.fixture
def cluster(start: Callable[..., Cluster]) -> Cluster:
    depots = tuple(depot.spec for depot in declarations(Placed).depots.values())
    return start(workers=1, factor=1, tasks=TASKS, groups=2, depots=depots)


def write(cluster: Cluster, depot: str, rows: DataFrame) -> None:
    options = {"bootstrap": ",".join(cluster.addresses()), "module": MODULE, "depot": depot}
    rows.write.format("stretto").options(**options).mode("append").save()


def found(cluster: Cluster, way: str) -> dict[str, int]:
    """The task of each case that was written that way."""
    client = cluster.connect()
    return {
        value["case"]: record.task
        for depot in declarations(Placed).depots
        for record in client.reader(MODULE, depot).read_all()
        if (value := msgspec.json.decode(record.data))["way"] == way
    }


def row_of(case: Case) -> tuple[Any, ...]:
    value = msgspec.to_builtins(case.by("rows"), builtin_types=(bytes, date, datetime, Decimal))
    return value["way"], value["case"], value["key"]


def test_rows_of_spark_lie_on_the_tasks_of_the_table(spark: SparkSession, cluster: Cluster) -> None:
    taken = [case for case in CASES if isinstance(case.expected_by(has_function=False), int)]
    for depot in {case.depot for case in taken}:
        texts = [(msgspec.json.encode(case.by("texts")).decode(),) for case in taken if case.depot == depot]
        write(cluster, depot, spark.createDataFrame(texts, "value string").coalesce(1))
    assert found(cluster, "texts") == {case.name: case.expected for case in taken}
    typed = {case.name.removesuffix(" in a dict"): case for case in taken}
    for name, column in COLUMNS.items():
        rows = spark.createDataFrame([row_of(typed[name])], f"way string, `case` string, key {column}")
        write(cluster, "by_field", rows.coalesce(1))
    assert found(cluster, "rows") == {typed[name].name: typed[name].expected for name in COLUMNS}
    with pytest.raises(PySparkException, match="a function of its module chooses the tasks of depot by_func"):
        write(cluster, "by_function", spark.createDataFrame([("abc",)], "text string"))
