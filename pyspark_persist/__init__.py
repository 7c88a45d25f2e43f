"""Where PySpark looks for `format("persist")`: it takes `DefaultSource` of every top-level package `pyspark_*`."""

from persist.connect.spark.data_source.source import PersistDataSource as DefaultSource

__all__ = ["DefaultSource"]
