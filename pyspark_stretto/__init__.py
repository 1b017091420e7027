"""Spark data source for stretto. Spark finds top-level ``pyspark_*`` packages by itself."""

from __future__ import annotations

from pyspark_stretto.source import DefaultSource

__all__ = ["DefaultSource"]
