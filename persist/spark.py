"""Collections in Spark: a data source, `format("persist")`, and functions for what a data source cannot do.

Spark finds the source by itself, through the package `pyspark_persist`. A JVM that was started by another Python, or
before this library was installed, cannot. So importing this package registers the source with the active session. It
also sets the driver's Python for a JVM that starts later (`PYSPARK_DRIVER_PYTHON`, unless the environment names one).
The functions here register the source with their session, and so does `register(spark)`.

- `snapshot`, `changes`, `location`, `explain`: DataFrames by Spark's own Parquet scan where it can be used
- `as_of_join`: rows with the contents of their keys at the times of the rows
- `catalog`: collections as tables of Spark SQL
- `write`, `foreach_batch_writer`: DataFrames ranged and sorted by key; many collections from one streaming query
- `delete`, `upsert`: retractions by condition or key; events by key, looked up on the driver or in tasks
- `refresh`, `explain_refresh`, `run_program`: refreshes of views and dataflow programs by tasks
- `compact`: maintenance by the tasks of a cluster

Promises: Spark reads and writes exactly the same data as Python, and a location that both use needs only the store.
Options of the data source are declared in `persist.connect.spark.options`.
"""

try:
    import pyspark
except ImportError as error:
    raise ModuleNotFoundError(
        "persist.spark needs PySpark, which is not installed. pip install 'pyspark>=4.3,<5'", name="pyspark"
    ) from error

from persist.compute.dataflow.running.refreshed import Refreshed
from persist.connect.spark.catalog import catalog
from persist.connect.spark.compacting import compact
from persist.connect.spark.data_source.source import PersistDataSource, register, register_with_active_session
from persist.connect.spark.read_functions.locations import (
    SparkLocation,
    as_of_join,
    changes,
    explain,
    location,
    snapshot,
)
from persist.connect.spark.refreshing import explain_refresh, refresh, run_program
from persist.connect.spark.write_functions.dataframes import delete, write
from persist.connect.spark.write_functions.foreach_batch import foreach_batch_writer
from persist.connect.spark.write_functions.upserting import upsert

__all__ = [
    "PersistDataSource",
    "Refreshed",
    "SparkLocation",
    "as_of_join",
    "catalog",
    "changes",
    "compact",
    "delete",
    "explain",
    "explain_refresh",
    "foreach_batch_writer",
    "location",
    "refresh",
    "register",
    "run_program",
    "snapshot",
    "upsert",
    "write",
]

register_with_active_session()  # An import of this module makes format("persist") known to the active session.
