"""Statements that Spark refuses of a Python data source: UPDATE, DELETE, INSERT and MERGE INTO."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from persist.engine import open_engine
from persist.query import Changed, execute
from persist.settings import Location
from persist.spark.data_source import register
from persist.timeline import Moment


def sql(
    spark: SparkSession,
    location: Location,
    statement: str,
    *,
    time: int | Moment | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Changed:
    """Change a collection by one statement of DuckDB's SQL, as one commit; DataFrames that are there do not change.

    The statement is carried out on the driver, in memory: for what does not fit there, use `write` with
    mode="overwrite", or `delete`. The session knows `format("persist")` then, to read what has changed. Queries are
    Spark's own: `create_views`, then `spark.sql`.

    Args:
        time: of the changes, which is sealed with them; that of the commit if it is left out.

    Raises: as `persist.query.execute`.
    """
    register(spark)
    with open_engine(location, storage_options) as engine:
        return execute(engine, statement, time)
