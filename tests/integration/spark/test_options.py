"""A session knows the data source, and a person is told in the driver what is wrong with options."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_stretto import register
from pyspark_stretto.errors import sentence_of


def sentence_from(spark: SparkSession, statement: str) -> str:
    with pytest.raises(PySparkException) as caught:
        spark.sql(statement).collect()
    assert "Traceback" not in str(caught.value)
    return sentence_of(caught.value) or str(caught.value)


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


def test_unknown_options_are_refused_with_the_nearest(spark: SparkSession) -> None:
    assert refusal(spark, modul="WordCount") == (
        "the stretto data source has no option modul; did you mean module?"
    )


def test_a_table_of_the_source_is_refused_with_what_to_do_instead(spark: SparkSession) -> None:
    options = "OPTIONS (bootstrap 'h:1', module 'M', pstate 'counts')"
    instead = "Say CREATE TEMPORARY VIEW name USING stretto OPTIONS"
    why = sentence_from(spark, f"CREATE TABLE counts_of_m USING stretto {options}")
    assert why.startswith("there are no tables of the stretto data source: Spark 4.3 passes no options")
    assert instead in why
    spark.sql(f"CREATE TABLE counts_of_m (key string) USING stretto {options}")
    try:
        assert instead in sentence_from(spark, "SELECT * FROM counts_of_m")
    finally:
        spark.sql("DROP TABLE counts_of_m")


def test_spark_finds_the_source_by_itself_and_register_makes_it_known_where_it_does_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks an unquoted ``command -v`` for its Python, and looks for no source if that fails."""
    folder = tmp_path / "with a space"
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    context = spark.sparkContext
    monkeypatch.setattr(context, "pythonExec", str(python))
    session = spark.newSession()
    register(session)
    assert "did you mean module?" in refusal(session, modul="WordCount")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(context, "pythonExec", str(tmp_path / "no-such-python"))
    session = spark.newSession()
    register(session)
    assert context.pythonExec == str(tmp_path / "no-such-python"), "what others run is not changed"
    assert "did you mean module?" in refusal(session, modul="WordCount")
    if " " not in sys.executable:
        assert "did you mean module?" in refusal(spark.newSession(), modul="WordCount")
