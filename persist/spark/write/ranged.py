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
from persist.sink.late import LateFilter
from persist.sink.uploads import Target, gathered, upload
from persist.spark.surfaced_errors import surfaced_errors
from persist.spark.write.updates import Rows

RESULT = "uploaded binary"


@dataclass(frozen=True)
class UploadTask:
    """What each task of the job does.

    Attributes:
        lower: updates before it are late and left out, unless it is None.
    """

    target: Target
    rows: Rows
    lower: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row: the descriptors of the parts that hold batches, and how many updates were late."""
        late = LateFilter(self.lower)
        with surfaced_errors():
            parts = upload(self.target, (late.kept(self.rows.updates(table)) for table in gathered(batches)))
            said = msgspec.json.encode((parts, late.count))
            yield pa.record_batch({"uploaded": pa.array([said], pa.binary())})


def upload_by_tasks(df: DataFrame, task: UploadTask) -> tuple[list[Part], int]:
    """Run a job that uploads all rows; return the parts, and how many updates were late.

    Only one attempt of each task counts; what others have stored is garbage, as is all if the job fails.
    """
    parts: list[Part] = []
    late = 0
    for row in df.mapInArrow(task.__call__, RESULT).collect():
        some, left_out = msgspec.json.decode(row.uploaded, type=tuple[tuple[Part, ...], int])
        parts += some
        late += left_out
    return parts, late


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
