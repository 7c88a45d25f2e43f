"""`format("persist")`: what Spark reads, writes and streams by a Python data source, with its options as strings.

Promises: the rows are those that Python reads; all of a write is in one record, or nothing is; tasks that are tried
again count once; every micro-batch is one commit, exactly once.
"""

from persist.connect.spark.data_source.pruning import columns_used, pruned
from persist.connect.spark.data_source.source import PersistDataSource, introduce, prepared, read_by_source, register
from persist.connect.spark.data_source.writers import DataFrameWrite, commit_difference, present_time

__all__ = [
    "DataFrameWrite",
    "PersistDataSource",
    "columns_used",
    "commit_difference",
    "prepared",
    "present_time",
    "pruned",
    "read_by_source",
    "register",
]

introduce()  # Who imports this wants format("persist") to work.
