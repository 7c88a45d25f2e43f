"""Numbers of what was read, where Spark shows them: a Python data source has no metrics of its own in Spark 4.3.

With `spark.sql.pyspark.worker.logging.enabled`, Spark keeps what its Python workers log, to be seen by
`spark.tvf.python_worker_logs()`. Without it, nothing is logged: executors' logs are not for each slice of each read.
"""

import logging
import os

logger = logging.getLogger(__name__)

_KEPT = "PYSPARK_SPARK_SESSION_UUID"  # Set by Spark in workers whose log it keeps.


def tell(message: str, *arguments: object) -> None:
    """Log a message, if Spark keeps it."""
    if _KEPT in os.environ:
        logger.setLevel(logging.INFO)
        logger.info(message, *arguments)
