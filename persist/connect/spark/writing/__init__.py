"""Functions that write DataFrames: ranged by key, events resolved by tasks, deletions, and micro-batches.

Promises: all of a write is in one record, or nothing is; tasks that are tried again count once.
"""

from persist.connect.spark.writing.dataframes import delete, write
from persist.connect.spark.writing.foreach_batch import foreach_batch_writer
from persist.connect.spark.writing.upserting import upsert

__all__ = ["delete", "foreach_batch_writer", "upsert", "write"]
