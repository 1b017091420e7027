"""Spark data source for stretto. Spark finds top-level ``pyspark_*`` packages by itself."""
