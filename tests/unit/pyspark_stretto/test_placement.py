"""The sink of Spark chooses the task that any client does: the cases of :mod:`tests.support.placements`."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_stretto.options import Options
from pyspark_stretto.sink import Target
from stretto.errors import UsageError
from tests.support.placements import ANY, CASES, NO_FIELD, TASKS, Case, Expected, Placed, Refused

HOME = 5
"""Of records that may be anywhere."""
TEXT = StructType([StructField("value", StringType())])


def written(case: Case, batch: pa.RecordBatch, schema: StructType) -> dict[int, list[bytes]]:
    names = tuple(schema.fieldNames())
    target = Target(Options(), "Placed", getattr(Placed, case.depot).spec, TASKS, names)
    target.check(schema)
    return target.records([batch], home=HOME)


def check(case: Case, batch: pa.RecordBatch, schema: StructType, expected: Expected) -> None:
    if isinstance(expected, Refused):
        with pytest.raises(UsageError, match=expected.why):
            written(case, batch, schema)
        return
    [(task, [record])] = written(case, batch, schema).items()
    assert task == (HOME if expected is ANY else expected)
    assert msgspec.json.decode(record) == case.plain("Spark")


def expected(case: Case) -> Expected:
    return case.expected_by(has_function=False)


def test_bytes_of_a_depot_on_one_task_need_not_be_json() -> None:
    """Nobody has to look into them to know where they go."""
    one = next(case for case in CASES if case.depot == "on_one")
    batch = pa.RecordBatch.from_pylist([{"value": b"\xff"}])
    assert written(one, batch, from_arrow_schema(batch.schema)) == {0: [b"\xff"]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_text_goes_to_the_task_of_the_table(case: Case) -> None:
    text = msgspec.json.encode(case.by("Spark")).decode()
    check(case, pa.RecordBatch.from_pylist([{"value": text}]), TEXT, expected(case))


@pytest.mark.parametrize(
    "case", [case for case in CASES if "list" not in case.name.split()], ids=lambda case: case.name
)
def test_a_row_of_columns_goes_to_the_task_of_the_table(case: Case) -> None:
    """But for lists of texts and numbers, which no column is."""
    row = msgspec.to_builtins(case.by("Spark"), builtin_types=(bytes, date, datetime, Decimal))
    batch = pa.RecordBatch.from_pylist([row])
    wanted = Refused("and the rows have no such column") if case.expected is NO_FIELD else expected(case)
    check(case, batch, from_arrow_schema(batch.schema), wanted)
