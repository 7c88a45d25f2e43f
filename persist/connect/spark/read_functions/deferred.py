"""DataFrames of snapshots whose reads are planned with the whole query, in sessions with the catalog's extension.

For Spark, a snapshot is then a table of the JVM (`jvm/Contents.java`). When Spark optimises a query, the table makes
one of three calls to this process. `read` returns all rows as a DataFrame. `extremes` returns rows with the least and
the greatest value of some columns, if descriptors have them. `find` returns the rows of some keys, which this process
looks up without a job of Spark.

Tables of a catalog send the same calls to the planner of the catalog. The table of a DataFrame has its own planner,
with the parts that were chosen when the DataFrame was made. Py4J keeps it until the JVM has dropped the plan.
"""

import json
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession

from persist.connect.spark.read_functions.plans import (
    PlannedSnapshot,
    can_count_by_descriptors,
    count_rows,
    read_extremes,
)
from persist.connect.spark.read_functions.store import find_class, make_local_frame
from persist.connect.spark.types import spark_schema
from persist.core.errors import PersistError
from persist.engine.read.lookups.lookup import Lookup
from persist.engine.read.merging import repeat_rows
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.results.snapshot import Snapshot

EXTENSIONS = "dev.persist.spark.PersistExtensions"


def has_extension(spark: SparkSession) -> bool:
    """Return whether a session has the catalog's extension and jar."""
    if find_class(spark, "Contents") is None:
        return False
    # Options of a session may name an extension that its context, which applies extensions, lacks.
    names = spark.sparkContext.getConf().get("spark.sql.extensions", "") or ""
    return EXTENSIONS in map(str.strip, names.split(","))


def defer(spark: SparkSession, planned: PlannedSnapshot) -> DataFrame:
    """Return the DataFrame of a snapshot, which Spark plans with the whole query if it can."""
    if planned.route.kind == "source" or not has_extension(spark):
        return planned.frame(spark)
    context: Any = spark.sparkContext
    ensure_callback_server_started(context._gateway)
    description = {**describe(planned.snapshot), "name": planned.address.collection, "schema": _get_columns(planned)}
    planner, table = _PlannerOfOne(planned), find_class(spark, "Contents")
    return DataFrame(table.frame(spark._jsparkSession, planner, json.dumps(description)), spark)


def _get_columns(planned: PlannedSnapshot) -> str:
    """Return the columns of a snapshot as a schema of Spark in JSON."""
    fields = [field.with_nullable(True) for field in planned.snapshot.schema]
    return str(spark_schema(pa.schema(fields)).json())


def describe(contents: Snapshot) -> dict[str, Any]:
    """Return the bytes, rows and key columns of a snapshot, as the JVM reads them."""
    scan = contents.scan
    # A look-up returns few rows only if keys have few. It reads other types if columns have become wider.
    is_found = contents.form == "rows" and scan.narrow is None and all(part.is_single for part in scan.all_parts)
    return {
        "bytes": sum(part.bytes for part in scan.all_parts),
        "rows": count_rows(scan),
        "counted": can_count_by_descriptors(contents),
        "keys": [*scan.schema.key_names] if is_found else [],
    }


def answer(planned: PlannedSnapshot, name: str, spark: SparkSession, options: Mapping[str, Any]) -> DataFrame | None:
    """Answer a call of the JVM by a DataFrame; None if it has to call `read` instead."""
    if name == "extremes":
        table = read_extremes(planned.snapshot.scan, options["columns"])
    elif name == "find":
        table = _find(planned, options["keys"])
    elif options.get("columns") == [] and can_count_by_descriptors(planned.snapshot):
        return spark.range(count_rows(planned.snapshot.scan)).select()
    else:
        return planned.frame(spark)
    return None if table is None else make_local_frame(spark, table)


def _find(planned: PlannedSnapshot, values: Mapping[str, list[Any]]) -> pa.Table | None:
    """Return the rows with these values of key columns; None if values do not fit their types."""
    scan = planned.snapshot.scan
    names = scan.schema.key_names
    combinations = [*product(*(values[name] for name in names))]
    if not combinations:
        return scan.empty([*scan.columns])
    columns = zip(names, zip(*combinations, strict=True), strict=True)
    try:
        arrays = [pa.array(column, scan.schema.arrow.field(name).type) for name, column in columns]
    except (pa.ArrowException, OverflowError, TypeError):
        return None
    lookup = Lookup(scan)
    requested = lookup.to_lookup_keys(pa.table(arrays, [*names]))
    with planned.address.open_store() as storage:
        rows = lookup.read_contents(requested, "rows", PartReader(storage.blob))
    if "_diff" not in rows.column_names:
        return rows
    return pa.concat_tables([pa.Table.from_batches([], planned.snapshot.schema), *repeat_rows(rows, scan)])


def call_safely(function: Callable[[SparkSession, dict[str, Any]], Any], arguments: str, session: Any) -> Any:
    """Call a function for the JVM; return errors as texts, because Py4J would show a traceback."""
    context = SparkContext._active_spark_context
    assert context is not None, "a session calls"
    try:
        result = function(SparkSession(context, session), json.loads(arguments))
    except PersistError as error:
        return f"!{type(error).__name__}: {error}"
    except PySparkException as error:
        return f"!{error}"
    return result._jdf if isinstance(result, DataFrame) else json.dumps(result)


class _PlannerOfOne:
    """Implements the Java interface `Planner` for one snapshot; keeps the DataFrame of all rows."""

    def __init__(self, planned: PlannedSnapshot) -> None:
        self._planned = planned
        self._rows: DataFrame | None = None

    def call(self, name: str, arguments: str, session: Any, *_: Any) -> Any:
        """Answer one call of the JVM; see `jvm/Planner.java`."""
        return call_safely(lambda spark, options: self._answer(spark, name, options), arguments, session)

    def _answer(self, spark: SparkSession, name: str, options: Mapping[str, Any]) -> DataFrame | None:
        """Return the rows for a call; make the DataFrame of all rows only once."""
        if name != "read" or options:
            return answer(self._planned, name, spark, options)
        if self._rows is None:
            self._rows = answer(self._planned, name, spark, options)
        return self._rows

    class Java:
        implements = ("dev.persist.spark.Planner",)
