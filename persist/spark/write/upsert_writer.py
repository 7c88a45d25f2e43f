"""`df.write.format("persist").option("mode", "upsert")`: events that fit on the driver, as one commit.

A data source cannot ask Spark to bring all events of a key together. So the rows come to the driver, which is what
small batches are best served with; those that are too large for it are for `persist.spark.upsert`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from persist.errors import InvalidUsage
from persist.sink import commit_events, seal_done, writing
from persist.spark.options.write import WriteOptions
from persist.spark.surfaced_errors import surfaced_errors
from persist.spark.write.event_rows import packed, planned, rows_of

TASK_BYTES_MAX, ROWS_BYTES_MAX = 64 << 20, 256 << 20


@dataclass
class Sent(WriterCommitMessage):
    """The rows of one task."""

    rows: bytes | None
    size: int


def sent_rows(batches: Iterable[pa.RecordBatch]) -> tuple[bytes | None, int]:
    """Return what a task has, as an Arrow stream, and its size.

    Raises:
        InvalidUsage: it is too much.
    """
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        size += batch.nbytes
        check_size(size, TASK_BYTES_MAX, "a task has")
        if batch.num_rows:
            held.append(batch)
    return (packed(held) if held else None), size


def check_size(size: int, most: int, what: str) -> None:
    """Raise InvalidUsage if there are more bytes of events than the driver takes."""
    if size > most:
        raise InvalidUsage(
            f"{what} {size:,} bytes of events, and the data source takes {most:,} to the driver. Use "
            "persist.spark.upsert(df, …), which resolves them in tasks; of a stream in foreachBatch, by "
            "persist.spark.foreach_batch_writer."
        )


class UpsertWriter(DataSourceArrowWriter):
    """Gives the rows of a DataFrame to a keyed collection as one commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        time = options.time if options.column is None else options.column
        self._schema = schema
        self._late_to = options.late_collection
        self._work = planned(
            options.location, options.collection, schema, time, options.seal, options.token, None, options.storage,
            collects=options.late in ("drop", "collect"),
        )  # fmt: skip

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        with surfaced_errors():
            return Sent(*sent_rows(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all rows, and the seal if one was asked for; raises what rejects it."""
        with surfaced_errors(), writing(self._work.target.location, self._work.target.storage) as engine:
            if self._work.is_done:
                seal_done(engine, self._work)
                return
            each = [message for message in messages if isinstance(message, Sent)]
            check_size(sum(one.size for one in each), ROWS_BYTES_MAX, "the DataFrame has")
            rows = rows_of(self._schema, [one.rows for one in each if one.rows is not None])
            commit_events(engine, self._work, rows, late_to=self._late_to)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is to be undone: tasks store nothing."""
