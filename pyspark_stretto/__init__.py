"""Spark data source for stretto: ``register(spark)`` makes it known to a session.

Spark also finds top-level ``pyspark_*`` packages by itself, where its Python is the one that has them.
"""

from __future__ import annotations

from pyspark_stretto.registering import register
from pyspark_stretto.source import DefaultSource

__all__ = ["DefaultSource", "register"]
