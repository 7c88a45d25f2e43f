"""How many tasks read in Python: by bytes, and by how many can run at a time."""

from typing import Any

from pyspark.sql import SparkSession

from persist.read import Scan

SLICE_BYTES_MAX = 64 << 20  # Decoded: a task that merges takes about four times that.
SLICE_BYTES_MIN = 4 << 20  # Less than this is not worth a task.
PARALLEL_DEFAULT = 8  # Where the session does not say: a remote one.


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks can run at a time, as far as is known."""
    context: Any = None
    try:
        context = spark.sparkContext
    except Exception:  # Spark Connect has none, and says so with an error of its own.
        return PARALLEL_DEFAULT
    return max(1, int(context.defaultParallelism))


def task_count(spark: SparkSession, scan: Scan) -> int:
    """Return in how many slices to read a scan."""
    return count_for(scan, parallelism(spark))


def count_for(scan: Scan, parallel: int) -> int:
    """Return how many slices keep so many workers busy, of a fair size each."""
    by_size = -(-scan.memory // SLICE_BYTES_MAX)
    worth = -(-scan.memory // SLICE_BYTES_MIN)
    wanted = -(-by_size // parallel) * parallel  # Whole rounds, so that nobody is idle in the last one.
    return max(1, min(wanted, worth))


def slices_for(spark: SparkSession, scan: Scan) -> list[Scan]:
    """Return a scan cut into slices of about equal size, in key order."""
    return scan.slices(task_count(spark, scan))
