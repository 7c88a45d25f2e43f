"""Collections as a Spark data source, through `pyspark.sql.datasource`: `format("persist")`.

Spark finds it by itself, through the package `pyspark_persist`; where that package cannot be seen (an editable install,
away from the checkout), call `register(spark)` once for a session.
"""

from pyspark.sql import SparkSession

from persist.spark.location import SparkLocation, changes, explain, location, snapshot
from persist.spark.source import PersistDataSource
from persist.spark.views import create_views

__all__ = [
    "PersistDataSource",
    "SparkLocation",
    "changes",
    "create_views",
    "explain",
    "location",
    "register",
    "snapshot",
]


def register(spark: SparkSession) -> None:
    """Make `format("persist")` known to a session."""
    spark.dataSource.register(PersistDataSource)
