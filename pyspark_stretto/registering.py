"""``register(spark)``: makes the data source known to a session, wherever stretto and its Python are.

Spark looks for ``pyspark_*`` packages by itself, with the Python that it runs. It asks ``sh -c "command -v
PYTHON"`` for that one, and skips the look-up without a word where that fails: in a folder with a space in its
name, or with a virtual environment that is not activated, whose ``python3`` is another one. Whoever registers
the source depends on none of this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pyspark_stretto.source import DefaultSource


def register(spark: SparkSession) -> None:
    """Make the data source ``stretto`` known to this session.

    On a local master Spark then runs it with the Python of the caller, unless ``PYSPARK_PYTHON`` or the
    setting ``spark.pyspark.python`` names another one.
    """
    if not isinstance(spark, SparkSession):
        # A session of Spark Connect, whose server has a Python of its own.
        spark.dataSource.register(DefaultSource)  # type: ignore[unreachable]
        return
    with _run_with_this_python(spark.sparkContext), _active(spark):
        spark.dataSource.register(DefaultSource)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make the session the active one for a while.

    Spark asks that one, and not the session it is given, whether a source of the same name is known.
    """
    sessions: Any = getattr(spark._jvm, "org.apache.spark.sql.classic.SparkSession")  # noqa: SLF001
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


@contextmanager
def _run_with_this_python(context: SparkContext) -> Iterator[None]:
    """Make Spark run what is registered in this block with this interpreter, unless another one was named."""
    is_named = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if is_named or not (context.master or "").startswith("local"):
        yield
        return
    before = context.pythonExec
    context.pythonExec = sys.executable
    try:
        yield
    finally:
        context.pythonExec = before
