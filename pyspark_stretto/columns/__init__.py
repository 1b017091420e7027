"""Rows as columns of Arrow: how keys, values and records of many rows become columns at once.

Nothing here talks to a cluster or to Spark's planner. Start with :mod:`~pyspark_stretto.columns.pages`, and
with :mod:`~pyspark_stretto.columns.schema` for which columns a PState has.
"""
