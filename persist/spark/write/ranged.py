"""Uploads by the tasks of an ordinary Spark job, which returns descriptors of parts for the driver to commit.

Rows are ranged by key over the tasks and sorted within them, in an order that agrees with that of parts, so that the
parts of one job do not overlap. Spark orders as parts do: NULL last is asked for, NaN comes after numbers, and text is
compared by bytes. Columns with values within values are left out of it, because Spark puts a NULL in there first; what
remains to be sorted, tasks sort.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from persist.codecs import CollectionSchema, Part
from persist.sink import DigestSum, LateFilter, Target, digests_added, gathered, upload
from persist.spark.surfaced_errors import surfaced_errors
from persist.spark.write.updates import Rows

RESULT = "uploaded binary"


@dataclass(frozen=True)
class UploadTask:
    """What each task of the job does.

    Attributes:
        lower: updates before it are late and left out, unless it is None.
        digest_by: by what columns the digest of the rows is taken; none if nobody needs it.
        marker: a column that is true where a row counts for the digest; it is not written. None: all of them count.
        only_digest: upload nothing.
    """

    target: Target
    rows: Rows
    lower: int | None = None
    digest_by: tuple[str, ...] = ()
    marker: str | None = None
    only_digest: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row, that of an `Uploaded`."""
        late, digest = LateFilter(self.lower), DigestSum(self.digest_by)
        with surfaced_errors():
            tables = (late.kept(self._updates(table, digest)) for table in gathered(batches))
            if self.only_digest:
                tables = (table.slice(0, 0) for table in tables)
            parts = upload(self.target, tables)
            said = msgspec.json.encode(Uploaded(parts, late.count, digest.total))
            yield pa.record_batch({"uploaded": pa.array([said], pa.binary())})

    def _updates(self, table: pa.Table, digest: DigestSum) -> pa.Table:
        if self.marker is None:
            return digest.passed(self.rows.updates(table))
        rows = table.drop_columns([self.marker])
        digest.passed(self.rows.updates(rows.filter(table[self.marker])))
        return self.rows.updates(rows)


class Uploaded(msgspec.Struct, frozen=True, array_like=True):
    """What came of tasks.

    Attributes:
        parts: that they stored.
        late: how many updates were left out.
        digest: of the rows that they were given; None if it was not wanted.
    """

    parts: tuple[Part, ...]
    late: int
    digest: int | None


def upload_by_tasks(df: DataFrame, task: UploadTask) -> Uploaded:
    """Run a job that uploads all rows, and return what came of all tasks.

    Only one attempt of each task counts; what others have stored is garbage, as is all if the job fails.
    """
    rows = df.mapInArrow(task.__call__, RESULT).collect()
    each = [msgspec.json.decode(row.uploaded, type=Uploaded) for row in rows]
    digest = digests_added(one.digest for one in each) if task.digest_by else None
    return Uploaded(tuple(part for one in each for part in one.parts), sum(one.late for one in each), digest)


def ranged(df: DataFrame, schema: CollectionSchema, partitions: int | None = None) -> DataFrame:
    """Return df ranged over tasks by key, and sorted within them by key, value and `_time`.

    Args:
        partitions: how many tasks; None lets Spark choose by the size of the data, up to spark.sql.shuffle.partitions.
    """
    keys = [_ascending(name) for name in _leading(schema, schema.key_names)]
    if keys:
        df = df.repartitionByRange(*keys) if partitions is None else df.repartitionByRange(partitions, *keys)
    elif partitions is not None:
        df = df.repartition(partitions)
    order = _leading(schema, (*schema.names, "_time") if "_time" in df.columns else schema.names)
    return df.sortWithinPartitions(*map(_ascending, order)) if order else df


def is_ranged_by_key(schema: CollectionSchema) -> bool:
    """Whether all rows of one key come to the same task in `ranged`."""
    folded = {name.lower() for name in schema.arrow.names}
    if len(folded) < len(schema.arrow.names):
        return False  # Mostly, Spark cannot tell columns apart that differ by case only.
    return bool(schema.key_names) and not pt.is_nested(schema.arrow.field(schema.key_names[0]).type)


def _leading(schema: CollectionSchema, names: Iterable[str]) -> list[str]:
    """Return names up to the first of a column that Spark does not order as parts do."""
    found: list[str] = []
    for name in names:
        if pt.is_nested(schema.arrow.field(name).type):
            break
        found.append(name)
    return found


def _ascending(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`").asc_nulls_last()
