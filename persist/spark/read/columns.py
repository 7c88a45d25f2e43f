"""Which columns a query needs, for sources that cannot be told by Spark: PySpark passes no projection on.

    orders = spark.read.format("persist").option("collection", "orders").load(path)
    columns_used(orders, lambda rows: rows.where("amount > 5").groupBy("status").count())   # ["status", "amount"]

`pruned` also reads them, and no others.
"""

import json
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from persist.errors import InvalidUsage
from persist.spark.data_source import source_reader

Query = Callable[[DataFrame], DataFrame]


def columns_used(frame: DataFrame, query: Query) -> list[str]:
    """Return the columns of frame without which query does not give the same columns, in frame's order.

    Nothing is read: the query is analysed once for each column, on an empty DataFrame that lacks it. Columns of which a
    query only counts the rows are not needed. The query must be a function of the DataFrame it is given, and build the
    same plan each time.

    Raises:
        InvalidUsage: query does not work on the columns of frame.
    """
    spark: SparkSession = frame.sparkSession
    empty = spark.createDataFrame([], frame.schema)
    try:
        wanted = query(empty).schema
    except PySparkException as error:
        raise InvalidUsage(f"the query does not fit the columns {frame.columns}: {error}") from error
    return [name for name in frame.columns if not _can_do_without(spark, frame.schema, query, name, wanted)]


def _can_do_without(spark: SparkSession, schema: StructType, query: Query, name: str, wanted: object) -> bool:
    # A DataFrame of its own: of one that lost a column by select, Spark would find the column below it.
    others = StructType([field for field in schema.fields if field.name != name])
    try:
        return bool(query(spark.createDataFrame([], others)).schema == wanted)
    except PySparkException:
        return False


def pruned(spark: SparkSession, path: str, collection: str, query: Query, **options: Any) -> DataFrame:
    """Return query of a collection, of which only the columns are read that the query needs.

    Args:
        options: any of `format("persist")` for reading, but columns.

    Raises:
        what loading raises; InvalidUsage: the query does not fit.
    """

    def load(**columns: str) -> DataFrame:
        return source_reader(spark).options(collection=collection, **options, **columns).load(path)

    frame = load()
    # Where no column is needed, rows are counted: by the first one.
    needed = columns_used(frame, query) or frame.columns[:1]
    return query(load(columns=json.dumps(needed)))
