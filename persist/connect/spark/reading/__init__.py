"""DataFrames and names in SQL for the contents of collections: by plans of Spark's own Parquet scan where it can.

Promises: the rows are those that Python reads, by whichever way; a name that cannot be told apart is refused.
"""

from persist.connect.spark.reading.locations import SparkLocation, as_of_join, changes, explain, location, snapshot
from persist.connect.spark.reading.sql_views import create_views

__all__ = ["SparkLocation", "as_of_join", "changes", "create_views", "explain", "location", "snapshot"]
