"""The Spark job: live page views, joined with the pages' sections, summed up and reported to another module.

    python examples/sections/pipeline.py pages.parquet 127.0.0.1:7400

It reads the PState ``hours`` of the module PageViews, each task group at one exact moment, and appends one
record for each section and hour to the depot ``reports`` of the module Sections.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from pyspark_stretto import register


def reports(hours: DataFrame, pages: DataFrame) -> DataFrame:
    """Of every section and hour. The key of ``hours`` is the hour and a part of it; below it are pages."""
    counts = hours.select(
        sql.col("key._1").alias("hour"), sql.col("key_2").alias("page"), sql.col("value").alias("views")
    )
    return (
        counts.join(sql.broadcast(pages), "page")
        .groupBy("section", "hour")
        .agg(sql.sum("views").alias("views"), sql.count_distinct("page").alias("pages"))
    )


def run(spark: SparkSession, pages: str, bootstrap: str) -> None:
    stretto = {"bootstrap": bootstrap}
    hours = spark.read.format("stretto").options(**stretto, module="PageViews", pstate="hours").load()
    made = reports(hours, spark.read.parquet(pages))
    made.write.format("stretto").options(**stretto, module="Sections", depot="reports").mode("append").save()


if __name__ == "__main__":
    session = SparkSession.builder.appName("sections").getOrCreate()
    register(session)
    run(session, *sys.argv[1:3])
