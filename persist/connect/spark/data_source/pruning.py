"""Find the columns of a DataFrame that a query needs.

PySpark passes no projection to a Python data source, but Spark's plan contains it.

    orders = spark.read.format("persist").option("collection", "orders").load(path)
    columns_used(orders, lambda rows: rows.where("amount > 5").groupBy("status").count())   # ["status", "amount"]

The search walks the optimized plan from its top to the DataFrame. A projection or an aggregate needs the columns that
it names. A filter or a join needs the columns that it names and the columns that the nodes above it need. Any other
node needs all columns.

`pruned` reads those columns and no others. The query gets NULL in place of the others, so it sees the same columns, and
has the same plan.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType

from persist.compute.tasks.stream_source import CollectionAddress
from persist.connect.spark.data_source.source import read_by_source
from persist.connect.spark.types import quoted
from persist.core.errors import InvalidUsage

Query = Callable[[DataFrame], DataFrame]

_NAMES = ("Project", "Aggregate")  # Nodes whose output is what they name.
_PASSES = (  # Nodes whose output has the columns of their children.
    "Filter",
    "Join",
    "Sort",
    "GlobalLimit",
    "LocalLimit",
    "Sample",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "Window",
)
_HIDES = ("LogicalRDD", "ExternalRDD", "InMemoryRelation")  # Leaves that another plan may be behind.


def columns_used(frame: DataFrame, query: Query) -> list[str]:
    """Return the columns of frame whose values a query needs, in frame's order.

    Nothing is read: Spark plans the query. Columns of which a query only counts the rows are not needed. The query must
    be a function of its DataFrame, build the same plan each time, and run nothing. The answer is all columns if Spark
    does not show its plan: with Spark Connect, and for cached DataFrames.

    Raises:
        InvalidUsage: query does not work on the columns of frame, or runs something.
    """
    spark: SparkSession = frame.sparkSession
    if not isinstance(frame, ClassicDataFrame):
        return list(frame.columns)
    stand_in: Any = spark.createDataFrame(spark.sparkContext.parallelize([0], 1).map(_refuse_to_run), frame.schema)
    rdd = next(_leaves(stand_in._jdf.queryExecution().analyzed())).rdd().id()
    try:
        planned: Any = query(stand_in)
        plan = planned._jdf.queryExecution().optimizedPlan()
    except PySparkException as error:
        raise InvalidUsage(f"the query does not fit the columns {frame.columns}: {error}") from error
    hiding = [leaf for leaf in _leaves(plan) if leaf.getClass().getSimpleName() in _HIDES]
    if not hiding or any(leaf.getClass().getSimpleName() != "LogicalRDD" or leaf.rdd().id() != rdd for leaf in hiding):
        return list(frame.columns)
    needed = {*_positions(plan, None)}
    return [name for at, name in enumerate(frame.columns) if at in needed]


def _refuse_to_run(row: Any) -> Any:
    raise InvalidUsage("a query whose columns are looked for runs nothing, such as count() or first(): it only plans")


def _items(found: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
    for at in range(found.size()):
        yield found.apply(at)


def _leaves(plan: Any) -> Iterator[Any]:
    """Yield the leaves of a plan and of its subqueries."""
    below = [*_items(plan.children())]
    for node in (*below, *_items(plan.subqueries())):
        yield from _leaves(node)
    if not below:
        yield plan


def _positions(plan: Any, wanted: set[int] | None) -> Iterator[int]:
    """Yield the positions of the leaf columns that a plan needs.

    wanted has the ids that the nodes above it need; None for all.
    """
    for query in _items(plan.subqueries()):
        yield from _positions(query, None)
    kind = plan.getClass().getSimpleName()
    if kind == "LogicalRDD":
        ids = [attribute.exprId().id() for attribute in _items(plan.output())]
        yield from (at for at, id_ in enumerate(ids) if wanted is None or id_ in wanted)
    references = {attribute.exprId().id() for attribute in _items(plan.references().toSeq())}
    if kind in _NAMES:
        wanted = references
    elif kind in _PASSES and wanted is not None:
        wanted = wanted | references
    else:
        wanted = None
    for child in _items(plan.children()):
        yield from _positions(child, wanted)


def pruned(spark: SparkSession, location: str, collection: str, query: Query, **options: Any) -> DataFrame:
    """Return the result of a query that reads only the columns it needs.

    All columns are read for other forms than "rows", because with fewer columns their rows mean other records. All
    columns are also read if names differ by case only, because Spark confuses them.

    Args:
        options: any of `format("persist")` for reading, but columns.

    Raises:
        what loading raises; InvalidUsage: the query does not fit, or runs something.
    """
    address = CollectionAddress(location, {}, collection)
    frame = read_by_source(spark, address, **options)
    needed = {*columns_used(frame, query)}
    if options.get("form", "rows") != "rows" or len({name.lower() for name in frame.columns}) < len(frame.columns):
        return query(frame)
    # Spark counts a column that is never NULL without reading it. If the query needs no column, read the first.
    names = [field.name for field in frame.schema if field.name in needed or not field.nullable] or frame.columns[:1]
    return query(_with_nulls(read_by_source(spark, address, **options, columns=json.dumps(names)), frame.schema))


def _with_nulls(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return rows with all columns of a schema, NULL where rows have none."""
    if rows.columns == schema.names:
        return rows
    present = {*rows.columns}

    def column(name: str) -> Column:
        null = F.lit(None).cast(schema[name].dataType).alias(name)
        return F.col(quoted(name)) if name in present else null

    return rows.select(*map(column, schema.names))
