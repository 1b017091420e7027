"""Spark finds the data source by itself, and a person is told in the driver what is wrong with options."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_stretto.errors import sentence_of


def refusal(spark: SparkSession, **options: str) -> str:
    reader = spark.read.format("stretto")
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), value)
    with pytest.raises(PySparkException) as caught:
        reader.load().count()
    sentence = sentence_of(caught.value)
    assert sentence is not None, str(caught.value)
    assert "Traceback" not in str(caught.value)
    return sentence


def test_the_source_is_found_and_refuses_unknown_options_with_the_nearest(spark: SparkSession) -> None:
    assert refusal(spark, modul="WordCount") == (
        "the stretto data source has no option modul; did you mean module?"
    )
