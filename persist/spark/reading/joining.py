"""`persist.spark.as_of_join`: each row of a DataFrame with what its key held at the time of that row.

Rows are ranged by key over tasks, and each task looks its keys up in history by itself, as `Collection.as_of_join`
does: no history goes through a shuffle, and of keys that no row names only what shares row groups with others is read.
Contents as of sealed times do not change, so tasks that run later, or again, find the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from persist.engine import READ_TIMEOUT_S, CollectionHandle, Engine, loaded, read_engine
from persist.engine import as_of_join as engine_as_of_join
from persist.errors import CollectionNotFound
from persist.read import BATCH_ROWS_MAX
from persist.sink import gathered
from persist.spark.data_source import prepared
from persist.spark.options import seen_by_all
from persist.spark.tasks import surfaced_errors
from persist.spark.types import as_spark_expects, quoted, spark_schema, utc_arrow_schema


@dataclass(frozen=True)
class _Join:
    """A join as it was planned: what each task does with its rows, for `DataFrame.mapInArrow`."""

    location: str
    storage: Mapping[str, Any]
    collection: str
    time: str
    on: tuple[str, ...] | None
    columns: tuple[str, ...] | None
    timeout_s: float | None
    id: str = ""
    schema: StructType | None = None

    def opened(self) -> Engine:
        return read_engine(self.location, self.storage)

    def joined(self, handle: CollectionHandle, rows: pa.Table) -> pa.Table:
        """Return some rows with what was found for them."""
        return engine_as_of_join(handle.newest(), rows, self.time, self.on, self.columns, self.timeout_s)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self.schema is not None
        with surfaced_errors(), self.opened() as engine:
            handle = loaded(engine, self.collection)
            if handle.id != self.id:  # Another has got its name meanwhile.
                raise CollectionNotFound(self.collection, engine.url, ())
            for rows in gathered(batches):
                joined = as_spark_expects(self.joined(handle, rows), self.schema)
                yield from joined.to_batches(max_chunksize=BATCH_ROWS_MAX)


def as_of_join(
    df: DataFrame,
    location: str,
    collection: str,
    *,
    time: str = "at",
    on: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    timeout_s: float | None = READ_TIMEOUT_S,
) -> DataFrame:
    """Return a DataFrame with the value that the key of each row had at the time of that row.

    A row whose key had nothing then has NULLs, and one whose key had several records comes once for each. Nothing is
    read before an action. Memory of a task: 64 MiB of rows, and the history of their keys.

    Args:
        time: the column of times: integers or, if the collection has a timeline, TIMESTAMP.
        on: the columns that stand for the key fields, in their order; None for those of the same names.
        columns: the value columns wanted; None for all.
        partitions: how many tasks look up; None lets Spark choose by the size of the data.
        storage_options: as for `persist.open`.
        timeout_s: how long a task waits for the last of its times to be sealed.

    Raises:
        CollectionNotFound, SchemaMismatch, InvalidUsage: a column is missing, of another type, or in both.
        What tasks find (`AsOfNotSealed`, `AsOfCompacted`, `NegativeMultiplicity`) comes as Spark's errors, with ours in
        their message.
    """
    prepared(df.sparkSession)
    names = None if on is None else (on,) if isinstance(on, str) else tuple(on)
    wanted = None if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)
    plan = _Join(seen_by_all(location), dict(storage_options or {}), collection, time, names, wanted, timeout_s)
    with plan.opened() as engine:
        handle = loaded(engine, collection)
        empty = plan.joined(handle, utc_arrow_schema(df.schema).empty_table())
        added = pa.schema([empty.schema.field(name) for name in empty.column_names[len(df.columns) :]])
        schema = StructType([*df.schema.fields, *spark_schema(added).fields])
        keys = [quoted(name) for name in names or handle.schema.key_names]
        plan = replace(plan, id=handle.id, schema=schema)
    if keys:
        df = df.repartitionByRange(*keys) if partitions is None else df.repartitionByRange(partitions, *keys)
    return df.mapInArrow(plan, schema)
