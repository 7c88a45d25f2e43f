"""Collections as a Spark data source, through `pyspark.sql.datasource`: `format("persist")`.

Spark finds it by itself, through the package `pyspark_persist`; where that package cannot be seen (an editable install,
away from the checkout), call `register(spark)` once for a session.
"""

from persist.spark.columns import columns_used, pruned
from persist.spark.location import SparkLocation, changes, explain, location, snapshot
from persist.spark.maintenance import compact
from persist.spark.registration import register
from persist.spark.source import PersistDataSource
from persist.spark.views import create_views

__all__ = [
    "PersistDataSource",
    "SparkLocation",
    "changes",
    "columns_used",
    "compact",
    "create_views",
    "explain",
    "location",
    "pruned",
    "register",
    "snapshot",
]
