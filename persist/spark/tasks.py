"""What all tasks have in common: how many there are, how their errors reach the user, and what they log.

Spark formats an exception of a Python worker, with its traceback, into one of its own; the class is lost, and our
message ends up below our frames and Spark's. For an error that is meant for the user the frames say nothing, so the
worker is asked to leave them out: what is left is the name of the error and its message. The worker process ends right
after it has reported an error, so the request concerns nothing else.

A Python data source has no metrics of its own in Spark 4.3. With `spark.sql.pyspark.worker.logging.enabled`, Spark
keeps what its Python workers log, to be seen by `spark.tvf.python_worker_logs()`. Without it, nothing is logged:
executors' logs are not for each slice of each read.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from persist.errors import CollectionNotFound, PersistError
from persist.read import Scan

if TYPE_CHECKING:  # What readers in tasks use of this module needs no Spark.
    from pyspark.sql import SparkSession

PARALLEL_DEFAULT = 8  # Where the session does not say: a remote one.
_KEPT = "PYSPARK_SPARK_SESSION_UUID"  # Set by Spark in workers whose log it keeps.

logger = logging.getLogger(__name__)


@contextmanager
def surfaced_errors() -> Iterator[None]:
    """Let a PersistError reach Spark's user as its class name and message, without frames."""
    try:
        yield
    except PersistError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def writable(collection: str) -> Iterator[None]:
    """Say what creates the collection that is to be written, if it is missing."""
    try:
        yield
    except CollectionNotFound as error:
        error.remedy = (
            f"persist.spark.write(df, location, {collection!r}, key=[…]) creates it with the columns of df, and "
            "client.create_or_load with any others, or keyed."
        )
        raise


def tell(message: str, *arguments: object) -> None:
    """Log a message, if Spark keeps it."""
    if _KEPT in os.environ:
        logger.setLevel(logging.INFO)
        logger.info(message, *arguments)


def parallelism(spark: "SparkSession") -> int:
    """Return how many tasks can run at a time, as far as is known."""
    context: Any = None
    try:
        context = spark.sparkContext
    except Exception:  # Spark Connect has none, and says so with an error of its own.
        return PARALLEL_DEFAULT
    return max(1, int(context.defaultParallelism))


def task_count(spark: "SparkSession", scan: Scan) -> int:
    """Return in how many slices to read a scan."""
    return scan.task_count(parallelism(spark))


def slices_for(spark: "SparkSession", scan: Scan) -> list[Scan]:
    """Return a scan cut into slices of about equal size, in key order."""
    return scan.slices(task_count(spark, scan))
